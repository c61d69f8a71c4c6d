"""RayBuilder: the Builder on a Ray cluster. Connects when the first job comes, not before."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from farm.jobs import FarmJob, Outcome, WorkOrder, needs_of
from stax.base.digest import digest
from stax.base.errors import FarmError, Missing, StoreError
from stax.base.observe import Event, Observer, ignore
from stax.build.job import Builder, BuildResult, Built, Failed, Job
from stax.build.wire import pack_job
from stax.store.open import open_store
from stax.store.records import Records

if TYPE_CHECKING:
    from farm.session import Session

_BATCH_JOBS = 500
_WINDOW_JOBS = 4000
_REJOINS = 3


class RayBuilder:
    """Builds on the cluster at ``address`` ("auto", "host:port", or "local" for one of its own on this machine).

    Kernels go straight from the workers to the store at ``store_url``, into ``tier``, and come back from there; with
    no store, or a memory: one, they cross Ray. Equal jobs of all clients of a cluster are built once. When the cluster
    can not take the work within ``patience_s``, ``fallback`` builds what is left, or FarmError is raised.
    ``observe`` is called on the thread that iterates over ``build``.
    """

    def __init__(
        self,
        address: str = "auto",
        store_url: str = "",
        *,
        tier: str = "dev",
        s3_endpoint: str = "",
        cache_dir: Path | str | None = None,
        max_workers: int | None = None,
        timeout_s: float = 300.0,
        patience_s: float = 60.0,
        fallback: Builder | None = None,
        observe: Observer = ignore,
    ) -> None:
        self._address = address
        self._tier = tier
        self._max_workers = max_workers or 0
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._fallback = fallback
        self._observe = observe
        self._records: Records | None = None
        if store_url and not store_url.startswith("memory:"):
            store = open_store(store_url, cache_dir=cache_dir, s3_endpoint=s3_endpoint)
            self._records = Records(store, tier)
        # Workers that publish where this process does not see it: a file: store that is not shared between hosts.
        self._carry_all = False
        self._connecting = threading.Lock()
        self._connected = False
        self._disconnect_after = False

    def build(self, jobs: Sequence[Job]) -> Iterator[BuildResult]:
        """See :class:`stax.build.job.Builder`. Raises FarmError when there is neither a farm nor a fallback."""
        waiting = {job.key.digest: job for job in jobs}
        if not waiting:
            return
        self._observe(Event("build.queued", {"count": len(waiting)}))
        try:
            for result in self._on_farm(waiting):
                del waiting[result.key]
                yield result
        except FarmError as error:
            self._leave_if_silent(error)
            if self._fallback is None:
                raise
            self._observe(Event("farm.fallback", {"reason": str(error), "jobs": len(waiting)}))
            yield from self._fallback.build(list(waiting.values()))

    def close(self) -> None:
        """Leave the cluster if this builder joined it. The coordinator and its workers stay for other clients."""
        self._leave()
        if self._records is not None:
            self._records.store.close()

    def _leave_if_silent(self, error: FarmError) -> None:
        if not self._connected:
            return
        from farm import cluster  # see _on_farm

        if isinstance(error, cluster.NoAnswer):
            self._leave()

    def _leave(self) -> None:
        with self._connecting:
            if self._disconnect_after:
                from farm import cluster  # see _on_farm

                cluster.disconnect()
            self._connected = self._disconnect_after = False

    def _on_farm(self, jobs: Mapping[str, Job]) -> Iterator[BuildResult]:
        """Raises FarmError."""
        # Imported here because ray costs 0.7 s, which a run that only hits never needs.
        try:
            from farm.session import CoordinatorGone, open_session
        except ModuleNotFoundError as error:
            raise FarmError(
                "Ray is not installed", found=str(error), hint="pip install 'stax[farm]'"
            ) from error

        self._connect()
        call = _Call({self._name(key): job for key, job in jobs.items()})
        last = ""
        for _ in range(1 + _REJOINS):
            try:
                with open_session(self._max_workers, self._patience_s) as session:
                    yield from self._converse(session, call)
                return
            except CoordinatorGone as error:
                last = str(error)
                self._observe(Event("farm.rejoin", {"reason": last, "jobs": len(call.waiting)}))
        raise FarmError(f"the coordinator was lost {1 + _REJOINS} times", found=last)

    def _connect(self) -> None:
        from farm import cluster  # see _on_farm

        with self._connecting:
            if not self._connected:
                self._disconnect_after = cluster.connect(self._address, self._max_workers)
                self._connected = True

    def _converse(self, session: Session, call: _Call) -> Iterator[BuildResult]:
        """Raises FarmError or CoordinatorGone; then ``call.waiting`` is what has no result yet."""
        unsent = list(reversed(call.waiting))
        sent = 0
        while call.waiting:
            while unsent and sent < _WINDOW_JOBS:
                batch = [unsent.pop() for _ in range(min(_BATCH_JOBS, len(unsent)))]
                session.submit([self._farm_job(call, name) for name in batch])
                sent += len(batch)
            for name, outcome in session.poll(self._observe):
                sent -= 1
                job = call.waiting.pop(name)
                result = self._result(job, outcome)
                if result is None:
                    unsent.append(call.carry(name, job))
                    continue
                self._observe(_event_of(result, outcome))
                yield result

    def _result(self, job: Job, outcome: Outcome) -> BuildResult | None:
        """The result with its binary, fetched if need be; None: the store does not give it."""
        key = job.key.digest
        if outcome.status == "failed":
            return Failed(key, outcome.kind, outcome.message, outcome.log, job.text)
        if outcome.data or self._records is None:
            return Built(key, outcome.data, outcome.meta, outcome.seconds)
        try:
            data = self._records.get_blob(outcome.digest)
        except StoreError as error:
            self._observe(Event("farm.not_fetched", {"key": key, "reason": str(error)}))
            self._carry_all = self._carry_all or isinstance(error, Missing)
            return None
        return Built(key, data, outcome.meta, outcome.seconds)

    def _farm_job(self, call: _Call, name: str) -> FarmJob:
        job = call.waiting[name]
        limited = replace(job, timeout_s=min(job.timeout_s, self._timeout_s))
        order = WorkOrder(pack_job(limited))
        if self._records is not None:
            carry = self._carry_all or name in call.carried
            order = WorkOrder(order.job, self._records.store.shared.url, self._tier, carry)
        return FarmJob(name, needs_of(job.toolchain), order.pack(), limited.timeout_s)

    def _name(self, key: str) -> str:
        """A job's identity on the farm: the same kernel for another store is another job."""
        if self._records is None:
            return key
        place = digest((self._records.store.shared.url, self._tier), "farm")
        return f"{key}@{place[:16]}"


@dataclass
class _Call:
    """``waiting``: farm names without a result. ``carried``: those whose binary must cross Ray, not the store."""

    waiting: dict[str, Job]
    carried: set[str] = field(default_factory=set[str])

    def carry(self, name: str, job: Job) -> str:
        """Wait for ``job`` under another name, so that it does not merge with the one the store lost."""
        carried = f"{name}+carried"
        self.carried.add(carried)
        self.waiting[carried] = job
        return carried


def _event_of(result: BuildResult, outcome: Outcome) -> Event:
    if isinstance(result, Failed):
        fields = {"key": result.key, "kind": result.kind, "message": result.message}
        return Event("build.failed", fields)
    return Event(
        "build.done",
        {
            "key": result.key,
            "seconds": result.seconds,
            "size_bytes": len(result.data),
            "hit": outcome.status == "hit",
            "worker": outcome.worker,
            "unpublished": outcome.message,
        },
    )
