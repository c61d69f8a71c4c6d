"""Shared libraries from bytes: loaded from memory, each digest once, found again by whoever holds the Libraries.

A kernel is ``int64_t entry(void* const* pointers, const int64_t* sizes)``; it returns 0, or nonzero when an index was out
of bounds. OpenMP symbols come from the runtime that ``import torch`` has already loaded for the whole process.
"""

from __future__ import annotations

import ctypes
import os
import struct
import tempfile
import threading
from collections.abc import Callable

import torch  # noqa: F401  (loads the OpenMP runtime that kernels resolve against)

from stax.base.digest import sha256
from stax.base.errors import Corrupt, LoadError

Entry = Callable[[int, int], int]


class Libraries:
    """The libraries of one process. Safe to use from several threads. A library stays loaded for good: its code may be
    running."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[str, ctypes.CDLL] = {}

    def entry(self, digest: str, data: bytes, name: str) -> Entry:
        """Function ``name`` of the library with these bytes. Raises Corrupt when they are not what ``digest`` names,
        LoadError when the system refuses them."""
        try:
            function = self._library(digest, data)[name]
        except AttributeError as error:
            raise LoadError(
                "kernel not in its library", expected=name, where=f"blob {digest}"
            ) from error
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        function.restype = ctypes.c_int64
        return function

    def _library(self, digest: str, data: bytes) -> ctypes.CDLL:
        with self._lock:
            found = self._loaded.get(digest)
            if found is None:
                found = self._loaded[digest] = open_library(digest, data)
            return found


def open_library(digest: str, data: bytes) -> ctypes.CDLL:
    """dlopen bytes whose sha256 is ``digest``, from memory or else from a private file that is gone at once."""
    actual = sha256(data)
    if actual != digest:
        raise Corrupt("blob is not what its name says", expected=digest, found=actual)
    if not is_whole(data):
        raise LoadError(
            "the blob is no whole library", found=f"{len(data)} bytes", where=f"blob {digest}"
        )
    try:
        return _from_memory(digest, data)
    except OSError:
        return _from_file(digest, data)


def is_whole(data: bytes) -> bool:
    """A 64-bit ELF file whose segments all lie in it. NOTE: the loader maps what the headers say, and a segment past the
    end of the file is a bus error."""
    if len(data) < 64 or data[:5] != b"\x7fELF\x02":
        return False
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    if size != 56 or table + size * count > len(data):
        return False
    segments = (struct.unpack_from("<QQQQ", data, table + size * i + 8) for i in range(count))
    return all(offset + file_bytes <= len(data) for offset, _, _, file_bytes in segments)


def _from_memory(digest: str, data: bytes) -> ctypes.CDLL:
    fd = os.memfd_create(f"stax-{digest[:12]}", os.MFD_CLOEXEC)
    try:
        _write_all(fd, data)
        return ctypes.CDLL(_unique_path(fd, digest), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    finally:
        os.close(fd)


def _unique_path(fd: int, digest: str) -> str:
    """A path of ``fd`` that no other library has. NOTE: the loader takes equal paths for the same library, and the number
    of a closed file is given out again; so the digest's first 128 bits are written into the path as "/" and "/."."""
    bits = f"{int(digest[:32], 16):0128b}"
    return "/proc/self/fd" + "".join("/." if bit == "1" else "/" for bit in bits) + f"/{fd}"


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _from_file(digest: str, data: bytes) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="stax-") as folder:
        path = os.path.join(folder, f"{digest}.so")
        with open(path, "xb") as file:
            file.write(data)
        try:
            return ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise LoadError(
                "the system refuses a kernel's library",
                found=str(error),
                where=f"blob {digest}",
                hint="TMPDIR must allow execution where memory files do not",
            ) from error
