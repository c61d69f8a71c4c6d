"""One piece of memory for the temps that only kernels touch: which lies where, and when everything begins and ends.

Pure planning. A temp lies in a slot of the arena or, before that has anything in it, in the memory of a tensor that comes
later (its *home*). Constant sizes share slot 0, packed by best fit over their lifetimes, the large ones first and of
equal ones the last first; sizes that are known at the call share a slot only where their expressions are equal. Whatever
would need notably more memory at its peak than tensors that are freed after their last use stays one of those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from stax.ir.expr import Expr, const
from stax.ir.extent import ALIGNMENT, extent_bytes
from stax.ir.program import Extern, Program, Symbol, TensorRef
from stax.schedule.inline import reads
from stax.schedule.loops import KernelCall
from stax.schedule.memory import Lifetimes

# Bytes that the peak may grow by: below what is worth an allocation, and far below the 2 MiB in which torch asks CUDA for
# small ones.
SLACK = 1 << 16
# A plan for sizes of the call must hold for small samples and for what they stand for, this many times as large.
SCALE = 1 << 10
# Packings tried, at most; each looks at every temp.
MAX_TRIALS = 32
# Homes looked at for one temp: the tensors that come soonest after its end.
MAX_HOMES = 8


@dataclass(frozen=True)
class Spot:
    """Where a temp lies: ``offset`` bytes into slot ``slot`` of ``home``, the arena or a tensor (slot 0)."""

    home: str
    slot: int
    offset: int


@dataclass(frozen=True)
class Memory:
    """``slots``: bytes of each slot of the arena called ``arena``, which does not exist when there are none. ``made[k]``:
    what must exist before step k and did not, homes before what lies in them; ``gone[k]``: what nobody needs after it."""

    arena: str
    slots: tuple[Expr, ...]
    spots: Mapping[str, Spot]
    made: tuple[tuple[str, ...], ...]
    gone: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        """The plan for a reader."""
        slots = ", ".join(slot.text for slot in self.slots)
        lines = [f"{self.arena}: {slots} bytes"] if self.slots else []
        lines += [f"{n}: byte {s.offset} of {s.home}[{s.slot}]" for n, s in self.spots.items()]
        for k, (made, gone) in enumerate(zip(self.made, self.gone)):
            lines.append(
                f"step {k}: makes {', '.join(made) or '-'}; frees {', '.join(gone) or '-'}"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class Life:
    """A temp in use from step ``begin`` to step ``end``. ``bytes``: at the sizes seen at capture, and at larger ones."""

    name: str
    begin: int
    end: int
    size: Expr
    bytes: tuple[int, ...]
    movable: bool
    by_kernel: bool


def memory(program: Program, steps: Sequence[KernelCall | Extern], lives: Lifetimes) -> Memory:
    """A plan whose peak, at the sizes seen at capture and at SCALE times these, is that of no sharing but for SLACK. All
    temps are tried at once; of what does not fit, each half, the smaller ones first."""
    samples = _samples(program.symbols)
    found = _lives(program, steps, lives, samples)
    movable = sorted((x for x in found if x.movable), key=lambda x: x.bytes)
    limit = [SLACK + most for most in _peaks((x.begin, x.end, x.bytes) for x in found)]
    best, chosen, waiting = _Packing(), list[Life](), [movable]
    for _ in range(MAX_TRIALS):
        part = waiting.pop() if waiting else []
        if not part:
            break
        tried = _first_within(limit, [*chosen, *part], found, samples)
        if tried is not None:
            best, chosen = tried, [*chosen, *part]
        elif len(part) > 1:
            half = len(part) // 2
            waiting += [part[half:], part[:half]]
    return _timeline(_free_name(program), best, found, lives)


def _samples(symbols: Sequence[Symbol]) -> tuple[Mapping[str, int], ...]:
    hints = {s.name: s.hint for s in symbols}
    large = {s.name: min(s.hint * SCALE, s.hi or s.hint * SCALE) for s in symbols}
    return (hints, large) if symbols else (hints,)


def _lives(
    program: Program,
    steps: Sequence[KernelCall | Extern],
    lives: Lifetimes,
    samples: Sequence[Mapping[str, int]],
) -> tuple[Life, ...]:
    table = program.table
    kept = {o.buffer for o in program.outputs if isinstance(o, TensorRef)}
    kept |= {m.source for m in program.mutations}
    for step in steps:
        kept |= reads(step) if isinstance(step, Extern) else set()
    end = {name: k for k, names in enumerate(lives.dead) for name in names}
    found: list[Life] = []
    for k, step in enumerate(steps):
        born = lives.born[k]
        for name in (*born, *(n for n in _outs(step) if n and n not in born)):
            b = table[name]
            size = extent_bytes(b.dtype, b.shape, b.strides)
            sampled = tuple(0 if size is None else size.evaluate(env) for env in samples)
            fits = size is not None and name in born and name not in kept and name in end
            last = end.get(name, len(steps))
            found.append(Life(name, k, last, size or const(0), sampled, fits, name in born))
    return tuple(found)


def _outs(step: KernelCall | Extern) -> tuple[str, ...]:
    return step.outs if isinstance(step, Extern) else ()


def _first_within(
    limit: Sequence[int],
    chosen: Sequence[Life],
    found: Sequence[Life],
    samples: Sequence[Mapping[str, int]],
) -> _Packing | None:
    for homes in (found, ()):
        packing = _packed(chosen, homes)
        peaks = _peaks(_pieces(packing, found, samples))
        if all(most <= allowed for most, allowed in zip(peaks, limit)):
            return packing
    return None


# -- packing


@dataclass
class _Bin:
    """Bytes of one slot and what is taken of them at each step. ``most``: no more than these."""

    home: str
    slot: int
    most: int | None = None
    top: int = 0
    taken: dict[int, list[tuple[int, int]]] = field(
        default_factory=dict[int, list[tuple[int, int]]]
    )

    def gap(self, life: Life, size: int, limit: int) -> int | None:
        """The start of the smallest gap below ``limit`` that ``size`` bytes fit in for a whole life."""
        best: tuple[int, int] | None = None
        at = 0
        for start, end in (*self.busy(life), (limit, limit)):
            room = start - at
            if room >= size and (best is None or room < best[0]):
                best = (room, at)
            at = max(at, end)
        return None if best is None else best[1]

    def busy(self, life: Life) -> list[tuple[int, int]]:
        steps = range(life.begin, life.end + 1)
        return sorted({piece for k in steps for piece in self.taken.get(k, ())})

    def take(self, life: Life, offset: int, size: int) -> Spot:
        self.top = max(self.top, offset + size)
        for k in range(life.begin, life.end + 1):
            self.taken.setdefault(k, []).append((offset, offset + size))
        return Spot(self.home, self.slot, offset)


@dataclass
class _Packing:
    """The arena is called "" until all is known."""

    slots: list[Expr] = field(default_factory=list[Expr])
    spots: dict[str, Spot] = field(default_factory=dict[str, Spot])


def _packed(chosen: Sequence[Life], homes: Iterable[Life]) -> _Packing:
    waiting = _Homes(homes, {x.name for x in chosen})
    packing = _Packing()
    order = sorted(chosen, key=lambda x: (-x.bytes[0], -x.end, x.name))
    static = _Bin("", 0)
    for x in (x for x in order if x.size.is_const):
        packing.spots[x.name] = _place_static(x, static, waiting)
    if any(not spot.home for spot in packing.spots.values()):
        packing.slots.append(const(static.top))
    slots: dict[Expr, list[_Bin]] = {}
    for x in (x for x in order if not x.size.is_const):
        packing.spots[x.name] = _place_symbolic(x, slots, packing.slots, waiting)
    return packing


def _place_static(x: Life, static: _Bin, waiting: _Homes) -> Spot:
    """In what the arena has already, else in a home, else the arena grows."""
    size = -(-x.size.value // ALIGNMENT) * ALIGNMENT
    offset = static.gap(x, size, static.top)
    if offset is not None:
        return static.take(x, offset, size)
    for home in waiting.after(x):
        if not home.most or home.most < x.size.value:
            continue
        offset = home.gap(x, size, -(-home.most // ALIGNMENT) * ALIGNMENT)
        if offset is not None and offset + x.size.value <= home.most:
            return home.take(x, offset, size)
    return static.take(x, max((end for _, end in static.busy(x)), default=0), size)


def _place_symbolic(
    x: Life, slots: dict[Expr, list[_Bin]], sizes: list[Expr], waiting: _Homes
) -> Spot:
    own = slots.setdefault(x.size, [])
    free = (b for b in (*own, *waiting.equal(x)) if not b.busy(x))
    found = next(free, None)
    if found is None:
        found = _Bin("", len(sizes))
        sizes.append(x.size)
        own.append(found)
    return found.take(x, 0, 1)


class _Homes:
    """Tensors of their own that kernels make, whose memory is free before that."""

    def __init__(self, lives: Iterable[Life], moved: set[str]) -> None:
        own = [x for x in lives if x.by_kernel and x.name not in moved]
        self._bins: list[tuple[Life, _Bin]] = [
            (x, _Bin(x.name, 0, x.size.value if x.size.is_const else None)) for x in own
        ]

    def after(self, life: Life) -> list[_Bin]:
        """Those of constant size that come soonest after a life has ended."""
        return [b for x, b in self._next(life) if x.size.is_const]

    def equal(self, life: Life) -> list[_Bin]:
        return [b for x, b in self._next(life) if x.size == life.size]

    def _next(self, life: Life) -> list[tuple[Life, _Bin]]:
        return list(islice((pair for pair in self._bins if pair[0].begin > life.end), MAX_HOMES))


# -- when


def _peaks(pieces: Iterable[tuple[int, int, Sequence[int]]]) -> list[int]:
    """The most bytes at once of (first step, last step, bytes of each sample), each rounded up; one a sample."""
    held = [*pieces]
    return (
        [_peak([(a, b, sizes[i]) for a, b, sizes in held]) for i in range(len(held[0][2]))]
        if held
        else []
    )


def _peak(pieces: Iterable[tuple[int, int, int]]) -> int:
    change: dict[int, int] = {}
    for begin, end, size in pieces:
        rounded = -(-size // ALIGNMENT) * ALIGNMENT
        change[begin] = change.get(begin, 0) + rounded
        change[end + 1] = change.get(end + 1, 0) - rounded
    now = most = 0
    for k in sorted(change):
        now += change[k]
        most = max(most, now)
    return most


def _pieces(
    packing: _Packing, found: Sequence[Life], samples: Sequence[Mapping[str, int]]
) -> Iterable[tuple[int, int, Sequence[int]]]:
    begins = _begins(packing, found)
    moved = [x for x in found if x.name in packing.spots]
    for x in found:
        if x.name not in packing.spots:
            yield begins[x.name], x.end, x.bytes
    inside = [x for x in moved if not packing.spots[x.name].home]
    for slot in packing.slots:
        sizes = [slot.evaluate(env) for env in samples]
        yield min(x.begin for x in inside), max(x.end for x in inside), sizes


def _begins(packing: _Packing, found: Sequence[Life]) -> dict[str, int]:
    """When each piece of memory must exist: a home as soon as something lies in it."""
    begins = {x.name: x.begin for x in found}
    for x in found:
        spot = packing.spots.get(x.name)
        if spot is not None and spot.home:
            begins[spot.home] = min(begins[spot.home], x.begin)
    return begins


def _timeline(arena: str, packing: _Packing, found: Sequence[Life], lives: Lifetimes) -> Memory:
    begins = _begins(packing, found)
    made: list[list[str]] = [[] for _ in lives.born]
    gone = [list(names) for names in lives.dead]
    inside = [x for x in found if x.name in packing.spots and not packing.spots[x.name].home]
    if inside:
        made[min(x.begin for x in inside)].append(arena)
        gone[max(x.end for x in inside)].append(arena)
    for x in sorted(found, key=lambda x: x.name in packing.spots):
        if x.by_kernel:
            made[begins[x.name]].append(x.name)
    spots = {
        name: Spot(s.home or arena, s.slot, s.offset) for name, s in sorted(packing.spots.items())
    }
    return Memory(
        arena, tuple(packing.slots), spots, tuple(map(tuple, made)), tuple(map(tuple, gone))
    )


def _free_name(program: Program) -> str:
    name = "arena"
    while name in program.table:
        name += "_"
    return name
