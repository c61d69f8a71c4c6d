"""Every kernel's text computes what it should under Triton's own interpreter: the hand-made ones what numpy says, random
ones what the IR interpreter says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

from stax.base.target import Target
from stax.codegen.triton.emit import emit
from stax.ir.dtypes import DTYPES
from stax.ir.interp import run_kernel
from stax.ir.source import Config
from tests.kernels import Array, KernelCase, cases, embedding, layer_norm, outer_sum, softmax
from tests.random_kernels import kernel_cases
from tests.triton_interpret import Failure, Interpreter

TARGET = Target("cuda", "sm_90")
TOLERANCE = {"float64": 2e-5, "float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
MOST_POINTS = 300_000
# A product of more random numbers than this may or may not overflow on its way.
MOST_FACTORS = 64


def compare(found: Array, expected: Array, dtype: str, message: str) -> None:
    if not DTYPES[dtype].is_float:
        np.testing.assert_array_equal(found, expected.ravel(), err_msg=message)
        return
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(
        found, expected.ravel(), rtol=tolerance, atol=tolerance, err_msg=message
    )


def check_reference(
    case: KernelCase, interpreter: Interpreter, config: Config | None = None
) -> None:
    """Against the reference of a hand-made case."""
    assert case.reference is not None
    before = case.inputs()
    expected = {**before, **case.reference(before, case.env)}
    source = emit(case.kernel, TARGET)
    found = interpreter.run(source, before, case.env, config)
    for p in case.kernel.pointers:
        compare(found[p.name], expected[p.name], p.dtype, f"{p.name}\n{source.text}")


@pytest.mark.parametrize("case", cases(), ids=lambda c: c.name)
def test_hand_made_kernel(case: KernelCase, interpreter: Interpreter) -> None:
    check_reference(case, interpreter)


@pytest.mark.parametrize(
    "case", [softmax(9, 700), layer_norm(9), outer_sum(40, 50)], ids=lambda c: c.name
)
def test_every_candidate_gives_the_same(case: KernelCase, interpreter: Interpreter) -> None:
    for config in emit(case.kernel, TARGET).space:
        check_reference(case, interpreter, config)


def test_looped_reductions_hand_on_what_they_found(interpreter: Interpreter) -> None:
    """Blocks much shorter than the rows: three loops of many steps."""
    config = Config.of(XBLOCK=2, R0_BLOCK=32, num_warps=1, num_stages=1)
    check_reference(softmax(5, 1100), interpreter, config)


@pytest.mark.parametrize("bad", [10, -1])
def test_an_index_out_of_range_is_an_error(bad: int, interpreter: Interpreter) -> None:
    case = embedding()
    buffers = case.inputs()
    buffers["in_ptr0"][17] = bad
    with pytest.raises(Failure, match="index out of range"):
        interpreter.run(emit(case.kernel, TARGET), buffers)


def is_comparable(case: KernelCase) -> bool:
    """The oracle knows its result, and Python can compute it in a moment."""
    factors = case.kernel.rnumel.evaluate(case.env)
    points = case.kernel.xnumel.evaluate(case.env) * factors
    multiplies = any(
        s.combine == "prod" and DTYPES[s.body.dtype].is_float for s in case.kernel.statements
    )
    return 0 < points <= MOST_POINTS and not (multiplies and factors > MOST_FACTORS)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(case=kernel_cases())
def test_random_kernel(case: KernelCase, interpreter: Interpreter) -> None:
    assume(is_comparable(case))
    before = case.inputs()
    expected = {name: a.copy() for name, a in before.items()}
    run_kernel(case.kernel, expected, case.env)
    source = emit(case.kernel, TARGET)
    found = interpreter.run(source, before, case.env)
    for p in case.kernel.pointers:
        compare(found[p.name], expected[p.name], p.dtype, f"{p.name}\n{source.text}")
