"""Every search strategy on tables of times: what all must do, and what each promises (claims 6.2 to 6.9)."""

from __future__ import annotations

from math import ceil, inf, log
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stax.ir.source import Config
from stax.tune.measurement import Measurement
from stax.tune.search import (
    DELTA,
    EPSILON,
    OF_OPTION,
    QUANTILE,
    STRATEGIES,
    Search,
    draws_needed,
    margin,
)
from tests.tune.timers import GRID, OTHERS, START, bowl, problem, rough, run

ALL = sorted(STRATEGIES)
OPTIMUM = Config.of(R0_BLOCK=512, XBLOCK=2, num_warps=8)


# -- what every strategy must do


@pytest.mark.parametrize("strategy", ALL)
def test_the_answer_is_the_best_of_what_was_measured(strategy: str) -> None:
    timer = rough(1)
    search, asked = run(strategy, timer, problem())
    assert search.best in asked
    if strategy != "descent":
        assert timer(search.best) == min(map(timer, asked))


@pytest.mark.parametrize("strategy", ALL)
def test_only_members_and_candidates_are_asked_for(strategy: str) -> None:
    _, asked = run(strategy, rough(2), problem())
    assert all(c in GRID or c in (START, *OTHERS) for c in asked)


@pytest.mark.parametrize("strategy", ALL)
def test_the_same_problem_is_searched_in_the_same_way_whatever_the_order_of_answers(
    strategy: str,
) -> None:
    runs = [run(strategy, rough(3, 0.2), problem(seed=7), order=Random(k)) for k in range(3)]
    assert all(asked == runs[0][1] for _, asked in runs)
    assert len({search.best for search, _ in runs}) == 1


@pytest.mark.parametrize("strategy", ALL)
def test_what_can_not_run_never_wins(strategy: str) -> None:
    timer = rough(4, share_that_fails=0.5)
    search, asked = run(strategy, timer, problem())
    if any(timer(c) < inf for c in asked):
        assert search.best is not None and timer(search.best) < inf
    nothing, _ = run(strategy, lambda c: inf, problem())
    assert nothing.best is None


@pytest.mark.parametrize("strategy", ALL)
def test_measurements_stay_within_a_budget(strategy: str) -> None:
    _, asked = run(strategy, rough(5), problem(kept=12))
    limit = {"candidates": 4, "halving": 8, "random": 24, "descent": 80, "thorough": 110}
    assert len(asked) <= limit[strategy]


def test_a_trial_that_was_not_told_is_noticed() -> None:
    search = Search(STRATEGIES["candidates"], problem())
    search.ask()
    with pytest.raises(AssertionError, match="4 trials"):
        search.ask()


def test_each_tune_option_names_a_strategy() -> None:
    assert set(OF_OPTION.values()) <= set(STRATEGIES)


# -- Algorithm 9.1


def test_claim_6_4_one_candidate_is_not_measured() -> None:
    for strategy in OF_OPTION.values():
        search, asked = run(strategy, rough(6), problem(candidates=(START,)))
        assert asked == [] and search.best == START


def test_algorithm_9_1_takes_the_fastest_candidate_and_the_first_of_equals() -> None:
    timer = bowl(OTHERS[1])
    search, asked = run("candidates", timer, problem())
    assert asked == [START, *OTHERS] and search.best == OTHERS[1]
    equal, _ = run("candidates", lambda c: 5.0, problem())
    assert equal.best == START


# -- Algorithm 9.2


@pytest.mark.parametrize("best", [OPTIMUM, START, Config.of(R0_BLOCK=2048, XBLOCK=1, num_warps=32)])
def test_descent_finds_the_bottom_of_one_valley(best: Config) -> None:
    search, _ = run("descent", bowl(best), problem())
    assert search.best == best


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), epsilon=st.sampled_from([EPSILON, 0.01, 0.2]))
def test_claim_6_7_bounds_of_proposition_9_2(seed: int, epsilon: float) -> None:
    timer = rough(seed, share_that_fails=0.1)
    search, _ = run("descent", timer, problem(epsilon=epsilon))
    if search.best is None:
        assert timer(START) == inf
        return
    least = min(map(timer, GRID.members))
    steps = ceil(log(timer(START) / least) / -log(1 - epsilon))
    assert search.notebook.accepted <= min(len(GRID.members), steps)
    reached = timer(search.best)
    assert all(timer(c) >= (1 - epsilon) * reached for c in GRID.neighbours(search.best))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), noise=st.sampled_from([0.0004, 0.01, 0.05]))
