"""Search strategies over launch configurations (spec 9.6), all asked and told in the same way.

A strategy is a generator over a Notebook: it yields the trials it wants measured, and goes on when all of them are in the
notebook. Search turns one into ask and tell. Given the same problem and the same measurements, in whatever order the
measurements of one ask arrive, a strategy asks for the same trials.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log
from random import Random

from stax.ir.source import Config
from stax.tune.measurement import Measurement
from stax.tune.space import Space

# Algorithm 9.2's threshold.
EPSILON = 1e-3
# Random search: with probability 1 - DELTA the fastest draw is among the fastest QUANTILE of the space.
QUANTILE = DELTA = 0.05
# Draws that are worth building and measuring after the cost model has ranked them.
KEPT = 12
# Successive halving: the share that a rung passes on, and how much longer it is then measured.
RATE = 2
BUDGET_US = 20_000.0
FIRST_RUNG_US = 3_000.0


@dataclass(frozen=True)
class Trial:
    """Measure ``config`` for about ``budget_us`` of device time."""

    config: Config
    budget_us: float = BUDGET_US


@dataclass(frozen=True)
class Problem:
    """``candidates``: the heuristics' choice, the default first. ``cost`` predicts a time, in any unit, without measuring;
    ``kept`` bounds how many random draws are measured. ``seed`` decides the draws."""

    candidates: tuple[Config, ...]
    space: Space
    cost: Callable[[Config], float]
    seed: int = 0
    epsilon: float = EPSILON
    kept: int = KEPT


@dataclass
class Notebook:
    """What has been measured, the latest measurement of each configuration, and the winner so far. ``ahead``:
    configurations that may be asked for soon, worth building together with those asked for now."""

    problem: Problem
    known: dict[Config, Measurement] = field(default_factory=dict[Config, Measurement])
    best: Config | None = None
    ahead: tuple[Config, ...] = ()
    accepted: int = 0

    def fastest(self, among: Sequence[Config]) -> Config | None:
        """The first of the fastest; None when none can run."""
        finite = [c for c in among if c in self.known and self.known[c].is_finite]
        return min(finite, key=lambda c: self.known[c].time_us, default=None)


Steps = Generator[Sequence[Trial]]
Strategy = Callable[[Notebook], Steps]


class Search:
    """One run of a strategy. ``ask`` gives the trials to make now, none when it is over; every one of them must be told
    before the next ``ask``. Used by one thread."""

    def __init__(self, strategy: Strategy, problem: Problem) -> None:
        self.notebook = Notebook(problem)
        self._steps = strategy(self.notebook)
        self._open: set[Config] = set()

    def ask(self) -> Sequence[Trial]:
        assert not self._open, f"asked before {len(self._open)} trials were told"
        trials = next(self._steps, ())
        self._open = {t.config for t in trials}
        return trials

    def tell(self, config: Config, measurement: Measurement) -> None:
        self._open.remove(config)
        self.notebook.known[config] = measurement

    @property
    def best(self) -> Config | None:
        """The winner; None when nothing can run."""
        return self.notebook.best


def candidates(notes: Notebook) -> Steps:
    """Algorithm 9.1: the fastest of the candidates. One candidate is not measured at all."""
    found = notes.problem.candidates
    if len(found) == 1:
        notes.best = found[0]
        return
    yield [Trial(c) for c in found]
    notes.best = notes.fastest(found)


def draws_needed(quantile: float, delta: float) -> int:
    """Proposition 9.3: so many uniform draws hold one of the fastest ``quantile`` with probability 1 - ``delta``."""
    return ceil(log(1 / delta) / quantile)


def random_search(notes: Notebook) -> Steps:
    """Uniform draws; those that the cost model likes best are measured beside the winner so far, by successive halving."""
    problem = notes.problem
    random = Random(problem.seed)
    drawn = [problem.space.draw(random) for _ in range(draws_needed(QUANTILE, DELTA))]
    liked = sorted(dict.fromkeys(drawn), key=problem.cost)[: problem.kept]
    yield from halving(notes, liked)


def halving(notes: Notebook, among: Sequence[Config] | None = None) -> Steps:
    """Successive halving: measure all a little, go on with the faster half for twice as long, until one is left. The
    winner so far competes."""
    held = () if notes.best is None else (notes.best,)
    left = list(dict.fromkeys((*held, *(notes.problem.candidates if among is None else among))))
    budget_us = FIRST_RUNG_US
    while True:
        yield [Trial(c, budget_us) for c in left]
        finite = [c for c in left if notes.known[c].is_finite]
        ranked = sorted(finite, key=lambda c: notes.known[c].time_us)
        if len(ranked) < 2:
            notes.best = ranked[0] if ranked else None
            return
        left = ranked[: ceil(len(ranked) / RATE)]
        if len(left) == 1:
            notes.best = left[0]
            return
        budget_us *= RATE


def margin(epsilon: float, a: Measurement, b: Measurement) -> float:
    """By how much one time must beat the other. Below 2·eta/(1+eta) noise alone may do it, and an acceptance says
    nothing (spec 9.6, after Proposition 9.2)."""
    eta = max(a.noise, b.noise)
    return max(epsilon, 2 * eta / (1 + eta))


def descent(notes: Notebook) -> Steps:
    """Algorithm 9.2 from the winner so far, or from the default. Each configuration is measured once, so that the cost is
    a function; a neighbour is accepted when it is faster by more than the threshold and by more than the noise."""
    problem = notes.problem
    at = notes.best or problem.candidates[0]
    yield from _measured(notes, [at])
    if not notes.known[at].is_finite:
        return
    improved = True
    while improved:
        improved = False
        for name, _ in problem.space.fragments:
            notes.ahead = problem.space.neighbours(at)
            neighbours = problem.space.along(at, name)
            yield from _measured(notes, neighbours)
            for other in neighbours:
                old, new = notes.known[at], notes.known[other]
                if new.time_us < (1 - margin(problem.epsilon, old, new)) * old.time_us:
                    at, improved = other, True
                    notes.accepted += 1
    notes.best, notes.ahead = at, ()


def _measured(notes: Notebook, configs: Sequence[Config]) -> Steps:
    absent = [Trial(c) for c in configs if c not in notes.known]
    if absent:
        yield absent


def thorough(notes: Notebook) -> Steps:
    """The candidates, then random search beside their winner, then descent from the best of all."""
    yield from candidates(notes)
    if len(notes.problem.candidates) > 1:
        yield from random_search(notes)
        yield from descent(notes)


STRATEGIES: Mapping[str, Strategy] = {
    "candidates": candidates,
    "halving": halving,
    "random": random_search,
    "descent": descent,
    "thorough": thorough,
}
# What each value of Options.tune runs.
OF_OPTION: Mapping[str, str] = {"default": "candidates", "max": "thorough"}
