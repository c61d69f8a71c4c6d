"""What memory-bound training and inference are made of: each case with the kernels and the traffic it must come to. The
losses are in loss_composites."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

aten = torch.ops.aten
Fn = Callable[..., Any]
ALL = [True, True, True]


class Draw:
    """Random arguments of one size: ``rows`` x ``columns`` matrices, small images, and vectors along either."""

    def __init__(self, rows: int, columns: int, dtype: torch.dtype, seed: int = 0) -> None:
        self.rows, self.columns, self.dtype = rows, columns, dtype
        self.generator = torch.Generator().manual_seed(seed)
        self.image_shape = (4, 8, rows // 2, rows // 2 + 1)

    def normal(self, *shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return drawn.to(self.dtype)

    def matrix(self) -> Tensor:
        return self.normal(self.rows, self.columns)

    def share(self) -> Tensor:
        """A matrix of numbers between 0 and 1."""
        return self.matrix().double().sigmoid().to(self.dtype)

    def vector(self) -> Tensor:
        return self.normal(self.columns)

    def image(self) -> Tensor:
        return self.normal(*self.image_shape)

    def channels(self) -> Tensor:
        return self.normal(self.image_shape[1])

    def labels(self) -> Tensor:
        return torch.randint(0, self.columns, (self.rows,), generator=self.generator)

    def statistics(self, *shape: int) -> Tensor:
        """Positive, in the dtype that norms keep them in."""
        drawn = torch.rand(shape, generator=self.generator, dtype=torch.float64) + 0.5
        return drawn.to(torch.float64 if self.dtype == torch.float64 else torch.float32)

    def heads(self) -> Tensor:
        return self.normal(2, 3, self.rows, 16)

    def angles(self, width: int) -> Tensor:
        return self.normal(self.rows, width)


@dataclass(frozen=True)
class Case:
    """``kernels``: launches, calls to torch among them; ``moved``: bytes read and written, in units of the bytes of the
    first argument, at 64 x 4096; ``fewest`` says why it is more than one kernel. ``formula`` stands for eager where it has
    no such operator on the CPU."""

    fn: Fn
    args: Callable[[Draw], Sequence[Tensor]]
    kernels: int
    moved: float
    fewest: str = ""
    formula: Fn | None = None

    def check(self, args: Sequence[Tensor], found: Sequence[Any], room: float) -> None:
        """No further from float64 than twice eager, and ``room`` units of the last digit of the largest result."""
        reference = self.formula or self.fn
        eager = _tensors(reference(*args))
        exact = [a.double() if a.is_floating_point() else a for a in args]
        for ours, theirs, truth in zip(found, eager, _tensors(reference(*exact)), strict=True):
            right = truth.double()
            error = (torch.from_numpy(ours).double() - right).abs().max()
            unit = torch.finfo(theirs.dtype).eps * right.abs().max()
            allowed = 2 * (theirs.double() - right).abs().max() + room * unit
            assert error <= allowed, (float(error), float(allowed))


def _tensors(found: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(found) if isinstance(t, Tensor)]


PARTS = "one number of so many elements: many processors make parts of it, then one their sum"


def wide(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.double() if x.dtype == torch.float64 else x.float()


def two(d: Draw) -> list[Tensor]:
    return [d.matrix(), d.matrix()]


def three(d: Draw) -> list[Tensor]:
    return [d.matrix(), d.matrix(), d.matrix()]


def one(d: Draw) -> list[Tensor]:
    return [d.matrix()]


# -- normalisations


def rms_residual(x: Tensor, r: Tensor, w: Tensor) -> Any:
    h = x + r
    return h, h * torch.rsqrt((wide(h) ** 2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * w


def add_layer_norm(x: Tensor, r: Tensor, w: Tensor) -> Any:
    h = x + r
    return h, F.layer_norm(h, w.shape, w, w)


SOFTMAX = {
    "softmax": Case(lambda x: F.softmax(x, -1), one, 1, 2),
    "softmax of columns": Case(lambda x: F.softmax(x, 0), one, 1, 2),
    "log_softmax": Case(lambda x: F.log_softmax(x, -1), one, 1, 2),
    "logsumexp": Case(lambda x: torch.logsumexp(x, -1), one, 1, 1),
    "entropy": Case(lambda x: -(F.softmax(x, -1) * F.log_softmax(x, -1)).sum(-1), one, 1, 1),
}

NORMS = {
    "layer_norm": Case(
        lambda x, w: F.layer_norm(x, w.shape, w, w), lambda d: [d.matrix(), d.vector()], 1, 2
    ),
    "layer_norm of a sum": Case(add_layer_norm, lambda d: [*two(d), d.vector()], 1, 4),
    "rms_norm": Case(
        lambda x, w: F.rms_norm(x, w.shape, w), lambda d: [d.matrix(), d.vector()], 1, 2
    ),
    "rms_norm of a sum": Case(rms_residual, lambda d: [*two(d), d.vector()], 1, 4),
    "group_norm": Case(
        lambda x, w: F.group_norm(x, 4, w, w), lambda d: [d.image(), d.channels()], 1, 2
    ),
    "instance_norm": Case(
        lambda x, w: F.instance_norm(x, None, None, w, w),
        lambda d: [d.image(), d.channels()],
        1,
        2,
    ),
    "batch_norm in training": Case(
        lambda x, w: F.batch_norm(x, None, None, w, w, True),
        lambda d: [d.image(), d.channels()],
        1,
        2,
    ),
    "batch_norm with running statistics": Case(
        lambda x, w, m, v: (F.batch_norm(x, m, v, w, w, True), m + 0, v + 0),
        lambda d: [d.image(), d.channels(), d.channels(), d.channels().abs()],
        1,
        2,
    ),
    "batch_norm": Case(
        lambda x, w, m, v: F.batch_norm(x, m, v, w, w, False),
        lambda d: [d.image(), d.channels(), d.channels(), d.channels().abs()],
        1,
        2,
    ),
    "normalize": Case(lambda x: F.normalize(x, dim=-1), one, 1, 2),
    "cosine": Case(lambda x, y: F.cosine_similarity(x, y, dim=-1), two, 1, 2),
    "standard deviation": Case(lambda x: torch.std_mean(x, -1), one, 1, 1),
}


# -- gradients of normalisations


def with_statistics(d: Draw, *shape: int) -> list[Tensor]:
    """Gradient, input, mean, 1/deviation."""
    return [*two(d), d.statistics(*shape), d.statistics(*shape)]


def layer_norm_gradient(g: Tensor, x: Tensor, m: Tensor, s: Tensor, w: Tensor) -> Any:
    return aten.native_layer_norm_backward(g, x, w.shape, m, s, w, w, ALL)


def layer_norm_to_input(g: Tensor, x: Tensor, m: Tensor, s: Tensor, w: Tensor) -> Any:
    return aten.native_layer_norm_backward(g, x, w.shape, m, s, w, w, [True, False, False])[0]


def rms_norm_gradient(g: Tensor, x: Tensor, s: Tensor, w: Tensor) -> Any:
    return aten._fused_rms_norm_backward(g, x, w.shape, s, w, ALL[:2])


def rms_norm_formula(g: Tensor, x: Tensor, s: Tensor, w: Tensor) -> Any:
    y, h = wide(g) * wide(w), wide(x) * s
    dx = s * (y - h * (y * h).mean(-1, keepdim=True))
    return dx.to(x.dtype), (wide(g) * h).sum(0).to(w.dtype)


def group_norm_gradient(g: Tensor, x: Tensor, m: Tensor, s: Tensor, w: Tensor) -> Any:
    batch, channels, *rest = x.shape
    return aten.native_group_norm_backward(g, x, m, s, w, batch, channels, math.prod(rest), 4, ALL)


def batch_norm_gradient(training: bool) -> Fn:
    def fn(g: Tensor, x: Tensor, w: Tensor, m: Tensor, s: Tensor) -> Any:
        return aten.native_batch_norm_backward(g, x, w, m, s, m, s, training, 1e-5, ALL)

    return fn


def of_channels(d: Draw) -> list[Tensor]:
    count = d.image_shape[1]
    stats = [d.statistics(count) for _ in range(3)]
    return [d.image(), d.image(), *stats]


ROWS_THEN_COLUMNS = "the sums of rows, then the sums of columns"
NORM_GRADIENTS = {
    "layer_norm_backward": Case(
        layer_norm_gradient,
        lambda d: [*with_statistics(d, d.rows, 1), d.statistics(d.columns)],
        2,
        5,
        ROWS_THEN_COLUMNS,
    ),
    "layer_norm_backward to the input": Case(
        layer_norm_to_input,
        lambda d: [*with_statistics(d, d.rows, 1), d.statistics(d.columns)],
        1,
        3,
    ),
    "rms_norm_backward": Case(
        rms_norm_gradient,
        lambda d: [*two(d), d.statistics(d.rows, 1), d.vector()],
        2,
        5,
        ROWS_THEN_COLUMNS,
        rms_norm_formula,
    ),
    "group_norm_backward": Case(
        group_norm_gradient,
        lambda d: [d.image(), d.image(), d.normal(4, 4), d.normal(4, 4).abs(), d.channels()],
        2,
        5,
        "the sums of groups, then the sums of channels",
    ),
    "batch_norm_backward": Case(batch_norm_gradient(True), of_channels, 1, 3),
    "batch_norm_backward with running statistics": Case(
        batch_norm_gradient(False), of_channels, 1, 3
    ),
}


# -- gradients of activations


def swiglu_gradient(g: Tensor, a: Tensor, b: Tensor) -> Any:
    return aten.silu_backward(g * b, a), g * F.silu(a)


ACTIVATIONS = {
    "gelu": Case(lambda x: F.gelu(x), one, 1, 2),
    "gelu by tanh": Case(lambda x: F.gelu(x, approximate="tanh"), one, 1, 2),
    "gelu_backward": Case(lambda g, x: aten.gelu_backward(g, x), two, 1, 3),
    "gelu_backward by tanh": Case(
        lambda g, x: aten.gelu_backward(g, x, approximate="tanh"), two, 1, 3
    ),
    "silu_backward": Case(lambda g, x: aten.silu_backward(g, x), two, 1, 3),
    "swiglu": Case(lambda a, b: F.silu(a) * b, two, 1, 3),
    "swiglu of halves of one": Case(
        lambda h: F.silu(h.chunk(2, -1)[0]) * h.chunk(2, -1)[1], one, 1, 1.5
    ),
    "gradient of swiglu": Case(swiglu_gradient, three, 1, 5),
    "hardswish_backward": Case(lambda g, x: aten.hardswish_backward(g, x), two, 1, 3),
    "leaky_relu_backward": Case(lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False), two, 1, 3),
    "elu_backward": Case(lambda g, x: aten.elu_backward(g, 1.0, 1.0, 1.0, False, x), two, 1, 3),
    "softplus_backward": Case(lambda g, x: aten.softplus_backward(g, x, 1.5, 20.0), two, 1, 3),
    "softmax_backward": Case(
        lambda g, p: aten._softmax_backward_data(g, p, -1, g.dtype), two, 1, 3
    ),
    "log_softmax_backward": Case(
        lambda g, p: aten._log_softmax_backward_data(g, p, -1, g.dtype), two, 1, 3
    ),
}


# -- positions, tables, masks


def rotated(q: Tensor) -> Tensor:
    half = q.shape[-1] // 2
    return torch.cat((-q[..., half:], q[..., :half]), -1)


def rope_of_pairs(q: Tensor, c: Tensor, s: Tensor) -> Tensor:
    a, b = q[..., 0::2], q[..., 1::2]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)


def rope_unbound(q: Tensor, c: Tensor, s: Tensor) -> Tensor:
    a, b = q.reshape(*q.shape[:-1], -1, 2).unbind(-1)
    return torch.stack((a * c - b * s, a * s + b * c), -1).reshape(q.shape)


def rope_of_halves(q: Tensor, c: Tensor, s: Tensor) -> Tensor:
    a, b = wide(q).chunk(2, -1)
    return torch.cat((a * c - b * s, b * c + a * s), -1).to(q.dtype)


def causal(scores: Tensor) -> Tensor:
    at = torch.arange(scores.shape[-1], device=scores.device)
    rows = torch.arange(scores.shape[-2], device=scores.device)
    return F.softmax(scores.masked_fill(at[None, :] > rows[:, None], -math.inf), -1)


def causal_added(scores: Tensor) -> Tensor:
    mask = torch.full(scores.shape[-2:], -math.inf, device=scores.device, dtype=scores.dtype)
    return F.softmax(scores + mask.triu(1), -1)


def half_angles(d: Draw) -> list[Tensor]:
    return [d.heads(), d.angles(8), d.angles(8)]


def table(d: Draw) -> list[Tensor]:
    return [d.normal(3 * d.columns, d.rows), d.labels()]


def largest_of_windows(d: Draw) -> list[Tensor]:
    x = d.image()
    out, places = F.max_pool2d(x, 2, return_indices=True)
    return [d.normal(*out.shape), x, places]


POSITIONS = {
    "rope": Case(
        lambda q, c, s: q * c + rotated(q) * s,
        lambda d: [d.heads(), d.angles(16), d.angles(16)],
        1,
        2 + 2 / 6,
    ),
    "rope of two": Case(
        lambda q, k, c, s: (q * c + rotated(q) * s, k * c + rotated(k) * s),
        lambda d: [d.heads(), d.heads(), d.angles(16), d.angles(16)],
        1,
        4 + 2 / 6,
    ),
    "rope of pairs": Case(rope_of_pairs, half_angles, 1, 2 + 1 / 6),
    "rope of unbound pairs": Case(rope_unbound, half_angles, 1, 2 + 1 / 6),
    "rope of halves": Case(rope_of_halves, half_angles, 1, 2 + 1 / 6),
    "embedding and sum": Case(lambda e, i: e[i] + 1, table, 1, 2 * 64 / 12288),
    "embedding and scale": Case(lambda e, i: F.embedding(i, e) * 22.6, table, 1, 2 * 64 / 12288),
    "causal softmax": Case(causal, one, 1, 2),
    "causal softmax, mask added": Case(causal_added, one, 1, 2),
    "pad": Case(lambda x: F.pad(x, (1, 1)) * 2 + 1, one, 1, 2),
    "clamp": Case(lambda x: x.clamp(-1, 1), one, 1, 2),
    "glu": Case(lambda x: F.glu(x), one, 1, 1.5),
    "average of windows": Case(lambda x: F.avg_pool2d(x, 2), lambda d: [d.image()], 1, 1.25),
    "largest of windows": Case(lambda x: F.max_pool2d(x, 2), lambda d: [d.image()], 1, 1.25),
}

POOL_GRADIENTS = {
    "gradient of averages of windows": Case(
        lambda g, x: aten.avg_pool2d_backward(g, x, [2, 2], [2, 2], [0, 0], False, True, None),
        lambda d: [F.avg_pool2d(d.image(), 2), d.image()],
        1,
        1 + 4 * 33 / 32,
    ),
    "gradient of the largest of windows": Case(
        lambda g, x, p: aten.max_pool2d_with_indices_backward(
            g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, p
        ),
        largest_of_windows,
        1,
        1 + 4 + 4 * 33 / 32,
    ),
}


# -- optimisers


def adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> Any:
    m, v = m * 0.9 + g * 0.1, v * 0.99 + g * g * 0.01
    return p * (1 - 0.01) - 1e-3 * (m / 0.4) / ((v / 0.3).sqrt() + 1e-8), m, v


def adam_in_place(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> Any:
    m, v, p = m.clone(), v.clone(), p.clone()
    m.lerp_(g, 0.1)
    v.mul_(0.99).addcmul_(g, g, value=0.01)
    p.mul_(1 - 0.01).addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)
    return p, m, v


def adam_at_step(p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: Tensor) -> Any:
    """The corrections of the moments depend on a number in memory."""
    m, v = m * 0.9 + g * 0.1, v * 0.99 + g * g * 0.01
    shrunk, scale = p * (1 - 0.01), (v / (1 - 0.99**step)).sqrt() + 1e-8
    return shrunk - 1e-3 * (m / (1 - 0.9**step)) / scale, m, v


def moments(d: Draw) -> list[Tensor]:
    return [*three(d), d.matrix().abs()]


def norm_of_all(*grads: Tensor) -> Tensor:
    return torch.sqrt(sum((wide(g) * wide(g)).sum() for g in grads))  # type: ignore[call-overload]


def clipped(*grads: Tensor) -> Any:
    """Each gradient times a number that all of them make."""
    scale = torch.clamp(1 / (norm_of_all(*grads) + 1e-6), max=1)
    return tuple((wide(g) * scale).to(g.dtype) for g in grads)


NORMS_OF_PARTS = "parts of each tensor's sum, then all sums in one"
OPTIMISERS = {
    "norm of all gradients": Case(norm_of_all, three, 4, 3, NORMS_OF_PARTS),
    "gradients clipped": Case(clipped, three, 5, 9, NORMS_OF_PARTS + ", then all gradients"),
    "addcmul": Case(lambda x, y: torch.addcmul(x, x, y, value=0.5), two, 1, 3),
    "addcdiv": Case(lambda x, y: torch.addcdiv(x, x, y, value=0.5), two, 1, 3),
    "lerp": Case(lambda x, y: torch.lerp(x, y, 0.3), two, 1, 3),
    "adam": Case(adam, moments, 1, 7),
    "adam in place": Case(adam_in_place, moments, 1, 7),
    "adam at a step": Case(adam_at_step, lambda d: [*moments(d), d.statistics().fill_(3)], 1, 7),
}

CASES: dict[str, Case] = {
    **SOFTMAX,
    **NORMS,
    **NORM_GRADIENTS,
    **ACTIVATIONS,
    **POSITIONS,
    **POOL_GRADIENTS,
    **OPTIMISERS,
}
