"""View operators are index maps: no loops, the right elements, the strides and aliases of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowering import check, compare, computations, lowered, run_program

from stax.ir.program import TensorRef


def numbers(*shape: int) -> torch.Tensor:
    count = 1
    for n in shape:
        count *= n
    return torch.arange(count, dtype=torch.float32).reshape(shape)


Fn = Callable[[torch.Tensor], Any]

VIEWS: dict[str, Fn] = {
    "view": lambda x: x.view(6, 20),
    "view_split": lambda x: x.view(2, 3, 2, 2, 5),
    "view_mixed": lambda x: x.view(4, 30),
    "view_flat": lambda x: x.view(-1),
    "view_ones": lambda x: x.view(1, 2, 1, 3, 4, 5, 1),
    "reshape": lambda x: x.reshape(2, 12, 5),
    "flatten": lambda x: x.flatten(1, 2),
    "unflatten": lambda x: x.unflatten(-1, (1, 5)),
    "permute": lambda x: x.permute(3, 0, -2, 1),
    "transpose": lambda x: x.transpose(1, -1),
    "movedim": lambda x: x.movedim(0, 2),
    "mT": lambda x: x.mT,
    "squeeze": lambda x: x[:1].squeeze(),
    "squeeze_dim": lambda x: x[:1].squeeze(0).squeeze(0),
    "squeeze_dims": lambda x: x[:1, :, :1].squeeze((0, 2)),
    "unsqueeze": lambda x: x.unsqueeze(2).unsqueeze(-1),
    "expand": lambda x: x[:, :1].expand(-1, 7, -1, -1),
    "expand_new": lambda x: x.expand(2, 2, 3, 4, 5),
    "slice": lambda x: x[1:, :2, 1:3],
    "slice_step": lambda x: x[:, :, ::2, 1::3],
    "slice_negative": lambda x: x[..., -3:-1],
    "slice_beyond": lambda x: x[:, -10:100],
    "slice_empty": lambda x: x[:, 3:],
    "select": lambda x: x[1, :, -1],
    "narrow": lambda x: x.narrow(2, 1, 2),
    "diagonal": lambda x: x.diagonal(1, 2, 3),
    "diagonal_below": lambda x: x.diagonal(-2, -1, 0),
    "unfold": lambda x: x.unfold(3, 2, 2),
    "unfold_overlap": lambda x: x.unfold(2, 3, 1),
    "split": lambda x: x.split(2, 2),
    "split_uneven": lambda x: x.split(2, 1),
    "split_sizes": lambda x: x.split([1, 3, 1], -1),
    "chunk": lambda x: x.chunk(3, -1),
    "unbind": lambda x: x.unbind(1),
    "tensor_split": lambda x: x.tensor_split(3, -1),
    "as_strided": lambda x: x.as_strided((3, 4), (7, 2), 5),
    "as_strided_overlap": lambda x: x.as_strided((5, 5), (1, 1)),
    "alias": lambda x: torch.ops.aten.alias(x),
    "detach": lambda x: x.detach(),
    "chain": lambda x: (
        x.permute(2, 0, 1, 3)[1:, ..., ::2].unsqueeze(0).expand(3, -1, -1, -1, -1).transpose(0, 3)
    ),
    "windows": lambda x: x.view(6, 20)[:, 2:18].view(6, 4, 4).transpose(0, 1).diagonal(0, 1, 2),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view_of_input_is_an_alias(name: str) -> None:
    """Nothing is computed: each output is the input's storage under eager's strides and offset."""
    x = numbers(2, 3, 4, 5)
    program = check(VIEWS[name], [x])
    assert not program.nodes
    expected = VIEWS[name](x)
    expected = [expected] if isinstance(expected, torch.Tensor) else expected
    for out, e in zip(program.outputs, expected):
        assert isinstance(out, TensorRef)
        assert out.buffer == "arg0"
        assert out.offset == e.storage_offset()


@pytest.mark.parametrize(
    "name", [n for n in VIEWS if not n.startswith(("as_strided", "view", "windows"))]
)
def test_view_of_strided_input(name: str) -> None:
    x = numbers(5, 4, 3, 4).permute(3, 2, 1, 0)[::2]
    program = check(VIEWS[name], [x])
    assert all(isinstance(o, TensorRef) for o in program.outputs)


@pytest.mark.parametrize("name", VIEWS)
def test_view_of_temp_costs_nothing(name: str) -> None:
    """One computation makes the temp; its views are references to it, or loads of it."""
    x = numbers(2, 3, 4, 5)
    program = check(lambda x: VIEWS[name](x + 1), [x])
    assert len(program.nodes) == 1

    def after(x: torch.Tensor) -> Any:
        parts = VIEWS[name](x + 1)
        return [p * 2 for p in ([parts] if isinstance(parts, torch.Tensor) else parts)]

    check(after, [x])


DYNAMIC = [
    n
    for n in VIEWS
    if n
    not in (
        "as_strided",
        "chunk",
        "tensor_split",
        "view",
        "view_split",
        "view_mixed",
        "windows",
        "reshape",
        "view_ones",
        "unflatten",
        "split",
        "split_uneven",
        "split_sizes",
        "unbind",
        "expand_new",
        "slice",
    )
]


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic(name: str) -> None:
    """The index maps hold at other sizes."""

    def fn(x: torch.Tensor) -> Any:
        parts = VIEWS[name](x)
        return [p + 1 for p in ([parts] if isinstance(parts, torch.Tensor) else parts)]

    program = lowered(fn, [numbers(2, 3, 4, 5)], dynamic=True)
    for shape in ((2, 3, 4, 5), (3, 3, 6, 7)):
        x = numbers(*shape)
        if name in ("slice_empty", "slice_beyond") and shape[1] != 3:
            continue
        compare(run_program(program, [x]), fn(x))


def test_heads_need_no_division() -> None:
    """(s0, s1, 768) → (s0, s1, 12, 64) → permute, with both sizes symbolic, and back."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        heads = x.view(x.shape[0], x.shape[1], 12, 64).permute(0, 2, 1, 3)
        return heads * 2

    program = check(fn, [numbers(2, 3, 768)], dynamic=True)
    (body,) = [c.body.text for c in computations(program)]
    assert "//" not in body and "%" not in body


