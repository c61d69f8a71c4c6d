"""The farm's state machine without Ray: tables of events and actions, a random farm, and a hundred thousand jobs."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from farm.jobs import (
    Assign,
    ClientJoined,
    ClientLeft,
    ClientSeen,
    Deliver,
    FarmAction,
    FarmEvent,
    FarmJob,
    JobDone,
    JobFailed,
    JobsSubmitted,
    Outcome,
    Refuse,
    StartWorker,
    StopWorker,
    Tick,
    WorkerJoined,
    WorkerLost,
    pack_jobs,
    pack_outcomes,
    unpack_jobs,
    unpack_outcomes,
)
from farm.queue import FairQueue
from farm.state import Limits, State, step, stories

CPP = "cxx=g++ 12.2.0"
BUILT = Outcome("built", digest="d", size_bytes=3, seconds=0.5)
REFUSED_TEXT = Outcome("failed", "compiler", "error: expected ';'")
LOST_CHILD = Outcome("failed", "worker-lost", "the compiling process died")


def job(name: str, needs: str = CPP, timeout_s: float = 10.0) -> FarmJob:
    return FarmJob(name, needs, timeout_s=timeout_s)


def play(state: State, *events: FarmEvent) -> list[FarmAction]:
    """The actions of some events, in order."""
    actions: list[FarmAction] = []
    for event in events:
        state, told = step(state, event)
        actions += told
    return actions


def farm(workers: int = 1, **limits: float) -> State:
    """A farm with one client, "a", and some ready workers without work."""
    state = State(limits=Limits(**limits))  # type: ignore[arg-type]
    seed = tuple(job(f"seed{i}") for i in range(workers))
    play(state, ClientJoined("a"), Tick(0.0, workers), JobsSubmitted("a", seed))
    for i in range(workers):
        play(state, WorkerJoined(f"w{i + 1}", (CPP,)))
    for name, worker in list(state.workers.items()):
        play(state, *(JobDone(name, running, BUILT) for running in list(worker.running)))
    return state


def test_a_job_starts_a_worker_runs_there_and_is_delivered():
    state = State()
    assert play(state, ClientJoined("a"), Tick(0.0, 2), JobsSubmitted("a", (job("x"),))) == [
        StartWorker("w1")
    ]
    assert play(state, WorkerJoined("w1", (CPP,))) == [Assign("w1", job("x"))]
    assert play(state, JobDone("w1", "x", BUILT)) == [Deliver("a", "x", BUILT)]
    assert [line for _, line in stories(state)["x"]] == [
        "submitted by a",
        "given to w1",
        "built by w1 in 0.50 s",
    ]


def test_equal_jobs_of_two_clients_are_built_once():
    state = farm()
    actions = play(
        state,
        ClientJoined("b"),
        JobsSubmitted("a", (job("x"),)),
        JobsSubmitted("b", (job("x"),)),
        JobDone("w1", "x", BUILT),
    )
    assert actions == [Assign("w1", job("x")), Deliver("a", "x", BUILT), Deliver("b", "x", BUILT)]


def test_equal_jobs_of_one_client_give_one_result():
    state = farm()
    actions = play(state, JobsSubmitted("a", (job("x"), job("x"))), JobsSubmitted("a", (job("x"),)))
    assert actions + play(state, JobDone("w1", "x", BUILT)) == [
        Assign("w1", job("x")),
        Deliver("a", "x", BUILT),
    ]


def test_a_refused_text_is_not_tried_again():
    state = farm(2)
    assert play(state, JobsSubmitted("a", (job("x"),)), JobFailed("w2", "x", REFUSED_TEXT)) == [
        Assign("w1", job("x"))
    ]
    assert play(state, JobFailed("w1", "x", REFUSED_TEXT)) == [Deliver("a", "x", REFUSED_TEXT)]


def test_a_lost_worker_sends_its_job_to_another():
    state = farm(2)
    actions = play(
        state,
        JobsSubmitted("a", (job("x"),)),
        WorkerLost("w1", "killed"),
        JobDone("w1", "x", BUILT),
    )
    assert actions == [Assign("w1", job("x")), Assign("w2", job("x"))]
    assert play(state, JobDone("w2", "x", BUILT)) == [Deliver("a", "x", BUILT)]


def test_a_job_that_kills_every_worker_ends():
    state = farm(1, retries=2)
    actions = play(state, JobsSubmitted("a", (job("x"),)), *[JobFailed("w1", "x", LOST_CHILD)] * 3)
    assert actions[:3] == [Assign("w1", job("x"))] * 3
    (last,) = actions[3:]
    assert isinstance(last, Deliver) and last.outcome.kind == "worker-lost"
    assert "lost 3 times" in last.outcome.message


def test_clients_take_turns():
    state = farm(1)
    crowd = tuple(job(f"a{i}") for i in range(4))
    play(
        state,
        ClientJoined("b"),
        JobsSubmitted("a", crowd),
        JobsSubmitted("b", (job("b0"), job("b1"))),
    )
    order = []
    while state.tasks:
        (running,) = state.workers["w1"].running
        order.append(running)
        play(state, JobDone("w1", running, BUILT))
    assert order == ["a0", "a1", "b0", "a2", "b1", "a3"]


def test_a_client_that_left_gets_nothing_and_its_queue_is_dropped():
    state = farm(1)
    play(state, JobsSubmitted("a", (job("x"), job("y"))), ClientLeft("a"))
    assert list(state.tasks) == ["x"]  # it runs: what it builds is published
    assert play(state, JobDone("w1", "x", BUILT)) == []
    assert not state.tasks and not state.queue


def test_a_job_outlives_the_client_in_whose_lane_it_waits():
    state = farm(1)
    play(
        state,
        ClientJoined("b"),
        JobsSubmitted("a", (job("x"), job("y"))),
        JobsSubmitted("b", (job("y"),)),
    )
    assert play(state, ClientLeft("a"), JobDone("w1", "x", BUILT)) == [Assign("w1", job("y"))]
    assert play(state, JobDone("w1", "y", BUILT)) == [Deliver("b", "y", BUILT)]


def test_a_silent_client_is_let_go():
    state = farm(1, lease_s=60)
    play(
        state,
        JobsSubmitted("a", (job("x"), job("y"))),
        Tick(50.0, 1),
        ClientSeen("a"),
        Tick(100.0, 1),
    )
    assert "a" in state.clients
    play(state, Tick(111.0, 1))
    assert not state.clients and not state.queue


def test_a_hung_worker_is_stopped_and_replaced():
    state = farm(1, grace_s=5)
    play(state, JobsSubmitted("a", (job("x", timeout_s=10),)))
    assert play(state, Tick(15.0, 1)) == []
    assert play(state, Tick(15.1, 1)) == [
        StopWorker("w1", "it did not answer in time"),
        StartWorker("w2"),
    ]
    assert play(state, WorkerJoined("w2", (CPP,))) == [Assign("w2", job("x", timeout_s=10))]


def test_a_worker_holds_no_more_than_its_share():
    state = farm(1, in_flight=2)
    play(state, JobsSubmitted("a", tuple(job(f"x{i}") for i in range(5))))
    assert list(state.workers["w1"].running) == ["x0", "x1"]


def test_workers_follow_the_cluster_or_the_clients_wish():
    many = tuple(job(f"x{i}") for i in range(9))
    for wish, cpus, expected in ((0, 4, 4), (2, 4, 2), (6, 0, 6), (0, 0, 1), (0, 64, 9)):
        state = State()
        actions = play(
            state, Tick(0.0, cpus), ClientJoined("a", max_workers=wish), JobsSubmitted("a", many)
        )
        assert len(actions) == expected, (wish, cpus)


def test_without_workers_the_client_is_refused_in_time():
    state = State()
    play(state, ClientJoined("a", patience_s=30), Tick(0.0, 0), JobsSubmitted("a", (job("x"),)))
    assert play(state, Tick(1.0, 0), Tick(30.0, 0)) == []
    assert play(state, Tick(31.5, 0)) == [
        Refuse("a", "no worker came up within 30 s"),
        StopWorker("w1", "nothing to do"),
    ]
    assert not state.tasks and not state.clients and not state.workers


def test_workers_that_die_while_starting_are_not_tried_for_ever():
    state = State()
    play(state, ClientJoined("a", patience_s=1e9), Tick(0.0, 1), JobsSubmitted("a", (job("x"),)))
    actions: list[FarmAction] = []
    for second in range(1, 100):
        actions += play(
            state, *(WorkerLost(w, "no module named farm") for w in list(state.workers))
        )
        actions += play(state, ClientSeen("a"), Tick(float(second), 1))
    assert actions == [
        StartWorker("w2"),
        StartWorker("w3"),
        Refuse("a", "3 workers died while they started; last: no module named farm"),
    ]


def test_jobs_whose_tools_no_worker_has_fail():
    state = farm(1)
    play(state, JobsSubmitted("a", (job("x", needs="cxx=g++ 99"), job("y"))))
    (deliver,) = play(state, Tick(1.0, 1))
    assert (
        isinstance(deliver, Deliver) and deliver.name == "x" and deliver.outcome.kind == "toolchain"
    )
    assert "expected cxx=g++ 99, found cxx=g++ 12.2.0" in deliver.outcome.message


def test_an_idle_worker_is_let_go():
    state = farm(1, idle_s=60)
    assert play(state, ClientSeen("a"), Tick(60.0, 1)) == []
    assert play(state, Tick(60.5, 1)) == [StopWorker("w1", "nothing to do")]


def test_a_worker_that_comes_too_late_is_stopped():
    state = farm(1)
    (action,) = play(state, WorkerJoined("w9", (CPP,)))
    assert isinstance(action, StopWorker)


def test_jobs_and_outcomes_survive_the_wire():
    jobs = [job("x"), FarmJob("y", CPP, b"\x00\xff", 3.0)]
    outcomes = [
        ("x", BUILT),
        ("y", Outcome("failed", "compiler", "m", "log", data=b"\x01", meta=(("a", 1), ("b", "c")))),
    ]
    assert unpack_jobs(pack_jobs(jobs)) == tuple(jobs)
    assert unpack_outcomes(pack_outcomes(outcomes)) == outcomes


def test_a_hundred_thousand_jobs_take_seconds():
    state = farm(64)
    begun = time.perf_counter()
    for batch in range(0, 100_000, 500):
        play(state, JobsSubmitted("a", tuple(job(f"x{i}") for i in range(batch, batch + 500))))
    delivered = 0
    while state.tasks:
        for name, worker in state.workers.items():
            for running in list(worker.running):
                delivered += len(
                    [
                        a
                        for a in play(state, JobDone(name, running, BUILT))
                        if isinstance(a, Deliver)
                    ]
                )
    took_s = time.perf_counter() - begun
    assert delivered == 100_000
    assert took_s < 20, f"{took_s:.1f} s; 0.9 s on an idle core"


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("pq"), st.integers(0, 20), st.booleans()),
        unique_by=lambda t: t[2],
    )
)
def test_the_queue_gives_back_what_was_put_in(rows: list[tuple[str, str, int, bool]]):
    queue = FairQueue()
    for client, needs, number, first in rows:
        queue.push(client, needs, str(number), first=first)
    assert len(queue) == len(rows) and queue.needs() == {needs for _, needs, _, _ in rows}
    only_p = [queue.pop({"p"}) for _ in range(1 + sum(needs == "p" for _, needs, _, _ in rows))]
    rest = [queue.pop({"p", "q"}) for _ in range(len(rows) - len(only_p) + 1)]
    assert only_p[-1] is None
    assert sorted(n for n in [*only_p, *rest] if n) == sorted(
        str(number) for _, _, number, _ in rows
    )
    assert not queue and queue.needs() == set()


@dataclass
class Seen:
    """What one client asked for and got."""

    asked: set[str] = field(default_factory=set)
    got: Counter[str] = field(default_factory=Counter)
    refused: bool = False


class RandomFarm(RuleBasedStateMachine):
    """Clients come and go, workers die at any moment, answers come late or twice; the rules of the farm hold throughout."""

    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.state = State(
            limits=Limits(in_flight=2, retries=1, grace_s=3, lease_s=1e9, idle_s=5, stories=5)
        )
        self.now_s = 0.0
        self.seen: dict[str, Seen] = {}
        self.starting: set[str] = set()
        self.alive: dict[str, set[str]] = {}
        self.answered: list[tuple[str, str]] = []

    def feed(self, event: FarmEvent) -> None:
        self.state, actions = step(self.state, event)
        for action in actions:
            self.perform(action)

    def perform(self, action: FarmAction) -> None:
        match action:
            case StartWorker(worker):
                assert worker not in self.starting and worker not in self.alive
                self.starting.add(worker)
            case StopWorker(worker):
                self.starting.discard(worker)
                self.alive.pop(worker, None)
            case Assign(worker, assigned):
                held = [w for w, names in self.alive.items() if assigned.name in names]
                assert held == [], f"{assigned.name} runs on {held} and is given to {worker}"
                self.alive[worker].add(assigned.name)
            case Deliver(client, name):
                assert not self.seen[client].refused
                self.seen[client].got[name] += 1
            case Refuse(client):
                self.seen[client].refused = True

    @rule(target=clients, patience_s=st.sampled_from([2.0, 50.0]), max_workers=st.integers(0, 3))
    def join(self, patience_s: float, max_workers: int) -> str:
        name = f"c{len(self.seen)}"
        self.seen[name] = Seen()
        self.feed(ClientJoined(name, max_workers, patience_s))
        return name

    @rule(client=clients, numbers=st.lists(st.integers(0, 12), max_size=6), odd=st.booleans())
    def submit(self, client: str, numbers: list[int], odd: bool) -> None:
        needs = "rare" if odd else CPP
        names = [f"{needs}/{number}" for number in numbers]
        again = {
            n for n in names if n not in self.seen[client].asked
        }  # a second ask after the result is a second result
        if client in self.state.clients:
            self.seen[client].asked |= again
        self.feed(JobsSubmitted(client, tuple(job(n, needs) for n in sorted(again))))

    @rule(client=consumes(clients))
    def leave(self, client: str) -> None:
        self.feed(ClientLeft(client))

    @precondition(lambda self: self.starting)
    @rule(data=st.data(), rare=st.booleans())
    def worker_comes_up(self, data: st.DataObject, rare: bool) -> None:
        worker = data.draw(st.sampled_from(sorted(self.starting)))
        self.starting.discard(worker)
        self.alive[worker] = set()
        self.feed(WorkerJoined(worker, (CPP, "rare") if rare else (CPP,)))

    @precondition(lambda self: self.starting or self.alive)
    @rule(data=st.data())
    def worker_dies(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.starting | set(self.alive))))
        self.starting.discard(worker)
        self.alive.pop(worker, None)
        self.feed(WorkerLost(worker, "killed"))

    @precondition(lambda self: any(self.alive.values()))
    @rule(data=st.data(), how=st.sampled_from([BUILT, REFUSED_TEXT, LOST_CHILD]))
    def worker_answers(self, data: st.DataObject, how: Outcome) -> None:
        worker, name = data.draw(
            st.sampled_from(sorted((w, n) for w, names in self.alive.items() for n in names))
        )
        self.alive[worker].discard(name)
        self.answered.append((worker, name))
        self.feed(
            JobFailed(worker, name, how) if how.status == "failed" else JobDone(worker, name, how)
        )

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def an_answer_comes_again(self, data: st.DataObject) -> None:
        worker, name = data.draw(st.sampled_from(self.answered))
        if name not in self.alive.get(worker, ()):
            self.feed(JobDone(worker, name, BUILT))

    @rule(seconds=st.sampled_from([0.25, 1.0, 20.0]), cpus=st.integers(0, 4))
    def time_passes(self, seconds: float, cpus: int) -> None:
        self.now_s += seconds
        self.feed(Tick(self.now_s, cpus))

    @invariant()
    def nothing_is_delivered_twice(self) -> None:
        for client, seen in self.seen.items():
            assert all(count == 1 for count in seen.got.values())
            assert set(seen.got) <= seen.asked
            held = self.state.clients.get(client)
            if held is not None:
                assert set(held.names) == seen.asked - set(seen.got)

    @invariant()
    def the_books_agree(self) -> None:
        state = self.state
        queued = {n for n, t in state.tasks.items() if t.lane}
        running = {n for w in state.workers.values() for n in w.running}
        assert queued | running == set(state.tasks) and not queued & running
        assert len(state.queue) == len(queued)
        assert {n for needs in state.queue.needs() for n in state.queue.names(needs)} == queued
        assert set(state.workers) == self.starting | set(self.alive)
        assert {w: set(x.running) for w, x in state.workers.items() if x.ready} == self.alive
        assert all(len(w.running) <= state.limits.in_flight for w in state.workers.values())
        assert all(state.tasks[n].clients for n in queued)
        assert len(state.ended) <= state.limits.stories

    def teardown(self) -> None:
        """Whatever happened, a farm with healthy workers brings every client its results, and then holds nothing."""
        for _ in range(10_000):
            if not self.state.tasks:
                break
            self.now_s += 0.5
            self.feed(Tick(self.now_s, 4))
            for worker in sorted(self.starting):
                self.starting.discard(worker)
                self.alive[worker] = set()
                self.feed(WorkerJoined(worker, (CPP, "rare")))
            for worker, name in sorted((w, n) for w, names in self.alive.items() for n in names):
                if worker in self.alive:
                    self.alive[worker].discard(name)
                    self.feed(JobDone(worker, name, BUILT))
        for client in self.state.clients:
            assert set(self.seen[client].got) == self.seen[client].asked
        for client in list(self.state.clients):
            self.feed(ClientLeft(client))
        self.feed(Tick(self.now_s + 100, 4))
        state = self.state
        assert not (state.tasks or state.workers or state.clients or state.queue or state.spare)


RandomFarm.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
test_random_farm = RandomFarm.TestCase
