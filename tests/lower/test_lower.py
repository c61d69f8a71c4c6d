"""Whole programs: outputs, aliases, mutations, calls left to torch, sizes that become floats, errors, golden text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering import capture, check, compare, computations, externs, lowered, run_program

from stax.base.errors import MissingRule
from stax.base.options import Options
from stax.ir.expr import sym
from stax.ir.program import Extern, Literal, TensorRef
from stax.ir.text import program_text
from stax.ir.verify import verify_program
from stax.lower.lower import lower
from stax.lower.rules import FAMILIES, RULES


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# -- outputs


def test_outputs_of_every_kind() -> None:
    def fn(x: torch.Tensor) -> Any:
        return x + 1, None, 3, x.shape[0], "text", x.t(), [x * 2, True]

    program = check(fn, [numbers(3, 4)])
    assert [type(o).__name__ for o in program.outputs].count("Literal") >= 4
    symbolic = lowered(fn, [numbers(3, 4)], dynamic=True)
    assert symbolic.outputs[3] == sym(symbolic.symbols[0].name)
    x = numbers(5, 4)
    assert run_program(symbolic, [x])[3] == 5


def test_one_temp_returned_twice_is_shared() -> None:
    """As in eager: y and its view share storage."""

    def fn(x: torch.Tensor) -> Any:
        y = x + 1
        return y, y, y.t()

    refs = [o for o in check(fn, [numbers(3, 4)]).outputs if isinstance(o, TensorRef)]
    assert len({r.buffer for r in refs}) == 1


def test_results_keep_the_strides_of_eager() -> None:
    check(
        lambda x: (x.t() + 1, x.sum(1, keepdim=True), (x.t() @ x).t(), x[:, None] * 2),
        [numbers(3, 4)],
    )


# -- mutations


def mutated(fn: Any, args: list[torch.Tensor], dynamic: bool = False) -> None:
    """Results and every argument afterwards are as eager leaves them."""
    program = lower(capture(fn, args, dynamic), options=Options())
    verify_program(program)
    ours, theirs = [a.clone() for a in args], [a.clone() for a in args]
    found = run_program(program, ours)
    expected = fn(*theirs)
    compare(found, expected)
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b)


def test_mutation_in_place() -> None:
    mutated(lambda x: x.add_(1), [numbers(3, 4)])
    mutated(lambda x: x.mul_(2).sum(), [numbers(3, 4)])
    mutated(lambda x, y: (x.copy_(y), y * 2)[1], [numbers(3, 4), numbers(3, 4, seed=1)])


def test_mutation_by_a_view() -> None:
    mutated(lambda x: x[1:].zero_(), [numbers(3, 4)])
    mutated(lambda x: x.t()[0].fill_(5.0), [numbers(3, 4)])

    def transpose(x: torch.Tensor) -> torch.Tensor:
        x.copy_(x.t().clone())
        return x + 1

    mutated(transpose, [numbers(4, 4)])


def test_swap() -> None:
    def swap(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        old = x.clone()
        x.copy_(y)
        y.copy_(old)
        return x - y

    mutated(swap, [numbers(3), numbers(3, seed=1)])


def test_value_read_before_a_later_write() -> None:
    """What was computed of the old contents stays of the old contents."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        x[:, 2:4] = 7.0
        return y

    mutated(fn, [numbers(4, 6)])


def test_a_mutation_source_is_a_temp_of_its_own() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> None:
        x.copy_(y.t())

    program = lower(capture(fn, [numbers(3, 4), numbers(4, 3)]), options=Options())
    (mutation,) = program.mutations
    assert program.buffer(mutation.source).kind == "temp"


# -- calls left to torch


