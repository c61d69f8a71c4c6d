"""The farm as a pure state machine: an event in, actions out. No Ray, no clock, no I/O; the driver does what it says.

    job     queued → running → ended            a lost worker sends it back to queued, a limited number of times
    worker  starting → ready → gone             started as work needs them, stopped when idle or hung

Equal jobs of several clients are one task (single flight). One task runs on one worker at a time.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

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
)
from farm.queue import FairQueue

RETRIED_KINDS = frozenset({"worker-lost"})
_STORY_LINES = 24
_START_PAUSE_LIMIT_S = 10.0


@dataclass(frozen=True)
class Limits:
    """``in_flight``: jobs a worker holds at once. ``retries``: attempts after the first. ``bad_starts``: workers that may
    die in a row before they are ready. ``grace_s``: how long past a job's own limit its worker may be silent.
    ``lease_s``: how long a client may be silent. ``idle_s``: how long an idle worker is kept. ``stories``: ended jobs remembered."""

    in_flight: int = 1
    retries: int = 2
    bad_starts: int = 3
    grace_s: float = 30.0
    lease_s: float = 60.0
    idle_s: float = 60.0
    stories: int = 1000


Story = list[tuple[float, str]]


@dataclass
class Task:
    """``lane`` is the client in whose lane it waits, "" while it runs; ``clients`` are all who want it."""

    job: FarmJob
    clients: dict[str, None]
    lane: str = ""
    worker: str = ""
    attempts: int = 0
    story: Story = field(default_factory=list[tuple[float, str]])


@dataclass
class Client:
    max_workers: int
    patience_s: float
    joined_s: float
    seen_s: float
    names: dict[str, None] = field(default_factory=dict[str, None])


@dataclass
class Worker:
    """``since_s``: when its first job began, or when it fell idle."""

    ready: bool = False
    offers: tuple[str, ...] = ()
    running: dict[str, None] = field(default_factory=dict[str, None])
    since_s: float = 0.0


@dataclass
class State:
    """Changed by :func:`step` alone."""

    limits: Limits = field(default_factory=Limits)
    now_s: float = 0.0
    cpus: int = 0
    clients: dict[str, Client] = field(default_factory=dict[str, Client])
    tasks: dict[str, Task] = field(default_factory=dict[str, Task])
    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])
    queue: FairQueue = field(default_factory=FairQueue)
    spare: dict[str, None] = field(default_factory=dict[str, None])
    unmet_since_s: dict[str, float] = field(default_factory=dict[str, float])
    workers_named: int = 0
    bad_starts: int = 0
    last_bad_start: str = ""
    start_after_s: float = 0.0
    counts: dict[str, int] = field(default_factory=dict[str, int])
    ended: OrderedDict[str, Story] = field(default_factory=OrderedDict[str, Story])


def step(state: State, event: FarmEvent) -> tuple[State, list[FarmAction]]:
    """The next state and what to do now.

    The state is handed over: it is changed in place, so that an event costs the same with 100,000 jobs as with
    one, and the value passed in must not be used again. Events that came too late (of a worker that was given
    up, of a client that left) change nothing.
    """
    return state, _TRANSITIONS[type(event)](state, event)


def stories(state: State, prefix: str = "", limit: int = 100) -> dict[str, Story]:
    """What happened to the jobs whose names begin so, each oldest first: those at work, then the latest ended ones."""
    ended = ((name, state.ended[name]) for name in reversed(state.ended))
    alive = ((name, task.story) for name, task in state.tasks.items())
    found = ((n, list(s)) for n, s in itertools.chain(alive, ended) if n.startswith(prefix))
    return {n: s for n, s in reversed(list(itertools.islice(found, limit)))}


# -- clients


def _client_joined(state: State, event: ClientJoined) -> list[FarmAction]:
    state.clients[event.client] = Client(
        event.max_workers, event.patience_s, state.now_s, state.now_s
    )
    return []


def _client_seen(state: State, event: ClientSeen) -> list[FarmAction]:
    if event.client in state.clients:
        state.clients[event.client].seen_s = state.now_s
    return []


def _client_left(state: State, event: ClientLeft) -> list[FarmAction]:
    client = state.clients.pop(event.client, None)
    for name in client.names if client else ():
        task = state.tasks[name]
        del task.clients[event.client]
        if task.lane == event.client:
            _leave_lane(state, task)
            _enter_lane(state, task, first=False)
    return []


def _jobs_submitted(state: State, event: JobsSubmitted) -> list[FarmAction]:
    client = state.clients.get(event.client)
    if client is None:
        return []
    client.seen_s = state.now_s
    for job in event.jobs:
        if job.name in client.names:
            continue
        client.names[job.name] = None
        task = state.tasks.get(job.name)
        if task is not None:
            task.clients[event.client] = None
            _tell(state, task, f"wanted by {event.client} too", "merged")
            continue
        task = state.tasks[job.name] = Task(job, {event.client: None})
        _tell(state, task, f"submitted by {event.client}", "submitted")
        _enter_lane(state, task, first=False)
    return [*_fill(state, list(state.spare)), *_scale(state)]


# -- workers


def _worker_joined(state: State, event: WorkerJoined) -> list[FarmAction]:
    worker = state.workers.get(event.worker)
    if worker is None:
        return [StopWorker(event.worker, "it was given up while it started")]
    worker.ready, worker.offers, worker.since_s = True, event.offers, state.now_s
    state.spare[event.worker] = None
    state.bad_starts = 0
    return _fill(state, [event.worker])


def _worker_lost(state: State, event: WorkerLost) -> list[FarmAction]:
    worker = state.workers.pop(event.worker, None)
    if worker is None:
        return []
    state.spare.pop(event.worker, None)
    _count(state, "workers_lost")
    if not worker.ready:
        state.bad_starts += 1
        state.last_bad_start = event.reason
        state.start_after_s = state.now_s + min(2.0**state.bad_starts, _START_PAUSE_LIMIT_S)
    actions: list[FarmAction] = []
    for name in worker.running:
        actions += _try_again(
            state, state.tasks[name], f"{event.worker} was lost: {event.reason}", ""
        )
    return [*actions, *_fill(state, list(state.spare)), *_scale(state)]


# -- jobs


def _job_done(state: State, event: JobDone) -> list[FarmAction]:
    task = _take_back(state, event.worker, event.name)
    if task is None:
        return []
    line = f"{event.outcome.status} by {event.worker} in {event.outcome.seconds:.2f} s"
    return [
        *_end(state, task, event.outcome, line, event.outcome.status),
        *_fill(state, [event.worker]),
    ]


def _job_failed(state: State, event: JobFailed) -> list[FarmAction]:
    task = _take_back(state, event.worker, event.name)
    if task is None:
        return []
    outcome = event.outcome
    line = f"{outcome.kind} on {event.worker}: {outcome.message}"
    if outcome.kind in RETRIED_KINDS:
        actions = _try_again(state, task, line, outcome.log)
    else:
        actions = _end(state, task, outcome, line, "failed")
    return [*actions, *_fill(state, [event.worker])]


def _take_back(state: State, name_of_worker: str, name: str) -> Task | None:
    worker = state.workers.get(name_of_worker)
    if worker is None or name not in worker.running:
        return None
    del worker.running[name]
    worker.since_s = state.now_s
    state.spare[name_of_worker] = None
    return state.tasks[name]


def _try_again(state: State, task: Task, line: str, log: str) -> list[FarmAction]:
    task.worker = ""
    if task.attempts > state.limits.retries:
        message = f"lost {task.attempts} times; last: {line}"
        return _end(state, task, Outcome("failed", "worker-lost", message, log), line, "failed")
    _tell(state, task, line, "retried")
    _enter_lane(state, task, first=True)
    return []


def _end(state: State, task: Task, outcome: Outcome, line: str, count: str) -> list[FarmAction]:
    """Tell everybody who waits, and forget the task but for its story."""
    name = task.job.name
    _tell(state, task, line, count)
    if task.lane:
        _leave_lane(state, task)
    _forget(state, task)
    for client in task.clients:
        del state.clients[client].names[name]
    return [Deliver(client, name, outcome) for client in task.clients]


def _forget(state: State, task: Task) -> None:
    name = task.job.name
    del state.tasks[name]
    state.ended[name] = task.story
    state.ended.move_to_end(name)
    if len(state.ended) > state.limits.stories:
        state.ended.popitem(last=False)


def _enter_lane(state: State, task: Task, *, first: bool) -> None:
    """Queue for the first of its clients; a task that nobody wants any more is forgotten."""
    task.lane = next(iter(task.clients), "")
    if task.lane:
        state.queue.push(task.lane, task.job.needs, task.job.name, first=first)
        return
    _tell(state, task, "dropped: nobody waits for it", "dropped")
    _forget(state, task)


def _leave_lane(state: State, task: Task) -> None:
    state.queue.remove(task.lane, task.job.needs, task.job.name)
    task.lane = ""


# -- time


def _tick(state: State, event: Tick) -> list[FarmAction]:
    state.now_s, state.cpus = max(state.now_s, event.now_s), event.cpus
    actions: list[FarmAction] = []
    for name, client in list(state.clients.items()):
        if state.now_s - client.seen_s > state.limits.lease_s:
            actions += _client_left(state, ClientLeft(name))
    for name in [n for n, w in state.workers.items() if _is_hung(state, w)]:
        actions.append(StopWorker(name, "it did not answer in time"))
        actions += _worker_lost(state, WorkerLost(name, "it did not answer in time"))
    return [*actions, *_give_up(state), *_stop_idle(state), *_scale(state)]


def _is_hung(state: State, worker: Worker) -> bool:
    first = next(iter(worker.running), None)
    if first is None:
        return False
    return state.now_s - worker.since_s > state.tasks[first].job.timeout_s + state.limits.grace_s


def _give_up(state: State) -> list[FarmAction]:
    """Refuse the clients that waited too long for any worker; fail the jobs whose tools no worker has."""
    offered = {label for w in state.workers.values() for label in w.offers if w.ready}
    unmet = state.queue.needs() - offered
    state.unmet_since_s = {n: state.unmet_since_s.get(n, state.now_s) for n in sorted(unmet)}
    if not unmet:
        return []
    if not any(w.ready for w in state.workers.values()):
        return _refuse(state, min(state.unmet_since_s.values()))
    starting = len(state.workers) > sum(w.ready for w in state.workers.values())
    patience_s = min(c.patience_s for c in state.clients.values())
    actions: list[FarmAction] = []
    for needs, since_s in state.unmet_since_s.items():
        if not starting or state.now_s - since_s > patience_s:
            message = f"no worker has the tools of this job; expected {needs}, found {' | '.join(sorted(offered)) or 'none'}"
            for name in list(state.queue.names(needs)):
                outcome = Outcome("failed", "toolchain", message)
                actions += _end(state, state.tasks[name], outcome, message, "failed")
    return actions


def _refuse(state: State, since_s: float) -> list[FarmAction]:
    actions: list[FarmAction] = []
    dying = state.bad_starts >= state.limits.bad_starts
    for name, client in list(state.clients.items()):
        waited_s = state.now_s - max(since_s, client.joined_s)
        if not client.names or not (dying or waited_s > client.patience_s):
            continue
        reason = f"{state.bad_starts} workers died while they started; last: {state.last_bad_start}"
        if not dying:
            reason = f"no worker came up within {client.patience_s:g} s"
        actions += [Refuse(name, reason), *_client_left(state, ClientLeft(name))]
        _count(state, "refused")
    if actions and not state.tasks:
        state.bad_starts = 0
    return actions


def _stop_idle(state: State) -> list[FarmAction]:
    """Free the CPUs of workers that have had nothing to do, and of those asked for that nobody needs any more."""
    if state.queue:
        return []
    actions: list[FarmAction] = []
    for name, worker in list(state.workers.items()):
        idle = (
            worker.ready
            and not worker.running
            and state.now_s - worker.since_s > state.limits.idle_s
        )
        if idle or (not worker.ready and not state.tasks):
            del state.workers[name]
            state.spare.pop(name, None)
            actions.append(StopWorker(name, "nothing to do"))
    return actions


# -- placing


def _fill(state: State, names: Iterable[str]) -> list[FarmAction]:
    """Give waiting jobs to those of ``names`` that have room."""
    actions: list[FarmAction] = []
    for name in names:
        worker = state.workers.get(name)
        while state.queue and worker is not None and len(worker.running) < state.limits.in_flight:
            job_name = state.queue.pop(worker.offers)
            if job_name is None:
                break
            actions.append(_assign(state, name, worker, state.tasks[job_name]))
        if worker is not None and len(worker.running) >= state.limits.in_flight:
            state.spare.pop(name, None)
        if not state.queue:
            break
    return actions


def _assign(state: State, name: str, worker: Worker, task: Task) -> Assign:
    if not worker.running:
        worker.since_s = state.now_s
    worker.running[task.job.name] = None
    task.lane, task.worker = "", name
    task.attempts += 1
    _tell(state, task, f"given to {name}", "assigned")
    return Assign(name, task.job)


def _scale(state: State) -> list[FarmAction]:
    """Start workers for the work there is, within what the clients allow and the cluster has.

    A cluster that shows no CPU is asked for one all the same: an autoscaler acts on what waits.
    """
    if not state.queue or state.now_s < state.start_after_s:
        return []
    asked = [c.max_workers for c in state.clients.values() if c.names]
    allowed = max(asked, default=0) if all(asked) else max(state.cpus, 1)
    wanted = min(allowed, math.ceil(len(state.tasks) / state.limits.in_flight))
    actions: list[FarmAction] = []
    for _ in range(wanted - len(state.workers)):
        state.workers_named += 1
        name = f"w{state.workers_named}"
        state.workers[name] = Worker(since_s=state.now_s)
        actions.append(StartWorker(name))
    return actions


def _tell(state: State, task: Task, line: str, count: str) -> None:
    _count(state, count)
    if len(task.story) < _STORY_LINES:
        task.story.append((state.now_s, line))
    else:
        task.story[-1] = (state.now_s, line)


def _count(state: State, name: str) -> None:
    state.counts[name] = state.counts.get(name, 0) + 1


# Any, because a row takes the event of its own type alone.
_TRANSITIONS: dict[type[FarmEvent], Callable[[State, Any], list[FarmAction]]] = {
    ClientJoined: _client_joined,
    ClientSeen: _client_seen,
    ClientLeft: _client_left,
    JobsSubmitted: _jobs_submitted,
    WorkerJoined: _worker_joined,
    WorkerLost: _worker_lost,
    JobDone: _job_done,
    JobFailed: _job_failed,
    Tick: _tick,
}
