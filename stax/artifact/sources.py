"""Python code by content: a digest that survives moving the file, and the way back from a name to the code it means now."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, cast

from stax.artifact.artifact import TracedSource
from stax.base.digest import digest

MAX_STEPS = 64


@functools.lru_cache(maxsize=16384)
def code_digest(code: CodeType) -> str:
    """Digest of what a code object does: instructions, constants (nested code too), names and flags; never its file, its
    line numbers or an address."""
    return digest(_plain_code(code), "code")


def _plain_code(code: CodeType) -> tuple[object, ...]:
    return (
        code.co_qualname.rpartition(".")[2],
        code.co_code,
        tuple(_plain_const(c) for c in code.co_consts),
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_flags,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        code.co_exceptiontable,
    )


def _plain_const(value: object) -> object:
    """A code constant as digest() takes it, with its type: 1, 1.0 and True are different programs."""
    if isinstance(value, CodeType):
        return "code", code_digest(value)
    if isinstance(value, tuple):
        return "tuple", tuple(_plain_const(v) for v in cast("tuple[object, ...]", value))
    if isinstance(value, frozenset):
        return "set", frozenset(_plain_const(v) for v in cast("frozenset[object]", value))
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, complex):
        return "complex", value.real, value.imag
    return "other", repr(value)


def find(module: str, qualname: str) -> str | None:
    """Digest of the function that these names mean in this process; None when its module is not imported or they lead to
    no function, as "f.<locals>.g" does. Imports nothing."""
    return next((code_digest(code) for code in _codes(module, qualname)), None)


def holds(source: TracedSource) -> bool | None:
    """The function still has the code it was captured with; None when it can not be found here."""
    found = {code_digest(code) for code in _codes(source.module, source.qualname)}
    return source.digest in found if found else None


def _codes(module: str, qualname: str) -> Iterator[CodeType]:
    """Code objects called ``qualname`` behind the attribute of that name: under decorators, in properties and methods."""
    owner: Any = sys.modules.get(module)
    *path, name = qualname.split(".")
    for part in path:
        owner = getattr(owner, "__dict__", {}).get(part)
    waiting = [getattr(owner, "__dict__", {}).get(name)]
    seen: set[int] = set()
    while waiting and len(seen) < MAX_STEPS:
        value = waiting.pop(0)
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType) and value.__code__.co_qualname == qualname:
            yield value.__code__
        waiting += _behind(value)


_WRAPPERS = ("__wrapped__", "__func__", "fget", "fset", "fdel", "func")


def _behind(value: Any) -> Iterator[Any]:
    """Functions that a decorated function, a property, a method or a partial holds."""
    for name in _WRAPPERS:
        inner = getattr(value, name, None)
        if isinstance(inner, (FunctionType, MethodType, functools.partial, property)):
            yield inner
    cells: tuple[CellType, ...] = getattr(value, "__closure__", None) or ()
    for cell in cells:
        try:
            inner = cell.cell_contents
        except ValueError:
            continue
        if isinstance(inner, (FunctionType, MethodType)):
            yield inner
