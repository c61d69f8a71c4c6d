"""Measuring in a child process: what hangs or crashes there costs its configuration a time, and nobody else anything."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import torch

from stax.base.errors import SchemaError
from stax.base.observe import Event, Observer, ignore
from stax.build.child import Child, ChildHung, ChildLost
from stax.tune.measurement import Measurement, failed, summary
from stax.tune.present import Present, busy_percent, present
from stax.tune.work import Reply, Request, Work, pack_request, unpack_reply

# One configuration may take this long beyond its budget: allocation, warm-up, a slow machine.
LIMIT_S = 20.0
# A child that nobody needs any more holds memory of the device: it ends after this long.
IDLE_S = 30.0
# Children in a row that do not even start before we stop making new ones.
MOST_FAILURES = 3
GPU = "stax.tune.gpu:Gpu"


class Measurer(Protocol):
    """Times configurations on one device.

    ``alone`` holds the device against other tuners while it is open, and gives how busy others kept it in percent (None:
    unknown); it waits for its turn. ``measure`` is called inside it, by the thread that opened it, and never raises for
    what can not run.
    """

    @property
    def device(self) -> str: ...

    def alone(self) -> AbstractContextManager[int | None]: ...

    def measure(self, work: Work, budget_us: float, best_us: float) -> Measurement: ...

    def close(self) -> None: ...


class IsolatedMeasurer:
    """The Measurer of one GPU. Its child starts when ``alone`` is opened, while the caller still compiles, and stays warm for
    ``idle_s`` after the last turn, or until ``close``. ``maker``: the "module:class" of the Device in the child."""

    def __init__(
        self,
        device: Present,
        locks: Path,
        *,
        observe: Observer = ignore,
        maker: str = GPU,
        limit_s: float = LIMIT_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._present = device
        self._lock = locks / f"tune-{device.identity}.lock"
        self._observe = observe
        self._argument = f"{maker} {device.ordinal}"
        self._limit_s = limit_s
        self._idle_s = idle_s
        self._timer: threading.Timer | None = None
        self._child: Child | None = None
        self._ready = False
        self._failures = 0
        self._reason = ""
        self._turn = threading.RLock()

    @property
    def device(self) -> str:
        """The device's name."""
        return self._present.name

    @contextmanager
    def alone(self) -> Generator[int | None]:
        """Raises OSError when the lock file can not be made."""
        with self._turn, _locked(self._lock, self._observe):
            self._cancel()
            busy = busy_percent(self._present.identity)
            self._started()
            try:
                yield busy
            finally:
                if self._ready:
                    self._exchange(Request(None))
                self._timer = threading.Timer(self._idle_s, self.close)
                self._timer.daemon = True
                self._timer.start()

    def measure(self, work: Work, budget_us: float, best_us: float) -> Measurement:
        reply = self._ask(Request(work, budget_us, best_us))
        if reply.status != "ok":
            return failed(reply.status, reply.detail)
        return summary(reply.times_us)

    def close(self) -> None:
        """End the child."""
        with self._turn:
            self._cancel()
            self._drop()

    def _ask(self, request: Request) -> Reply:
        """The answer of a child that has shown that it works."""
        while not self._ready and self._started() is not None:
            greeting = self._exchange(Request(None))
            self._ready = greeting.status == "ok"
            self._failures = 0 if self._ready else self._failures + 1
        if self._child is None:
            return Reply("crash", (), self._reason)
        return self._exchange(request)

    def _exchange(self, request: Request) -> Reply:
        assert self._child is not None
        limit_s = self._limit_s + request.budget_us / 1e6
        try:
            reply = unpack_reply(self._child.ask(pack_request(request), limit_s))
        except ChildHung as error:
            reply = Reply("timeout", (), f"no answer within {limit_s:g} s; {error}", True)
        except (ChildLost, SchemaError) as error:
            reply = Reply("crash", (), str(error)[-2000:], True)
        if reply.spent:
            self._observe(Event("tune.worker_lost", {"status": reply.status, "log": reply.detail}))
            self._reason = reply.detail
            self._drop()
        return reply

    def _started(self) -> Child | None:
        """The child, a fresh one where there is none; None when starting them has proven useless."""
        if self._child is None and self._failures < MOST_FAILURES:
            try:
                self._child = Child("stax.tune.worker", self._argument)
            except OSError as error:  # no process or file left to have
                self._failures, self._reason = MOST_FAILURES, str(error)
        return self._child

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop(self) -> None:
        if self._child is not None:
            self._child.release()
            self._child, self._ready = None, False


def open_measurer(arch: str, locks: Path, observe: Observer) -> IsolatedMeasurer | None:
    """The measurer of a GPU of this architecture, torch's current one if that is one; None without any."""
    if not torch.backends.cuda.is_built():
        return None  # its kernels could be loaded, but their tensors not made
    current = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    found = present(arch, current)
    return None if found is None else IsolatedMeasurer(found, locks, observe=observe)


@contextmanager
def _locked(path: Path, observe: Observer) -> Generator[None]:
    """Hold a lock file, waiting for whoever has it; the system lets go of it when we die."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            observe(Event("tune.waiting", {"reason": f"another process tunes: {path.name}"}))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
