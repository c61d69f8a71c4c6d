"""Mutation made functional: which tensors share a storage, how each view is made again from its root, and what a write
through a view makes of the root. The recorder feeds it; every operator it needs goes back through ``Emit``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stax.capture.value import Emit, Geometry, Pair, Value, same_sizes
from stax.capture.views import View, replay, scatter

Func = Callable[..., Any]


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
    ``version`` of the storage; ``origin`` is its first value."""

    __slots__ = ("fake", "origin", "parent", "storage", "value", "version", "view")

    def __init__(
        self, fake: Tensor, storage: Storage, value: Value, parent: Handle | None, view: View | None
    ) -> None:
        self.fake = fake
        self.storage = storage
        self.value = value
        self.origin = value
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
            base = self.pair(handle.parent, emit)
            handle.value = (
                base.value if handle.view is None else replay(handle.view, base, emit).value
            )
        handle.version = handle.storage.version
        return handle.value

    def pair(self, handle: Handle, emit: Emit) -> Pair:
        """A tensor with the value it has now."""
        return Pair(handle.fake, self.read(handle, emit), handle.origin)

    def write(self, handle: Handle, new: Pair, emit: Emit) -> None:
        """After this, ``handle`` reads as ``new`` (same shape and dtype) and its aliases see it."""
        while handle.parent is not None:
            if handle.view is not None:
                base = self.pair(handle.parent, emit)
                new = scatter(handle.view, base, new, emit)
            handle = handle.parent
        root = handle.storage
        root.value = same_layout(self.pair(handle, emit), new, emit)
        root.version += 1
        handle.value, handle.version = root.value, root.version

    def rename(self, fake: Tensor, twin: Tensor, value: Value, view: View) -> None:
        """``fake`` itself became a view (x.t_()) of what it was, which ``twin`` shows from now on."""
        before = self._handles[id(fake)]
        before.fake = twin
        self._handles[id(twin)] = before
        self._handles[id(fake)] = Handle(fake, before.storage, value, before, view)


def same_layout(old: Pair, new: Pair, emit: Emit) -> Value:
    """``new`` with the strides of the tensor it replaces: in-place operators keep them, functional ones need not."""
    geometry = new.value.geometry
    assert isinstance(geometry, Geometry)
    if same_sizes(geometry.strides, old.fake.stride()):
        return new.value
    return emit(torch.ops.aten.copy.default, (old, new), {}).value
