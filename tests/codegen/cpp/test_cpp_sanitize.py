"""Kernels under the address and undefined-behaviour sanitizers, on buffers of exactly the size they may touch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cpp_harness import BEST, CXX
from hypothesis import HealthCheck, given, settings

from stax.codegen.cpp.emit import emit
from stax.ir.dtypes import DTYPES
from stax.ir.value import bound, load
from tests import kernels
from tests.kernels import X0, KernelCase, at, make, st
from tests.random_kernels import kernel_cases

FLAGS = "-std=c++17 -O1 -fopenmp -w -fsanitize=address,undefined -fno-sanitize-recover=all".split()
QUIET = {"ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "2", "PATH": "/usr/bin:/bin"}


def _program(case: KernelCase, answer: int) -> str:
    """The kernel and a main that runs it on fresh allocations, their integers in the range that the case allows."""
    source = emit(case.kernel, BEST)
    lines = ["#include <stdlib.h>", "int main() {"]
    for i, p in enumerate(case.kernel.pointers):
        count = case.elements[p.name]
        size = count * DTYPES[p.dtype].itemsize
        lines.append(f"    char* p{i} = (char*)malloc({size});")
        lo, hi = case.limits.get(p.name, (0, 2))
        if DTYPES[p.dtype].is_integral and p.kind == "in":
            kind = f"{p.dtype}_t"
            lines.append(
                f"    for (long i = 0; i < {count}; ++i) (({kind}*)p{i})[i] = ({kind})({lo} + i % {hi - lo});"
            )
        else:
            lines.append(f"    for (long i = 0; i < {size}; ++i) p{i}[i] = 0;")
    names = ", ".join(f"p{i}" for i in range(len(case.kernel.pointers)))
    sizes = ", ".join(str(case.env[s.name]) for s in case.kernel.sizes) or "0"
    lines.append(f"    void* ptrs[] = {{{names}}};")
    lines.append(f"    int64_t sizes[] = {{{sizes}}};")
    lines.append(f"    return {source.entry}(ptrs, sizes) == {answer} ? 0 : 3;")
    return source.text + "\n".join([*lines, "}", ""])


def _check(case: KernelCase, folder: Path, answer: int = 0) -> None:
    (folder / "kernel.cpp").write_text(_program(case, answer))
    command = [CXX, *FLAGS, f"-march={BEST.arch}", "kernel.cpp", "-o", "kernel"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    done = subprocess.run([folder / "kernel"], env=QUIET, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]


@pytest.mark.parametrize("case", kernels.cases(), ids=lambda c: c.name)
def test_hand_made(case: KernelCase, tmp_path: Path) -> None:
    _check(case, tmp_path)


@pytest.mark.parametrize(
    "case",
    [kernels.add_transposed(300, 200), kernels.outer_sum(70_001, 9), kernels.full_sum(1_000_003)],
    ids=lambda c: c.name,
)
def test_large_enough_for_threads(case: KernelCase, tmp_path: Path) -> None:
    _check(case, tmp_path)


@pytest.mark.parametrize("low", [-5, 1, 10, 1 << 40])
@pytest.mark.parametrize("rows", [0, 3])
def test_bad_indices_read_nothing(low: int, rows: int, tmp_path: Path) -> None:
    row = bound(at("in_ptr0", X0, "int64"), rows)
    kernel = make(
        [st("v0", load("in_ptr1", "float32", (row,)), ("out_ptr0", X0))],
        x=[50],
        pointers=["in_ptr0:int64", "in_ptr1:float32", "out_ptr0:float32"],
    )
    counts = {"in_ptr0": 50, "in_ptr1": rows, "out_ptr0": 50}
    case = KernelCase("bad", kernel, counts, None, limits={"in_ptr0": (low, low + 8)})
    _check(case, tmp_path, answer=1)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(kernel_cases())
def test_random(tmp_path_factory: pytest.TempPathFactory, case: KernelCase) -> None:
    _check(case, tmp_path_factory.mktemp("random"))
