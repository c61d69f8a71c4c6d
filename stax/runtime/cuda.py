"""Cubins on an NVIDIA device through the driver's own library: load, and launch with as little host work as ctypes
allows. Needs neither Triton nor a CUDA toolkit."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Protocol

import torch

from stax.base.errors import Incompatible, LaunchError, LoadError

WARP_THREADS = 32
# A block may use this much shared memory without asking first.
PLAIN_SHARED_BYTES = 48 * 1024
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
SHARED_OPTIN = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
INVALID_CONTEXT = 201
# The code of the cubin is for another device, or this driver is too old for it.
NOT_FOR_THIS_DEVICE = frozenset({200, 209, 218, 222})
# CUlaunchConfig: grid, block, shared memory, stream, attributes. The arguments follow it in the same buffer.
_CONFIG = "7I4xQQI4x"
_ABI = re.compile(r"[Qiq]{1,512}")


class Library(Protocol):
    """The functions of libcuda used here, as ctypes finds them; each returns a CUresult."""

    def __getattr__(self, name: str) -> Any: ...


@cache
def libcuda() -> Library:
    """The driver of this machine. Raises Incompatible where there is none."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        hint = "install the NVIDIA driver, or build for the CPU"
        raise Incompatible("no CUDA driver", found=str(error), hint=hint) from error
    check(library, library.cuInit(0), "cuInit")
    # A typed function takes plain integers, which saves a microsecond of every launch.
    library.cuLaunchKernelEx.argtypes = (ctypes.c_void_p,) * 4
    return library


def error_name(library: Library, result: int) -> str:
    """The driver's own name of a failure."""
    text = ctypes.c_char_p()
    library.cuGetErrorName(result, ctypes.byref(text))
    return text.value.decode() if text.value else f"CUresult {result}"


def check(library: Library, result: int, call: str) -> None:
    """Raises LoadError, or Incompatible where the cubin does not suit the device."""
    if result == 0:
        return
    name = error_name(library, result)
    if result in NOT_FOR_THIS_DEVICE:
        raise Incompatible(
            f"{call} refused the cubin", found=name, hint="build for this device's architecture"
        )
    raise LoadError(f"{call} failed", found=name)


@dataclass(frozen=True)
class Facts:
    """What a builder tells about a cubin (see stax.build.triton): checked here, for it comes from the wire."""

    symbol: str
    num_warps: int
    shared_bytes: int
    abi: str
    scratch_params: int

    @staticmethod
    def of(meta: Mapping[str, int | str]) -> Facts:
        """Raises LoadError for a missing or impossible entry."""
        match [meta.get(f.name) for f in fields(Facts)]:
            case [str(symbol), int(warps), int(shared), str(abi), int(scratch)] if (
                re.fullmatch(r"\w+", symbol)
                and 1 <= warps <= WARP_THREADS
                and 0 <= shared < 1 << 20
                and _ABI.fullmatch(abi)
                and 0 <= scratch < len(abi)
            ):
                return Facts(symbol, warps, shared, abi, scratch)
            case _:
                found = repr(dict(meta))[:200]
                raise LoadError(
                    "bad facts about a cubin", expected="those of its builder", found=found
                )


