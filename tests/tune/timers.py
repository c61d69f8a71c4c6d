"""Spaces and fake timers for the search strategies: a table of times, and a loop that asks and tells."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log2
from random import Random

from stax.ir.source import Config
from stax.tune.measurement import Measurement, failed
from stax.tune.search import STRATEGIES, Problem, Search
from stax.tune.space import Space

Timer = Callable[[Config], float]

GRID = Space(
    (
        ("R0_BLOCK", tuple(1 << k for k in range(4, 12))),
        ("XBLOCK", tuple(1 << k for k in range(7))),
        ("num_warps", (1, 2, 4, 8, 16, 32)),
    ),
    frozenset({"XBLOCK", "R0_BLOCK"}),
)
START = Config.of(R0_BLOCK=256, XBLOCK=4, num_warps=4)
OTHERS = (
    Config.of(R0_BLOCK=1024, XBLOCK=1, num_warps=4),
    Config.of(R0_BLOCK=128, XBLOCK=8, num_warps=8),
    Config.of(R0_BLOCK=64, XBLOCK=16, num_warps=2),
)


def bowl(best: Config) -> Timer:
    """One valley: every step away from ``best`` along any parameter makes it slower by the same factor."""

    def time_us(config: Config) -> float:
        steps = sum(abs(log2(v) - log2(best[name])) for name, v in config.values)
        return 10.0 * 1.2**steps

    return time_us


def rough(seed: int, share_that_fails: float = 0.0) -> Timer:
    """A time for each configuration that has nothing to do with its neighbours'."""

    def time_us(config: Config) -> float:
        random = Random(f"{seed}{config.values}")
        value = random.uniform(10, 100)
        return inf if random.random() < share_that_fails else value

    return time_us


def problem(**changes: object) -> Problem:
    given: dict[str, object] = {
        "candidates": (START, *OTHERS),
        "space": GRID,
        "cost": lambda config: 0.0,
        "kept": 1000,
        **changes,
    }
    return Problem(**given)  # type: ignore[arg-type]


def run(
    strategy: str,
    timer: Timer,
    of: Problem,
    *,
    noise: float = 0.0,
    order: Random | None = None,
    most_rounds: int = 1000,
) -> tuple[Search, list[Config]]:
    """The finished search and the configurations asked for, in order. With ``order`` the answers to one ask arrive
    shuffled; with ``noise`` each time is off by a random part of it, and says so."""
    search = Search(STRATEGIES[strategy], of)
    asked: list[Config] = []
    disturb = Random(of.seed)
    for _ in range(most_rounds):
        trials = list(search.ask())
        if not trials:
            return search, asked
        asked += [t.config for t in trials]
        if order is not None:
            order.shuffle(trials)
        for trial in trials:
            search.tell(trial.config, answer(timer(trial.config), noise, disturb))
    raise AssertionError(f"{strategy} did not end in {most_rounds} rounds")


def answer(time_us: float, noise: float, random: Random) -> Measurement:
    if time_us == inf:
        return failed("spills")
    return Measurement(time_us * (1 + random.uniform(-noise, noise)), noise)
