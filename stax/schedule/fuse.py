"""Greedy fusion: join the pairs of groups that save most bytes, while legal and free of cycles."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from stax.ir.program import Buffer, Computation, Extern, Program
from stax.schedule.inline import Decision, reads
from stax.schedule.items import Group, alone, buffer_bytes, item_of
from stax.schedule.legal import join

MAX_READERS = (
    24  # a buffer with more readers than this (a mask, a scale) does not propose pairs among them
)
MAX_SIDE_BY_SIDE = (
    8  # reductions of one kernel without a common buffer: each holds a block of registers
)
MAX_BESIDE = 256  # a reader of more buffers proposes no pairs among their makers


# Parts of the names of operators that draw from a generator: these keep their order, or a seed would mean other numbers.
DRAWING = (
    "alpha_dropout bernoulli binomial cauchy dirichlet dropout exponential gamma geometric multinomial normal poisson "
    "rand rrelu uniform"
).split()


@dataclass(frozen=True)
class Fused:
    """``steps`` in an order that respects data flow: groups and external calls."""

    steps: tuple[Group | Extern, ...]
    decisions: tuple[Decision, ...]


def fuse(program: Program, *, enabled: bool = True) -> Fused:
    """Partition the program's computations into groups. With ``enabled`` False each is its own."""
    graph = _Graph(program)
    decisions: list[Decision] = []
    if enabled:
        _run(graph, decisions)
    return Fused(graph.ordered(), tuple(decisions))


class _Graph:
    """Groups and calls by number, with the edges that buffers make. Mutable; lives inside one call of :func:`fuse`."""

    def __init__(self, program: Program) -> None:
        self.symbols = program.ranges
        table = program.table
        hints = {s.name: s.hint for s in program.symbols}
        self.bytes = {b.name: buffer_bytes(b, hints) for b in program.buffers}
        self.nodes: dict[int, Group | Extern] = {}
        self.maker: dict[str, int] = {}
        self.reads: dict[int, set[str]] = {}
        self.last: dict[int, int] = {}
        for k, node in enumerate(program.nodes):
            self.nodes[k] = self._wrap(node, k, table)
            self.reads[k] = reads(node)
            self.last[k] = k
            for out in (node.out,) if isinstance(node, Computation) else node.outs:
                self.maker[out] = k
        drawing = [k for k, n in self.nodes.items() if isinstance(n, Extern) and _draws(n)]
        self.after = dict(zip(drawing[1:], drawing))
        self.readers: dict[str, set[int]] = defaultdict(set)
        for k, names in self.reads.items():
            for name in names:
                self.readers[name].add(k)

    def _wrap(
        self, node: Computation | Extern, k: int, table: Mapping[str, Buffer]
    ) -> Group | Extern:
        if isinstance(node, Extern):
            return node
        device = table[node.out].device
        return alone(item_of(node, k), device, self.symbols)

    def sources(self, k: int) -> set[int]:
        makers = {self.maker[n] for n in self.reads[k] if n in self.maker}
        if k in self.after:
            makers.add(self.after[k])
        return makers - {k}

    def partners(self, k: int) -> set[int]:
        """Groups that share a buffer with group ``k``, and reductions whose results are read together with its own."""
        group = self.nodes[k]
        assert isinstance(group, Group)
        found: set[int] = set()
        for name in self.reads[k]:
            if name in self.maker:
                found.add(self.maker[name])
            if len(self.readers[name]) <= MAX_READERS:
                found |= self.readers[name]
        for name in group.produced:
            found |= self.readers[name]
        if group.frame.r:
            found |= self._beside(group)
        return {p for p in found if p != k and isinstance(self.nodes[p], Group)}

    def _beside(self, group: Group) -> set[int]:
        """Reductions that share a reader with ``group``: the norms of several tensors before their sum. One launch for all."""
        readers = {r for name in group.produced for r in self.readers[name]}
        names = {n for r in readers if len(self.reads[r]) <= MAX_BESIDE for n in self.reads[r]}
        makers = {self.maker[n] for n in names if n in self.maker}
        room = MAX_SIDE_BY_SIDE - _reductions(group)
        return {
            m
            for m in makers
            if isinstance(g := self.nodes[m], Group) and 0 < _reductions(g) <= room
        }

    def siblings(self, k: int) -> list[tuple[int, int]]:
        """Pairs of reductions that read results of reduction ``k``: the second levels of what was split together."""
        group = self.nodes[k]
        if not isinstance(group, Group) or group.device != "cuda" or not group.frame.r:
            return []
        few = (n for n in group.produced if len(self.readers[n]) <= MAX_READERS)
        read = {p for n in few for p in self.readers[n]} - {k}
        counts = {p: _reductions(g) for p in read if isinstance(g := self.nodes[p], Group)}
        return [
            (p, q)
            for p, q in combinations(sorted(counts), 2)
            if counts[p] and counts[q] and counts[p] + counts[q] <= MAX_SIDE_BY_SIDE
        ]

    def saved_bytes(self, a: int, b: int) -> int:
        """Bytes that one kernel would not move again: common reads, and what one makes and the other reads."""
        total = sum(self.bytes[n] for n in self.reads[a] & self.reads[b])
        for maker, reader in ((a, b), (b, a)):
            group = self.nodes[maker]
            assert isinstance(group, Group)
            total += 2 * sum(self.bytes[n] for n in self.reads[reader] if n in group.produced)
        return total

    def cyclic(self, a: int, b: int) -> bool:
        """True when a path between the two leads through a third node."""
        return self._reaches(a, b) or self._reaches(b, a)

    def _reaches(self, start: int, end: int) -> bool:
        stack = [p for p in self.sources(end) if p != start]
        seen = set(stack)
        floor = self._first(start)
        while stack:
            k = stack.pop()
            if k == start:
                return True
            if self.last[k] < floor:
                continue
            for p in self.sources(k):
                if p not in seen:
                    seen.add(p)
                    stack.append(p)
        return False

    def _first(self, k: int) -> int:
        node = self.nodes[k]
        return node.position if isinstance(node, Group) else k

    def merge(self, a: int, b: int, joined: Group) -> None:
        """Group ``a`` becomes ``joined``; ``b`` is gone."""
        self.nodes[a] = joined
        del self.nodes[b]
        for name in joined.produced:
            self.maker[name] = a
        self.reads[a] = joined.reads
        for name in self.reads.pop(b):
            self.readers[name].discard(b)
            self.readers[name].add(a)
        self.last[a] = max(self.last[a], self.last.pop(b))

    def ordered(self) -> tuple[Group | Extern, ...]:
        """Topological order, earliest original position first."""
        waiting = {k: len(self.sources(k)) for k in self.nodes}
        users: dict[int, list[int]] = defaultdict(list)
        for k in self.nodes:
            for p in self.sources(k):
                users[p].append(k)
        ready = [(self._first(k), k) for k, n in waiting.items() if n == 0]
        heapq.heapify(ready)
        out: list[Group | Extern] = []
        while ready:
            _, k = heapq.heappop(ready)
            out.append(self.nodes[k])
            for user in users[k]:
                waiting[user] -= 1
                if waiting[user] == 0:
                    heapq.heappush(ready, (self._first(user), user))
        assert len(out) == len(self.nodes), "fusion made a cycle"
        return tuple(out)


