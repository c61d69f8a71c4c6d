"""Where a fingerprint found what it read, and a fast answer to whether everything there is still the same object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from types import CellType, CodeType, FunctionType
from typing import Any

from torch import Tensor

Check = Callable[[], bool]
# Places that one generated function looks at: below 256 local variables, which are the cheap ones.
CHUNK = 64


class Places:
    """Collects places: items of dicts and lists, closure cells, lengths of containers, the memory of tensors. A value that
    was changed without being replaced, such as one of a custom C type, is not seen."""

    def __init__(self) -> None:
        self._holders: list[Any] = []
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._cells: dict[int, tuple[CellType, Any]] = {}
        self._sized: dict[int, tuple[Any, int]] = {}
        self._sets: list[tuple[Any, frozenset[Any]]] = []
        self._tensors: dict[int, Tensor] = {}

    def item(self, holder: Any, key: object, value: object) -> None:
        """``holder[key] is value``."""
        self._holders.append(holder)
        self._keys.append(key)
        self._values.append(value)

    def items(self, holder: Mapping[Any, Any] | Sequence[Any]) -> None:
        """All items of a mapping or list, and that no other comes in."""
        self.length(holder)
        pairs = holder.items() if isinstance(holder, Mapping) else enumerate(holder)
        for key, value in pairs:
            self.item(holder, key, value)

    def length(self, holder: Any) -> None:
        self._sized[id(holder)] = (holder, len(holder))

    def members(self, holder: Any) -> None:
        """The members of a set."""
        self._sets.append((holder, frozenset(holder)))

    def cell(self, cell: CellType) -> None:
        self._cells[id(cell)] = (cell, cell.cell_contents)

    def tensor(self, tensor: Tensor) -> None:
        self._tensors[id(tensor)] = tensor

    def wants_grad(self) -> bool:
        """A tensor among the places requires grad."""
        return any(t.requires_grad for t in self._tensors.values())

    def unchanged(self) -> Check:
        """A function that says whether every place holds what it held when it was collected. Costs about 15 ns a place;
        safe to call from several threads."""
        checks = [
            *_same_items(self._holders, self._keys, self._values),
            *_same_cells(list(self._cells.values())),
            *_same_lengths(list(self._sized.values())),
            *_same_sets(self._sets),
            *_same_memory(list(self._tensors.values())),
        ]
        return checks[0] if len(checks) == 1 else lambda: all([check() for check in checks])


def _same_items(holders: list[Any], keys: list[Any], values: list[Any]) -> list[Check]:
    """Generated functions of up to CHUNK places each: holders, keys and values enter as default arguments, the fastest to
    read, so that one text serves all of a length. NOTE: a third of the cost of map over three lists."""
    places = list(zip(holders, keys, values))
    chunks = [places[i : i + CHUNK] for i in range(0, len(places), CHUNK)]
    scope = {"KeyError": KeyError, "IndexError": IndexError}
    return [
        FunctionType(_code_of(len(chunk)), scope, "same", tuple(chain.from_iterable(chunk)))
        for chunk in chunks
    ]


@cache
def _code_of(count: int) -> CodeType:
    params = ", ".join(f"d{i}, k{i}, v{i}" for i in range(count))
    tests = " and ".join(f"d{i}[k{i}] is v{i}" for i in range(count))
    made: dict[str, Any] = {}
    exec(
        f"def same({params}):\n try: return {tests}\n except (KeyError, IndexError): return False\n",
        made,
    )
    return made["same"].__code__


def _same_cells(cells: list[tuple[CellType, Any]]) -> list[Check]:
    def check() -> bool:
        try:
            return all([cell.cell_contents is value for cell, value in cells])
        except ValueError:
            return False

    return [check] if cells else []


def _same_lengths(sized: list[tuple[Any, int]]) -> list[Check]:
    empty = [holder for holder, length in sized if not length]
    full = [(holder, length) for holder, length in sized if length]
    holders, lengths = [h for h, _ in full], [n for _, n in full]
    checks: list[Check] = []
    if empty:
        checks.append(lambda: not any(empty))
    if full:
        checks.append(lambda: list(map(len, holders)) == lengths)
    return checks


def _same_sets(sets: list[tuple[Any, frozenset[Any]]]) -> list[Check]:
    return [lambda: all([now == then for now, then in sets])] if sets else []


def _same_memory(tensors: list[Tensor]) -> list[Check]:
    # NOTE: tensors made in inference mode count no versions; a write to one of them is not seen.
    counted = [t for t in tensors if not t.is_inference()]
    versions, pointers = [t._version for t in counted], _pointers(tensors)

    def check() -> bool:
        return [t._version for t in counted] == versions and _pointers(tensors) == pointers

    return [check] if tensors else []


def _pointers(tensors: list[Tensor]) -> list[object]:
    return [(t.data_ptr(), t.requires_grad) for t in tensors]