def test_products_take_strided_arguments() -> None:
    """No copy of a transposed weight, of a slice or of an expanded batch."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        heads = x.view(2, 3, 2, 4).transpose(1, 2)
        return (
            F.linear(x, w),
            torch.matmul(heads, heads.transpose(-1, -2)),
            x[0, :, 2:] @ w[2:, ::2],
        )

    program = check(fn, [numbers(2, 3, 8), numbers(8, 8)], strict_native=True)
    assert {"aten.mm.default", "aten.bmm.default"} == set(externs(program))
    copied = [c for c in computations(program) if c.origin.op not in ("aten.clone.default",)]
    assert not copied


def test_an_argument_without_strides_is_copied_first() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.unfold(0, 2, 1).permute(0, 2, 1).reshape(-1, 3) @ w

    check(fn, [numbers(4, 3), numbers(3, 5)])


def test_several_results_of_a_call() -> None:
    def fn(x: torch.Tensor) -> Any:
        values, order = x.sort(1)
        top = x.topk(2)
        return values + 1, order * 2, top.indices

    program = check(fn, [numbers(3, 5)])
    outs = [n.outs for n in program.nodes if isinstance(n, Extern)]
    assert any("" in o for o in outs), "a result that nobody reads has no buffer"


def test_strict_native_names_the_operator_and_the_place() -> None:
    with pytest.raises(MissingRule) as caught:
        lowered(lambda x: x.sort()[0], [numbers(3)], strict_native=True)
    error = caught.value
    assert "aten.sort" in error.what
    assert "test_lower.py" in error.where
    assert error.hint
    assert error.found


def test_integer_division_by_data_says_why() -> None:
    x = torch.arange(1, 4)
    with pytest.raises(MissingRule, match="zero raises"):
        lowered(lambda x: x // x, [x], strict_native=True)


def test_foreign_dtypes_are_left_to_torch() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.complex(x, x * 2) * 2).sum(-1)

    assert len(externs(check(fn, [numbers(3, 4)]))) == 3


def test_view_of_another_dtype() -> None:
    """Read as of before a later write."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.view(torch.int32) * 2

    check(fn, [torch.arange(8).view(2, 4)])


def test_random_numbers_are_torch_s() -> None:
    x = numbers(4, 5)
    program = lowered(lambda x: x + torch.rand_like(x), [x])
    torch.manual_seed(3)
    (found,) = run_program(program, [x])
    torch.manual_seed(3)
    torch.testing.assert_close(torch.from_numpy(found), x + torch.rand_like(x))


# -- sizes


def test_sizes_in_arithmetic() -> None:
    def fn(x: torch.Tensor) -> Any:
        n = x.shape[0]
        return x * n, x / n, (x / (n * 2 + 1)).sum(), x.view(-1)[: n + 1] * (n // 2)

    program = lowered(fn, [numbers(5, 4)], dynamic=True)
    for n in (5, 8, 11):
        compare(run_program(program, [numbers(n, 4)]), fn(numbers(n, 4)))


def test_dead_nodes_are_not_lowered() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.exp().sort()
        return x + 1

    assert len(lowered(fn, [numbers(3)], strict_native=True).nodes) == 1


# -- attention


@pytest.mark.parametrize("heads", [4, 2, 1])
@pytest.mark.parametrize("form", ["plain", "causal", "bias", "bool", "scale"])
def test_attention(heads: int, form: str) -> None:
    """Plain form, with grouped heads, masks and strides of eager."""
    q = numbers(2, 5, 4, 8).transpose(1, 2)
    k, v = numbers(2, heads, 7, 8, seed=1), numbers(2, heads, 7, 8, seed=2)
    mask = numbers(5, 7, seed=3)
    options: dict[str, Any] = {
        "plain": {},
        "causal": {"is_causal": True},
        "bias": {"attn_mask": mask},
        "bool": {"attn_mask": mask > 0},
        "scale": {"scale": 0.3},
    }[form]
    tensors = {name: value for name, value in options.items() if isinstance(value, torch.Tensor)}
    plain = {name: value for name, value in options.items() if name not in tensors}

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *masks: torch.Tensor) -> torch.Tensor:
        given = dict(zip(tensors, masks))
        return F.scaled_dot_product_attention(q, k, v, **given, **plain, enable_gqa=heads != 4)

    check(fn, [q, k, v, *tensors.values()], strict_native=True)


