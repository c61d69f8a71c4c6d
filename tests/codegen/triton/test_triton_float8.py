"""8-bit floats in Triton: converted by the hardware from sm_89 on and by integers before, to the values of torch.

The interpreter has no such hardware: it stands in with a conversion that rounds as PTX says, staying finite at the end.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stax.base.target import Target, Toolchain
from stax.build.job import Job
from stax.build.triton import _to_ptx, compile_triton
from stax.codegen.triton.emit import emit
from stax.ir.float8 import FLOAT8, values
from stax.ir.kernel import Kernel
from stax.ir.source import Source
from stax.ir.value import cast, constant, scalar, where
from tests.kernel_making import X0, Array, at, make, st
from tests.triton_interpret import Interpreter

HOPPER = Target("cuda", "sm_90")
TARGETS = [Target("cuda", arch) for arch in ("sm_80", "sm_89")] + [HOPPER]


def convert(source: str, to: str, count: int) -> Kernel:
    body = cast(at("in_ptr0", X0, source), to)
    pointers = [f"in_ptr0:{source}", f"out_ptr0:{to}"]
    return make([st("v0", body, ("out_ptr0", X0))], x=[count], pointers=pointers)


def job_of(source: Source, target: Target) -> Job:
    return Job(
        "triton", source.entry, source.text, source.params, source.default, target, Toolchain()
    )


def compiled(source: Source, target: Target) -> bytes:
    return compile_triton(job_of(source, target))[0]


def hard_floats(dtype: str) -> Array:
    """Floats of all sizes, every midpoint between neighbours with its own neighbours, and the ends."""
    spread = np.arange(0, 2**32, 262139, dtype=np.uint64).astype(np.uint32).view(np.float32)
    exact = np.unique(values(dtype)[np.isfinite(values(dtype))]).astype(np.float64)
    middles = ((exact[1:] + exact[:-1]) / 2).astype(np.float32)
    ends = np.array([464, 480, 61439, 61440, 65536, np.inf, np.nan, 0], np.float32)
    around = [np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf)]
    return np.concatenate([spread, middles, *around, ends, -ends])


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_code_widens(dtype: str, target: Target, interpreter: Interpreter) -> None:
    codes = np.arange(256, dtype=np.uint8)
    source = emit(convert(dtype, "float32", 256), target)
    after = interpreter.run(source, {"in_ptr0": codes, "out_ptr0": np.zeros(256, np.float32)})
    want = torch.from_numpy(codes).view(getattr(torch, dtype)).float().numpy()
    np.testing.assert_array_equal(after["out_ptr0"], want)
    np.testing.assert_array_equal(np.signbit(after["out_ptr0"]), np.signbit(want))
    assert compiled(source, target).startswith(b"\x7fELF")


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("wide", ["float32", "bfloat16", "float16", "float64", "int32"])
def test_rounds_as_in_torch(
    wide: str, dtype: str, target: Target, interpreter: Interpreter
) -> None:
    data = hard_floats(dtype)
    if wide == "int32":
        data = np.clip(np.nan_to_num(data), -(2**31), 2**31 - 128)
    given = torch.from_numpy(data).to(getattr(torch, wide))
    source = emit(convert(wide, dtype, len(data)), target)
    array = given.float().numpy() if wide == "bfloat16" else given.numpy()
    codes = np.zeros(len(data), np.uint8)
    found = interpreter.run(source, {"in_ptr0": array, "out_ptr0": codes})["out_ptr0"]
    want = given.to(getattr(torch, dtype))
    numbers = ~want.isnan().numpy()
    np.testing.assert_array_equal(found[numbers], want.view(torch.uint8).numpy()[numbers])
    assert np.all(found[~numbers] & 0x7F > (0x7E if dtype == "float8_e4m3fn" else 0x7C))
    assert compiled(source, target).startswith(b"\x7fELF")


@pytest.mark.parametrize("dtype, name", list(zip(FLOAT8, ("e4m3x2", "e5m2x2"))))
def test_one_instruction_converts_two(dtype: str, name: str) -> None:
    source = emit(convert("float32", dtype, 4096), HOPPER)
    assert f"cvt.rn.satfinite.{name}.f32" in _to_ptx(job_of(source, HOPPER))[0]


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("dtype", FLOAT8)
def test_constants_masks_and_choices(dtype: str, target: Target, interpreter: Interpreter) -> None:
    x = at("in_ptr0", X0, dtype)
    few = scalar("lt", at("in_ptr1", X0, "int64"), constant(100, "int64"))
    body = where(few, at("in_ptr0", X0, dtype, mask=few, other=0.3), constant(-1e9, dtype))
    kernel = make(
        [st("v0", body, ("out_ptr0", X0)), st("v1", where(few, x, x), ("out_ptr1", X0))],
        x=[256],
        pointers=[f"in_ptr0:{dtype}", "in_ptr1:int64", f"out_ptr0:{dtype}", f"out_ptr1:{dtype}"],
    )
    codes = np.arange(256, dtype=np.uint8)
    outs = {name: np.zeros(256, np.uint8) for name in ("out_ptr0", "out_ptr1")}
    source = emit(kernel, target)
    after = interpreter.run(source, {"in_ptr0": codes, "in_ptr1": np.arange(256), **outs})
    least = torch.tensor(-1e9).to(getattr(torch, dtype)).view(torch.uint8).item()
    np.testing.assert_array_equal(after["out_ptr0"], np.where(codes < 100, codes, least))
    np.testing.assert_array_equal(after["out_ptr1"], codes)
    assert compiled(source, target).startswith(b"\x7fELF")
