"""C++ kernels against eager torch, in processor time on one thread: milliseconds of each and the ratio, a line a kernel.

python tests/bench/cpp_kernels.py [NAME ...]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/codegen/cpp")]

from cpp_harness import build, to_memory  # noqa: E402

from tests import kernels  # noqa: E402
from tests.kernels import KernelCase  # noqa: E402

ROUNDS = 5


def _softmax() -> KernelCase:
    """Softmax with its last result alone, as a program has it."""
    case = kernels.softmax(4096, 1000)
    statements = tuple(
        replace(s, stores=tuple(t for t in s.stores if t.pointer == "out_ptr2"))
        for s in case.kernel.statements
    )
    pointers = tuple(p for p in case.kernel.pointers if p.name in ("in_ptr0", "out_ptr2"))
    return replace(case, kernel=replace(case.kernel, statements=statements, pointers=pointers))


def _layer_norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (768,), x[0], x[1])


CASES: dict[str, tuple[KernelCase, tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
    "add_relu_sum": (
        kernels.add_relu_sum(4096, 4096), (4096, 4096), lambda x: (torch.relu(x + x) * 2).sum(1),
    ),
    "softmax": (_softmax(), (4096, 1000), lambda x: torch.softmax(x, 1)),
    "layer_norm": (kernels.layer_norm(4096, 768), (4096, 768), _layer_norm),
    "add_transposed": (kernels.add_transposed(2048, 2048), (2048, 2048), lambda x: x.t() + x),
    "outer_sum": (kernels.outer_sum(4096, 4096), (4096, 4096), lambda x: x.sum(0)),
    "full_sum": (kernels.full_sum(1 << 24), (1 << 24,), lambda x: x.sum() + x.max()),
}  # fmt: skip


def _time_s(action: Callable[[], object]) -> float:
    action()
    spent: list[float] = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        action()
        spent.append(time.process_time() - begun)
    return min(spent)


def against_eager(name: str) -> None:
    case, shape, eager = CASES[name]
    library, inputs = build(case.kernel), case.inputs(0)
    buffers = [to_memory(inputs[p.name], p.dtype) for p in case.kernel.pointers]
    x = torch.from_numpy(inputs["in_ptr0"]).reshape(shape)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ours = _time_s(lambda: library(buffers, {}))
        theirs = _time_s(lambda: eager(x))
    finally:
        torch.set_num_threads(before)
    print(f"{name}: {ours * 1e3:.2f} ms, eager {theirs * 1e3:.2f} ms, {theirs / ours:.2f}x")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or CASES:
        against_eager(chosen)
