"""Modules under trace: found behind a callable, and lent fake parameters and buffers while it runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from stax.base.errors import CaptureError


def find_module(fn: Any) -> torch.nn.Module | None:
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
    if isinstance(module, torch.jit.ScriptModule):
        raise CaptureError(
            f"{type(module).__name__} is scripted", hint="pass the module that it was made from"
        )
    owners = dict(module.named_modules())
    saved = [
        _Saved(o, dict(o.__dict__), dict(o._parameters), dict(o._buffers)) for o in owners.values()
    ]
    lent: dict[int, Tensor] = {}
    for source in ("parameter", "buffer"):
        for prefix, owner in owners.items():
            for leaf, tensor in _table(owner, source).items():
                if tensor is not None:
                    lent[id(tensor)] = fake_of(_join(prefix, leaf), tensor, source)
    try:
        for one in saved:
            one.owner._parameters.update(_lend(one.parameters, lent))
            one.owner._buffers.update(_lend(one.buffers, lent))
        yield
        for prefix, one in zip(owners, saved):
            _check_unchanged(prefix, one, lent)
    finally:
        for one in saved:
            one.restore()


@dataclass(frozen=True)
class _Saved:
    """What a module held before the trace."""

    owner: torch.nn.Module
    attributes: dict[str, Any]
    parameters: dict[str, Any]
    buffers: dict[str, Any]

    def restore(self) -> None:
        for table, held in (
            (self.owner._parameters, self.parameters),
            (self.owner._buffers, self.buffers),
        ):
            table.clear()
            table.update(held)
        for key, value in list(self.owner.__dict__.items()):
            if not _fakes_in(value):
                continue
            if isinstance(value, list) and self.attributes.get(key) is value:
                value[:] = [v for v in value if not isinstance(v, FakeTensor)]
                continue
            del self.owner.__dict__[key]
            self.owner.__dict__.update({k: v for k, v in self.attributes.items() if k == key})


def _fakes_in(value: Any) -> list[Tensor]:
    """A fake tensor, or those in a list, tuple or dict."""
    inside = value.values() if isinstance(value, dict) else value
    many = inside if isinstance(value, (list, tuple, dict)) else (value,)
    return [v for v in many if isinstance(v, FakeTensor)]


def _table(owner: torch.nn.Module, source: str) -> dict[str, Any]:
    return owner._parameters if source == "parameter" else owner._buffers  # type: ignore[return-value]


def _lend(held: dict[str, Any], lent: dict[int, Tensor]) -> dict[str, Any]:
    return {leaf: lent[id(tensor)] for leaf, tensor in held.items() if tensor is not None}


def _check_unchanged(prefix: str, one: _Saved, lent: dict[int, Tensor]) -> None:
    """Raises CaptureError for a parameter, buffer or attribute that the program set to a tensor of the trace."""
    for source, held in (("parameter", one.parameters), ("buffer", one.buffers)):
        expected = held | _lend(held, lent)
        for leaf, tensor in _table(one.owner, source).items():
            if tensor is not expected.get(leaf):
                raise CaptureError(
                    f"the program replaces {source} {_join(prefix, leaf)}",
                    hint=f"write it in place: self.{leaf}.copy_(...)",
                )
    stand_ins = {id(v) for v in lent.values()}
    for key, value in one.owner.__dict__.items():
        # NOTE: torch's recurrent modules keep a list of their own parameters, which stand-ins may pass through.
        if any(id(v) not in stand_ins for v in _fakes_in(value)):
            raise CaptureError(
                f"the program keeps a tensor in attribute {_join(prefix, key)}",
                hint="register it as a buffer and write it in place, or return it",
            )


def _join(prefix: str, leaf: str) -> str:
    return f"{prefix}.{leaf}" if prefix else leaf
