"""In-place programs become functional graphs with mutations and aliases that mean what eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capturing import agree, capture, operators
from torch import Tensor

from stax.artifact.guards import DistinctGuard
from stax.base.errors import CaptureError
from stax.ir.program import TensorRef


def row_of_input(x: Tensor) -> Tensor:
    x[0].add_(1)
    return x.sum()


def transposed_input(x: Tensor) -> Tensor:
    x.t().mul_(2)
    return x + 1


def returns_input(x: Tensor) -> Tensor:
    x.add_(1)
    return x


def returns_view_of_written(x: Tensor) -> tuple[Tensor, Tensor]:
    view = x[1:]
    x.mul_(3)
    return view, x[0]


def returns_untouched_input(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x, x.t(), x[1]


def old_value_kept(x: Tensor) -> Tensor:
    old = x * 1
    x.zero_()
    return old + x


def view_reads_later_write(x: Tensor) -> Tensor:
    view = x.view(-1)[2:5]
    x.fill_(3.0)
    return view * 2


def temporary(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    flat = y.view(-1)
    flat[2:4] = 7.0
    y.t_()
    return y, flat


def two_views_of_temporary(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.clone()
    a, b = y[0], y[:, 1]
    b += 5
    return a, b


def index_put(x: Tensor) -> Tensor:
    x[torch.tensor([0, 2])] = 1.0
    return x * 1


def masked_fill(x: Tensor) -> Tensor:
    x[x > 0] = 0.0
    return x.sum()


def slice_assign(x: Tensor) -> Tensor:
    x[:, 1:3] = x[:, 0:1] * 2
    return x * 1


def step_slice(x: Tensor) -> Tensor:
    x[::2, 1::2] += 1
    return x * 1


def diagonal(x: Tensor) -> Tensor:
    x.diagonal().fill_(2)
    return x * 1


def split_views(x: Tensor) -> Tensor:
    a, b = x.split([1, x.shape[0] - 1])
    b.sub_(1)
    return a + b[0]


def unbound(x: Tensor) -> tuple[Tensor, ...]:
    rows = x.unbind(0)
    rows[1].neg_()
    return tuple(r * 1 for r in rows)


def chunked(x: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=1)
    left.copy_(right)
    return x * 1


def unsqueezed(x: Tensor) -> Tensor:
    x.unsqueeze(0).squeeze(0).reshape(4, 3).add_(torch.arange(3.0))
    return x * 1


def permuted(x: Tensor) -> Tensor:
    x.permute(1, 0).expand(4, 3).sub_(1)
    return x * 1


def relu_inplace(x: Tensor) -> Tensor:
    return torch.nn.functional.relu(x - 0.5, inplace=True)


def out_argument(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.mul(x, 2, out=out)
    torch.add(x, 1, out=x)
    return out


def clamp_where_copy(x: Tensor) -> Tensor:
    x.clamp_(min=0).copy_(torch.where(x > 1, x, -1.0))
    return x * 1


def narrower_type(x: Tensor) -> Tensor:
    half = x.to(torch.float16)
    half += x.double()
    return half


def foreach(x: Tensor) -> list[Tensor]:
    parts = [x[0] * 1, x[1] * 1]
    torch._foreach_add_(parts, 2.0)
    return parts


def addmm_inplace(x: Tensor) -> Tensor:
    y = x @ x.t()
    y.addmm_(x, x.t(), beta=0.5, alpha=2.0)
    return y


def baddbmm_and_cumsum(x: Tensor) -> Tensor:
    x.cumsum_(0)
    return x.exp()


def real_parts(x: Tensor) -> Tensor:
    z = torch.view_as_complex(x.view(3, 2, 2).clone())
    torch.view_as_real(z)[..., 0] = 1.0
    return torch.view_as_real(z * z)


def dtype_view(x: Tensor) -> tuple[Tensor, Tensor]:
    bits = x.view(torch.int32)
    kept = bits + 0
    x.mul_(2)
    bits.add_(1)
    return kept, bits * 1


def swapped_twice(x: Tensor) -> Tensor:
    a = x.clone()
    b = x.clone()
    a[0], b[0] = b[1].clone(), a[1].clone()
    return a + b


PROGRAMS: list[Callable[[Tensor], Any]] = [
    row_of_input, transposed_input, returns_input, returns_view_of_written, returns_untouched_input,
    old_value_kept, view_reads_later_write, temporary, two_views_of_temporary, index_put, masked_fill,
    slice_assign, step_slice, diagonal, split_views, unbound, chunked, unsqueezed, permuted,
    relu_inplace, out_argument, clamp_where_copy, narrower_type, foreach, addmm_inplace,
    baddbmm_and_cumsum, real_parts, dtype_view, swapped_twice,
]  # fmt: skip

LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "dense": lambda: torch.randn(3, 4),
    "transposed": lambda: torch.randn(4, 3).t(),
    "gaps": lambda: torch.randn(3, 8)[:, ::2],
    "offset": lambda: torch.randn(5, 4)[1:4],
}
REFUSED_BY_EAGER = {
    (real_parts, "transposed"), (view_reads_later_write, "transposed"), (temporary, "transposed"),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_program(fn: Callable[[Tensor], Any], layout: str, dynamic: bool) -> None:
    if (fn, layout) in REFUSED_BY_EAGER:
        with pytest.raises(RuntimeError, match=r"view|stride"):
            fn(LAYOUTS[layout]())
        return
    captured = capture(fn, LAYOUTS[layout](), dynamic=dynamic)
    agree(fn, captured, LAYOUTS[layout]())
    assert not [o for o in operators(captured) if "_." in o]


def test_a_returned_written_input_is_an_alias_of_it() -> None:
    captured = capture(returns_view_of_written, torch.randn(3, 4))
    first, second = captured.outputs
    assert isinstance(first, TensorRef) and isinstance(second, TensorRef)
    assert (first.buffer, str(first.offset), str(second.offset)) == ("arg0", "4", "0")


def test_mutation_order_through_a_dtype_view() -> None:
    def fn(x: Tensor) -> Tensor:
        y = x.view(torch.int32) * 2
        x.add_(4)
        x[:, 2:4] = 0
        return y.view(torch.int64)

    captured = capture(fn, torch.arange(24).view(4, 6))
    agree(fn, captured, torch.randint(0, 100, (4, 6)))


def test_as_strided_of_a_written_input_with_gaps() -> None:
    def fn(x: Tensor) -> Tensor:
        x.add_(1)
        return x.as_strided((3,), (2,)) * 1

    captured = capture(fn, torch.arange(10.0)[::2])
    agree(fn, captured, torch.arange(10.0)[::2])
    agree(fn, captured, torch.arange(10.0, 20.0)[::2])


def test_as_strided_reads_and_writes_memory() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        y.as_strided((2,), (5,), 1).add_(10)
        return y, y.as_strided((3,), (1,), 2) * 1

    captured = capture(fn, torch.randn(3, 4))
    agree(fn, captured, torch.randn(3, 4))


def test_a_key_value_cache_write_at_a_position() -> None:
    def fn(cache: Tensor, value: Tensor, position: Tensor) -> Tensor:
        cache[:, :, position] = value
        return cache.sum(-1)

    args = (torch.zeros(2, 3, 8, 4), torch.randn(2, 3, 2, 4), torch.tensor([3, 5]))
    captured = capture(fn, *args)
    agree(fn, captured, *args)
    assert [name for name, _ in captured.mutations] == ["arg0"]


@pytest.mark.parametrize(
    "module", [torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4, momentum=None)]
)
def test_running_statistics(module: torch.nn.Module) -> None:
    if module.momentum is None:
        with pytest.raises(CaptureError):
            capture(module, torch.randn(3, 4))
        return
    captured = capture(module, torch.randn(3, 4))
    agree(module, captured, torch.randn(3, 4))
    assert len(captured.mutations) == 3


def test_instance_norm_with_running_statistics() -> None:
    module = torch.nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
    agree(module, capture(module, torch.randn(2, 4, 5)), torch.randn(2, 4, 5), exact=False)


def test_what_is_written_is_distinct_from_all_else() -> None:
    def fn(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        y.add_(x)
        return y + z

    captured = capture(fn, *(torch.randn(3) for _ in range(3)))
    assert DistinctGuard(((0, 1), (1, 2))) in captured.guards.guards


def test_overlapping_inputs_are_refused_only_when_written() -> None:
    def writes(x: Tensor, y: Tensor) -> Tensor:
        return x.add_(y)

    x = torch.randn(4, 4)
    for pair in ((x, x), (x, x[0]), (x[:2], x[1:3])):
        with pytest.raises(CaptureError, match="shares memory with y"):
            capture(writes, *pair)
    capture(torch.add, x, x)


def test_halves_of_one_storage_count_as_overlapping() -> None:
    """The runtime's guard compares storages, so capture must not accept what it would refuse."""
    cache = torch.zeros(2, 3)
    with pytest.raises(CaptureError, match="shares memory"):
        capture(lambda k, v: k.add_(v), cache[0], cache[1])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.t_(),
        lambda x: x.resize_(2, 2),
        lambda x: x.unsqueeze_(0),
        lambda x: x.set_(x * 1),
    ],
)
def test_a_change_of_an_inputs_shape_is_refused(fn: Callable[[Tensor], Any]) -> None:
    with pytest.raises(CaptureError, match=r"in place|changes the memory"):
        capture(fn, torch.randn(3, 4))


def test_a_captured_tensor_can_not_be_written() -> None:
    state = torch.zeros(3)

    def fn(x: Tensor) -> Tensor:
        state.add_(x)
        return state * 1

    with pytest.raises(CaptureError, match="no argument of it"):
        capture(fn, torch.ones(3))
    assert torch.equal(state, torch.zeros(3))


def test_a_buffer_that_is_replaced_is_refused_and_put_back() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.count = self.count + 1
            return x + self.count

    module = Counter()
    with pytest.raises(CaptureError, match="replaces buffer count"):
        capture(module, torch.ones(1))
    assert type(module.count) is Tensor and module.count.item() == 0


def test_a_tensor_kept_in_an_attribute_is_refused_and_dropped() -> None:
    class Keeper(torch.nn.Module):
        last: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.last = x + 1
            return x

    class Lister(Keeper):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.seen.append(x + 1)
            return x

    for module in (Keeper(), Lister()):
        with pytest.raises(CaptureError, match="keeps a tensor in attribute"):
            capture(module, torch.ones(1))
        assert module.last is None
