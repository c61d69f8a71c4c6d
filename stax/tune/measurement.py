"""What is known about one configuration: its time with the noise of it, or why it has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, isfinite, sqrt
from statistics import median

STATUSES = ("ok", "build", "spills", "refused", "memory", "timeout", "crash")
# Steps in which CUDA events count on the devices seen so far; a median can not be better known than half of one.
RESOLUTION_US = 0.032
# Two-sided 95 % of the normal distribution.
_SIGMAS = 1.96


@dataclass(frozen=True)
class Measurement:
    """``time_us`` is a median, or infinite where ``status`` is not "ok"; ``noise`` the relative half-width of the
    median's 95 % interval; ``repeats`` how many launches it rests on; ``detail`` why there is no time."""

    time_us: float
    noise: float = 0.0
    status: str = "ok"
    repeats: int = 1
    detail: str = ""

    @property
    def is_finite(self) -> bool:
        return isfinite(self.time_us)


def failed(status: str, detail: str = "") -> Measurement:
    """The measurement of what can not run, or must not: infinite."""
    assert status in STATUSES and status != "ok", status
    return Measurement(inf, 0.0, status, 0, detail)


def summary(times_us: Sequence[float]) -> Measurement:
    """The median of several launches. Its interval is that of order statistics, which asks nothing of the distribution."""
    ordered = sorted(times_us)
    count = len(ordered)
    middle = median(ordered)
    reach = _SIGMAS * sqrt(count) / 2
    low = ordered[max(floor((count - 1) / 2 - reach), 0)]
    high = ordered[min(ceil((count - 1) / 2 + reach), count - 1)]
    half_us = max((high - low) / 2, RESOLUTION_US / 2)
    return Measurement(middle, half_us / middle if middle > 0 else 1.0, "ok", count)