def test_merged_batch_needs_no_division() -> None:
    """(s0, s1, 8) → (s0*s1, 8) → (s0, s1, 2, 4): the two reshapes cancel."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        flat = x.view(-1, 8)
        return flat.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2) + 1

    program = check(fn, [numbers(3, 5, 8)], dynamic=True)
    (body,) = [c.body.text for c in computations(program)]
    assert "//" not in body and "%" not in body


def test_windows_over_holes_stay_in_storage() -> None:
    """as_strided of a strided intermediate reads what eager's storage holds."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.repeat(3, 2)[:, ::2].as_strided((3, 2), (2, 1)) + 0

    check(fn, [numbers(1, 1) + 5])


def test_sizes_zero() -> None:
    x = torch.empty(0, 3)
    check(
        lambda x: (
            x.view(3, 0),
            x.t(),
            x.reshape(0, 1, 3) + 1,
            x.unsqueeze(0).expand(2, 0, 3) * 2,
            x[:, 1],
        ),
        [x],
    )


def test_input_returned_is_the_input() -> None:
    x = numbers(4, 6)[1:, ::2]
    program = check(lambda x: (x, x.t(), x + 1), [x])
    out = program.outputs[0]
    assert isinstance(out, TensorRef)
    buffer = program.buffer("arg0")
    assert (out.shape, out.strides, out.offset) == (buffer.shape, buffer.strides, buffer.offset)


COPIES: dict[str, Fn] = {
    "flip": lambda x: x.flip(0, -1),
    "repeat": lambda x: x.repeat(2, 1, 3, 1),
    "repeat_once": lambda x: x.repeat(1, 1, 1, 1),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.transpose(0, 1).contiguous(),
    "reshape_copy": lambda x: x.transpose(1, 2).reshape(2, 12, 5),
    "permute_copy": lambda x: torch.ops.aten.permute_copy(x, [1, 0, 2, 3]),
    "slice_copy": lambda x: torch.ops.aten.slice_copy(x, 1, 1, 3),
    "split_copy": lambda x: torch.ops.aten.split_copy(x, 2, 2),
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_are_fresh(name: str) -> None:
    """What eager copies never aliases the input, however trivial the copy."""
    program = check(COPIES[name], [numbers(2, 3, 4, 5)])
    assert all(isinstance(o, TensorRef) and o.buffer != "arg0" for o in program.outputs)
