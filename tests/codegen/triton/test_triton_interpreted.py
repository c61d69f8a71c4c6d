"""Every kernel's text computes what the IR interpreter computes, under Triton's own interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from stax.base.target import Target
from stax.codegen.triton.emit import emit
from stax.ir.dtypes import DTYPES
from stax.ir.interp import run_kernel
from tests.kernels import Buffers, KernelCase, cases
from tests.random_kernels import kernel_cases
from tests.triton_interpret import Interpreter

TARGET = Target("cuda", "sm_90")
TOLERANCE = {"float64": 2e-5, "float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


def check(case: KernelCase, interpreter: Interpreter, seed: int = 0) -> None:
    """The text under the interpreter against the oracle, and the oracle's case against its own reference."""
    before = case.inputs(seed)
    expected = {name: a.copy() for name, a in before.items()}
    run_kernel(case.kernel, expected, case.env)
    source = emit(case.kernel, TARGET)
    compare(case, interpreter.run(source, before, case.env), expected, source.text)


def compare(case: KernelCase, found: Buffers, expected: Buffers, text: str) -> None:
    for pointer in case.kernel.pointers:
        got, want = found[pointer.name], expected[pointer.name]
        message = f"{pointer.name}\n{text}"
        if pointer.kind == "in" or not DTYPES[pointer.dtype].is_float:
            np.testing.assert_array_equal(got, want, err_msg=message)
        else:
            tolerance = TOLERANCE[pointer.dtype]
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=message)


@pytest.mark.parametrize("case", cases(), ids=lambda c: c.name)
def test_hand_made_kernel(case: KernelCase, interpreter: Interpreter) -> None:
    check(case, interpreter)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(case=kernel_cases())
def test_random_kernel(case: KernelCase, interpreter: Interpreter) -> None:
    check(case, interpreter)
