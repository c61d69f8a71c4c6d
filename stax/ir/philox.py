"""Random bits as a pure function of a key and a position: Philox 4x32 with 10 rounds (Salmon et al., SC 2011), in numpy.

Block b of a key is four 32-bit words. ``random32`` numbers these words through all blocks, ``random64`` their pairs, so
that neighbours share the work of one block wherever an emitter can compute it once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(key: Any, block: Any) -> tuple[Any, Any, Any, Any]:
    """The four words of a block, each a uint64 array below 2**32; ``key`` and ``block`` are int64, read as unsigned."""
    key, block = (np.atleast_1d(x).astype(np.int64).view(np.uint64) for x in (key, block))
    c0, c1, c2, c3 = block & _LOW, block >> _HALF, np.uint64(0), np.uint64(0)
    k0, k1 = key & _LOW, key >> _HALF
    for _ in range(ROUNDS):
        a, b = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (b >> _HALF) ^ c1 ^ k0, b & _LOW, (a >> _HALF) ^ c3 ^ k1, a & _LOW
        k0, k1 = (k0 + np.uint64(KEY_STEPS[0])) & _LOW, (k1 + np.uint64(KEY_STEPS[1])) & _LOW
    return c0, c1, c2, c3


def random32(key: Any, position: Any) -> Any:
    """Word ``position`` of the key, as an int64 in 0 .. 2**32-1."""
    position = np.asarray(position, np.int64)
    words = philox(key, _shifted(position, 2))
    return _chosen(words, position & 3, np.shape(key), position.shape)


def random64(key: Any, position: Any) -> Any:
    """Pair ``position`` of the key's words, the first one low, as an int64 of any sign."""
    position = np.asarray(position, np.int64)
    a, b, c, d = philox(key, _shifted(position, 1))
    pairs = (a | b << _HALF, c | d << _HALF)
    return _chosen(pairs, position & 1, np.shape(key), position.shape)


def _shifted(position: Any, by: int) -> Any:
    return (position.view(np.uint64) >> np.uint64(by)).view(np.int64)


def _chosen(words: tuple[Any, ...], which: Any, *shapes: tuple[int, ...]) -> Any:
    shape = np.broadcast_shapes(*shapes)
    return np.choose(which, [w.view(np.int64) for w in words]).reshape(shape)
