"""Host time of one call of a small compiled function: µs of Stax (static, dynamic), eager and torch.compile, and ratios.

    python tests/bench/dispatch.py

Processor time of this process, the least of several rounds, so that a busy machine disturbs little.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import stax

CALLS = 4000
ROUNDS = 7


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def call_us(fn: Callable[..., object], *args: torch.Tensor) -> float:
    fn(*args)
    spent: list[float] = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in range(CALLS):
            fn(*args)
        spent.append((time.process_time() - begun) / CALLS)
    return min(spent) * 1e6


def main() -> None:
    x, y = torch.randn(8), torch.randn(8)
    sides: dict[str, Callable[..., object]] = {
        "eager": add,
        "stax": stax.compile(add, store="memory:"),
        "stax dynamic": stax.compile(add, store="memory:", dynamic=True),
        "torch.compile": torch.compile(add),
    }
    with torch.no_grad():
        found = {name: call_us(fn, x, y) for name, fn in sides.items()}
    for name, us in found.items():
        print(f"{name:14} {us:7.2f} us  {us / found['torch.compile']:5.2f} of torch.compile")


if __name__ == "__main__":
    main()
