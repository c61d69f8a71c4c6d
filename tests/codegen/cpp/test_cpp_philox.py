"""Random words in C++ have the bits of the reference."""

from __future__ import annotations

import numpy as np
import pytest
from cpp_harness import BEST, build

from stax.base.target import Target
from stax.ir.philox import random32, random64
from tests.codegen.philox_cases import COUNT, keys_and_positions, words_kernel


@pytest.mark.parametrize("target", [Target("cpu", "x86-64"), BEST], ids=str)
def test_words_are_the_reference_s(target: Target) -> None:
    keys, positions = keys_and_positions()
    words, pairs = np.zeros(COUNT, np.int64), np.zeros(COUNT, np.int64)
    assert build(words_kernel(), target)([keys, positions, words, pairs], {}) == 0
    np.testing.assert_array_equal(words, random32(keys, positions))
    np.testing.assert_array_equal(pairs, random64(keys, positions))