def _run(graph: _Graph, decisions: list[Decision]) -> None:
    heap: list[tuple[int, int, int, int]] = []
    version: dict[int, int] = defaultdict(int)

    def propose(a: int, b: int) -> None:
        low, high = min(a, b), max(a, b)
        stamp = version[low] + version[high]
        heapq.heappush(
            heap, (-graph.saved_bytes(low, high), high - low, stamp, low * (1 << 24) + high)
        )

    for k in [k for k, n in graph.nodes.items() if isinstance(n, Group)]:
        for p in graph.partners(k):
            if p > k:
                propose(k, p)
    while heap:
        _, _, stamp, pair = heapq.heappop(heap)
        a, b = divmod(pair, 1 << 24)
        if a not in graph.nodes or b not in graph.nodes or stamp != version[a] + version[b]:
            continue
        joined = _attempt(graph, a, b, decisions)
        if joined is None:
            continue
        graph.merge(a, b, joined)
        version[a] += 1
        for p in graph.partners(a):
            propose(a, p)
        for maker in sorted({a, *graph.sources(a)}):
            for p, q in graph.siblings(maker):
                propose(p, q)


def _attempt(graph: _Graph, a: int, b: int, decisions: list[Decision]) -> Group | None:
    left, right = graph.nodes[a], graph.nodes[b]
    assert isinstance(left, Group) and isinstance(right, Group)
    outcome: Group | str = (
        "a third node lies between" if graph.cyclic(a, b) else join(left, right, graph.symbols)
    )
    subject = f"fuse {_name(left)} with {_name(right)}"
    if isinstance(outcome, str):
        decisions.append(Decision(subject, False, outcome))
        return None
    saved = graph.saved_bytes(a, b)
    decisions.append(Decision(subject, True, f"saves {saved} bytes" if saved else "saves a launch"))
    return outcome


def _reductions(group: Group) -> int:
    return sum(m.item.combine is not None for m in group.members)


def _draws(call: Extern) -> bool:
    return any(part in call.target for part in DRAWING)


def _name(group: Group) -> str:
    return "+".join(m.item.out for m in group.members[:4]) + ("…" if len(group.members) > 4 else "")
