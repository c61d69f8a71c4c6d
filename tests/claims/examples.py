"""The examples of the specification, and what Stax makes of a function: captured, lowered, scheduled and printed for sm_90.

Nothing here is made by hand: a claim is checked against what a user would get.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from stax.base.options import Options
from stax.base.target import Target
from stax.capture.decompose import decompositions
from stax.capture.trace import trace
from stax.codegen.triton.emit import emit
from stax.ir.kernel import Kernel
from stax.ir.program import Extern
from stax.ir.source import Config, Source
from stax.lower.lower import lower
from stax.schedule.schedule import Schedule, schedule
from tests.lowering import bind, to_numpy
from tests.triton_interpret import Interpreter
from tests.triton_programs import run_interpreted

HOPPER = Target("cuda", "sm_90")
Fn = Callable[..., Any]


def relu_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Example 1.1, whose kernel is Listing 9.1; of 64 × 128."""
    return (torch.relu(x + y) * 2).sum(-1)


def transpose_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Example 6.1, Listing 9.2; x of 512 × 256, y of 256 × 512."""
    return x.t() + y


def gelu_backward(g: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """Example 5.1, Listing 9.3; a scalar gradient and h of 2048 elements."""
    return torch.ops.aten.gelu_backward(g.expand(h.shape), h)


def sum_of_squares(x: torch.Tensor) -> torch.Tensor:
    """Example 6.2, Listing 9.4; of 64 × 16384."""
    return (x * x).sum(-1)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Listing 9.5; of 256 × 1000."""
    return F.softmax(x, -1)


@dataclass(frozen=True)
class Made:
    """What became of a function of tensors."""

    plan: Schedule

    @property
    def kernels(self) -> list[Kernel]:
        return [s.kernel for s in self.plan.steps if not isinstance(s, Extern)]

    @property
    def externs(self) -> list[str]:
        return [s.target for s in self.plan.steps if isinstance(s, Extern)]

    @property
    def sources(self) -> list[Source]:
        return [emit(k, HOPPER) for k in self.kernels]

    @property
    def source(self) -> Source:
        """The only one."""
        (source,) = self.sources
        return source

    @property
    def kernel(self) -> Kernel:
        """The only one."""
        (kernel,) = self.kernels
        return kernel

    def run(self, args: Sequence[torch.Tensor], interpreter: Interpreter) -> list[torch.Tensor]:
        """The results, every kernel interpreted as Triton text."""
        sizes = bind(self.plan.program, args)
        out = run_interpreted(self.plan, [to_numpy(a) for a in args], sizes, interpreter)
        return [torch.as_tensor(o) for o in out]


def made(
    fn: Fn,
    args: Sequence[torch.Tensor],
    *,
    dynamic: bool = False,
    options: Options | None = None,
    target: Target = HOPPER,
) -> Made:
    """Capture, lower and schedule ``fn(*args)``."""
    chosen = options or Options()
    captured = trace(
        fn, tuple(args), {}, dynamic=dynamic, target=target, decompositions=decompositions()
    )
    return Made(schedule(lower(captured, options=chosen), chosen))


def random(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(s) for s in shapes]


def lines(source: Source) -> list[str]:
    """The lines of the kernel's body, without indentation."""
    head, _, body = source.text.rpartition(f"def {source.entry}(")
    assert head
    return [line.strip() for line in body.splitlines()[1:] if line.strip()]


def holds(source: Source, *wanted: str) -> None:
    """Each text is a line of the kernel, or a part of one after its first word."""
    for text in wanted:
        assert any(text in line for line in lines(source)), f"no {text!r} in\n{source.text}"


def grid(source: Source, **config: int) -> tuple[int, ...]:
    """Programs under the default configuration with these changes, all sizes static."""
    names = [p.name for p in source.params if p.kind == "size"]
    values = {**dict(source.default.values), **config}
    env = {**dict(zip(names, (e.value for e in source.sizes))), **values}
    return tuple(e.evaluate(env) for e in source.grid)


def blocks(source: Source) -> list[str]:
    return [p.name for p in source.params if p.kind == "block"]


def numels(source: Source) -> dict[str, int]:
    """What the specification calls size hints: the lengths of the dimensions."""
    names = [p.name for p in source.params if p.kind == "size"]
    return {n.removesuffix("numel"): e.value for n, e in zip(names, source.sizes)}


def configs(source: Source) -> list[Config]:
    return list(source.space)


def count(source: Source, pattern: str) -> int:
    """Lines of the kernel in which ``pattern`` is found."""
    return sum(bool(re.search(pattern, line)) for line in lines(source))
