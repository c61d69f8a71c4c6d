"""The fingerprint changes when something changes that tracing could see, and with nothing else."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stax.artifact.fingerprint import fingerprint
from stax.base.errors import CaptureError

REPO = Path(__file__).parents[2]


def load(text: str, extra: dict[str, Any] | None = None) -> dict[str, Any]:
    """A program as a module called "program" would hold it."""
    space: dict[str, Any] = {"__name__": "program", "torch": torch, "nn": nn, **(extra or {})}
    exec(compile(textwrap.dedent(text), "program.py", "exec"), space)
    return space


def of(text: str, **extra: Any) -> tuple[tuple[str, str], ...]:
    return fingerprint(load(text, extra)["f"])


PROGRAM = """
    SCALE = 3
    TABLE = {"a": (1, 2.5), "b": [True, None]}
    class Config:
        width = 7
        def __init__(self): self.depth = 2
        def area(self): return self.width * self.depth
    CONFIG = Config()
    def deepest(x):
        return x * 5
    def helper(x, power=2):
        return deepest(x) ** power
    def make(n, mode):
        kinds = {"x", "y"}
        def f(x, *, eps=1e-6):
            g = lambda y: y + n
            return g(helper(x)) * SCALE + TABLE["a"][0] + CONFIG.area() + (mode in kinds) + eps
        return f
    f = make(4, "x")
"""

CHANGES = {
    "a global constant": ("SCALE = 3", "SCALE = 4"),
    "its type": ("SCALE = 3", "SCALE = 3.0"),
    "a value in a table": ("2.5", "2.25"),
    "a key of a table": ('"b": [', '"c": ['),
    "a class attribute": ("width = 7", "width = 8"),
    "an attribute of an object": ("self.depth = 2", "self.depth = 3"),
    "a method": ("self.width * self.depth", "self.width + self.depth"),
    "a helper's helper": ("x * 5", "x * 6"),
    "a helper": ("** power", "** -power"),
    "a helper's default": ("power=2", "power=3"),
    "a keyword default": ("eps=1e-6", "eps=1e-5"),
    "a closure number": ("make(4,", "make(5,"),
    "a closure string": ('"x")', '"z")'),
    "a closure set": ('{"x", "y"}', '{"x", "w"}'),
    "an inner function": ("y + n", "y - n"),
    "the body": ("+ eps", "- eps"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_counts(change: str) -> None:
    old, new = CHANGES[change]
    assert old in PROGRAM
    assert of(PROGRAM.replace(old, new)) != of(PROGRAM)


INDIFFERENT = {
    "lines": ("SCALE = 3", "\n\n\n    SCALE = 3  # three"),
    "order of a set": ('{"x", "y"}', '{"y", "x"}'),
    "an unused global": ("SCALE = 3", "OTHER = 9\n    SCALE = 3"),
    "an unused function": ("SCALE = 3", "def unused(): return 1\n    SCALE = 3"),
}


@pytest.mark.parametrize("change", INDIFFERENT)
def test_a_change_that_does_not_count(change: str) -> None:
    old, new = INDIFFERENT[change]
    assert of(PROGRAM.replace(old, new)) == of(PROGRAM)


MODEL = """
    class Block(nn.Module):
        def __init__(self, width, act="relu"):
            super().__init__()
            self.linear = nn.Linear(width, width)
            self.act, self.eps = act, 1e-6
            self.options = {"deep": [1, 2, {"drop": 0.1}]}
            self.register_buffer("steps", torch.arange(4.0))
        def forward(self, x):
            return self.finish(getattr(torch, self.act)(self.linear(x)))
        def finish(self, x):
            return x + self.eps
        def unused(self, x):
            return x - 99
    f = nn.Sequential(Block(4), Block(4)).eval()
