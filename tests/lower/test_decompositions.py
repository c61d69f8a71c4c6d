"""Operators that tracing takes apart: equal to eager, and in half types no further from the truth than twice eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering import check, externs, lowered, run_program

from stax.capture.decompose import GROUPS, decompositions

aten = torch.ops.aten


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


G, X = (4, 6), (4, 6)
Fn = Callable[..., Any]

# Backwards of (gradient, input): one formula each.
BACKWARDS: dict[str, Fn] = {
    "gelu": lambda g, x: aten.gelu_backward(g, x),
    "gelu_tanh": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "silu": lambda g, x: aten.silu_backward(g, x),
    "elu": lambda g, x: aten.elu_backward(g, 1.2, 1.0, 1.0, False, x),
    "leaky_relu": lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False),
    "hardtanh": lambda g, x: aten.hardtanh_backward(g, x, -0.5, 0.7),
    "hardswish": lambda g, x: aten.hardswish_backward(g, x),
    "hardsigmoid": lambda g, x: aten.hardsigmoid_backward(g, x),
    "softplus": lambda g, x: aten.softplus_backward(g, x, 1.5, 20.0),
    "mish": lambda g, x: aten.mish_backward(g, x),
    "threshold": lambda g, x: aten.threshold_backward(g, x, 0.2),
    "hardshrink": lambda g, x: aten.hardshrink_backward(g, x, 0.5),
    "softshrink": lambda g, x: aten.softshrink_backward(g, x, 0.5),
    "prelu": lambda g, x: aten._prelu_kernel_backward(g, x, x[:1, :1]),
    "reflection_pad": lambda g, x: aten.reflection_pad1d_backward(g, x[:, :3], (2, 1)),
    "sigmoid": lambda g, x: aten.sigmoid_backward(g, x.sigmoid()),
    "tanh": lambda g, x: aten.tanh_backward(g, x.tanh()),
    "log_sigmoid": lambda g, x: (
        aten.log_sigmoid_backward(g, x, x.new_zeros(0)) if x.is_cuda else g * (-x).sigmoid()
    ),
    "softmax": lambda g, x: aten._softmax_backward_data(g, x.softmax(-1), -1, x.dtype),
    "log_softmax": lambda g, x: aten._log_softmax_backward_data(g, x.log_softmax(0), 0, x.dtype),
    "mse": lambda g, x: aten.mse_loss_backward(g[0, 0], x, g, 1),
    "smooth_l1": lambda g, x: aten.smooth_l1_loss_backward(g, x, g * 2, 0, 0.5),
    "huber": lambda g, x: aten.huber_loss_backward(g, x, g * 2, 0, 0.5),
    "slice": lambda g, x: aten.slice_backward(g, [4, 12], 1, 1, 12, 2),
    "select": lambda g, x: aten.select_backward(g, [4, 3, 6], 1, -1),
}


@pytest.mark.parametrize("name", BACKWARDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_backward(name: str, dtype: torch.dtype) -> None:
    if name == "hardsigmoid" and dtype == torch.float64:
        pytest.skip("eager multiplies by a sixth of float32")
    program = check(
        BACKWARDS[name], [numbers(*G, dtype=dtype), numbers(*X, seed=1, dtype=dtype)], scale=4
    )
    assert not externs(program)


ACTIVATIONS = "gelu gelu_tanh silu elu leaky_relu hardtanh hardswish hardsigmoid softplus mish hardshrink softshrink".split()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_backward_of_special_values(name: str, dtype: torch.dtype) -> None:
    """Ends of the pieces, infinities and NaN; a multiple of a vector's width, as eager's own tails may differ."""
    inf, nan = math.inf, math.nan
    x = [-inf, -100, -50, -20, -3, -1, -0.5, -0.0, 0, 0.7, 1, 3, 20, 50, inf, nan]
    if name == "hardsigmoid" and dtype == torch.float64:
        pytest.skip("eager multiplies by a sixth of float32")
    for g in (1.5, -2.25, 0, inf, nan):
        check(
            BACKWARDS[name],
            [torch.full((64,), g, dtype=dtype), torch.tensor(x * 4, dtype=dtype)],
            scale=4,
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["silu", "mish", "gelu", "softplus"])
def test_half_backwards_are_rounded_once(name: str, dtype: torch.dtype) -> None:
    fn, args = BACKWARDS[name], [numbers(24, 48, seed=k, dtype=dtype) for k in (0, 1)]
    truth = fn(*(a.double() for a in args)).to(dtype).double()
    ours = torch.from_numpy(run_program(lowered(fn, args), args)[0]).double()
    unit = torch.finfo(dtype).eps
    assert ((ours - truth).abs() <= unit * truth.abs() + 1e-7).all()


def test_layer_norm_backward() -> None:
    def fn(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        out, mean, rstd = torch.native_layer_norm(x, (6,), w, b, 1e-5)
        return out, aten.native_layer_norm_backward(
            g, x, (6,), mean, rstd, w, b, [True, True, True]
        )

    assert not externs(
        check(fn, [numbers(4, 6), numbers(4, 6, seed=1), numbers(6), numbers(6)], scale=10)
    )


def test_cross_entropy_and_its_backward() -> None:
    """Gathers and one-a-line scatters: no call to torch."""
    target = torch.tensor([0, 5, -100, 2])

    def fn(x: torch.Tensor, t: torch.Tensor) -> Any:
        logs = x.log_softmax(-1)
        loss, weight = aten.nll_loss_forward(logs, t, None, 1, -100)
        grad = aten.nll_loss_backward(torch.ones(()), logs, t, None, 1, -100, weight)
        return loss, aten._log_softmax_backward_data(grad, logs, -1, x.dtype)

    assert not externs(check(fn, [numbers(4, 6), target], strict_native=True))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(6,), (5, 6), (3, 6, 2, 4)], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_negative_log_likelihood(reduction: str, shape: tuple[int, ...], weighted: bool) -> None:
    """Classes are the second dimension, or the only one; what is ignored counts for nothing, NaN included."""
    places = (shape[0], *shape[2:]) if len(shape) > 1 else ()
    target = torch.randint(0, 6, places, generator=torch.Generator().manual_seed(2))
    weight = [numbers(6, seed=3).abs()] if weighted else []
    x = numbers(*shape)
    if places:
        target.view(-1)[1] = 3
        x.movedim(1, -1).reshape(-1, 6)[1] = math.nan

    def fn(x: torch.Tensor, t: torch.Tensor, *w: torch.Tensor) -> Any:
        number = {"none": 0, "mean": 1, "sum": 2}[reduction]
        kind = "nll_loss2d" if x.ndim > 2 else "nll_loss"
        scale = w[0] if w else None
        out, total = getattr(aten, f"{kind}_forward")(x, t, scale, number, 3)
        backward = getattr(aten, f"{kind}_backward")
        return out, backward(torch.full_like(out, 0.7), x, t, scale, number, 3, total)

    assert not externs(check(fn, [x, target, *weight], strict_native=True, scale=4))


def test_a_label_beyond_the_classes_is_an_error() -> None:
    program = lowered(lambda x, t: F.nll_loss(x, t), [numbers(3, 6), torch.tensor([0, 1, 2])])
    with pytest.raises(IndexError):
        run_program(program, [numbers(3, 6), torch.tensor([0, 6, 2])])


LOSSES: dict[str, Fn] = {
    "cross_entropy": lambda x, y: F.cross_entropy(x, torch.arange(4) % 6),
    "cross_entropy_smoothed": lambda x, y: F.cross_entropy(
        x, torch.arange(4) % 6, label_smoothing=0.1
    ),
    "cross_entropy_soft": lambda x, y: F.cross_entropy(x, y.softmax(-1)),
    "nll": lambda x, y: F.nll_loss(x.log_softmax(-1), torch.arange(4) % 6, reduction="none"),
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "bce": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "bce_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "kl": lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
    "soft_margin": lambda x, y: F.soft_margin_loss(x, y.sign()),
    "hinge": lambda x, y: F.hinge_embedding_loss(x, y.sign()),
    "cosine": lambda x, y: F.cosine_similarity(x, y),
    "pairwise": lambda x, y: F.pairwise_distance(x, y),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss(name: str) -> None:
    assert not externs(check(LOSSES[name], [numbers(4, 6), numbers(4, 6, seed=1)], scale=4))


HALVES: dict[str, Fn] = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "gelu": F.gelu,
    "silu": F.silu,
    "mean": lambda x: x.mean(-1),
    "var": lambda x: x.var(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "sum": lambda x: x.sum(0),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "attention": lambda x: F.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None]
    ),
    "glu": lambda x: F.glu(x),
    "log_sigmoid": F.logsigmoid,
    "logaddexp": lambda x: torch.logaddexp(x, x * 0.5),
    "mse": lambda x: F.mse_loss(x, x * 0.9),
    "interpolate": lambda x: F.interpolate(x[None, None], size=(9, 31), mode="bilinear"),
}


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_no_worse_than_eager(name: str, dtype: torch.dtype) -> None:
    fn, x = HALVES[name], numbers(24, 48, dtype=dtype)
    exact, eager = fn(x.double()), fn(x).double()
    ours = torch.from_numpy(run_program(lowered(fn, [x]), [x])[0]).double()
    unit = torch.finfo(dtype).eps * exact.abs().max()
    assert (ours - exact).abs().max() <= 2 * (eager - exact).abs().max() + unit / 2


def test_table() -> None:
    """Fresh each time, no in-place or out overload, each name in one group."""
    table = decompositions()
    assert table is not decompositions()
    assert not [op for op in table if str(op).endswith("out")]
    names = [n for group in GROUPS for n in group.split()]
    assert len(names) == len(set(names))
    unknown = [n for n in names if not hasattr(aten, n)]
    assert not unknown
    for name in (
        "index_add",
        "index_copy",
        "index_fill",
        "addmm",
        "embedding",
        "native_layer_norm",
        "gelu",
    ):
        packet = getattr(aten, name)
        assert not [o for o in packet.overloads() if getattr(packet, o) in table], name


def test_bytes_are_interpolated_by_torch() -> None:
    """Eager does it in fixed point."""
    x = torch.arange(48, dtype=torch.uint8).view(1, 3, 4, 4) * 5
    check(lambda x: F.interpolate(x, size=(7, 5), mode="bilinear"), [x])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grid_sample(mode: str, dtype: torch.dtype) -> None:
    x, grid = numbers(2, 3, 5, 6, dtype=dtype), numbers(2, 4, 7, 2, seed=1).tanh().to(dtype)
    check(lambda x, g: F.grid_sample(x, g, mode=mode, align_corners=False), [x, grid], scale=4)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16], ids=str
)
def test_linspace(dtype: torch.dtype) -> None:
    check(lambda x: x + torch.linspace(1, 50, 13, dtype=dtype), [torch.zeros(13, dtype=dtype)])
    check(lambda x: x + torch.linspace(-2, 9, 1, dtype=dtype), [torch.zeros(1, dtype=dtype)])
