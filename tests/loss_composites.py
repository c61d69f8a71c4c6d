"""Losses and their gradients, as cases of composites."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.composites import PARTS, Case, Draw, Fn, aten, two, wide


def labelled(d: Draw) -> list[Tensor]:
    return [d.matrix(), d.labels()]


def cross_entropy(**options: Any) -> Fn:
    return lambda x, t: F.cross_entropy(wide(x), t, **options)


def next_token(x: Tensor, t: Tensor) -> Tensor:
    """The loss of a language model: each position predicts the next."""
    return F.cross_entropy(wide(x)[:-1].contiguous(), t[1:].contiguous(), ignore_index=3)


def loss_and_gradient(x: Tensor, t: Tensor) -> Any:
    logs = aten._log_softmax(wide(x), 1, False)
    loss, weight = aten.nll_loss_forward(logs, t, None, 1, -100)
    grad = aten.nll_loss_backward(torch.ones_like(loss), logs, t, None, 1, -100, weight)
    return loss, aten._log_softmax_backward_data(grad, logs, 1, logs.dtype).to(x.dtype)


def saved_gradient(logs: Tensor, t: Tensor, grad: Tensor, weight: Tensor) -> Tensor:
    grad = aten.nll_loss_backward(grad, logs, t, None, 1, -100, weight)
    return aten._log_softmax_backward_data(grad, logs, 1, logs.dtype)


MEAN = "the rows, then their mean"
LOSSES = {
    "cross_entropy": Case(cross_entropy(), labelled, 2, 1, MEAN),
    "cross_entropy, sum": Case(cross_entropy(reduction="sum"), labelled, 2, 1, MEAN),
    "cross_entropy, none": Case(cross_entropy(reduction="none"), labelled, 1, 1),
    "cross_entropy, ignored": Case(cross_entropy(ignore_index=2), labelled, 2, 1, MEAN),
    "cross_entropy, smoothed": Case(cross_entropy(label_smoothing=0.1), labelled, 2, 1, MEAN),
    "cross_entropy, weighted": Case(
        lambda x, t, w: F.cross_entropy(wide(x), t, weight=wide(w)),
        lambda d: [*labelled(d), d.vector().abs()],
        2,
        1,
        MEAN,
    ),
    "cross_entropy, weighted and smoothed": Case(
        lambda x, t, w: F.cross_entropy(wide(x), t, weight=wide(w), label_smoothing=0.1),
        lambda d: [*labelled(d), d.vector().abs()],
        2,
        1,
        MEAN,
    ),
    "cross_entropy of halves": Case(lambda x, t: F.cross_entropy(x, t), labelled, 2, 1, MEAN),
    "cross_entropy of the next token": Case(next_token, labelled, 2, 1, MEAN),
    "log of a probability": Case(
        lambda x, t: F.log_softmax(x, -1).gather(-1, t[:, None]), labelled, 1, 1
    ),
    "cross_entropy with its gradient": Case(
        loss_and_gradient, labelled, 3, 2, "the number of rows that count comes first"
    ),
    "gradient of cross_entropy": Case(
        saved_gradient,
        lambda d: [
            wide(d.matrix()).log_softmax(-1),
            d.labels(),
            d.statistics(),
            d.statistics() * 7,
        ],
        1,
        2,
    ),
    "mse": Case(F.mse_loss, two, 2, 2, PARTS),
    "smooth_l1": Case(F.smooth_l1_loss, two, 2, 2, PARTS),
    "huber": Case(F.huber_loss, two, 2, 2, PARTS),
    "bce": Case(F.binary_cross_entropy, lambda d: [d.share(), d.share()], 2, 2, PARTS),
    "bce of logits": Case(
        F.binary_cross_entropy_with_logits, lambda d: [d.matrix(), d.share()], 2, 2, PARTS
    ),
    "kl_div": Case(
        lambda x, y: F.kl_div(x, y, reduction="batchmean"),
        lambda d: [d.matrix(), d.share()],
        2,
        2,
        PARTS,
    ),
}

ROWS_FIRST = "the rows with their statistics, then the sum of the rows"
LOSSES_OF_ROWS = {
    "kl_div of softmaxes": Case(
        lambda x, y: F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean"),
        two,
        2,
        2,
        ROWS_FIRST,
    ),
    "kl_div of logs": Case(
        lambda x, y: F.kl_div(
            F.log_softmax(x, -1), F.log_softmax(y, -1), reduction="sum", log_target=True
        ),
        two,
        2,
        2,
        ROWS_FIRST,
    ),
    "cross_entropy of shares": Case(
        lambda x, y: F.cross_entropy(x, y), lambda d: [d.matrix(), d.share()], 2, 2, ROWS_FIRST
    ),
    "distance of softmaxes": Case(
        lambda x, y: (F.softmax(x, -1) - F.softmax(y, -1)).pow(2).mean(), two, 2, 2, ROWS_FIRST
    ),
    "largest normalised": Case(
        lambda x, w: F.layer_norm(x, w.shape, w).abs().amax(),
        lambda d: [d.matrix(), d.vector()],
        2,
        1,
        ROWS_FIRST,
    ),
}


def of_loss(name: str, *options: Any) -> Case:
    """A loss's gradient: of a mean, from the gradient of one number."""
    op = getattr(aten, name)
    return Case(lambda x, y, g: op(g, x, y, *options), lambda d: [*two(d), d.normal()], 1, 3)


def nll_gradient(x: Tensor, t: Tensor, g: Tensor, total: Tensor) -> Tensor:
    return aten.nll_loss_backward(g, x, t, None, 1, 2, total)


LOSS_GRADIENTS = {
    "mse_backward": of_loss("mse_loss_backward", 1),
    "smooth_l1_backward": of_loss("smooth_l1_loss_backward", 1, 0.5),
    "huber_backward": of_loss("huber_loss_backward", 1, 0.5),
    "bce_backward": Case(
        lambda x, y, g: aten.binary_cross_entropy_backward(g, x, y, None, 1),
        lambda d: [d.share(), d.share(), d.normal()],
        1,
        3,
    ),
    "nll_backward": Case(
        nll_gradient, lambda d: [*labelled(d), d.normal(), d.normal().abs() + 5], 1, 1
    ),
}

CASES: dict[str, Case] = {**LOSSES, **LOSSES_OF_ROWS, **LOSS_GRADIENTS}