"""

MODEL_CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "training": lambda m: m.train(),
    "training of one": lambda m: m[1].train(),
    "a float attribute": lambda m: setattr(m[0], "eps", 1e-5),
    "a deep option": lambda m: m[1].options["deep"][2].update(drop=0.2),
    "a new attribute": lambda m: setattr(m[0], "flag", True),
    "a width": lambda m: setattr(m[0], "linear", nn.Linear(4, 5)),
    "a dtype": lambda m: m[0].half(),
    "strides": lambda m: setattr(m[0].linear.weight, "data", m[0].linear.weight.data.t()),
    "requires_grad": lambda m: m[0].linear.weight.requires_grad_(False),
    "a tie": lambda m: setattr(m[1].linear, "weight", m[0].linear.weight),
    "a hook": lambda m: m[0].register_forward_hook(lambda *a: None),
    "a pre-hook": lambda m: m[0].register_forward_pre_hook(lambda *a: None),
    "one more layer": lambda m: m.append(nn.ReLU()),
    "a replaced forward": lambda m: setattr(m[0], "forward", lambda x: x),
    "a buffer's size": lambda m: setattr(m[0], "steps", torch.arange(5.0)),
}


@pytest.mark.parametrize("change", MODEL_CHANGES)
def test_a_change_of_a_module_that_counts(change: str) -> None:
    model = load(MODEL)["f"]
    MODEL_CHANGES[change](model)
    assert fingerprint(model) != of(MODEL)


def test_the_code_of_a_module_counts_where_forward_reaches_it() -> None:
    assert of(MODEL.replace("x + self.eps", "x * self.eps")) != of(MODEL)
    assert of(MODEL.replace("x - 99", "x - 98")) == of(MODEL)


def test_values_of_parameters_do_not_count() -> None:
    model = load(MODEL)["f"]
    before = fingerprint(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert fingerprint(model) == before


def test_a_captured_tensor_counts_with_its_elements() -> None:
    def make(value: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: x + value

    base = fingerprint(make(torch.ones(3)))
    assert fingerprint(make(torch.ones(3))) == base
    for other in (torch.zeros(3), torch.ones(4), torch.ones(3).double(), torch.ones(3, 2)[:, 0]):
        assert fingerprint(make(other)) != base


def test_partials_methods_and_callable_objects() -> None:
    def scale(x: Tensor, by: int) -> Tensor:
        return x * by

    class Scaler:
        def __init__(self, by: int) -> None:
            self.by = by

        def __call__(self, x: Tensor) -> Tensor:
            return x * self.by

    for make in (lambda n: functools.partial(scale, by=n), Scaler, lambda n: Scaler(n).__call__):
        assert fingerprint(make(2)) == fingerprint(make(2)) != fingerprint(make(3))
    model = nn.Linear(3, 3)
    assert fingerprint(model) != fingerprint(model.extra_repr)


@pytest.mark.parametrize(
    "make",
    [Path(__file__).open, lambda: iter([1]), lambda: (i for i in ())],
)
def test_what_can_not_be_told_is_an_error_that_names_it(make: Callable[[], Any]) -> None:
    held = make()

    def fn(x: Tensor) -> Tensor:
        return x if held else -x

    with pytest.raises(CaptureError, match="closure variable held"):
        fingerprint(fn)
    getattr(held, "close", lambda: None)()


def test_recursion_ends() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    node = SimpleNamespace(name="a")
    node.itself = node

    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return bool(loop) and bool(node) and n != 0 and even(n - 1)

    assert fingerprint(even) == fingerprint(even)


SCRIPT = """
import sys
{program}
from stax.artifact.fingerprint import fingerprint
print(fingerprint(f))
"""


@pytest.mark.parametrize("text", [PROGRAM, MODEL], ids=["function", "module"])
def test_processes_folders_and_hash_seeds_agree(text: str, tmp_path: Path) -> None:
    def runs() -> Iterator[str]:
        for seed, folder in (("1", "here"), ("77", "there/deeper")):
            place = tmp_path / folder
            place.mkdir(parents=True)
            body = "import torch\nfrom torch import nn\n" + textwrap.dedent(text)
            (place / "program.py").write_text(body)
            script = "import program; from stax.artifact.fingerprint import fingerprint; print(fingerprint(program.f))"
            env = {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{place}:{REPO}"}
            done = subprocess.run(
                [sys.executable, "-c", script],
                env=env,
                capture_output=True,
                text=True,
                check=True,
                cwd=place,
            )
            yield done.stdout

    first, second = runs()
    assert first == second and first.startswith("((")


def test_a_transformers_model_by_value_of_its_config() -> None:
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()

    def make(**changes: Any) -> Any:
        options: dict[str, Any] = dict(n_layer=2, n_embd=16, n_head=2, vocab_size=50)
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**(options | changes))).eval()

    base = fingerprint(make())
    assert fingerprint(make()) == base
    moved = make()
    moved.config._name_or_path = moved.name_or_path = "somewhere/else"
    assert fingerprint(moved) == base
    for change in (
        {"layer_norm_epsilon": 1e-4},
        {"activation_function": "gelu"},
        {"n_layer": 3},
        {"use_cache": False},
    ):
        assert fingerprint(make(**change)) != base, change
    other = make()
    other.config._attn_implementation = "eager"
    assert fingerprint(other) != base


def test_nothing_that_compiles_is_imported() -> None:
    script = "import sys, torch; from stax.artifact.fingerprint import fingerprint; fingerprint(torch.nn.Linear(2, 2)); print(sorted({'torch._dynamo', 'sympy', 'triton'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPO
    )
    assert done.stdout.strip() == "[]"
