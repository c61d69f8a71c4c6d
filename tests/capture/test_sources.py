"""Which functions ran, what their code is, and how code is found again by name."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path
from types import CodeType, ModuleType

import pytest
import torch
from capturing import capture
from torch import Tensor, nn

from stax.artifact.artifact import TracedSource
from stax.artifact.sources import code_digest, find, holds


def code(text: str, name: str = "f") -> CodeType:
    space: dict[str, object] = {}
    exec(compile(textwrap.dedent(text), "anywhere.py", "exec", dont_inherit=True), space)
    return space[name].__code__  # type: ignore[attr-defined, no-any-return]


BASE = """
    def f(x, n=2):
        def inner(y):
            return y * 3
        return inner(x) + sum(i for i in (1, 2.0, "a", None) if i in {4, 5, 6})
"""


def test_a_digest_ignores_place_and_sees_everything_else() -> None:
    base = code_digest(code(BASE))
    moved = "\n\n\n# a comment\n" + textwrap.dedent(BASE)
    assert code_digest(code(moved)) == base
    for old, new in (
        ("* 3", "* 4"), ("* 3", "* 3.0"), ("y * 3", "y + 3"), ("(x, n", "(x, *, n"), ("{4, 5, 6}", "{4, 5, 7}"),
        ("inner", "outer"), ("None", "..."), ('"a"', 'b"a"'), ("(1, 2.0", "(True, 2.0"), ("(1, 2.0", "(1, 2"),
    ):  # fmt: skip
        assert code_digest(code(BASE.replace(old, new))) != base, (old, new)


def test_a_digest_is_one_in_every_process(tmp_path: Path) -> None:
    program = tmp_path / "anywhere.py"
    program.write_text(textwrap.dedent(BASE))
    found = {code_digest(code(BASE))}
    for seed, folder in (("1", "a"), ("2", "b")):
        place = tmp_path / folder
        place.mkdir()
        (place / "mod.py").write_text(textwrap.dedent(BASE))
        script = "import mod; from stax.artifact.sources import code_digest; print(code_digest(mod.f.__code__))"
        path = f"{place}:{Path(__file__).parents[2]}"
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": path}
        run = subprocess.run(
            [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
        )
        found.add(run.stdout.strip())
    assert len(found) == 1


def module(tmp_path: Path, text: str, name: str) -> ModuleType:
    path = tmp_path / f"{name}.py"
    path.write_text(textwrap.dedent(text))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


DECORATED = """
    import functools
    def wrap(fn):
        @functools.wraps(fn)
        def wrapper(*args):
            return fn(*args)
        return wrapper
    def hide(fn):
        return lambda *args: fn(*args)
    class C:
        @wrap
        @hide
        def method(self): return 1
        @property
        def p(self): return 2
        @p.setter
        def p(self, v): pass
        @staticmethod
        def s(): return 3
        @classmethod
        def c(cls): return 4
        class D:
            def deep(self): return 5
    plain = 3
"""


def test_code_is_found_behind_decorators_and_descriptors(tmp_path: Path) -> None:
    loaded = module(tmp_path, DECORATED, "decorated_for_test")
    name = loaded.__name__
    for qualname in ("C.method", "C.p", "C.s", "C.c", "C.D.deep", "wrap"):
        assert find(name, qualname) is not None, qualname
    getter, setter = loaded.C.p.fget.__code__, loaded.C.p.fset.__code__
    assert all(holds(TracedSource(name, "C.p", code_digest(c))) for c in (getter, setter))
    assert holds(TracedSource(name, "C.p", "0" * 64)) is False
    for qualname in ("absent", "C.absent", "plain", "wrap.<locals>.wrapper"):
        assert find(name, qualname) is None and holds(TracedSource(name, qualname, "")) is None
    assert find("a_module_that_is_not_imported", "f") is None
    del sys.modules[name]


def helper(x: Tensor) -> Tensor:
    return x + 1


def never(x: Tensor) -> Tensor:
    return x - 1


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return self.scale * helper(x) if self.is_on() else never(x)

    @property
    def scale(self) -> float:
        return 2.0

    def is_on(self) -> bool:
        return True


def test_what_ran_is_recorded_and_nothing_else() -> None:
    captured = capture(Model(), torch.ones(3))
    mine = [s for s in captured.traced_sources if s.module == __name__]
    assert [s.qualname for s in mine] == ["Model.forward", "Model.is_on", "Model.scale", "helper"]
    assert all(holds(s) for s in mine)
    roots = {s.module.partition(".")[0] for s in captured.traced_sources}
    assert not roots & {"torch", "stax", "sympy", "functools", "collections"}


def test_a_changed_function_no_longer_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = capture(lambda x: helper(x), torch.ones(3))
    (source,) = [s for s in captured.traced_sources if s.qualname == "helper"]
    assert holds(source)
    monkeypatch.setitem(globals(), "helper", code_owner("def helper(x): return x + 2"))
    assert holds(source) is False


def code_owner(text: str) -> object:
    space: dict[str, object] = {}
    exec(text, space)
    return space["helper"]


def test_the_profiler_of_the_caller_is_put_back() -> None:
    def profile(*_: object) -> None: ...

    sys.setprofile(profile)
    try:
        capture(helper, torch.ones(3))
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