def test_claim_6_8_an_acceptance_is_an_improvement_whatever_the_noise(
    seed: int, noise: float
) -> None:
    """The spec's own threshold of 1e-3 promises this only up to a noise of 0.05 %; the margin grows with the noise."""
    timer = rough(seed)
    search, _ = run("descent", timer, problem(seed=seed), noise=noise)
    assert search.best is not None
    assert timer(search.best) <= timer(START)
    if search.notebook.accepted:
        assert timer(search.best) < timer(START)


@given(
    eta=st.floats(0, 0.4),
    a=st.floats(-1, 1),
    b=st.floats(-1, 1),
    t=st.floats(1, 1e3),
    u=st.floats(1, 1e3),
)
def test_the_margin_is_the_condition_of_the_spec(
    eta: float, a: float, b: float, t: float, u: float
) -> None:
    old, new = Measurement(t * (1 + a * eta), eta), Measurement(u * (1 + b * eta), eta)
    if new.time_us < (1 - margin(EPSILON, old, new)) * old.time_us:
        assert u < t * (1 + 1e-12)


def test_at_one_percent_noise_the_spec_s_threshold_alone_would_accept_what_is_slower() -> None:
    slower = Measurement(101.0 * 0.99, 0.01)
    faster = Measurement(100.0 * 1.01, 0.01)
    assert slower.time_us < (1 - EPSILON) * faster.time_us
    assert not slower.time_us < (1 - margin(EPSILON, faster, slower)) * faster.time_us


# -- random search and successive halving


def test_claim_6_9_sixty_draws() -> None:
    assert draws_needed(QUANTILE, DELTA) == 60
    assert draws_needed(0.01, 0.05) == 300


def test_proposition_9_3_by_simulation() -> None:
    times = sorted(map(rough(8), GRID.members))
    limit = times[ceil(QUANTILE * len(times)) - 1]
    found = [run("random", rough(8), problem(seed=s))[0].notebook.best for s in range(300)]
    hits = sum(rough(8)(best) <= limit for best in found if best is not None)
    assert hits / len(found) > 1 - DELTA - 0.03


def test_the_cost_model_decides_which_draws_are_measured() -> None:
    cost = bowl(OPTIMUM)
    search, asked = run("random", cost, problem(cost=cost, kept=5))
    assert len(set(asked)) == 5
    everything, drawn = run("random", cost, problem())
    assert search.best == everything.best
    assert set(asked) == set(sorted(set(drawn), key=lambda c: (cost(c), drawn.index(c)))[:5])


def test_halving_measures_the_better_half_for_twice_as_long() -> None:
    timer = bowl(OPTIMUM)
    search = Search(STRATEGIES["halving"], problem(candidates=GRID.members[:16]))
    sizes: list[tuple[int, float]] = []
    while trials := search.ask():
        sizes.append((len(trials), trials[0].budget_us))
        for trial in trials:
            search.tell(trial.config, Measurement(timer(trial.config), 0.01))
    assert [n for n, _ in sizes] == [16, 8, 4, 2]
    assert [b / sizes[0][1] for _, b in sizes] == [1, 2, 4, 8]
    assert search.best == min(GRID.members[:16], key=timer)


def test_max_is_never_worse_than_default() -> None:
    for seed in range(20):
        timer = rough(seed, 0.1)
        default, _ = run("candidates", timer, problem(seed=seed))
        most, _ = run("thorough", timer, problem(seed=seed))
        if default.best is not None:
            assert most.best is not None and timer(most.best) <= timer(default.best)
