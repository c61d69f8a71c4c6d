"""The static inputs of an artifact, found in a live module and found again when the module's tensors are replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from stax.artifact.signature import Input

Place = tuple[dict[str, Any], str]


class Binder:
    """Gives the tensors of a module's parameters and buffers, as one tuple that is the same object as long as every one
    of them is. Looks at each on every call, so load_state_dict(assign=True), a swapped submodule or functional_call are
    seen; what is tied when the binder is made must stay tied. Safe for concurrent calls."""

    def __init__(self, module: nn.Module | None, inputs: Sequence[Input]) -> None:
        self._module = module
        self._names = tuple((i.source, i.name) for i in inputs)
        self._tied = _tied_names(module, self._names)
        self._known: tuple[Callable[[], bool], tuple[Tensor, ...]] | None = None

    def bind(self) -> tuple[Tensor, ...] | str:
        """The tensors in the order of the inputs, or why the module has none."""
        known = self._known
        if known is not None and known[0]():
            return known[1]
        return self._bind_again()

    def _bind_again(self) -> tuple[Tensor, ...] | str:
        if not self._names:
            self._known = (lambda: True, ())
            return ()
        if self._module is None:
            return "the artifact has parameters, the callable has no module"
        module, held, tensors = self._module, [], []
        for source, name in (*self._names, *((source, other) for source, other, _ in self._tied)):
            places = _places(module, source, name)
            if places is None:
                return f"the module has no {source} {name}"
            held += places
            tensors.append(places[-1][0][places[-1][1]])
        for (_, other, first), tensor in zip(self._tied, tensors[len(self._names) :]):
            if tensor is not tensors[first]:
                return f"{other} and {self._names[first][1]} are no longer one tensor"
        found = tuple(tensors[: len(self._names)])
        self._known = (_unchanged(held), found)
        return found


def _tied_names(
    module: nn.Module | None, names: Sequence[tuple[str, str]]
) -> tuple[tuple[str, str, int], ...]:
    """(source, other name, index) of every further name of a tensor among ``names``."""
    if module is None:
        return ()
    tables = {
        "parameter": dict(module.named_parameters(remove_duplicate=False)),
        "buffer": dict(module.named_buffers(remove_duplicate=False)),
    }
    first = {id(tables[source].get(name)): i for i, (source, name) in reversed([*enumerate(names)])}
    known = set(names)
    return tuple(
        (source, name, first[id(tensor)])
        for source, table in tables.items()
        for name, tensor in table.items()
        if id(tensor) in first and (source, name) not in known
    )


def _places(module: nn.Module, source: str, name: str) -> list[Place] | None:
    """The dict entries that lead from the module to a tensor, the tensor's own last."""
    *path, last = name.split(".")
    places: list[Place] = []
    for part in path:
        if module._modules.get(part) is None:
            return None
        places.append((module._modules, part))  # type: ignore[arg-type]
        module = module._modules[part]  # type: ignore[assignment]
    table: dict[str, Any] = module._parameters if source == "parameter" else module._buffers
    if table.get(last) is None:
        return None
    return [*places, (table, last)]


def _unchanged(places: Sequence[Place]) -> Callable[[], bool]:
    """A generated function: every place still holds the object that it holds now. Dicts and objects enter as default
    arguments, the fastest to read; keys as literals of keys that the module has."""
    distinct = list({(id(table), key): (table, key) for table, key in places}.values())
    objects: dict[str, Any] = {}
    tests: list[str] = []
    for i, (table, key) in enumerate(distinct):
        objects |= {f"d{i}": table, f"v{i}": table[key]}
        tests.append(f"d{i}[{key!r}] is v{i}")
    params = ", ".join(f"{name}={name}" for name in objects)
    text = f"def unchanged({params}):\n try: return {' and '.join(tests)}\n except KeyError: return False\n"
    exec(text, objects)
    return objects["unchanged"]
