"""The byte counter against hand-made kernels, whose numbers are known, and against the accesses that an interpreter makes."""

from __future__ import annotations

from collections import defaultdict
from functools import reduce
from itertools import product
from math import prod
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings, strategies
from lowering import lowered

from stax.base.options import Options
from stax.codegen.triton.plan import plan as loops_of
from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr, const
from stax.ir.kernel import Kernel
from stax.ir.program import Extern
from stax.ir.traffic import Traffic, traffic
from stax.ir.value import Value, cast, constant, index, load_parts, scalar, scatter_parts
from stax.schedule.schedule import schedule
from tests.kernels import X0, X1, X2, KernelCase, at, cases, embedding, make, padded, st
from tests.random_kernels import kernel_cases


def kernels_of(fn: Any, *shapes: tuple[int, ...], fusion: bool = True) -> list[Kernel]:
    plan = schedule(lowered(fn, [torch.randn(*s) for s in shapes]), Options(fusion=fusion))
    return [s.kernel for s in plan.steps if not isinstance(s, Extern)]


def counted(fn: Any, *shapes: tuple[int, ...]) -> Traffic:
    (kernel,) = kernels_of(fn, *shapes)
    return traffic(kernel)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x, -1)


def rope(q: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return q * c + torch.cat((-q[..., 32:], q[..., :32]), -1) * s


def test_fused_softmax_moves_its_elements_twice() -> None:
    n = 256 * 1000 * 4
    (kernel,) = kernels_of(softmax, (256, 1000))
    found = traffic(kernel)
    assert (found.read_bytes, found.written_bytes, found.reread_bytes) == (n, n, 0)
    assert found.moved_bytes == 2 * n


def test_five_softmax_kernels_move_them_eight_times() -> None:
    n, row = 256 * 1000 * 4, 256 * 4
    found = [traffic(k) for k in kernels_of(softmax, (256, 1000), fusion=False)]
    assert [t.read_bytes for t in found] == [n, n + row, n, n, n + row]
    assert [t.written_bytes for t in found] == [row, n, n, row, n]
    assert sum(t.moved_bytes for t in found) == 8 * n + 4 * row


def test_each_loop_after_the_first_reads_again() -> None:
    n = 4 * 100000 * 4
    (kernel,) = kernels_of(softmax, (4, 100000))
    loops = [phase.inside for phase in loops_of(kernel)]
    passes = sum(bool(loop) for loop in loops)
    found = traffic(kernel, loops=loops)
    assert passes > 1 and found.reread_bytes == (passes - 1) * n
    assert (found.read_bytes, found.written_bytes) == (n, n)


def test_what_broadcasts_counts_once() -> None:
    found = counted(lambda a, b, c: a + b + c, (30, 50), (50,), (30, 1))
    assert dict(found.reads) == {"in_ptr0": 6000, "in_ptr1": 200, "in_ptr2": 120}


def test_the_halves_of_a_rotation_are_within_the_whole() -> None:
    found = counted(rope, (2, 4, 7, 64), (1, 1, 7, 64), (1, 1, 7, 64))
    assert [b for _, b in found.reads] == [4 * 2 * 4 * 7 * 64, 4 * 7 * 64, 4 * 7 * 64]


def test_the_halves_of_a_strided_rotation_are_within_the_whole() -> None:
    """Between the rows lie others that nobody reads: only containment proves it."""
    x1 = scalar("lt", index(X1), index(32))
    low = at("in_ptr0", X0 * 192 + X1 + 32, mask=x1)
    high = at("in_ptr0", X0 * 192 + X1 - 32, mask=scalar("ge", index(X1), index(32)))
    body = scalar("add", scalar("add", at("in_ptr0", X0 * 192 + X1), low), high)
    kernel = make(
        [st("v0", body, ("out_ptr0", X0 * 64 + X1))],
        x=[7, 64],
        pointers=["in_ptr0:float16", "out_ptr0:float16"],
    )
    assert traffic(kernel).read_bytes == 7 * 64 * 2


def test_windows_that_overlap_count_what_lies_below_them() -> None:
    found = counted(lambda x: F.avg_pool2d(x, 3, 1), (2, 3, 8, 8))
    assert (found.read_bytes, found.written_bytes) == (2 * 3 * 8 * 8 * 4, 2 * 3 * 6 * 6 * 4)


def test_a_stride_leaves_elements_out() -> None:
    assert counted(lambda x: x[::2, ::3] + 1, (10, 9)).read_bytes == 5 * 3 * 4


def test_padding_is_not_read() -> None:
    found = traffic(padded(100).kernel)
    assert (found.read_bytes, found.written_bytes) == (400, 416)
    assert traffic(padded(0).kernel).read_bytes == 0


def test_parts_of_a_concatenation_are_read_as_far_as_they_go() -> None:
    found = counted(lambda a, b: torch.cat((a, b), 1) * 2, (8, 5), (8, 11))
    assert [b for _, b in found.reads] == [8 * 5 * 4, 8 * 11 * 4]


def test_a_computed_offset_touches_an_element_a_point_within_its_bounds() -> None:
    """40 rows of 16 are asked for; the table has 10."""
    found = traffic(embedding().kernel)
    assert dict(found.reads) == {"in_ptr0": 40 * 8, "in_ptr1": 10 * 16 * 4}
    free = scalar("add", cast(at("in_ptr0", X0, "int32"), "int64"), constant(1, "int64"))
    kernel = make(
        [st("v0", at("in_ptr1", free), ("out_ptr0", X0 * 16 + X1))],
        x=[40, 16],
        pointers=["in_ptr0:int32", "in_ptr1:float32", "out_ptr0:float32"],
    )
    assert dict(traffic(kernel).reads) == {"in_ptr0": 160, "in_ptr1": 160}


@pytest.mark.parametrize(("rows", "touched"), [(50, 50 * 7), (500, 100 * 7)])
def test_a_scatter_touches_an_element_a_point_and_a_sum_reads_it_too(
    rows: int, touched: int
) -> None:
    """100 rows of 7 into so many."""
    index_of = torch.randint(0, rows, (100,))
    for name, again in (("index_add", touched), ("index_copy", 0)):
        args = [torch.randn(rows, 7), index_of, torch.randn(100, 7)]
        program = lowered(lambda o, i, x, name=name: getattr(o, name)(0, i, x), args)
        kernel = schedule(program, Options()).steps[-1].kernel  # type: ignore[union-attr]
        found = traffic(kernel)
        assert found.written_bytes == 4 * touched
        assert found.read_bytes == 100 * 8 + 100 * 7 * 4 + 4 * again


def test_a_box_with_gaps_hides_nothing() -> None:
    """3*(x // 2) + x % 3 touches six of nine elements; x + 2 touches the others among its own."""
    body = scalar("add", at("in_ptr0", X0 // 2 * 3 + X0 % 3), at("in_ptr0", X0 + 2))
    kernel = make([st("v0", body)], x=[6], pointers=["in_ptr0:float32"])
    assert traffic(kernel).read_bytes == 9 * 4


def test_other_sizes_than_the_hints() -> None:
    args = [torch.randn(6, 8)]
    plan = schedule(lowered(lambda x: x.sum(-1), args, True), Options())
    (kernel,) = [s.kernel for s in plan.steps if not isinstance(s, Extern)]
    names = [s.name for s in kernel.sizes]
    assert traffic(kernel).read_bytes == 6 * 8 * 4
    assert traffic(kernel, dict.fromkeys(names, 100)).read_bytes == 100 * 100 * 4


@pytest.mark.parametrize("case", cases(), ids=lambda c: c.name)
def test_never_less_than_what_is_touched(case: Any) -> None:
    """And exactly that, where every offset is affine."""
    env = case.env or case.kernel.hints
    found = traffic(case.kernel, env)
    touched = _touched(case.kernel, env)
    for side, moved in (("read", found.reads), ("write", found.writes)):
        for name, size in moved:
            least = touched[side, name] * _itemsize(case.kernel, name)
            assert size == least if _is_affine(case.kernel) else size >= least, name


@settings(max_examples=60, deadline=None)
@given(case=kernel_cases())
def test_random_kernels_touch_no_more(case: KernelCase) -> None:
    points = prod(a.extent.evaluate(case.env) for a in (*case.kernel.axes, *case.kernel.reduce_axes))  # fmt: skip
    assume(points <= 3000)
    found = traffic(case.kernel, case.env)
    touched = _touched(case.kernel, case.env)
    for side, moved in (("read", found.reads), ("write", found.writes)):
        for name, size in moved:
            assert size >= touched[side, name] * _itemsize(case.kernel, name)


@settings(max_examples=300, deadline=None)
@given(rng=strategies.randoms(use_true_random=False))
def test_several_accesses_of_one_pointer_are_never_counted_short(rng: Random) -> None:
    """Whatever their strides, shifts, divisions and masks; and no more than one by one."""
    extents = [rng.randint(1, 6) for _ in range(rng.randint(1, 3))]
    axes = [X0, X1, X2][: len(extents)]
    loads: list[Value] = []
    for _ in range(rng.randint(1, 4)):
        offset = const(rng.randint(0, 8))
        for axis in (*axes, rng.choice(axes)):
            term = rng.choice((axis, axis, axis // 2, axis % 3))
            offset = offset + term * rng.choice((-6, -1, 0, 1, 1, 2, 3, 6, 12))
        mask = scalar(rng.choice(("lt", "ge")), index(rng.choice(axes)), index(rng.randint(0, 6)))
        loads.append(at("in_ptr0", offset, mask=mask if rng.random() < 0.4 else None))
    body = reduce(lambda a, b: scalar("add", a, b), loads)
    kernel = make([st("v0", body)], x=extents, pointers=["in_ptr0:float32"])
    found = traffic(kernel).read_bytes
    assert found >= 4 * _touched(kernel, {})["read", "in_ptr0"]
    alone = [make([st("v0", v)], x=extents, pointers=["in_ptr0:float32"]) for v in loads]
    assert found <= sum(traffic(k).read_bytes for k in alone)


def _is_affine(kernel: Kernel) -> bool:
    bodies = [s.body for s in kernel.statements]
    computed = any(v.args[0].op != "index" for body in bodies for v in body.loads)
    return not computed and all(scatter_parts(body) is None for body in bodies)


def _itemsize(kernel: Kernel, pointer: str) -> int:
    return next(DTYPES[p.dtype].itemsize for p in kernel.pointers if p.name == pointer)


def _touched(kernel: Kernel, sizes: Any) -> dict[tuple[str, str], int]:
    """Distinct elements of each pointer, by looking at every point; computed offsets are given up."""
    seen: dict[tuple[str, str], set[int]] = defaultdict(set)
    for s in kernel.statements:
        inner = kernel.reduce_axes if s.space == "xr" else ()
        for env in _points((*kernel.axes, *inner), sizes):
            for value in s.body.loads:
                pointer, (offset,), mask, _ = load_parts(value)
                if offset.op == "index" and (mask is None or _holds(mask, env)):
                    seen["read", pointer].add(_at(offset, env))
        for env in _points(kernel.axes if s.combine else (*kernel.axes, *inner), sizes):
            for store in s.stores:
                seen["write", store.pointer].add(store.offset.evaluate(env))
    return defaultdict(int, {k: len(v) for k, v in seen.items()})


def _points(axes: Any, sizes: Any) -> Any:
    spans = [range(a.extent.evaluate(sizes)) for a in axes]
    for point in product(*spans):
        yield {**sizes, **dict(zip([a.name for a in axes], point))}


def _at(value: Value, env: Any) -> int:
    e = value.attr[0]
    assert isinstance(e, Expr)
    return e.evaluate(env)


def _holds(mask: Value, env: Any) -> bool:
    if mask.op == "and":
        return all(_holds(a, env) for a in mask.args)
    a, b = (_at(v, env) for v in mask.args)
    return {"lt": a < b, "ge": a >= b}[mask.op]
