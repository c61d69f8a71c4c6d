"""The lattice of launch configurations that a kernel's form allows (spec 9.6, Definition 9.2). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from random import Random

from stax.ir.source import Config, Source

WARP = 32
WARPS = (1, 2, 4, 8, 16, 32)
STAGES = (1, 2, 4)
# More elements a thread than this can not be held in its 255 registers.
MOST_EACH = 128
# The most elements that Triton takes in one block.
MOST_ELEMENTS = 1 << 20
# What a size that may change is taken for at least, as the candidates do.
LEAST_DYNAMIC = 1024


@dataclass(frozen=True)
class Space:
    """``fragments``: each parameter with its values, ascending. ``blocks``: which of them count elements; ``row``: how
    many more elements each of these stands for (a row held in registers; 1 without)."""

    fragments: tuple[tuple[str, tuple[int, ...]], ...]
    blocks: frozenset[str]
    row: int = 1

    def __contains__(self, config: object) -> bool:
        if not isinstance(config, Config):
            return False
        values = dict(config.values)
        known = dict(self.fragments)
        return (
            values.keys() == known.keys()
            and all(value in known[name] for name, value in values.items())
            and self._fits(config)
        )

    def _fits(self, config: Config) -> bool:
        """One element a thread at least, and no more than a thread can hold."""
        if not self.blocks:
            return True
        warps = config.get("num_warps", 4)
        elements = self.elements(config)
        enough = elements >= WARP * warps or warps == 1
        return enough and elements <= min(WARP * warps * MOST_EACH, MOST_ELEMENTS)

    def elements(self, config: Config) -> int:
        """Elements of one block."""
        return self.row * prod(v for name, v in config.values if name in self.blocks)

    @cached_property
    def members(self) -> tuple[Config, ...]:
        """Every configuration, in a fixed order."""
        names = [name for name, _ in self.fragments]
        found = product(*(values for _, values in self.fragments))
        configs = (Config(tuple(sorted(zip(names, values)))) for values in found)
        return tuple(c for c in configs if self._fits(c))

    def draw(self, random: Random) -> Config:
        """One member, uniformly."""
        return random.choice(self.members)

    def along(self, config: Config, name: str) -> tuple[Config, ...]:
        """The neighbours along one parameter: its value doubled, then halved, where these are members."""
        value = config[name]
        moved = [value * 2] if value % 2 else [value * 2, value // 2]
        return tuple(c for c in (_with(config, name, v) for v in moved) if c in self)

    def neighbours(self, config: Config) -> tuple[Config, ...]:
        """The neighbours along every parameter."""
        return tuple(c for name, _ in self.fragments for c in self.along(config, name))


def _with(config: Config, name: str, value: int) -> Config:
    return Config(tuple((n, value if n == name else v) for n, v in config.values))


def space_of(source: Source, hints: Mapping[str, int]) -> Space:
    """The lattice around a source's candidates. A block grows as far as its dimension has elements; a parameter that is
    no block, warp or stage keeps the values that the candidates name."""
    numels = _numels(source, hints)
    blocks = {p.name for p in source.params if p.kind == "block"}
    fragments: list[tuple[str, tuple[int, ...]]] = []
    for name in sorted({n for c in source.space for n, _ in c.values}):
        seen = {dict(c.values)[name] for c in source.space if name in dict(c.values)}
        numel = numels.get(f"{name.removesuffix('BLOCK').lower()}numel")
        if name in blocks and numel is not None:
            seen |= {1 << k for k in range(power_above(numel).bit_length())}
        elif name == "num_warps":
            seen |= set(WARPS)
        elif name == "num_stages" and (source.form == "tem" or "num_stages" in source.text):
            # Of other loops Triton overlaps nothing: the binaries are the same.
            seen |= set(STAGES)
        fragments.append((name, tuple(sorted(seen))))
    row = power_above(numels.get("r0_numel", 1)) if source.form == "per" else 1
    return Space(tuple(fragments), frozenset(blocks), row)


def _numels(source: Source, hints: Mapping[str, int]) -> dict[str, int]:
    names = [p.name for p in source.params if p.kind == "size"]
    found: dict[str, int] = {}
    for name, e in zip(names, source.sizes):
        value = max(e.evaluate(hints), 1)
        found[name] = value if e.is_const else max(value, LEAST_DYNAMIC)
    return found


def power_above(n: int) -> int:
    """The least power of two that is not less than ``n``."""
    return 1 << max(n - 1, 0).bit_length()
