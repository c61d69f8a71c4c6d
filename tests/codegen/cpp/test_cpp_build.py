"""The C++ builder: reproducible libraries without foreign runtimes, typed failures, threads shared with torch."""

from __future__ import annotations

import ctypes
import dataclasses
import tempfile
from pathlib import Path

import pytest
import torch
from cpp_harness import BEST, CXX, job, load

from stax.base.errors import CompilerFailed
from stax.base.target import Target
from stax.build.cpp import compile_cpp
from stax.build.job import Job
from stax.codegen.cpp.emit import emit
from stax.ir.source import Config, Source
from tests import kernels

THREADS = """
#include <stdint.h>
extern "C" int omp_get_num_threads();
extern "C" int64_t cpp_threads(void* const*, const int64_t*) {
    int64_t count = 0;
    #pragma omp parallel
    {
        #pragma omp single
        count = omp_get_num_threads();
    }
    return count;
}
"""


def _job(text: str, entry: str = "entry", target: Target = BEST) -> Job:
    return job(Source("cpp", "poi", entry, text, (), (), (), (Config(),), Config()), target)


@pytest.mark.parametrize(
    "case", [kernels.softmax(), kernels.full_sum(1 << 20)], ids=lambda c: c.name
)
def test_two_compiles_in_different_folders_give_the_same_bytes(
    case: kernels.KernelCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = job(emit(case.kernel, BEST), BEST)
    first, meta = compile_cpp(request, cxx=CXX)
    elsewhere = tmp_path / "another folder with a longer name"
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    monkeypatch.chdir(tmp_path)
    second, again = compile_cpp(request, cxx=CXX)
    assert first == second
    assert meta == again
    assert not list(elsewhere.iterdir())


def test_what_the_loader_must_know() -> None:
    target = Target("cpu", "x86-64-v2")
    source = emit(kernels.add_relu_sum().kernel, target)
    data, meta = compile_cpp(job(source, target), cxx=CXX)
    assert data.startswith(b"\x7fELF")
    assert meta == {"entry": source.entry, "isa": "x86-64-v2", "glibc": "2.2.5", "bytes": len(data)}


def test_extra_features_are_part_of_the_instruction_set() -> None:
    target = Target("cpu", "x86-64-v3", ("avx512f", "avx512vl"))
    source = emit(kernels.add_broadcast().kernel, target)
    assert compile_cpp(job(source, target), cxx=CXX)[1]["isa"] == "x86-64-v3:avx512f:avx512vl"


def test_the_least_glibc_follows_from_the_symbols_used() -> None:
    text = 'extern "C" float entry(float x) { return __builtin_expf(x); }'
    data, meta = compile_cpp(_job(text), cxx=CXX)
    assert b"libm.so.6" in data
    assert meta["glibc"] == "2.27"


def test_no_runtime_of_the_compiler_is_needed() -> None:
    """Neither libstdc++ nor an OpenMP library: the one of torch serves."""
    data, _ = compile_cpp(_job(THREADS, "cpp_threads"), cxx=CXX)
    for name in (b"libgomp", b"libstdc++", b"libgcc_s", b"/tmp", b"kernel.cpp"):
        assert name not in data
    assert b"GOMP_parallel" in data


def test_threads_are_those_of_torch() -> None:
    library = load(compile_cpp(_job(THREADS, "cpp_threads"), cxx=CXX)[0])
    library.cpp_threads.restype = ctypes.c_int64
    before = torch.get_num_threads()
    try:
        for count in (1, 3, 2):
            torch.set_num_threads(count)
            assert library.cpp_threads(None, None) == count
    finally:
        torch.set_num_threads(before)
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    assert len([name for name in mapped if "gomp" in name or "libomp" in name]) == 1


def test_a_refused_text_brings_the_log() -> None:
    with pytest.raises(CompilerFailed, match="the C\\+\\+ compiler answered 1") as failed:
        compile_cpp(_job('extern "C" int64_t entry() { return missing; }'), cxx=CXX)
    assert "kernel.cpp:1" in failed.value.found
    assert "missing" in failed.value.found


def test_an_unknown_instruction_set_is_a_failure() -> None:
    target = dataclasses.replace(BEST, arch="x86-64-v9")
    with pytest.raises(CompilerFailed):
        compile_cpp(_job("int entry;", target=target), cxx=CXX)


def test_an_absent_compiler_is_a_failure() -> None:
    with pytest.raises(CompilerFailed, match="did not start"):
        compile_cpp(_job("int entry;"), cxx="no-such-compiler")


def test_no_kernel_takes_long_to_compile() -> None:
    """Printed, not asserted: the machine may be busy."""
    import time

    spent: dict[str, float] = {}
    for case in kernels.cases():
        request = job(emit(case.kernel, BEST), BEST)
        begun = time.perf_counter()
        compile_cpp(request, cxx=CXX)
        spent[case.name] = time.perf_counter() - begun
    slowest = max(spent, key=lambda name: spent[name])
    mean = sum(spent.values()) / len(spent)
    print(f"compile: mean {mean:.2f} s, slowest {slowest} {spent[slowest]:.2f} s")
