"""The innermost loops vectorise: the compiler says so of every loop that the emitter marks."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cpp_harness import BEST, CXX

from stax.base.target import Target
from stax.build import cpp
from stax.codegen.cpp.emit import emit
from stax.ir.value import scalar
from tests import kernels
from tests.kernels import X0, KernelCase, at, make, st

FUNCTIONS = ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf", "sin", "cos", "rsqrt", "floor", "round")  # fmt: skip


def _unary(op: str) -> KernelCase:
    kernel = make(
        [st("v0", scalar(op, at("in_ptr0", X0)), ("out_ptr0", X0))],
        x=[100_000],
        pointers=["in_ptr0:float32", "out_ptr0:float32"],
    )
    return KernelCase(op, kernel, {}, None)


CASES: dict[str, Callable[[], KernelCase]] = {
    "add_broadcast": kernels.add_broadcast,
    "add_relu_sum": kernels.add_relu_sum,
    "softmax": kernels.softmax,
    "layer_norm": kernels.layer_norm,
    "full_sum": kernels.full_sum,
    "outer_sum": kernels.outer_sum,
    "halves": kernels.halves,
    "dynamic": kernels.dynamic,
    "padded": kernels.padded,
    "any_all": lambda: kernels.any_all(),
    "argmax": kernels.arg_extremes,
    "transposed": lambda: kernels.add_transposed(1024, 1024),
    **{op: (lambda op=op: _unary(op)) for op in FUNCTIONS},
}


def _vectorised_lines(text: str, target: Target, folder: Path) -> set[int]:
    """Line numbers of the loops that the compiler vectorised."""
    (folder / "kernel.cpp").write_text(text)
    flags = [*cpp._COMPILE, f"-march={target.arch}", "-fopt-info-vec", "-S", "-o", "kernel.s"]
    done = subprocess.run(
        [CXX, *flags, "kernel.cpp"], cwd=folder, capture_output=True, text=True, check=True
    )
    return {
        int(n) for n in re.findall(r"kernel\.cpp:(\d+):\d+: optimized: +loop vect", done.stderr)
    }


def _marked_loops(text: str) -> list[int]:
    """Line numbers of the loops under an ``omp simd`` in the kernel itself."""
    lines = text.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith('extern "C"'))
    return [i + 2 for i in range(begin, len(lines)) if re.match(r" *#pragma omp.* simd", lines[i])]


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("name", CASES)
def test_every_marked_loop(name: str, level: str, tmp_path: Path) -> None:
    target = Target("cpu", level)
    text = emit(CASES[name]().kernel, target).text
    marked = _marked_loops(text)
    found = _vectorised_lines(text, target, tmp_path)
    # The compiler names the loop's line or, for a loop that threads share, its pragma's or body's.
    missed = [n for n in marked if not found & {n - 1, n, n + 1}]
    assert marked or name == "any_all"
    assert not missed, "\n".join(text.splitlines()[n - 1] for n in missed)


def test_wide_vectors_where_the_target_has_them() -> None:
    assert BEST.arch != "x86-64-v4" or "-mprefer-vector-width=512" in cpp._machine(
        _job_for(Target("cpu", "x86-64-v4"))
    )


def _job_for(target: Target) -> cpp.Job:
    from cpp_harness import job

    return job(emit(kernels.add_broadcast().kernel, target), target)
