"""Where a long float sum leaves its lanes for a wider total, so that no lane adds too many values in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Values that one lane may add before it is flushed.
LIMIT = 32


@dataclass(frozen=True)
class Flush:
    """After every ``every`` iterations of loop ``loop`` (0 is outermost)."""

    loop: int
    every: int


def place_flush(extents: Sequence[int | None], lanes_of_last: int = 1) -> Flush | None:
    """For loops of these extents (None: symbolic, taken as long), of which the last is spread over lanes; None when a
    lane never adds more than LIMIT values."""
    count = 1
    for loop in reversed(range(len(extents))):
        extent = extents[loop]
        width = lanes_of_last if loop == len(extents) - 1 else 1
        steps = None if extent is None else -(-extent // width)
        if steps is not None and count * steps <= LIMIT:
            count *= max(steps, 1)
            continue
        return Flush(loop, max(1, LIMIT // count) * width)
    return None
