"""From a call to the artifact that is valid for it: entries by call class, most recent first, each behind its guards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from stax.artifact.signature import Tree
from stax.runtime.bind import Binder
from stax.runtime.guards import Bound, Reason
from stax.runtime.load import Executable
from stax.runtime.signature import difference, flatten_call, leaf_names

Inputs = tuple[Tensor, ...]
Leaves = tuple[Any, ...]


class Entry:
    """An executable bound to a module: it puts a call's leaves, the module's tensors and the constants in order."""

    def __init__(self, executable: Executable, module: nn.Module | None = None) -> None:
        signature = executable.artifact.signature
        self.executable = executable
        self.tree = signature.call
        held = [i for i in signature.inputs if i.source in ("parameter", "buffer")]
        self.binds = bool(held)
        self.binder = Binder(module, held)
        self._assemble = _assembler(executable)
        self.match = _matcher(self, self._assemble)
        self._run, self._rebuild = executable.run_checked, executable.rebuild

    def bind(self, leaves: Leaves) -> tuple[Inputs, object] | str:
        """The flat inputs and a token that is the same object while the module's tensors are; or why there are none."""
        static = self.binder.bind()
        if isinstance(static, str):
            return static
        return self._assemble(leaves, static), static

    def call(self, inputs: Inputs, symbols: Sequence[int]) -> Any:
        """Run and rebuild the user's return value."""
        return self._rebuild(self._run(inputs, symbols))

    def why_not(self, leaves: Leaves) -> Reason | None:
        """Why this entry is not valid for a call of its structure; None when it is."""
        bound = self.bind(leaves)
        if isinstance(bound, str):
            return Reason(bound)
        names = leaf_names(self.tree)
        return self.executable.guards_hold(
            Bound(leaves, bound[0], names, self.executable.tensor_names)
        )


def _assembler(executable: Executable) -> Callable[[Leaves, Any], Inputs]:
    """A generated function (leaves, static tensors) → flat inputs; runs of static tensors are taken as slices."""
    objects: dict[str, Any] = {}
    pieces: list[str] = []
    taken = run = 0
    for i, item in enumerate((*executable.artifact.signature.inputs, None)):
        if item is not None and item.source in ("parameter", "buffer"):
            run += 1
            continue
        if run:
            pieces.append(f"*static[{taken}:{taken + run}]")
            taken, run = taken + run, 0
        if item is not None and item.source == "arg":
            pieces.append(f"leaves[{item.leaf}]")
        elif item is not None:
            objects[f"c{i}"] = executable.constants[item.name]
            pieces.append(f"c{i}")
    exec(f"def assemble(leaves, static):\n return ({''.join(f'{p}, ' for p in pieces)})\n", objects)
    return objects["assemble"]


class Hit(NamedTuple):
    """A valid entry with its flat inputs and the values of its symbols: ``entry.call(inputs, symbols)`` runs it."""

    entry: Entry
    inputs: Inputs
    symbols: tuple[int, ...]


# NOTE: half the cost of the constructor that NamedTuple writes.
_hit: Callable[[type[Hit], tuple[Entry, Inputs, tuple[int, ...]]], Hit] = tuple.__new__  # type: ignore[assignment]


@dataclass(frozen=True)
class Miss:
    """No entry is valid: a reason for each that came near, or one for all."""

    reasons: tuple[Reason, ...]


CallClass = tuple[object, ...]


@dataclass(frozen=True)
class Group:
    """Entries of one call structure by call class, most recent first in each."""

    tree: Tree
    flatten: Callable[[tuple[Any, ...], dict[str, Any]], Leaves | None]
    classes: Mapping[CallClass, tuple[Entry, ...]] = field(default_factory=dict)


