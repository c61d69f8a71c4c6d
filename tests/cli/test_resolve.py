"""Texts that name objects, example calls and options."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stax.base.errors import OptionError, UserError
from stax.base.options import Options
from stax.cli.resolve import ExampleCall, check_call, example_calls, options_of, resolve

MODULE = """
class Model:
    def forward(self): ...
model = Model()
def one(): return (1, 2), {"k": 3}
def many(): return [((1,), {}), ([2], {})]
def none(): return []
def bare(): return 7
def boom(): return 1 // 0
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that only the working directory has."""
    (tmp_path / "example_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "example_module", raising=False)
    return "example_module"


def test_attributes_are_walked(module: str) -> None:
    assert resolve(f"{module}:model.forward", "callable").__name__ == "forward"


def test_calls(module: str) -> None:
    assert example_calls(None) == [ExampleCall((), {})]
    assert example_calls(f"{module}:one") == [ExampleCall((1, 2), {"k": 3})]
    assert example_calls(f"{module}:many") == [ExampleCall((1,), {}), ExampleCall((2,), {})]


@pytest.mark.parametrize("name", ["none", "bare"])
def test_other_results_are_refused(module: str, name: str) -> None:
    with pytest.raises(OptionError, match=r"expected \(args, kwargs\) or a list of them"):
        example_calls(f"{module}:{name}")


def test_failing_function_is_named_with_its_line(module: str) -> None:
    with pytest.raises(
        UserError, match=r"boom failed; found ZeroDivisionError.*example_module.py:9"
    ):
        example_calls(f"{module}:boom")


def test_a_module_that_misses_another_is_not_taken_for_missing(tmp_path: Path, module: str) -> None:
    (tmp_path / "needy.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(UserError, match="module needy failed; found ModuleNotFoundError") as caught:
        resolve("needy:f", "callable")
    assert not isinstance(caught.value, OptionError)


def test_options() -> None:
    assert options_of([]) is None
    given = options_of(["numerics=fast", "fusion=false", "max_specializations=3"])
    assert given == Options(numerics="fast", fusion=False, max_specializations=3)


@pytest.mark.parametrize(
    "text", ["numerics", "speed=1", "fusion=maybe", "max_specializations=x", "numerics=odd"]
)
def test_bad_options_are_refused(text: str) -> None:
    with pytest.raises(OptionError):
        options_of([text])


def test_a_call_that_the_callable_does_not_take() -> None:
    def takes_one(x: object) -> None: ...

    check_call(takes_one, ExampleCall((1,), {}), "m:inputs")
    with pytest.raises(
        OptionError,
        match=r"no --inputs; expected arguments of \(x: .*missing a req.*--inputs MODULE",
    ):
        check_call(takes_one, ExampleCall((), {}), None)
    with pytest.raises(OptionError, match=r"bad --inputs; .* too many positional"):
        check_call(takes_one, ExampleCall((1, 2), {}), "m:inputs")
