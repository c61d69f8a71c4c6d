"""Modules under trace: found behind a callable, and lent fake parameters and buffers while it runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from stax.base.errors import CaptureError


def find_module(fn: Callable[..., Any]) -> torch.nn.Module | None:
    """The module whose parameters are the callable's own: fn itself, or the self of a bound method of one."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, MethodType):
        fn = fn.__self__
    return fn if isinstance(fn, torch.nn.Module) else None


def captured_modules(fn: Callable[..., Any]) -> list[torch.nn.Module]:
    """Modules that a callable holds besides its own: in a closure, a default, a partial, a global it names, or an
    attribute of its self; also inside lists, tuples and dicts of those."""
    found: list[torch.nn.Module] = []
    for value in _held(fn):
        items = value.values() if isinstance(value, dict) else value
        many = items if isinstance(value, (list, tuple, dict)) else (value,)
        found += [v for v in many if isinstance(v, torch.nn.Module)]
    own = find_module(fn)
    return [m for m in found if m is not own]


def _held(fn: Any) -> Iterator[Any]:
    while isinstance(fn, functools.partial):
        yield from fn.args
        yield from fn.keywords.values()
        fn = fn.func
    if isinstance(fn, MethodType):
        yield fn.__self__
        if not isinstance(fn.__self__, torch.nn.Module):
            yield from getattr(fn.__self__, "__dict__", {}).values()
        fn = fn.__func__
    if not isinstance(fn, FunctionType):
        if not isinstance(fn, torch.nn.Module):
            yield from getattr(fn, "__dict__", {}).values()
        return
    yield from fn.__defaults__ or ()
    yield from (fn.__kwdefaults__ or {}).values()
    for cell in fn.__closure__ or ():
        # NOTE: a cell is empty until its variable is assigned.
        with contextlib.suppress(ValueError):
            yield cell.cell_contents
    for name in fn.__code__.co_names:
        if name in fn.__globals__:
            yield fn.__globals__[name]


@contextlib.contextmanager
def swapped(
    module: torch.nn.Module, fake_of: Callable[[str, Tensor, str], Tensor]
) -> Iterator[None]:
    """While open, every parameter and buffer of ``module`` is ``fake_of(name, tensor, source)``. Names and order are those
    of named_parameters and named_buffers; ties stay ties. Raises CaptureError when the program left fakes behind."""
    owners = dict(module.named_modules())
    places = [
        (owner._parameters if source == "parameter" else owner._buffers, leaf, tensor, source, name)
        for source in ("parameter", "buffer")
        for prefix, owner in owners.items()
        for leaf, tensor in (owner._parameters if source == "parameter" else owner._buffers).items()
        if tensor is not None
        for name in [f"{prefix}.{leaf}" if prefix else leaf]
    ]
    lent = [fake_of(name, tensor, source) for _, _, tensor, source, name in places]
    for (table, leaf, *_), fake in zip(places, lent):
        table[leaf] = fake
    try:
        yield
        _check_unchanged(places, lent, owners)
    finally:
        for table, leaf, tensor, *_ in places:
            table[leaf] = tensor


def _check_unchanged(places: Any, lent: list[Tensor], owners: dict[str, torch.nn.Module]) -> None:
    for (table, leaf, _, source, name), fake in zip(places, lent):
        if table.get(leaf) is not fake:
            raise CaptureError(
                f"the program replaces {source} {name}",
                hint=f"write it in place: self.{leaf}.copy_(...)",
            )
    for prefix, owner in owners.items():
        for key, value in owner.__dict__.items():
            if isinstance(value, FakeTensor):
                name = f"{prefix}.{key}" if prefix else key
                raise CaptureError(
                    f"the program keeps a tensor in attribute {name}",
                    hint="register it as a buffer and write it in place, or return it",
                )
