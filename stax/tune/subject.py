"""One kernel to choose a configuration for: its source at one set of sizes, the space around it, and how to ask and build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from stax.artifact.keys import Key
from stax.base.devices import device_of
from stax.base.target import Target
from stax.codegen.backends import looper
from stax.codegen.triton.cost import grid_of
from stax.ir.kernel import Kernel
from stax.ir.source import Config, Source
from stax.ir.traffic import traffic
from stax.tune.cost import cost_model
from stax.tune.fill import memory_of
from stax.tune.record import key_of
from stax.tune.search import OF_OPTION, STRATEGIES, Problem, Search
from stax.tune.space import Space, space_of
from stax.tune.work import Memory, Work


@dataclass(frozen=True, eq=False)
class Subject:
    """``strategy`` is a value of Options.tune; ``elements``: how many elements each pointer's buffer has at the kernel's hints."""

    kernel: Kernel
    source: Source
    elements: tuple[int, ...]
    target: Target
    strategy: str

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Values of the size parameters at the hints."""
        return tuple(e.evaluate(self.kernel.hints) for e in self.source.sizes)

    @cached_property
    def key(self) -> Key:
        return key_of(self.source, OF_OPTION[self.strategy], self.sizes, self.target)

    @cached_property
    def space(self) -> Space:
        return space_of(self.source, self.kernel.hints)

    @cached_property
    def memory(self) -> tuple[Memory, ...]:
        """In the order of the pointer parameters, which is not that of the kernel's pointers."""
        named = {
            p.name: m for p, m in zip(self.kernel.pointers, memory_of(self.kernel, self.elements))
        }
        return tuple(named[p.name] for p in self.source.params if p.kind in ("in", "out"))

    def search(self, device: str) -> Search:
        """The search for a device of this name."""
        moved = traffic(self.kernel, loops=looper(self.target)(self.kernel))
        facts = device_of(self.target.arch, device)
        problem = Problem(
            candidates=self.source.space,
            space=self.space,
            cost=cost_model(self.kernel, self.source, self.space, moved, facts),
            seed=int(self.key.digest[:8], 16),
        )
        return Search(STRATEGIES[OF_OPTION[self.strategy]], problem)

    def work(self, config: Config, binary: bytes, meta: Sequence[tuple[str, int | str]]) -> Work:
        """What launches one build of it."""
        grid = (*grid_of(self.source, config, self.kernel.hints), 1, 1)
        return Work(
            self.source.entry,
            binary,
            tuple(meta),
            self.memory,
            (grid[0], grid[1], grid[2]),
            self.sizes,
        )
