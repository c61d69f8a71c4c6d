"""Printing of C++ blocks and loops as lists of lines."""

from __future__ import annotations

from collections.abc import Sequence

from stax.codegen.cpp.index import spell_expr, spell_factor
from stax.codegen.cpp.plan import PARALLEL_WORK
from stax.ir.expr import Expr
from stax.ir.program import Axis
from stax.ir.ranges import Ranges

Lines = list[str]


def block(head: str, body: Sequence[str]) -> Lines:
    return [f"{head} {{", *(f"    {line}" for line in body), "}"]


def scoped(lines: Sequence[str]) -> Lines:
    return ["{", *(f"    {line}" for line in lines), "}"]


def for_loop(name: str, begin: str, end: str, body: Sequence[str], *, step: int = 1) -> Lines:
    """A loop of ``name`` over begin .. end-1."""
    stride = f"++{name}" if step == 1 else f"{name} += {step}"
    return block(f"for (int64_t {name} = {begin}; {name} < {end}; {stride})", body)


def simd(loop: Lines, checked: bool) -> Lines:
    """The loop with the promise that its iterations are independent, but for the failed-check bits."""
    return ["#pragma omp simd reduction(|:bad)" if checked else "#pragma omp simd", *loop]


def parallel(collapse: int, work: Expr, checked: bool, ranges: Ranges) -> str:
    """The pragma that shares ``collapse`` nested loops among the threads; with an unknown ``work``, only if it pays."""
    parts = ["#pragma omp parallel for"]
    if collapse > 1:
        parts.append(f"collapse({collapse})")
    parts.append("schedule(static)")
    if checked:
        parts.append("reduction(|:bad)")
    if not work.is_const:
        parts.append(f"if({spell_expr(work, ranges)} >= {PARALLEL_WORK})")
    return " ".join(parts)


def add_levels(levels: list[Lines], body: Lines, lines: Sequence[Lines]) -> None:
    """Lines by depth, to where they stand: ``levels`` of the outer loops, and below them the ``body``."""
    for depth, group in enumerate(lines):
        (levels[depth] if depth < len(levels) else body).extend(group)


def outer_nest(axes: Sequence[Axis], levels: Sequence[Lines], body: Lines, ranges: Ranges) -> Lines:
    """Loops over ``axes``, each with the lines of its level first; level 0 stands before them all. With ``levels``
    empty above the innermost, the loops are perfectly nested."""
    inner = body
    for depth in reversed(range(len(axes))):
        axis = axes[depth]
        inner = for_loop(axis.name, "0", spell_factor(axis.extent, ranges), inner)
        if depth:
            inner = [*levels[depth], *inner]
    return inner
