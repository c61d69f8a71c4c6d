"""How a host function says a launch: on the CPU a call of an entry with two arrays, on CUDA one call of the launcher.

What is known before the call is written as a number: sizes, grids, launch facts. An address is asked for once a tensor.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from stax.artifact.artifact import Artifact, Binary, Launch
from stax.artifact.guards import TensorGuard
from stax.artifact.verify import POINTERS
from stax.base.errors import LoadError
from stax.ir.expr import Expr
from stax.runtime.alloc import Allocate, aligned, allocator
from stax.runtime.cuda import Facts
from stax.runtime.launcher import MAX_BLOCKS, Handles, Host, refuser, types_of
from stax.runtime.spell import spell
from stax.runtime.text import Text

ITEM_BYTES = 8
ALIGNMENT = 16


class Launches(Protocol):
    """The part of a host function that differs between devices."""

    empty: Allocate

    def launch(self, step: Launch) -> None:
        """Add the lines of a launch."""
        ...

    def forget(self, names: Iterable[str]) -> list[str]:
        """Further variables that go with these tensors."""
        ...

    def head(self) -> list[str]:
        """Lines before the first step."""
        ...

    def tail(self) -> list[str]:
        """Lines after the last step but the return."""
        ...

    def restore(self) -> str:
        """What must be done however the function ends; empty for nothing."""
        ...


class Frames:
    """Argument memory of CPU launches: one array a running call, kept for the next. Safe for concurrent calls, because
    list.pop and list.append are atomic."""

    def __init__(self, template: array[int]) -> None:
        self._template = template
        self._free: list[tuple[array[int], int]] = []
        self.give = self._free.append

    def take(self) -> tuple[array[int], int]:
        """An array that nobody else uses now, and its address."""
        try:
            return self._free.pop()
        except IndexError:
            fresh = array("q", self._template)
            return fresh, fresh.buffer_info()[0]


def _raise_bounds(kernel: str) -> NoReturn:
    raise IndexError(f"index out of range in {kernel}")


class CpuLaunches:
    """``entries``: the function of each binary of the artifact."""

    def __init__(self, text: Text, artifact: Artifact, entries: Sequence[Any]) -> None:
        self.empty = allocator("cpu")
        self._text = text
        self._binaries = artifact.binaries
        self._frame = array("q")
        text.objects |= {f"k{i}": entry for i, entry in enumerate(entries)}
        text.objects |= {"raise_bounds": _raise_bounds, "frames": Frames(self._frame)}

    def launch(self, step: Launch) -> None:
        """Constant arguments are in the array already."""
        text, frame = self._text, self._frame
        at = len(frame)
        for name in step.tensors:
            text.line(f"a[{len(frame)}] = {text.address(name)}")
            frame.append(0)
        for expr in step.sizes:
            if not expr.is_const:
                text.line(f"a[{len(frame)}] = {spell(expr, text.symbols)}")
            frame.append(expr.value if expr.is_const else 0)
        where = f"b + {at * ITEM_BYTES}, b + {(at + len(step.tensors)) * ITEM_BYTES}"
        kernel = text.hold(self._binaries[step.binary].name)
        text.line(f"if k{step.binary}({where}): raise_bounds({kernel})")

    def forget(self, names: Iterable[str]) -> list[str]:
        return []

    def head(self) -> list[str]:
        return ["a, b = frame = frames.take()"] if self._frame else []

    def tail(self) -> list[str]:
        return ["frames.give(frame)"] if self._frame else []

    def restore(self) -> str:
        return ""


class CudaLaunches:
    """``kernels`` gives the loaded kernels of a device. NOTE: with one device on the host there is none to change to, so
    nothing asks which it is."""

    def __init__(
        self, text: Text, artifact: Artifact, kernels: Callable[[int], Sequence[Any]], host: Host
    ) -> None:
        self.empty = host.empty
        self._text = text
        self._artifact = artifact
        self._facts = [Facts.of(dict(b.meta)) for b in artifact.binaries]
        self._first = _first_on_device(artifact)
        self._one_device = host.devices == 1 and self._first is not None
        self._used = sorted({s.binary for s in artifact.forward if isinstance(s, Launch)})
        self._copies: dict[str, str] = {}
        self._sizes: dict[str, str] = {}
        text.objects |= {
            "kernels": kernels,
            "handles": Handles(kernels, host.handle),
            "launch": host.launch,
            "current_device": host.current_device,
            "exchange": host.exchange,
            "raw_stream": host.raw_stream,
            "aligned": aligned,
        }

    def head(self) -> list[str]:
        """Make the inputs' device current, and find its kernels and stream."""
        lines: list[str] = []
        if not self._one_device:
            first = self._first
            device = "current_device()" if first is None else f"inputs[{first}].get_device()"
            lines += [f"d = {device}", "p = exchange(d)"]
            # Constants were loaded on one device of the host; the call may be on another.
            sources = enumerate(self._artifact.signature.inputs)
            held = [f"x{i}" for i, s in sources if s.source == "constant"]
            lines += [f"if {x}.get_device() != d: {x} = {x}.to(d)" for x in held]
        if self._used:
            names = ", ".join(f"h{i}" for i in range(len(self._artifact.binaries)))
            lines += [f"{names}, = handles[{self._device}]", f"s = raw_stream({self._device})"]
        return lines

    @property
    def _device(self) -> str:
        return "0" if self._one_device else "d"

    def tail(self) -> list[str]:
        return []

    def restore(self) -> str:
        return "" if self._one_device else "if p != d: exchange(p)"

    def launch(self, step: Launch) -> None:
        """The arguments as the cubin takes them; nothing for an empty grid."""
        binary, facts = self._artifact.binaries[step.binary], self._facts[step.binary]
        given = [p for p in binary.params if p.kind in POINTERS]
        _check_abi(binary, facts, len(given), len(step.sizes))
        sizes = [self._size(e) for e in step.sizes]
        grid = _grid(binary, step.sizes, sizes)
        if any(g.lstrip("-").isdigit() and int(g) <= 0 for g in grid):
            return
        pointers = [
            self._address(name, p.divisible16, written=p.kind != "in")
            for name, p in zip(step.tensors, given)
        ]
        args = "".join(f"{a}, " for a in (*pointers, *sizes, *("0",) * facts.scratch_params))
        self._queue(step.binary, facts, grid, f"({args})")

    def _queue(self, index: int, facts: Facts, grid: Sequence[str], args: str) -> None:
        text, where = self._text, ", ".join(grid)
        fixed = f"{facts.num_warps}, {facts.shared_bytes}, {types_of(facts.abi)!r}"
        fast = f"launch(h{index}, {where}, {fixed}, {args}, s)"
        slow = f"kernels({self._device})[{index}].queue({where}, {args}, s)"
        refused = text.hold(refuser(facts.symbol))
        text.line("try:")
        if all(g.isdigit() for g in grid):
            x, y, z = map(int, grid)
            text.line(f" {fast if x * y * z < MAX_BLOCKS else slow}")
        elif grid[1:] == ["1", "1"]:
            text.line(f" {fast}")
        else:
            text.line(f" if {'*'.join(f'({g})' for g in grid)} < {MAX_BLOCKS}: {fast}")
            text.line(f" else: {slow}")
        text.line(f"except (RuntimeError, OverflowError) as e: raise {refused}(e, {where}) from e")

    def _size(self, size: Expr) -> str:
        """A number or a variable."""
        spelled = spell(size, self._text.symbols)
        if size.is_const or spelled.isidentifier():
            return spelled
        if spelled not in self._sizes:
            self._sizes[spelled] = self._text.name("z")
            self._text.line(f"{self._sizes[spelled]} = {spelled}")
        return self._sizes[spelled]

    def _address(self, name: str, divisible: bool, *, written: bool) -> str:
        """A variable with the address of a tensor; of a copy at a multiple of 16 bytes, where the kernel relies on that and
        the tensor lies otherwise. What is written is replaced by its copy, so that later steps see it."""
        text = self._text
        if not divisible or name in text.fresh:
            return text.address(name)
        if name in self._copies:
            return text.addresses[name]
        local = text.locals[name]
        copy = self._copies[name] = local if written else text.name("y")
        if not written:
            text.line(f"{copy} = {local}")
        found = text.address(name)
        text.line(f"if {found} & {ALIGNMENT - 1}:")
        text.line(f" {copy} = aligned({local})")
        text.line(f" {found} = {copy}.data_ptr()")
        return found

    def forget(self, names: Iterable[str]) -> list[str]:
        copies = [(name, self._copies.pop(name)) for name in names if name in self._copies]
        return [copy for name, copy in copies if copy != self._text.locals[name]]


