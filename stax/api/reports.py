"""What the verbs report. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Stats:
    """What one compiled callable did. ``hits`` by tier (artifact: pulled instead of compiled; kernel: found instead of
    built; local and remote: objects read from each tier); ``misses`` say why; ``eager`` counts calls that ran without an
    artifact; ``degraded`` counts store trouble that was worked around; ``measurements`` launch configurations that were timed."""

    artifacts: int
    captures: int
    builds: int
    hits: Mapping[str, int]
    misses: Sequence[str]
    eager: int
    bytes: Mapping[str, int]
    degraded: int
    measurements: int


@dataclass(frozen=True)
class WarmReport:
    """What a warm did. ``keys``: the request key of each target; ``seconds`` by stage; kernels are counted once each; ``measurements``
    are launch configurations that were timed here."""

    keys: Mapping[str, str]
    artifacts: int
    artifacts_hit: int
    kernels_total: int
    kernels_built: int
    kernels_hit: int
    measurements: int
    bytes_published: int
    seconds: Mapping[str, float]
    bundle: str
    tag: str | None


@dataclass(frozen=True)
class PullReport:
    """What a pull brought: blobs and their raw bytes, artifacts by target, and the seconds it took."""

    bundle: str
    targets: Sequence[str]
    artifacts: int
    blobs: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class KernelReport:
    """One distinct kernel, at the sizes of the call that was explained. ``launches``: how often a call runs it; bytes and
    seconds are of one launch. ``floor_s``: bytes read and written at the rate of a copy; ``reread_bytes``: what later
    loops read again; None is not known. ``measured_on`` names the device of ``measured_s``, a cold cache."""

    name: str
    form: str
    launches: int
    grid: Sequence[int]
    config: Mapping[str, int]
    read_bytes: int
    written_bytes: int
    reread_bytes: int
    floor_s: float | None
    predicted_s: float | None
    measured_s: float | None
    measured_on: str


@dataclass(frozen=True)
class CallReport:
    """An operator left to torch, and how often a call runs it."""

    target: str
    calls: int


@dataclass(frozen=True)
class ExplainReport:
    """What a call compiles to. ``device``: whose facts the floors and predictions use; ``decisions``: (subject, done,
    reason) of every fusion that was tried."""

    target: str
    device: str
    floor_bytes_s: float | None
    kernels: Sequence[KernelReport]
    calls: Sequence[CallReport]
    decisions: Sequence[tuple[str, bool, str]]
