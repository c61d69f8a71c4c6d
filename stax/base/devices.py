"""Facts of GPUs that launch configurations and predictions need: one table by architecture, one by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Device:
    """What decides how much must be in flight, and how long a copy takes. ``bandwidth_bytes_s`` is the nominal one of the
    memory, ``copy_bytes_s`` what a copy of a large tensor was measured to reach (bytes read and written), None: not yet."""

    processors: int
    bandwidth_bytes_s: float
    l2_bytes: float
    latency_s: float = 600e-9
    copy_bytes_s: float | None = None

    @property
    def bytes_in_flight(self) -> float:
        """Little's law: latency times bandwidth."""
        return self.latency_s * self.bandwidth_bytes_s

    @property
    def bytes_in_flight_each(self) -> float:
        """The share of one processor."""
        return self.bytes_in_flight / self.processors

    @property
    def floor_bytes_s(self) -> float:
        """The rate that nothing bound by memory exceeds."""
        return self.bandwidth_bytes_s if self.copy_bytes_s is None else self.copy_bytes_s


# The best known device of each architecture; for sm_90 the H100 SXM.
DEVICES: Mapping[str, Device] = {
    "sm_75": Device(40, 0.32e12, 4e6),
    "sm_80": Device(108, 2.04e12, 40e6),
    "sm_86": Device(84, 0.77e12, 6e6),
    "sm_89": Device(128, 1.01e12, 72e6),
    "sm_90": Device(132, 3.35e12, 50e6),
    "sm_100": Device(148, 8.0e12, 126e6),
    "sm_120": Device(170, 1.79e12, 96e6),
}

# What differs from the architecture's row, by the name that the driver gives.
NAMED_DEVICES: Mapping[str, Device] = {
    "NVIDIA H200": replace(DEVICES["sm_90"], bandwidth_bytes_s=4.8e12, copy_bytes_s=4.257e12),
}


def device_of(arch: str, name: str = "") -> Device:
    """The facts of a device by name, else of its architecture. Raises KeyError for an architecture without a row."""
    return NAMED_DEVICES.get(name) or DEVICES[arch]
