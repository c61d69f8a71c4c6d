"""Mutation made functional: which tensors share a storage, how each view is made again from its root, and what a write
through a view makes of the root. The recorder feeds it; every operator it needs goes back through ``Emit``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from stax.capture.value import Geometry, Value
from stax.capture.views import View, scatter

Func = Callable[..., Any]


class Emit(Protocol):
    """Runs an operator on fake tensors and records it on values; ``pairs`` are (fake, value) where it takes a tensor."""

    def __call__(self, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pair: ...


@dataclass(frozen=True)
class Pair:
    """A tensor argument or result: the fake tensor that shows its geometry, and its recorded value."""

    fake: Tensor
    value: Value


class Storage:
    """One memory. ``version`` counts writes; ``value`` is the root tensor's present value; ``owner`` names the input that
    brought it, "" for a temporary."""

    __slots__ = ("owner", "root", "value", "version")

    def __init__(self, value: Value, owner: str) -> None:
        self.version = 0
        self.value = value
        self.owner = owner
        self.root: Handle


class Handle:
    """What is known of one fake tensor: its storage, the view that made it of ``parent``, and the value it had at
    ``version`` of the storage."""

    __slots__ = ("fake", "parent", "storage", "value", "version", "view")

    def __init__(
        self, fake: Tensor, storage: Storage, value: Value, parent: Handle | None, view: View | None
    ) -> None:
        self.fake = fake
        self.storage = storage
        self.value = value
        self.version = storage.version
        self.parent = parent
        self.view = view


class Memory:
    """All storages of one trace. Fakes are kept alive, so ids and storage addresses stay unique."""

    def __init__(self) -> None:
        self._handles: dict[int, Handle] = {}
        self._storages: dict[int, Storage] = {}

    def find(self, fake: Tensor) -> Handle | None:
        return self._handles.get(id(fake))

    def storage_of(self, fake: Tensor) -> Storage | None:
        return self._storages.get(fake.untyped_storage()._cdata)

    def root(self, fake: Tensor, value: Value, owner: str = "") -> Handle:
        """A tensor with memory of its own."""
        storage = Storage(value, owner)
        handle = Handle(fake, storage, value, None, None)
        storage.root = handle
        self._storages[fake.untyped_storage()._cdata] = storage
        self._handles[id(fake)] = handle
        return handle

    def view(self, fake: Tensor, value: Value, parent: Handle, view: View | None) -> Handle:
        """A tensor that shares its parent's memory; ``view`` None is the whole of it."""
        handle = Handle(fake, parent.storage, value, parent, view)
        self._handles[id(fake)] = handle
        return handle

    def read(self, handle: Handle, emit: Emit) -> Value:
        """The value a tensor has now: what was recorded, or the view made again of a root that was written."""
        if handle.version == handle.storage.version:
            return handle.value
        if handle.parent is None:
            handle.value = handle.storage.value
        else:
            base = Pair(handle.parent.fake, self.read(handle.parent, emit))
            handle.value = base.value if handle.view is None else replay(handle.view, base, emit)
        handle.version = handle.storage.version
        return handle.value

    def write(self, handle: Handle, new: Pair, emit: Emit) -> None:
        """After this, ``handle`` reads as ``new`` (same shape and dtype) and its aliases see it."""
        written: dict[int, Value] = {}
        while handle.parent is not None:
            if handle.view is not None:
                base = Pair(handle.parent.fake, self.read(handle.parent, emit))
                new = scatter(handle.view, base, new, emit)
            else:
                new = Pair(handle.parent.fake, new.value)
            handle = handle.parent
            written[id(handle)] = new.value
        root = handle.storage
        root.value = same_layout(Pair(handle.fake, self.read(handle, emit)), new, emit)
        root.version += 1
        handle.value, handle.version = root.value, root.version

    def rename(self, fake: Tensor, twin: Tensor, value: Value, view: View) -> None:
        """``fake`` itself became a view (x.t_()) of what it was, which ``twin`` shows from now on."""
        before = self._handles[id(fake)]
        before.fake = twin
        self._handles[id(twin)] = before
        self._handles[id(fake)] = Handle(fake, before.storage, value, before, view)


def replay(view: View, base: Pair, emit: Emit) -> Value:
    """The view made again of ``base``."""
    args = tuple(base if a is View.BASE else a for a in view.args)
    return emit(view.func, args, dict(view.kwargs)).value


def same_layout(old: Pair, new: Pair, emit: Emit) -> Value:
    """``new`` with the strides of the tensor it replaces: in-place operators keep them, functional ones need not."""
    geometry = new.value.geometry
    assert isinstance(geometry, Geometry)
    if same_sizes(geometry.strides, old.fake.stride()):
        return new.value
    return emit(torch.ops.aten.copy.default, (old, new), {}).value


def same_sizes(a: Iterable[Any], b: Iterable[Any]) -> bool:
    """Equal as expressions; nothing is guarded."""
    left, right = list(a), list(b)
    return len(left) == len(right) and all(_same_size(x, y) for x, y in zip(left, right))


def _same_size(a: Any, b: Any) -> bool:
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(a.node.expr == b.node.expr)
    if isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt):
        return False
    return bool(a == b)
