"""LocalBuilder: the Builder on this machine. A pool of warm child processes that a crash or a hang can not hurt."""

from __future__ import annotations

import os
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TypeGuard

from stax.base.errors import BuildError, SchemaError
from stax.base.observe import Event, Observer, ignore
from stax.build.child import Child, ChildHung, ChildLost, remove_left_over
from stax.build.job import BuildResult, Built, Failed, Job
from stax.build.wire import pack_job, unpack_result


@dataclass(eq=False)
class _Call:
    """One ``build`` call: where its events and results go, and whether anybody still waits for them."""

    news: SimpleQueue[Event | BuildResult] = field(default_factory=SimpleQueue[Event | BuildResult])
    cancelled: bool = False


@dataclass(frozen=True, eq=False)
class _Task:
    key: str
    job: Job
    call: _Call


class LocalBuilder:
    """Builds in up to ``jobs`` child processes (0: one a core this process may use).

    Processes start when work arrives and stay warm until ``close``; several threads share them, first come first
    served. A job may take the lesser of its own and this builder's ``timeout_s``. A process that dies is replaced and
    its job tried again up to ``retries`` times; a job that runs out of time ends its process and every compiler below it.
    ``observe`` is called on the thread that iterates over ``build``.
    """

    def __init__(
        self,
        jobs: int = 0,
        timeout_s: float = 300.0,
        cxx: str = "g++",
        *,
        retries: int = 2,
        observe: Observer = ignore,
    ) -> None:
        self._slots = jobs or len(os.sched_getaffinity(0))
        self._timeout_s = timeout_s
        self._cxx = cxx
        self._retries = retries
        self._observe = observe
        self._changed = threading.Condition()
        self._queue: deque[_Task] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._running: dict[Child, _Call | None] = {}
        self._closed = False

    def build(self, jobs: Sequence[Job]) -> Iterator[BuildResult]:
        """See :class:`stax.build.job.Builder`. The work begins at the first ``next``."""
        distinct = {job.key.digest: job for job in jobs}
        call = _Call()
        try:
            self._submit([_Task(key, job, call) for key, job in distinct.items()])
            self._observe(Event("build.queued", {"count": len(distinct)}))
            left = len(distinct)
            while left:
                news = call.news.get()
                if isinstance(news, Event):
                    self._observe(news)
                    continue
                left -= 1
                self._observe(_event_of(news))
                yield news
        except KeyboardInterrupt:
            self._abandon(call)
            raise
        finally:
            call.cancelled = True

    def close(self) -> None:
        """End every process. Calls still waiting get Failed("worker-lost")."""
        with self._changed:
            self._closed = True
            for child in self._running:
                child.kill()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the children, for tests and post-mortems."""
        with self._changed:
            return tuple(child.pid for child in self._running)

    def _submit(self, tasks: list[_Task]) -> None:
        with self._changed:
            if self._closed:
                raise BuildError("build on a closed builder", hint="make a new LocalBuilder")
            self._queue.extend(tasks)
            if not self._threads:
                remove_left_over(tempfile.gettempdir())
            wanted = min(len(self._queue) - self._idle, self._slots - len(self._threads))
            for _ in range(wanted):
                # NOTE: daemons, so that an interpreter that exits in mid-build does not wait for the queue;
                # the pipes end with it, and that ends the children.
                thread = threading.Thread(target=self._serve, name="stax-build", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify(len(tasks))

    def _abandon(self, call: _Call) -> None:
        with self._changed:
            call.cancelled = True
            for child, serving in self._running.items():
                if serving is call:
                    child.kill()

    def _serve(self) -> None:
        """One slot: take a task, have it built by this slot's child, until the builder closes."""
        child: Child | None = None
        while (task := self._take()) is not None:
            result, child = self._attempt(task, child)
            task.call.news.put(result)
        if child is not None:
            self._drop(child)

    def _take(self) -> _Task | None:
        with self._changed:
            while True:
                while self._queue:
                    task = self._queue.popleft()
                    if self._closed:
                        task.call.news.put(_closed(task))
                    elif not task.call.cancelled:
                        return task
                if self._closed:
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1

    def _attempt(self, task: _Task, child: Child | None) -> tuple[BuildResult, Child | None]:
        limit_s = min(task.job.timeout_s, self._timeout_s)
        log = ""
        for _ in range(1 + self._retries):
            if self._closed or task.call.cancelled:
                return _closed(task), child
            try:
                child = self._alive(child)
                result = self._ask(child, task, limit_s)
                if not _is_lost(result):
                    return result, child
                log = result.log
            except ChildHung as error:
                message = f"no result within {limit_s:g} s; the compiler was ended"
                failed = Failed(task.key, "timeout", message, str(error), task.job.text)
                self._drop(child)
                return failed, None
            except (ChildLost, SchemaError, OSError) as error:
                log = str(error)  # OSError: the machine had no process or file to give
                self._drop(child)
                child = None
            task.call.news.put(Event("build.worker_lost", {"key": task.key, "log": log}))
        message = f"the compiling process died {1 + self._retries} times"
        return Failed(task.key, "worker-lost", message, log, task.job.text), child

    def _alive(self, child: Child | None) -> Child:
        """The slot's child, or a new one where there is none or it died while idle. Raises OSError."""
        if child is not None and child.alive():
            return child
        self._drop(child)
        child = Child("stax.build.worker", self._cxx)
        with self._changed:
            self._running[child] = None
            if self._closed:
                child.kill()
        return child

    def _ask(self, child: Child, task: _Task, limit_s: float) -> BuildResult:
        """Raises ChildLost, ChildHung or SchemaError."""
        with self._changed:
            self._running[child] = task.call
        task.call.news.put(Event("build.begin", {"key": task.key, "language": task.job.language}))
        result = unpack_result(child.ask(pack_job(task.job), limit_s), task.job)
        with self._changed:
            self._running[child] = None
        return result

    def _drop(self, child: Child | None) -> None:
        if child is None:
            return
        with self._changed:
            self._running.pop(child, None)
        child.release()


def _is_lost(result: BuildResult) -> TypeGuard[Failed]:
    """The child lives, but the compiler below it was killed."""
    return isinstance(result, Failed) and result.kind == "worker-lost"


def _closed(task: _Task) -> Failed:
    return Failed(
        task.key, "worker-lost", "the builder was closed before the job ended", "", task.job.text
    )


def _event_of(result: BuildResult) -> Event:
    if isinstance(result, Built):
        fields = {"key": result.key, "seconds": result.seconds, "size_bytes": len(result.data)}
        return Event("build.done", fields)
    return Event(
        "build.failed", {"key": result.key, "kind": result.kind, "message": result.message}
    )
