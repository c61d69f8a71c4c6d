"""dynamic=True: one symbol a dimension, guards in the user's terms, and graphs that hold for every size they admit."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capturing import agree, capture, reason
from torch import Tensor, nn

from stax.artifact.guards import Binding, RelationGuard, TensorGuard
from stax.ir.expr import Expr, const, parse, sym


def relations(captured: Any) -> list[str]:
    return [g.text for g in captured.guards.guards if isinstance(g, RelationGuard)]


def shapes(captured: Any) -> list[tuple[Expr, ...]]:
    return [g.shape for g in captured.guards.guards if isinstance(g, TensorGuard)]


def branch(x: Tensor) -> Tensor:
    return x + 1 if x.shape[0] > 4 else x * 2


def test_a_branch_on_a_size_is_a_guard() -> None:
    small, large = (capture(branch, torch.arange(float(n)), dynamic=True) for n in (3, 7))
    assert relations(small) == ["x.size(0) >= 2", "x.size(0) <= 4"]
    assert relations(large) == ["x.size(0) >= 2", "x.size(0) > 4"]
    guard = small.guards.guards[-1]
    assert isinstance(guard, RelationGuard) and guard.where.startswith("test_dynamic.py:")
    assert (guard.left, guard.relation, guard.right) == (sym("s0"), "<=", const(4))


def test_six_sizes_need_two_programs() -> None:
    kept: list[Any] = []
    for n in (3, 7, 2, 9, 4, 11):
        x = torch.arange(n, dtype=torch.float32)
        if all(reason(c, branch, x) for c in kept):
            kept.append(capture(branch, x, dynamic=True))
        agree(branch, next(c for c in kept if not reason(c, branch, x)), x)
    assert len(kept) == 2


def test_sizes_zero_and_one_are_programs_of_their_own() -> None:
    def fn(x: Tensor) -> Tensor:
        return x * 2 + 1

    kept: list[Any] = []
    for n in (3, 1, 0, 7, 1, 0, 11):
        if all(reason(c, fn, torch.randn(n)) for c in kept):
            kept.append(capture(fn, torch.randn(n), dynamic=True))
    assert [len(c.symbols) for c in kept] == [1, 0, 0]


def test_equal_sizes_share_a_symbol_and_the_sharing_is_guarded() -> None:
    captured = capture(torch.add, torch.randn(3, 5), torch.randn(3, 5), dynamic=True)
    assert [s.name for s in captured.symbols] == ["s0", "s1"]
    assert captured.guards.bindings == (Binding("s0", 0, 0), Binding("s1", 0, 1))
    assert shapes(captured) == [(sym("s0"), sym("s1"))] * 2
    assert not reason(captured, torch.add, torch.randn(4, 2), torch.randn(4, 2))
    assert reason(captured, torch.add, torch.randn(4, 2), torch.randn(3, 2))


def test_layouts_are_programs_of_their_own() -> None:
    captured = capture(torch.neg, torch.randn(3, 4), dynamic=True)
    assert not reason(captured, torch.neg, torch.randn(5, 6))
    assert reason(captured, torch.neg, torch.randn(6, 5).t())
    other = capture(torch.neg, torch.randn(4, 3).t(), dynamic=True)
    assert not reason(other, torch.neg, torch.randn(9, 2).t())


def test_parameters_keep_their_sizes() -> None:
    module = nn.Linear(8, 8)
    captured = capture(module, torch.randn(5, 8), dynamic=True)
    assert [s.hint for s in captured.symbols] == [5]
    assert shapes(captured)[-1] == (sym("s0"), const(8))
    agree(module, captured, torch.randn(3, 8), exact=False)


def test_a_strided_slice_of_a_larger_tensor_keeps_its_stride_as_a_number() -> None:
    captured = capture(torch.neg, torch.randn(6, 10)[:, :4], dynamic=True)
    (guard,) = [g for g in captured.guards.guards if isinstance(g, TensorGuard)]
    assert guard.strides == (const(10), const(1))


def concatenated(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x.reshape(x.size(0), -1), y])[1:-1].flatten() / x.shape[0]


def padded_to_four(x: Tensor) -> Tensor:
    n = x.shape[0]
    return nn.functional.pad(x, (0, (-n) % 4)).view(-1, 4).sum(1)[: n // 4]


def halves(x: Tensor) -> tuple[Tensor, Tensor, int]:
    middle = x.shape[0] // 2
    return x[:middle].sum(), x[middle:] * 2, middle * 3 + x.numel()


def normalised(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt() * x.shape[1] ** 2


def positions(x: Tensor) -> Tensor:
    steps = torch.arange(x.shape[-1], device=x.device)
    mask = steps[None, :] <= steps[:, None]
    scores = x.unsqueeze(-1) * x.unsqueeze(-2)
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)


def tiled(x: Tensor) -> Tensor:
    return x.repeat(2, 3).expand(2, -1, -1).transpose(1, 2).reshape(x.shape[1] * 3, -1)


def writes(x: Tensor) -> Tensor:
    x[: x.shape[0] // 2, -1] += x.shape[1]
    return x.t()


def largest(x: Tensor) -> Tensor:
    return x.new_zeros(max(x.shape[0], 4), min(x.shape[1], 100)) + 1


PROGRAMS: list[tuple[Callable[..., Any], Callable[[int, int], tuple[Tensor, ...]]]] = [
    (concatenated, lambda n, m: (torch.randn(n, m, 3), torch.randn(n + 1, 3 * m))),
    (padded_to_four, lambda n, m: (torch.randn(n),)),
    (halves, lambda n, m: (torch.randn(n, m),)),
    (normalised, lambda n, m: (torch.randn(n, m),)),
    (positions, lambda n, m: (torch.randn(n, m),)),
    (tiled, lambda n, m: (torch.randn(n, m),)),
    (writes, lambda n, m: (torch.randn(n, m),)),
    (largest, lambda n, m: (torch.randn(n, m),)),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p[0].__name__)
def test_a_program_holds_for_the_sizes_it_admits(program: Any) -> None:
    fn, make = program
    captured = capture(fn, *make(7, 11), dynamic=True)
    choose = random.Random(0)
    admitted = 0
    for _ in range(40):
        args = make(choose.randint(2, 30), choose.randint(2, 30))
        if reason(captured, fn, *args):
            continue
        admitted += 1
        agree(fn, captured, *args, exact=False)
    assert admitted >= 10, relations(captured)


def test_what_has_no_integer_form_is_specialised() -> None:
    def scaled(x: Tensor) -> Tensor:
        return x * (x.shape[0] ** -0.5)

    captured = capture(scaled, torch.randn(4, 3), dynamic=True)
    assert "x.size(0) == 4" in relations(captured)
    assert not reason(captured, scaled, torch.randn(4, 9))
    assert reason(captured, scaled, torch.randn(5, 3))
    agree(scaled, captured, torch.randn(4, 9))


def test_a_disjunction_is_specialised() -> None:
    def fn(x: Tensor) -> Tensor:
        outside = (x.shape[0] > 8) | (x.shape[0] < 3)
        return x + 1 if outside else x * 2

    inside = capture(fn, torch.randn(5), dynamic=True)
    assert sorted(relations(inside)[1:]) == ["x.size(0) <= 8", "x.size(0) >= 3"]
    outside = capture(fn, torch.randn(9), dynamic=True)
    assert "x.size(0) == 9" in relations(outside)
    for n in range(2, 30):
        for captured in (inside, outside):
            if not reason(captured, fn, torch.randn(n)):
                agree(fn, captured, torch.ones(n))


def test_equalities_merge_symbols() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        return x.view(-1) + y

    captured = capture(fn, torch.randn(3, 4), torch.randn(12), dynamic=True)
    assert shapes(captured)[1] == (sym("s0") * sym("s1"),)
    agree(fn, captured, torch.randn(5, 2), torch.randn(10))
    assert reason(captured, fn, torch.randn(5, 2), torch.randn(11))


def test_checks_of_the_program_become_guards() -> None:
    def fn(x: Tensor) -> Tensor:
        torch._check(x.shape[0] % 2 == 0)
        assert x.shape[1] >= 3
        return x.view(2, -1)

    captured = capture(fn, torch.randn(4, 6), dynamic=True)
    assert not reason(captured, fn, torch.randn(6, 5))
    assert reason(captured, fn, torch.randn(5, 6)) and reason(captured, fn, torch.randn(4, 2))


def test_guards_read_back_from_their_text() -> None:
    captured = capture(padded_to_four, torch.randn(7), dynamic=True)
    for guard in captured.guards.guards:
        if isinstance(guard, RelationGuard):
            assert parse(guard.left.text) == guard.left and parse(guard.right.text) == guard.right


def test_names_and_order_do_not_depend_on_the_sizes() -> None:
    def text(n: int, m: int) -> str:
        captured = capture(halves, torch.randn(n, m), dynamic=True)
        metas = [(x.name, str(x.target), x.meta["stax"]) for x in captured.graph.nodes]
        return repr((metas, captured.guards))

    assert text(7, 11) == text(13, 5)


def test_a_size_that_grows_without_end_is_specialised() -> None:
    def fn(x: Tensor) -> Tensor:
        n = x.shape[0]
        for i in range(90):
            n = (n * 3 + i) // 2
        return x.new_zeros(2) + n

    captured = capture(fn, torch.randn(7), dynamic=True)
    assert "x.size(0) == 7" in relations(captured)
    agree(fn, captured, torch.randn(7))


@pytest.mark.parametrize("n", [5, 7, 8])
def test_what_torch_believes_without_a_guard_is_looked_at_again(n: int) -> None:
    def fn(x: Tensor) -> Tensor:
        pad = (-x.shape[0] - 1) % 4
        return x + 1 if pad <= 0 else nn.functional.pad(x, (0, pad))[: x.shape[0]] * 2

    captured = capture(fn, torch.randn(n), dynamic=True)
    for m in range(2, 20):
        if not reason(captured, fn, torch.randn(m)):
            agree(fn, captured, torch.ones(m))


@pytest.mark.parametrize(
    "fn",
    [lambda x: torch.kron(x, x), lambda x: torch.vander(x[:, 0], 3)],
    ids=["kron", "vander"],
)
def test_operators_that_take_sizes_as_numbers_hold_for_these_alone(
    fn: Callable[[Tensor], Tensor],
) -> None:
    x = torch.randn(3, 4)
    captured = capture(fn, x, dynamic=True)
    agree(fn, captured, x)
    assert reason(captured, fn, torch.randn(5, 4))
