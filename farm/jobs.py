"""What the farm speaks: jobs, outcomes, events and actions. Frozen plain data, no Ray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from stax.base.errors import SchemaError
from stax.base.target import Toolchain
from stax.build.wire import pack, unpack

WIRE_VERSION = 1  # of everything that crosses Ray; client and coordinator must agree


@dataclass(frozen=True)
class FarmJob:
    """One build. ``name`` is its identity on the farm: equal names are merged, whoever sends them.

    ``payload`` is for a worker alone; ``needs`` the label that a worker must offer (see :func:`needs_of`).
    """

    name: str
    needs: str
    payload: bytes = b""
    timeout_s: float = 300.0


@dataclass(frozen=True)
class Outcome:
    """How a job ended. ``status``: built | hit | failed.

    The binary lies in the store under ``digest``; ``data`` holds it when there is no store, when the store did not
    take it, or when the order says to carry it.
    ``kind``, ``message`` and ``log`` are those of :class:`stax.build.job.Failed`.
    """

    status: str
    kind: str = ""
    message: str = ""
    log: str = ""
    digest: str = ""
    size_bytes: int = 0
    data: bytes = b""
    meta: tuple[tuple[str, int | str], ...] = ()
    seconds: float = 0.0
    worker: str = ""


@dataclass(frozen=True)
class WorkOrder:
    """What a worker needs: a packed job, and the store and trust tier that receive the kernel ("" for none).

    ``carry``: send the binary through Ray besides, because the client can not read what the worker stores.
    """

    job: bytes
    store_url: str = ""
    tier: str = ""
    carry: bool = False

    def pack(self) -> bytes:
        return pack((self.job, self.store_url, self.tier, self.carry))

    @staticmethod
    def unpack(blob: bytes) -> WorkOrder:
        """Raises SchemaError."""
        row = unpack(blob)
        if not isinstance(row, tuple):
            raise SchemaError("bad work order", expected="job, store, tier, carry")
        job, store_url, tier, carry = cast("tuple[Any, ...]", row)
        return WorkOrder(job, store_url, tier, carry)


def pack_jobs(jobs: list[FarmJob]) -> bytes:
    """The bytes of a batch of jobs."""
    return pack([(j.name, j.needs, j.payload, j.timeout_s) for j in jobs])


def unpack_jobs(blob: bytes) -> tuple[FarmJob, ...]:
    """The batch of :func:`pack_jobs`. Raises SchemaError."""
    return tuple(FarmJob(*row) for row in _rows(blob))


def pack_outcomes(outcomes: list[tuple[str, Outcome]]) -> bytes:
    """The bytes of (job name, outcome) pairs."""
    return pack(
        [
            (
                name,
                o.status,
                o.kind,
                o.message,
                o.log,
                o.digest,
                o.size_bytes,
                o.data,
                o.meta,
                o.seconds,
                o.worker,
            )
            for name, o in outcomes
        ]
    )


def unpack_outcomes(blob: bytes) -> list[tuple[str, Outcome]]:
    """The pairs of :func:`pack_outcomes`. Raises SchemaError."""
    return [(name, Outcome(*fields)) for name, *fields in _rows(blob)]


def _rows(blob: bytes) -> tuple[tuple[Any, ...], ...]:
    rows = unpack(blob)
    if not isinstance(rows, tuple):
        raise SchemaError("bad farm message", expected="rows", found=type(rows).__name__)
    return cast("tuple[tuple[Any, ...], ...]", rows)


def needs_of(toolchain: Toolchain) -> str:
    """The label of the tools a job is compiled with: "cxx=g++ 12.2.0"."""
    parts = ("stax", "torch", "triton", "ptxas", "cxx")
    return ", ".join(f"{part}={version}" for part in parts if (version := getattr(toolchain, part)))


def offers_of(toolchain: Toolchain) -> tuple[str, ...]:
    """The labels a machine with these tools can serve, one a kind of kernel."""
    labels = {needs_of(toolchain.for_kernel(kind)) for kind in ("cpu", "cuda")}
    return tuple(sorted(labels - {""}))


# -- events: what happened


@dataclass(frozen=True)
class ClientJoined:
    """``max_workers`` 0 means as many as the cluster has CPUs; ``patience_s`` is how long it waits for a first worker."""

    client: str
    max_workers: int = 0
    patience_s: float = 60.0


@dataclass(frozen=True)
class ClientSeen:
    client: str


@dataclass(frozen=True)
class ClientLeft:
    client: str


@dataclass(frozen=True)
class JobsSubmitted:
    client: str
    jobs: tuple[FarmJob, ...]


@dataclass(frozen=True)
class WorkerJoined:
    worker: str
    offers: tuple[str, ...]


@dataclass(frozen=True)
class WorkerLost:
    worker: str
    reason: str


@dataclass(frozen=True)
class JobDone:
    worker: str
    name: str
    outcome: Outcome


@dataclass(frozen=True)
class JobFailed:
    worker: str
    name: str
    outcome: Outcome


@dataclass(frozen=True)
class Tick:
    """``now_s`` is any clock that does not run back; ``cpus`` what the cluster has at this moment."""

    now_s: float
    cpus: int


FarmEvent = (
    ClientJoined
    | ClientSeen
    | ClientLeft
    | JobsSubmitted
    | WorkerJoined
    | WorkerLost
    | JobDone
    | JobFailed
    | Tick
)

# -- actions: what to do now


@dataclass(frozen=True)
class StartWorker:
    worker: str


@dataclass(frozen=True)
class StopWorker:
    worker: str
    reason: str


@dataclass(frozen=True)
class Assign:
    worker: str
    job: FarmJob


@dataclass(frozen=True)
class Deliver:
    client: str
    name: str
    outcome: Outcome


@dataclass(frozen=True)
class Refuse:
    """The farm can not serve this client: it is to raise FarmError. The client has left the state."""

    client: str
    reason: str


FarmAction = StartWorker | StopWorker | Assign | Deliver | Refuse
