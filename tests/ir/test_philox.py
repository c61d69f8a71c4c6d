"""Random words are those of the published generator, a function of key and position alone, and look random."""

from __future__ import annotations

import numpy as np
import pytest

from stax.base.errors import VerifyError
from stax.ir.philox import philox, random32, random64
from stax.ir.value import constant, scalar


def test_published_words() -> None:
    """The vector of Random123 for counter 0 and key 0."""
    words = [int(w[0]) for w in philox(0, 0)]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_words_and_pairs_are_numbered_through_the_blocks() -> None:
    key, positions = np.int64(-77), np.arange(64)
    blocks = np.stack(philox(key, np.arange(16)), 1).reshape(-1)
    np.testing.assert_array_equal(random32(key, positions), blocks.astype(np.int64))
    pairs = (blocks[0::2] | blocks[1::2] << np.uint64(32)).view(np.int64)
    np.testing.assert_array_equal(random64(key, positions[:32]), pairs)


def test_far_positions_and_other_keys_have_words_of_their_own() -> None:
    starts = [k << shift for shift in (30, 31, 32, 33, 34, 40, 61) for k in (1, 3)]
    positions = np.concatenate([np.arange(64), *(start + np.arange(64) for start in starts)])
    keys = np.array([[0], [1], [-1], [2**32], [2**62]])
    assert len(np.unique(random64(keys, positions))) == keys.size * len(np.unique(positions))
    words = random32(keys, positions)
    assert words.min() >= 0 and words.max() < 2**32


def test_words_are_even_and_independent() -> None:
    """Chi-square over the high and low byte, and over pairs of neighbours and of adjacent keys; 5 standard deviations."""
    n = 1 << 18
    first, second = (random32(np.int64(k), np.arange(n)) for k in (5, 6))
    for cells in (
        first >> 24,
        first & 255,
        (first[0::2] >> 28) * 16 + (first[1::2] >> 28),
        (first >> 28) * 16 + (second >> 28),
    ):
        counts = np.bincount(cells, minlength=256)
        square = ((counts - len(cells) / 256) ** 2).sum() / (len(cells) / 256)
        assert abs(square - 255) < 5 * np.sqrt(2 * 255)


def test_only_int64_has_positions() -> None:
    narrow = constant(1, "int32")
    with pytest.raises(VerifyError, match="random32 of int32"):
        scalar("random32", narrow, narrow)
