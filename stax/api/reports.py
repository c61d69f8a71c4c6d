"""What the verbs report. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Stats:
    """What one compiled callable did. ``hits`` by tier (artifact: pulled instead of compiled; kernel: found instead of
    built; local and remote: objects read from each tier); ``misses`` say why; ``eager`` counts calls that ran without an
    artifact; ``degraded`` counts store trouble that was worked around."""

    artifacts: int
    captures: int
    builds: int
    hits: Mapping[str, int]
    misses: Sequence[str]
    eager: int
    bytes: Mapping[str, int]
    degraded: int


@dataclass(frozen=True)
class WarmReport:
    """What a warm did. ``keys``: the request key of each target; ``seconds`` by stage; kernels are counted once each."""

    keys: Mapping[str, str]
    artifacts: int
    artifacts_hit: int
    kernels_total: int
    kernels_built: int
    kernels_hit: int
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
