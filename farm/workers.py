"""BuildWorker: one CPU of the cluster that turns jobs into kernels in the store. A Ray actor; see farm/driver.py."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import replace

from farm.jobs import Outcome, WorkOrder, offers_of, pack_outcomes
from stax.base.errors import StoreError
from stax.base.options import Environment
from stax.build.job import Built, Job
from stax.build.kernels import Kernel, find_kernel, publish_kernel
from stax.build.local import LocalBuilder
from stax.build.toolchain import local_toolchain
from stax.build.wire import unpack_job
from stax.store.open import open_store
from stax.store.records import Records

_LOG_LIMIT = 65_536


class BuildWorker:
    """Compiles in a child process, so that neither a crash nor a hang of a compiler ends the actor.

    Only digests and numbers leave it: the binary goes to the store, unless there is none or it can not take it.
    ``build`` runs one job at a time; ``watch`` is called once, in a second thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._cxx = Environment.read().cxx
        # retries=0: the coordinator retries, and may choose another machine.
        self._builder = LocalBuilder(1, timeout_s=float("inf"), cxx=self._cxx, retries=0)
        self._records: dict[tuple[str, str], Records] = {}
        self._stopped = threading.Event()

    def hello(self) -> tuple[tuple[str, ...], str]:
        """The labels of what this machine can compile, and where it runs ("host:pid")."""
        return offers_of(local_toolchain(self._cxx)), f"{socket.gethostname()}:{os.getpid()}"

    def watch(self) -> None:
        """Never returns: its end tells the coordinator that this process is gone."""
        self._stopped.wait()

    def build(self, payload: bytes) -> bytes:
        """Carry out a packed WorkOrder; never raises for a failing job. Returns one packed outcome."""
        order = WorkOrder.unpack(payload)
        job = unpack_job(order.job)
        outcome = self._hit(order, job) or self._compile(order, job)
        return pack_outcomes([("", replace(outcome, worker=self._name))])

    def _hit(self, order: WorkOrder, job: Job) -> Outcome | None:
        if not order.store_url:
            return None
        try:
            records = self._open(order)
            kernel = find_kernel(records, job.key.digest)
            if kernel is None:
                return None
            data = records.get_blob(kernel.digest) if order.carry else b""
        except StoreError:
            return (
                None  # a store that can not answer is a miss; the job is worth more than the saving
            )
        return _stored("hit", kernel, data)

    def _compile(self, order: WorkOrder, job: Job) -> Outcome:
        (result,) = self._builder.build([job])
        if not isinstance(result, Built):
            log = result.log[-_LOG_LIMIT:]
            return Outcome("failed", result.kind, result.message, log)
        built = Outcome(
            "built",
            size_bytes=len(result.data),
            data=result.data,
            meta=result.meta,
            seconds=result.seconds,
        )
        if not order.store_url:
            return built
        try:
            kernel = publish_kernel(self._open(order), result)
        except StoreError as error:
            return replace(built, message=f"the store did not take it: {error}")
        if order.carry:
            return built
        return replace(_stored("built", kernel, b""), seconds=result.seconds)

    def _open(self, order: WorkOrder) -> Records:
        where = (order.store_url, order.tier)
        if where not in self._records:
            self._records[where] = Records(open_store(order.store_url), order.tier)
        return self._records[where]


def _stored(status: str, kernel: Kernel, data: bytes) -> Outcome:
    return Outcome(
        status, digest=kernel.digest, size_bytes=kernel.size_bytes, data=data, meta=kernel.meta
    )
