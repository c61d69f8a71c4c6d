"""C++ text in, a shared library out, byte for byte the same wherever it is compiled.

The library links neither the C++ runtime nor an OpenMP runtime: GOMP_* stay undefined and resolve at load to the one that torch
has already loaded for the whole process, so kernels share torch's threads and its thread count.
"""

from __future__ import annotations

import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from stax.base.errors import CompilerFailed
from stax.build.job import Job

__all__ = ["compile_cpp"]

# NOTE: no -ffast-math and no contraction: NaN, infinity and the rounding of each operator are as in eager torch. Only the
# polynomials of the prelude use fused multiply-add, by name. Without traps and errno selects and square roots vectorise.
_COMPILE = (
    "-std=c++17 -O3 -fPIC -fopenmp -fno-math-errno -fno-trapping-math -ffp-contract=off -fno-exceptions -fno-rtti "
    "-fno-asynchronous-unwind-tables -fno-stack-protector -fcf-protection=none -fno-ident -w"
).split()
_LINK = (
    "-shared -nostdlib -s -Wl,--as-needed -Wl,--build-id=none -Wl,--hash-style=gnu -Wl,-z,now -Wl,-z,noexecstack "
    "-Wl,-z,noseparate-code"
).split()
_LIBRARIES = ("-lm", "-lc", "-lgcc")
_LOG_LIMIT = 20_000
_OLDEST_GLIBC: tuple[int, ...] = (2, 2, 5)
_VERNEED = 0x6FFFFFFE


def compile_cpp(job: Job, *, cxx: str) -> tuple[bytes, dict[str, int | str]]:
    """The library of ``job.text`` and what its loader must know: entry, isa, the least glibc, bytes.

    Raises CompilerFailed with the compiler's log in ``found``. Stopping a compiler that runs too long is the caller's.
    """
    # Relative names in a fresh folder: no path of this machine can enter the binary.
    with tempfile.TemporaryDirectory(prefix="stax-cpp-") as folder:
        Path(folder, "kernel.cpp").write_text(job.text)
        # Two steps, because -fopenmp at the link would add a dependency on the compiler's own OpenMP runtime.
        _run([cxx, *_COMPILE, *_machine(job), "-c", "kernel.cpp", "-o", "kernel.o"], folder)
        _run([cxx, *_LINK, "-o", "kernel.so", "kernel.o", *_LIBRARIES], folder)
        data = Path(folder, "kernel.so").read_bytes()
    return data, {
        "entry": job.entry,
        "isa": ":".join((job.target.arch, *job.target.features)),
        "glibc": ".".join(str(n) for n in _least_glibc(data)),
        "bytes": len(data),
    }


def _machine(job: Job) -> list[str]:
    """Flags of the instruction set, by the names of the x86-64 psABI: never "native"."""
    flags = [f"-march={job.target.arch}", *(f"-m{name}" for name in job.target.features)]
    if job.target.arch == "x86-64-v4":
        flags.append("-mprefer-vector-width=512")
    return flags


def _run(command: list[str], folder: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise CompilerFailed(
            "the C++ compiler did not start", found=str(error), where=command[0]
        ) from error
    if done.returncode:
        log = (done.stderr or done.stdout)[:_LOG_LIMIT]
        raise CompilerFailed(
            f"the C++ compiler answered {done.returncode}", found=log, where=command[0]
        )


# -- the version needs of an ELF file


def _least_glibc(data: bytes) -> tuple[int, ...]:
    """The newest GLIBC_* version among the symbols that the library takes from libc and libm."""
    found = [_OLDEST_GLIBC]
    for name in _needed_versions(data):
        if name.startswith("GLIBC_"):
            found.append(tuple(int(n) for n in name[6:].split(".")))
    return max(found)


def _needed_versions(data: bytes) -> Iterator[str]:
    """Names in .gnu.version_r of a 64-bit little-endian ELF file."""
    table, size, count = (
        struct.unpack_from("<Q10xHH", data, 0x28)[0],
        *struct.unpack_from("<HH", data, 0x3A),
    )
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
    for _, kind, _, _, offset, _, link, entries, _, _ in sections:
        if kind != _VERNEED:
            continue
        strings = sections[link][4]
        for _ in range(entries):
            _, names, _, first, following = struct.unpack_from("<HHIII", data, offset)
            at = offset + first
            for _ in range(names):
                _, _, _, name, step = struct.unpack_from("<IHHII", data, at)
                end = data.index(b"\0", strings + name)
                yield data[strings + name : end].decode()
                at += step
            offset += following
