"""Which GPU of this machine can measure for an architecture, asked of the driver; and who else keeps it busy."""

# pyright: standard
# ctypes has no types for what it calls.

from __future__ import annotations

import ctypes
import uuid
from dataclasses import dataclass
from typing import Any

from stax.base.errors import Incompatible
from stax.runtime.cuda import Library, check, libcuda

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_NAME_BYTES = 128


@dataclass(frozen=True)
class Present:
    """A device: its number in this process, the name and the identity that the driver gives it, its architecture."""

    ordinal: int
    name: str
    identity: str
    arch: str


def present(arch: str, prefer: int = 0, library: Library | None = None) -> Present | None:
    """A device of exactly this architecture, ``prefer`` if it is one; None where there is none, or no driver."""
    try:
        library = library or libcuda()
    except Incompatible:
        return None
    count = ctypes.c_int()
    check(library, library.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    order = sorted(range(count.value), key=lambda k: k != prefer)
    found = (_device(library, k) for k in order)
    return next((d for d in found if d.arch == arch), None)


def _device(library: Library, ordinal: int) -> Present:
    handle = ctypes.c_int()
    check(library, library.cuDeviceGet(ctypes.byref(handle), ordinal), "cuDeviceGet")
    name = ctypes.create_string_buffer(_NAME_BYTES)
    check(library, library.cuDeviceGetName(name, _NAME_BYTES, handle), "cuDeviceGetName")
    identity = ctypes.create_string_buffer(16)
    check(library, library.cuDeviceGetUuid(identity, handle), "cuDeviceGetUuid")
    major, minor = (_attribute(library, handle, a) for a in (_MAJOR, _MINOR))
    own = str(uuid.UUID(bytes=identity.raw))
    return Present(ordinal, name.value.decode(errors="replace"), own, f"sm_{major}{minor}")


def _attribute(library: Library, handle: ctypes.c_int, attribute: int) -> int:
    value = ctypes.c_int()
    result = library.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
    check(library, result, "cuDeviceGetAttribute")
    return value.value


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def busy_percent(identity: str) -> int | None:
    """How much of the last moments the device was at work, by NVML; None where that does not tell."""
    try:
        nvml: Any = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2():
        return None
    handle, found = ctypes.c_void_p(), _Utilization()
    name = f"GPU-{identity}".encode()
    try:
        failed = nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle))
        failed = failed or nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(found))
        return None if failed else found.gpu
    finally:
        nvml.nvmlShutdown()
