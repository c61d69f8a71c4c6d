"""Kernels by key: taken from the store when it has them, built and published when it has not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

from stax.base.digest import sha256
from stax.base.errors import (
    BuildError,
    BuildTimeout,
    CompilerFailed,
    Corrupt,
    Missing,
    StoreError,
    WorkerLost,
)
from stax.base.observe import Event, Observer
from stax.build.job import Builder, Built, Failed, Job
from stax.build.kernels import find_kernel, publish_kernel
from stax.store.records import Records

OnStoreError = Callable[[StoreError], None]
_LOOKUPS = 16
_NO_COMPILER = (
    "install g++ or set STAX_CXX on the machine that builds; stax doctor tells what is missing"
)
_READ_THE_SOURCE = "STAX_DEBUG=4 with STAX_DUMP_DIR keeps the source"
_ERRORS: Mapping[str, type[BuildError]] = {
    "compiler": CompilerFailed,
    "timeout": BuildTimeout,
    "worker-lost": WorkerLost,
}


@dataclass(frozen=True)
class Ready:
    """A kernel that can be loaded: its binary, and whether it was built now or came from the store."""

    key: str
    digest: str
    size_bytes: int
    meta: tuple[tuple[str, int | str], ...]
    data: bytes
    built: bool


def obtain(
    jobs: Sequence[Job],
    records: Records,
    builder: Builder,
    observer: Observer,
    on_store_error: OnStoreError,
    given: Mapping[str, Built] | None = None,
) -> dict[str, Ready]:
    """One Ready a distinct job key; what is in ``given`` has been built already. Raises the typed BuildError of the first
    job that failed."""
    distinct = {job.key.digest: job for job in jobs}
    ready = _look_up(list(distinct), records, observer, on_store_error)
    absent = [job for key, job in distinct.items() if key not in ready]
    observer(Event("job.queued", {"count": len(absent)}))
    held = [given[key] for key in (job.key.digest for job in absent) if given and key in given]
    rest = [job for job in absent if not given or job.key.digest not in given]
    for result in chain(held, builder.build(rest) if rest else ()):
        if isinstance(result, Failed):
            observer(Event("job.failed", {"key": result.key, "kind": result.kind}))
            raise failure(result)
        ready[result.key] = _publish(result, records, on_store_error)
        observer(
            Event(
                "job.done",
                {"key": result.key, "seconds": result.seconds, "bytes": len(result.data)},
            )
        )
    return ready


def failure(failed: Failed) -> BuildError:
    """The error of a failed job, with its log."""
    kind = _ERRORS.get(failed.kind, BuildError)
    return kind(
        f"kernel did not build: {failed.message}",
        found=failed.log[-2000:],
        where=f"kernel {failed.key[:12]}",
        hint=_NO_COMPILER if "did not start" in failed.message else _READ_THE_SOURCE,
    )


def _look_up(
    keys: Sequence[str], records: Records, observer: Observer, on_store_error: OnStoreError
) -> dict[str, Ready]:
    def one(key: str) -> Ready | StoreError | None:
        try:
            found = find_kernel(records, key)
            if found is None:
                return None
            data = records.get_blob(found.digest)
        except StoreError as error:
            return error
        return Ready(key, found.digest, found.size_bytes, found.meta, data, False)

    with ThreadPoolExecutor(_LOOKUPS) as pool:
        outcomes = list(pool.map(one, keys))
    ready: dict[str, Ready] = {}
    for key, outcome in zip(keys, outcomes):
        if isinstance(outcome, (Missing, Corrupt)):
            observer(Event("miss", {"reason": f"kernel {key[:12]}: {outcome}"}))
        elif isinstance(outcome, StoreError):
            on_store_error(outcome)
        elif outcome is not None:
            ready[key] = outcome
            observer(Event("job.hit", {"key": key}))
    return ready


def _publish(built: Built, records: Records, on_store_error: OnStoreError) -> Ready:
    own = Ready(built.key, sha256(built.data), len(built.data), built.meta, built.data, True)
    try:
        kept = publish_kernel(records, built)
    except StoreError as error:
        on_store_error(error)
        return own
    if kept.digest != own.digest:
        # Another build of the same key was first and gave other bytes: what is published is what runs everywhere.
        try:
            data = records.get_blob(kept.digest)
        except StoreError as error:
            on_store_error(error)
            return own
        return Ready(built.key, kept.digest, kept.size_bytes, kept.meta, data, True)
    return own
