"""The coordinator: one actor a cluster that feeds the state machine with what Ray tells and does what it answers.

Everything happens on the event loop of the actor, so the state needs no lock. Work in flight is bounded by the state
(``Limits.in_flight`` a worker); each assigned job is one awaited Ray call. A bug here ends the process: Ray starts it
again, and the clients send again what they still wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import traceback
from collections import deque
from collections.abc import Coroutine, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from ray.exceptions import RayActorError, RayError

from farm import cluster
from farm.jobs import (
    WIRE_VERSION,
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
    pack_outcomes,
    unpack_jobs,
    unpack_outcomes,
)
from farm.state import Limits, State, step, stories
from farm.workers import BuildWorker
from stax import __version__

_TICK_S = 0.25
_CPUS_EVERY_S = 2.0
_POLL_OUTCOMES = 500


@dataclass(eq=False)
class _Box:
    """What waits for one client to fetch it."""

    news: deque[Deliver] = field(default_factory=deque[Deliver])
    refused: str = ""
    filled: asyncio.Event = field(default_factory=asyncio.Event)


class Coordinator:
    """The actor's class. Every method but ``status`` and ``stories`` is for :mod:`farm.client`."""

    def __init__(self, environment: Mapping[str, str], limits: Limits | None = None) -> None:
        """``environment`` is set for the workers; Ray copies the coordinator's own to them besides."""
        self._environment = dict(environment)
        self._state = State(limits=limits or Limits())
        self._boxes: dict[str, _Box] = {}
        self._workers: dict[str, cluster.Actor] = {}
        self._places: dict[str, str] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._cpus = 0
        self._cpus_read_s = 0.0

    async def hello(self) -> dict[str, object]:
        """Versions, for a client to compare with its own."""
        return {"wire": WIRE_VERSION, "stax": __version__}

    async def join(self, client: str, max_workers: int, patience_s: float) -> None:
        """A client is there; until it polls again within the lease, or leaves."""
        if not self._background:
            self._spawn(self._keep_time())
        await self._tick()
        self._boxes[client] = _Box()
        self._feed(ClientJoined(client, max_workers, patience_s))

    async def submit(self, client: str, jobs: bytes) -> bool:
        """Take a batch. False: this client is not known (any more), join and send all again."""
        self._feed(JobsSubmitted(client, unpack_jobs(jobs)))
        return client in self._state.clients or client in self._boxes

    async def poll(self, client: str, wait_s: float) -> dict[str, object]:
        """The outcomes since the last poll, as soon as there is one, else after ``wait_s``."""
        box = self._boxes.get(client)
        if box is None:
            return {"known": False}
        self._feed(ClientSeen(client))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(box.filled.wait(), wait_s)
        box.filled.clear()
        news = [box.news.popleft() for _ in range(min(len(box.news), _POLL_OUTCOMES))]
        if box.news or box.refused:
            box.filled.set()
        outcomes = pack_outcomes([(n.name, n.outcome) for n in news])
        return {"known": True, "outcomes": outcomes, "refused": box.refused, **self._numbers()}

    async def leave(self, client: str) -> None:
        """Whatever of this client has not begun is dropped."""
        self._boxes.pop(client, None)
        self._feed(ClientLeft(client))

    async def status(self) -> dict[str, object]:
        """The whole farm as plain data, for ``python -m farm status``."""
        state = self._state
        return {
            **await self.hello(),
            **self._numbers(),
            "pid": os.getpid(),
            "cpus": state.cpus,
            "clients": {name: len(c.names) for name, c in state.clients.items()},
            "each_worker": {
                name: {
                    "ready": w.ready,
                    "offers": w.offers,
                    "running": list(w.running),
                    "place": self._places.get(name, ""),
                }
                for name, w in state.workers.items()
            },
            "counts": dict(state.counts),
            "limits": asdict(state.limits),
            "last_bad_start": state.last_bad_start,
        }

    async def stories(self, prefix: str) -> dict[str, list[tuple[float, str]]]:
        """What happened to the jobs whose names, and so whose kernel keys, begin so."""
        return stories(self._state, prefix)

    def _numbers(self) -> dict[str, object]:
        state = self._state
        queued = len(state.queue)
        ready = sum(w.ready for w in state.workers.values())
        return {"queued": queued, "running": len(state.tasks) - queued, "workers": ready}

    # -- events in

    def _feed(self, event: FarmEvent) -> None:
        try:
            self._state, actions = step(self._state, event)
            for action in actions:
                self._perform(action)
        except Exception as error:
            # Broad because whatever it is, it is a bug, and a half-changed state must not go on.
            _end_process(error)

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            await self._tick()

    async def _tick(self) -> None:
        now_s = time.monotonic()
        if now_s - self._cpus_read_s > _CPUS_EVERY_S or not self._cpus_read_s:
            self._cpus_read_s = now_s
            with contextlib.suppress(RayError, RuntimeError, OSError):  # keep the last number
                self._cpus = await asyncio.to_thread(cluster.cpu_count)
        self._feed(Tick(now_s, self._cpus))
        for client in self._boxes.keys() - self._state.clients.keys():
            if not self._boxes[client].refused:
                del self._boxes[client]  # its lease ran out

    # -- actions out

    def _perform(self, action: FarmAction) -> None:
        match action:
            case StartWorker(worker):
                self._spawn(self._look_after(worker))
            case StopWorker(worker, _):
                self._kill(worker)
            case Assign(worker, job):
                self._spawn(self._run(worker, job))
            case Deliver(client, _, _):
                if client in self._boxes:
                    self._boxes[client].news.append(action)
                    self._boxes[client].filled.set()
            case Refuse(client, reason):
                if client in self._boxes:
                    self._boxes[client].refused = reason
                    self._boxes[client].filled.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()):
            _end_process(error)

    async def _look_after(self, name: str) -> None:
        """Start a worker, and hold its ``watch`` call: that it ends is the first sign of a death."""
        try:
            worker = cluster.start_worker(BuildWorker, name, self._environment)
            self._workers[name] = worker
            offers, self._places[name] = await worker.hello.remote()
            self._feed(WorkerJoined(name, tuple(offers)))
            await worker.watch.remote()
            reason = "it ended"
        except RayError as error:
            reason = _last_line(error)
        self._feed(WorkerLost(name, reason))
        self._kill(name)

    async def _run(self, name: str, job: FarmJob) -> None:
        worker = self._workers.get(name)
        if worker is None:
            return  # lost since; the state has given the job to another
        try:
            ((_, outcome),) = unpack_outcomes(await worker.build.remote(job.payload))
        except RayActorError as error:
            self._feed(WorkerLost(name, _last_line(error)))
            self._kill(name)
            return
        except RayError as error:
            outcome = Outcome("failed", "worker-lost", _last_line(error), str(error))
        failed = outcome.status == "failed"
        self._feed(
            JobFailed(name, job.name, outcome) if failed else JobDone(name, job.name, outcome)
        )

    def _kill(self, name: str) -> None:
        worker = self._workers.pop(name, None)
        self._places.pop(name, None)
        if worker is not None:
            cluster.kill(worker)


def _end_process(error: BaseException) -> NoReturn:
    traceback.print_exception(error)
    os._exit(1)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"