class CudaKernel:
    """A loaded kernel of one device. ``launch`` may be called from any thread; the driver keeps the code loaded until
    ``unload``, which nobody may call while a launch is in flight."""

    def __init__(
        self,
        library: Library,
        context: ctypes.c_void_p,
        module: ctypes.c_void_p,
        function: ctypes.c_void_p,
        facts: Facts,
    ) -> None:
        self._library = library
        self._context = context
        self._module = module
        self.function = function.value
        self._symbol = facts.symbol
        self._block = (WARP_THREADS * facts.num_warps, 1, 1, facts.shared_bytes)
        self._layout = struct.Struct(f"@{_CONFIG}{facts.abi}")
        self._scratch = (0,) * facts.scratch_params
        self._pack = self._layout.pack_into
        self._call = library.cuLaunchKernelEx
        # Buffers not in use. pop and append are atomic, so two threads never share one.
        self._idle: list[tuple[Any, ...]] = [self._buffers()]

    def _buffers(self) -> tuple[Any, ...]:
        """(buffer to pack into, its launch config, its CU_LAUNCH_PARAM list); the rest of the tuple keeps memory alive."""
        buffer = ctypes.create_string_buffer(self._layout.size)
        start = ctypes.addressof(buffer)
        offset = struct.calcsize(f"@{_CONFIG}")
        size = ctypes.c_size_t(self._layout.size - offset)
        # CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE and _END.
        words = (1, start + offset, 2, ctypes.addressof(size), 0)
        extra = (ctypes.c_void_p * len(words))(*words)
        return buffer, start, ctypes.addressof(extra), extra, size

    def launch(
        self, grid: Sequence[int], pointers: Sequence[int], sizes: Sequence[int], stream: int
    ) -> None:
        """Queue one launch of three grid dimensions; nothing where one of them is 0.

        ``pointers`` and ``sizes`` in parameter order. Nothing is checked about them: a pointer that the source
        promises to be a multiple of 16 must be one. Raises LaunchError, also for the fault of an earlier kernel.
        """
        x, y, z = grid
        self.queue(x, y, z, (*pointers, *sizes, *self._scratch), stream)

    def queue(self, x: int, y: int, z: int, args: Sequence[int], stream: int) -> None:
        """The same with the arguments as the cubin takes them, those for scratch memory included."""
        if not (x and y and z):
            return
        try:
            buffers = self._idle.pop()
        except IndexError:
            buffers = self._buffers()
        self._pack(buffers[0], 0, x, y, z, *self._block, stream, 0, 0, *args)
        result = self._call(buffers[1], self.function, None, buffers[2])
        if result == INVALID_CONTEXT:
            # A thread that has not used CUDA yet.
            result = self._library.cuCtxSetCurrent(self._context)
            result = result or self._call(buffers[1], self.function, None, buffers[2])
        self._idle.append(buffers)
        if result:
            raise self._refused(result, (x, y, z))

    def _refused(self, result: int, grid: tuple[int, int, int]) -> LaunchError:
        return LaunchError(
            "a kernel did not start",
            found=error_name(self._library, result),
            where=f"{self._symbol}, grid {grid}",
            hint="CUDA_LAUNCH_BLOCKING=1 names the kernel that fails first",
        )

    def unload(self) -> None:
        """Forget the code on the device."""
        check(self._library, self._library.cuModuleUnload(self._module), "cuModuleUnload")


def load_cubin(
    data: bytes,
    entry: str,
    meta: Mapping[str, int | str],
    device: int | None = None,
    library: Library | None = None,
) -> CudaKernel:
    """Load machine code on a device (torch's current one), in its primary context, which is torch's.

    Raises Incompatible when the cubin is not for this device, LoadError for anything else.
    """
    facts = Facts.of(meta)
    if facts.symbol != entry:
        raise LoadError("another kernel in the cubin", expected=entry, found=facts.symbol)
    library = library or libcuda()
    device = torch.cuda.current_device() if device is None else device
    context = primary_context(library, device)
    module, function, ours = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    check(library, library.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent")
    try:
        check(library, library.cuModuleLoadData(ctypes.byref(module), data), "cuModuleLoadData")
        name = facts.symbol.encode()
        result = library.cuModuleGetFunction(ctypes.byref(function), module, name)
        check(library, result, "cuModuleGetFunction")
        if facts.shared_bytes > PLAIN_SHARED_BYTES:
            _allow_shared(library, device, function, facts.shared_bytes)
    finally:
        library.cuCtxPopCurrent_v2(ctypes.byref(ours))
    return CudaKernel(library, context, module, function, facts)


def primary_context(library: Library, device: int) -> ctypes.c_void_p:
    """The primary context of a device, torch's own."""
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    check(library, library.cuDeviceGet(ctypes.byref(handle), device), "cuDeviceGet")
    # NOTE: never released: torch holds it for the life of the process too.
    result = library.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
    check(library, result, "cuDevicePrimaryCtxRetain")
    return context


def _allow_shared(
    library: Library, device: int, function: ctypes.c_void_p, shared_bytes: int
) -> None:
    most = ctypes.c_int()
    result = library.cuDeviceGetAttribute(ctypes.byref(most), SHARED_OPTIN, device)
    check(library, result, "cuDeviceGetAttribute")
    if shared_bytes > most.value:
        raise Incompatible(
            "too much shared memory for this device",
            expected=f"<= {most.value} bytes",
            found=str(shared_bytes),
        )
    result = library.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, shared_bytes)
    check(library, result, "cuFuncSetAttribute")


def current_stream(device: int) -> int:
    """The handle of torch's current stream on a device, without making a Stream object."""
    return torch._C._cuda_getCurrentRawStream(device)
