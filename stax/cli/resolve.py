"""From the text a person types to the object it names: ``module:callable``, its example inputs, ``name=value`` options."""

from __future__ import annotations

import difflib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from types import ModuleType
from typing import cast

from stax.base.errors import OptionError, UserError
from stax.base.options import Options

# By the type of the field: what reads its value. A KeyError is a word that is none of the two.
PARSERS: Mapping[str, Callable[[str], object]] = {
    "bool": {"true": True, "1": True, "false": False, "0": False}.__getitem__,
    "int": int,
    "str": str,
}


@dataclass(frozen=True)
class ExampleCall:
    """The arguments of one call."""

    args: tuple[object, ...]
    kwargs: Mapping[str, object]


def resolve(text: str, what: str) -> Callable[..., object]:
    """The callable that "module:name" (or "module:name.attribute") names, seen from the working directory.

    Raises OptionError when there is none, UserError when its module fails while it is imported.
    """
    module_name, _, path = text.partition(":")
    if not module_name or not path:
        raise OptionError(f"bad {what}", expected="module:callable", found=repr(text))
    value: object = _module(module_name, what)
    walked = module_name
    for name in path.split("."):
        try:
            value = getattr(value, name)
        except AttributeError as error:
            near = difflib.get_close_matches(name, dir(value), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"see what {walked} defines"
            raise OptionError(
                f"bad {what}", found=f"{walked} has no {name!r}", hint=hint
            ) from error
        walked = f"{walked}.{name}"
    if not callable(value):
        raise OptionError(f"bad {what}", expected="a callable", found=f"{text} is a {_kind(value)}")
    return value


def example_calls(inputs: str | None) -> list[ExampleCall]:
    """What the function that ``inputs`` names returns: (args, kwargs), or a list of such pairs. None: no arguments."""
    if inputs is None:
        return [ExampleCall((), {})]
    function = resolve(inputs, "--inputs")
    try:
        made = function()
    except (Exception, SystemExit) as error:
        # Broad because whatever a user's function raises, it is theirs to mend.
        raise _failed(f"{inputs} failed", error) from error
    listed = cast("list[object]", made) if isinstance(made, list) else [made]
    if not listed:
        raise OptionError(f"{inputs} returned no call", expected="(args, kwargs) or a list of them")
    return [_call(one, inputs) for one in listed]


def check_call(function: Callable[..., object], call: ExampleCall, inputs: str | None) -> None:
    """Raises OptionError when the callable does not take such arguments."""
    target = getattr(function, "forward", function)
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return  # it does not tell
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        raise OptionError(
            "bad --inputs" if inputs else "no --inputs",
            expected=f"arguments of {signature}", found=str(error),
            hint="" if inputs else "name a function that returns (args, kwargs): --inputs MODULE:FUNCTION",
        ) from error  # fmt: skip


def options_of(assignments: Sequence[str]) -> Options | None:
    """Options from "name=value" texts; None when there are none. Raises OptionError."""
    if not assignments:
        return None
    kinds = {f.name: str(f.type) for f in fields(Options)}
    values: dict[str, object] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or name not in kinds:
            expected = f"name=value of {', '.join(kinds)}"
            raise OptionError("bad --option", expected=expected, found=repr(text))
        try:
            values[name] = PARSERS[kinds[name]](value)
        except (ValueError, KeyError) as error:
            raise OptionError("bad --option", expected=kinds[name], found=repr(text)) from error
    return Options().with_(**values)


def _module(name: str, what: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise OptionError(
                f"bad {what}", found=f"no module named {error.name!r}", where=f"seen from {here}",
                hint="run in the folder of the module, or set PYTHONPATH",
            ) from error  # fmt: skip
        raise _failed(f"module {name} failed", error) from error
    except (Exception, SystemExit) as error:
        # Broad because whatever a user's module raises, it is theirs to mend.
        raise _failed(f"module {name} failed", error) from error


def _failed(what: str, error: BaseException) -> UserError:
    return UserError(what, found=kind_and_message(error), where=place_of(error))


def kind_and_message(error: BaseException) -> str:
    """ "ValueError: no weights", the first line of it."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def place_of(error: BaseException) -> str:
    """ "file:line" where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno}"


def _call(value: object, inputs: str) -> ExampleCall:
    pair = _pair(value)
    if len(pair) == 2 and isinstance(pair[0], (tuple, list)) and isinstance(pair[1], Mapping):
        args = tuple(cast("Sequence[object]", pair[0]))
        return ExampleCall(args, dict(cast("Mapping[str, object]", pair[1])))
    raise OptionError(
        f"{inputs} returned another thing", expected="(args, kwargs) or a list of them",
        found=_kind(value), hint="for example: return (x,), {}",
    )  # fmt: skip


def _pair(value: object) -> tuple[object, ...]:
    return cast("tuple[object, ...]", value) if isinstance(value, tuple) else ()


def _kind(value: object) -> str:
    return _type_name(type(value))


def _type_name(kind: type[object]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