class Dispatcher:
    """Several artifacts of one callable. Safe for concurrent calls: tables are replaced whole, writers take a lock.

    ``add`` makes an entry the most recent of its call class; a hit does so too.
    """

    def __init__(self, module: nn.Module | None = None) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._groups: tuple[Group, ...] = ()
        self._recent: Entry | None = None

    def __len__(self) -> int:
        return sum(len(entries) for group in self._groups for entries in group.classes.values())

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, in no promised order."""
        return tuple(
            e for group in self._groups for entries in group.classes.values() for e in entries
        )

    def add(
        self, executable: Executable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Entry:
        """Keep an executable for calls of the class of (args, kwargs)."""
        entry = Entry(executable, self._module)
        leaves = executable.flatten(args, dict(kwargs))
        if leaves is None:
            tree, found = flatten_call(args, kwargs)
            raise ValueError(
                difference(entry.tree, tree) or f"the call has {len(found)} other leaves"
            )
        with self._lock:
            self._groups = _with(self._groups, entry, call_class(leaves))
            self._recent = entry
        return entry

    def lookup(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hit | Miss:
        """The most recent valid entry. Cheap for a repeated call; a Miss costs the explanation."""
        recent = self._recent
        if recent is not None:
            hit = recent.match(args, kwargs)
            if hit is not None:
                return hit
        return self._search(args, kwargs)

    def _search(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hit | Miss:
        for group in self._groups:
            leaves = group.flatten(args, kwargs)
            if leaves is None:
                continue
            key = call_class(leaves)
            for entry in group.classes.get(key, ()):
                hit = _try(entry, leaves)
                if hit is not None:
                    self._promote(entry, key)
                    return hit
        return Miss(self._reasons(args, kwargs))

    def _promote(self, entry: Entry, key: CallClass) -> None:
        with self._lock:
            self._groups = _with(self._groups, entry, key)
            self._recent = entry

    def _reasons(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Reason, ...]:
        if not self._groups:
            return (Reason("no artifact yet"),)
        reasons: list[Reason] = []
        for group in self._groups:
            leaves = group.flatten(args, kwargs)
            if leaves is None:
                text = difference(group.tree, flatten_call(args, kwargs)[0]) or "another structure"
                reasons.append(Reason(text))
                continue
            near = group.classes.get(call_class(leaves)) or [
                e for es in group.classes.values() for e in es
            ]
            reasons += [found for e in near if (found := e.why_not(leaves)) is not None]
        return tuple(reasons)


def _try(entry: Entry, leaves: Leaves) -> Hit | None:
    bound = entry.bind(leaves)
    if isinstance(bound, str):
        return None
    inputs, token = bound
    symbols = entry.executable.check(leaves, inputs, token)
    return None if symbols is None else _hit(Hit, (entry, inputs, symbols))


def _matcher(
    entry: Entry, assemble: Callable[[Leaves, Any], Inputs]
) -> Callable[[tuple[Any, ...], dict[str, Any]], Hit | None]:
    """(args, kwargs) → a hit: flatten, bind, check. Without parameters and buffers, straight on."""
    flatten, alone = entry.executable.flatten, entry.executable.check.alone

    def match(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hit | None:
        leaves = flatten(args, kwargs)
        return None if leaves is None else _try(entry, leaves)

    def match_alone(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hit | None:
        leaves = flatten(args, kwargs)
        if leaves is None:
            return None
        inputs = assemble(leaves, ())
        symbols = alone(leaves, inputs)  # type: ignore[misc]
        return None if symbols is None else _hit(Hit, (entry, inputs, symbols))

    return match if alone is None or entry.binds else match_alone


def _with(groups: tuple[Group, ...], entry: Entry, key: CallClass) -> tuple[Group, ...]:
    """The groups with ``entry`` as the most recent of its class."""
    for i, group in enumerate(groups):
        if group.tree == entry.tree:
            others = tuple(e for e in group.classes.get(key, ()) if e is not entry)
            changed = Group(group.tree, group.flatten, {**group.classes, key: (entry, *others)})
            return (*groups[:i], changed, *groups[i + 1 :])
    return (Group(entry.tree, entry.executable.flatten, {key: (entry,)}), *groups)


def call_class(leaves: Leaves) -> CallClass:
    """What the entries of a class share: dtype, device and rank of each tensor, the type of each constant."""
    return tuple(
        (x.dtype, x.device.type, x.dim()) if isinstance(x, Tensor) else type(x) for x in leaves
    )