def _first_on_device(artifact: Artifact) -> int | None:
    """The first input that a guard knows to be on a CUDA device."""
    guards = artifact.guards.guards
    return next(
        (g.input for g in guards if isinstance(g, TensorGuard) and g.device == "cuda"), None
    )


def _check_abi(binary: Binary, facts: Facts, pointers: int, sizes: int) -> None:
    """The cubin takes what the launch gives: pointers, sizes, scratch memory, in this order."""
    own = facts.abi[: len(facts.abi) - facts.scratch_params]
    fits = own[:pointers] == "Q" * pointers and len(own) == pointers + sizes
    if not fits or "Q" in own[pointers:]:
        expected = f"{pointers} pointers and {sizes} sizes"
        raise LoadError(
            "a cubin with other parameters", expected=expected, found=facts.abi, where=binary.name
        )


def _grid(binary: Binary, exprs: Sequence[Expr], sizes: Sequence[str]) -> list[str]:
    """Three numbers, variables or expressions of them."""
    params = [p.name for p in binary.params if p.kind == "size"]
    numbers = {k: v for k, v in binary.config.values if isinstance(v, int)}
    numbers |= {p: e.value for p, e in zip(params, exprs) if e.is_const}
    names = {k: _parenthesised(v) for k, v in numbers.items()}
    names |= {p: s for p, s, e in zip(params, sizes, exprs) if not e.is_const}
    found = [_dimension(e, numbers, names) for e in binary.grid]
    return found + ["1"] * (3 - len(found))


def _dimension(e: Expr, numbers: Mapping[str, int], names: Mapping[str, str]) -> str:
    if e.symbols <= numbers.keys():
        try:
            return str(e.evaluate(numbers))
        except ZeroDivisionError as error:
            raise LoadError("a grid that divides by 0", found=e.text) from error
    return spell(e, names)


def _parenthesised(value: int) -> str:
    return str(value) if value >= 0 else f"({value})"
