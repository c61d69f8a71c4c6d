"""Random words in Triton have the bits of the reference, and the text compiles."""

from __future__ import annotations

import numpy as np

from stax.base.target import Target, Toolchain
from stax.build.job import Job
from stax.build.triton import compile_triton
from stax.codegen.triton.emit import emit
from stax.ir.philox import random32, random64
from tests.codegen.philox_cases import COUNT, keys_and_positions, words_kernel
from tests.triton_interpret import Interpreter

HOPPER = Target("cuda", "sm_90")


def test_words_are_the_reference_s(interpreter: Interpreter) -> None:
    source = emit(words_kernel(), HOPPER)
    keys, positions = keys_and_positions()
    outs = {name: np.zeros(COUNT, np.int64) for name in ("out_ptr0", "out_ptr1")}
    after = interpreter.run(source, {"in_ptr0": keys, "in_ptr1": positions, **outs})
    np.testing.assert_array_equal(after["out_ptr0"], random32(keys, positions))
    np.testing.assert_array_equal(after["out_ptr1"], random64(keys, positions))
    job = Job(
        "triton", source.entry, source.text, source.params, source.default, HOPPER, Toolchain()
    )
    assert compile_triton(job)[0].startswith(b"\x7fELF")