def test_attention_of_a_masked_row_is_zero() -> None:
    q = numbers(1, 2, 3, 4)
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    check(lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m), [q, mask])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_attention_of_halves_is_no_worse_than_eager(dtype: torch.dtype) -> None:
    q, k, v = (numbers(2, 4, 33, 16, seed=s).to(dtype) for s in range(3))
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    eager = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    program = lowered(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [q, k, v]
    )
    (found,) = run_program(program, [q, k, v])
    ours = (torch.from_numpy(found).double() - exact).abs().max()
    assert ours <= 2 * (eager.double() - exact).abs().max()


@pytest.mark.parametrize("dim", [0, 1, -2, -1])
def test_handwritten_attention_softmax_over_any_dimension(dim: int) -> None:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) / 4, dim) @ v

    check(fn, [numbers(2, 4, 8, 16, seed=s) for s in range(3)], scale=4)


# -- text


def test_golden_text(golden: Any) -> None:
    def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        y = F.layer_norm(F.gelu(F.linear(x, w, b)), (8,), b, b)
        return (
            y.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2),
            F.softmax(x, -1),
            x.bfloat16() * 2,
        )

    program = lowered(block, [numbers(2, 3, 8), numbers(8, 8), numbers(8)], dynamic=True)
    golden.check("block", _without_places(program_text(program)))


def test_golden_joins(golden: Any) -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> Any:
        return torch.cat([x, F.pad(x, (0, 0, 1, 0))]).flip(0), x[i], x.argmax(1), x.var(0)

    program = lowered(fn, [numbers(4, 3), torch.tensor([0, 1])])
    golden.check("joins", _without_places(program_text(program)))


def _without_places(text: str) -> str:
    return "\n".join(line.split(" test_lower.py")[0].rstrip() for line in text.split("\n"))


def test_text_and_digest_are_stable() -> None:
    """Same function, same bytes."""
    first, second = (
        lowered(lambda x: F.gelu(x).sum(0), [numbers(3, 4)], dynamic=True) for _ in range(2)
    )
    assert program_text(first) == program_text(second)
    assert first.digest == second.digest


# -- the tables


def test_every_rule_names_an_operator_once() -> None:
    names = [name for _, table in FAMILIES for name in table]
    assert len(names) == len(set(names)) == len(RULES)
    for name in names:
        space, op, overload = name.split(".")
        assert hasattr(getattr(getattr(torch.ops, space), op), overload), name


def test_literals_pass_through() -> None:
    program = lowered(lambda x: (x, 1.5), [numbers(2)])
    assert program.outputs[1] == Literal(1.5)


# -- inputs that broke other compilers


def test_storage_of_a_mutated_strided_input() -> None:
    """as_strided of it walks its own storage: 1, 3, 5."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.as_strided_copy(x, (3,), (2,))

    program = lower(capture(fn, [torch.arange(10)[::2]]), options=Options())
    (found,) = run_program(program, [torch.arange(10)[::2]])
    assert found.tolist() == fn(torch.arange(10)[::2]).tolist() == [1, 3, 5]


def test_memory_between_the_elements_of_a_mutated_input_is_refused() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.as_strided_copy(x, (6,), (1,))

    with pytest.raises(MissingRule, match="between the elements"):
        lower(capture(fn, [torch.arange(10)[::2]]), options=Options())


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_resize_of_nothing_raises(mode: str) -> None:
    """Already when it is traced."""
    x = torch.empty(1, 1, 0, 3)
    with pytest.raises(RuntimeError):
        F.interpolate(x, size=(4, 4), mode=mode)
    with pytest.raises(RuntimeError):
        lowered(lambda x: F.interpolate(x, size=(4, 4), mode=mode), [x])


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_a_derived_size_one(dynamic: bool) -> None:
    check(lambda x, y: x.view(-1, 4) * y.view(-1, 4), [numbers(4), numbers(8)], dynamic=dynamic)


def test_nested_halving_of_a_size() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x[: (x.shape[0] + 1) // 2][: ((x.shape[0] + 1) // 2 + 1) // 2] * 2

    program = lowered(fn, [numbers(9)], dynamic=True)
    for n in (9, 10, 23):
        compare(run_program(program, [numbers(n)]), fn(numbers(n)))


def test_scrub_of_infinities_sees_stored_halves() -> None:
    x = torch.full((40,), 300.0, dtype=torch.float16)
    check(lambda x: torch.nan_to_num(x * x, posinf=0.0), [x])
