"""Build an emitted kernel here and run it on numpy buffers; shared by the tests of the C++ target."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from stax.base.target import CPU_LEVELS, Target, Toolchain, cpu_levels_of
from stax.build.cpp import compile_cpp
from stax.build.job import Job
from stax.codegen.cpp.emit import emit
from stax.ir.dtypes import DTYPES
from stax.ir.kernel import Kernel
from stax.ir.source import Source
from tests.kernels import Array, Buffers, KernelCase

Entry = Callable[[ctypes.Array[ctypes.c_void_p], ctypes.Array[ctypes.c_int64]], int]
CXX = "g++"


def levels_here() -> tuple[str, ...]:
    """The x86-64 levels that this machine runs."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return cpu_levels_of(frozenset(line.partition(":")[2].split()))
    return CPU_LEVELS[:1]


BEST = Target("cpu", levels_here()[-1])


@dataclass(frozen=True)
class Library:
    """A built kernel; ``mapped`` is where it was loaded from."""

    kernel: Kernel
    source: Source
    entry: Entry
    data: bytes
    meta: Mapping[str, int | str]

    def __call__(self, buffers: Sequence[Array], env: Mapping[str, int]) -> int:
        """Run on the memory of ``buffers``, in the order of the kernel's pointers."""
        pointers = (ctypes.c_void_p * max(1, len(buffers)))(*[b.ctypes.data for b in buffers])
        sizes = [env[s.name] for s in self.kernel.sizes]
        return self.entry(pointers, (ctypes.c_int64 * max(1, len(sizes)))(*sizes))


def job(source: Source, target: Target) -> Job:
    return Job("cpp", source.entry, source.text, source.params, source.default, target, Toolchain())


def build(kernel: Kernel, target: Target = BEST) -> Library:
    """Emit, compile and load."""
    source = emit(kernel, target)
    data, meta = compile_cpp(job(source, target), cxx=CXX)
    entry = getattr(load(data), source.entry)
    entry.restype = ctypes.c_int64
    return Library(kernel, source, entry, data, meta)


def load(data: bytes) -> ctypes.CDLL:
    assert torch.get_num_threads() >= 1  # torch's OpenMP runtime must be loaded first
    with tempfile.NamedTemporaryFile(suffix=".so", delete=False) as file:
        file.write(data)
    try:
        return ctypes.CDLL(file.name)
    finally:
        os.unlink(file.name)


def run(library: Library, case: KernelCase, buffers: Buffers) -> tuple[int, Buffers]:
    """The return code and every buffer that the kernel may write."""
    pointers = library.kernel.pointers
    memory = [to_memory(buffers[p.name], p.dtype) for p in pointers]
    code = library(memory, case.env)
    written = {p.name: from_memory(m, p.dtype) for p, m in zip(pointers, memory) if p.kind != "in"}
    return code, written


def to_memory(array: Array, dtype: str) -> Array:
    """A copy as the kernel sees it: narrow floats that numpy lacks become their codes."""
    if dtype == "bfloat16":
        return (array.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    if dtype.startswith("float8"):
        return torch.from_numpy(array.copy()).to(getattr(torch, dtype)).view(torch.uint8).numpy()
    return array.copy()


def from_memory(memory: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        return (memory.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype.startswith("float8"):
        return torch.from_numpy(memory.copy()).view(getattr(torch, dtype)).float().numpy()
    return memory


_TOLERANCE = {"float64": 1e-11, "float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}


def assert_close(got: Array, want: Array, dtype: str, loose: float = 1.0) -> None:
    """Equal, or for floats as near as reordered sums and functions within 2 ulp allow."""
    want = np.asarray(want).reshape(-1)
    if not DTYPES[dtype].is_float:
        np.testing.assert_array_equal(got, want)
        return
    tolerance = loose * _TOLERANCE.get(dtype, 0.1)
    finite = np.abs(want[np.isfinite(want)].astype(np.float64))
    near = tolerance * min(float(finite.max(initial=0)), 1e3) * 0.1
    np.testing.assert_allclose(
        got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=near + 1e-30
    )
