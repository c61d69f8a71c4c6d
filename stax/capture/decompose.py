"""Which ATen operators tracing replaces by others before lowering sees them, and why.

An operator is left whole when lowering has a rule for it (softmax, layer_norm, gelu, …), when a library call does it
better (mm, convolution), or when torch's decomposition loses something eager does: index_add, index_copy and index_fill
would accept an index out of range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions

HALVES = (torch.float16, torch.bfloat16)
Decompositions = Mapping[object, Callable[..., object] | None]

# Backward formulas that are plain arithmetic on tensors: they fuse with what surrounds them.
BACKWARDS = (
    "glu_backward log_sigmoid_backward logit_backward native_dropout_backward "
    "slice_backward select_backward diagonal_backward "
    "soft_margin_loss_backward binary_cross_entropy_backward _prelu_kernel_backward rrelu_with_noise_backward "
    "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward"
)

# Losses: a few pointwise operators and one reduction.
LOSSES = "mse_loss smooth_l1_loss huber_loss soft_margin_loss binary_cross_entropy binary_cross_entropy_with_logits"

# Elementwise operators that are short formulas of those with rules.
FORMULAS = (
    "celu selu glu hardshrink softshrink logit log_sigmoid_forward heaviside logaddexp logaddexp2 sinc rad2deg deg2rad "
    "special_entr special_log_ndtr"
)

# Reductions and norms that are formulas of sums and extremes.
REDUCTIONS = "nansum count_nonzero norm linalg_vector_norm dist trace renorm"

# Index arithmetic: gathers with computed positions, pads, shuffles.
INDEXING = (
    "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d "
    "pixel_shuffle pixel_unshuffle channel_shuffle diag_embed rot90 im2col "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d "
    "grid_sampler_2d affine_grid_generator logspace _adaptive_avg_pool2d"
)

# Products that are sums of products, or several library calls.
PRODUCTS = "addr dot vdot linalg_cross"

# What torch itself would take apart, rounding halves after every step, and lowering has a rule for.
WHOLE = "silu_backward mish_backward _fused_rms_norm"

GROUPS = (BACKWARDS, LOSSES, FORMULAS, REDUCTIONS, INDEXING, PRODUCTS)


def decompositions() -> Decompositions:
    """Formulas by operator: torch's for the groups above, our own for attention; None keeps an operator whole."""
    aten = torch.ops.aten
    packets = [
        getattr(aten, name) for group in GROUPS for name in group.split() if hasattr(aten, name)
    ]
    table: dict[object, Callable[..., object]] = {
        op: fn for op, fn in get_decompositions(packets).items() if not str(op).endswith("out")
    }
    for packet, dtypes in _exact(aten):
        for op in (getattr(packet, overload) for overload in packet.overloads()):
            if op in table:
                table[op] = only_for(dtypes, table[op])
    table[aten._scaled_dot_product_flash_attention_for_cpu.default] = flash_attention_cpu
    table[aten._scaled_dot_product_flash_attention_for_cpu_backward.default] = (
        flash_attention_cpu_backward
    )
    table[aten._scaled_dot_product_flash_attention.default] = flash_attention
    table[aten._scaled_dot_product_efficient_attention.default] = efficient_attention
    table[aten._scaled_dot_product_cudnn_attention.default] = cudnn_attention
    table[aten.native_batch_norm.default] = native_batch_norm
    return table | {getattr(aten, name).default: None for name in WHOLE.split()}


WIDE = (torch.float32, torch.float64)


def _exact(aten: Any) -> Iterator[tuple[Any, tuple[torch.dtype, ...]]]:
    """Formulas that agree with eager for some dtypes alone: of bytes eager interpolates in fixed point, and of halves it
    computes sample positions in float32."""
    for name in ("linear1d", "bilinear2d", "trilinear3d", "bicubic2d"):
        yield getattr(aten, f"upsample_{name}"), (*WIDE, *HALVES)
    for dims in ("1d", "2d", "3d"):
        yield getattr(aten, f"upsample_nearest{dims}"), (*WIDE, *HALVES, torch.uint8)
        yield getattr(aten, f"_upsample_nearest_exact{dims}"), (*WIDE, *HALVES, torch.uint8)
    yield aten.grid_sampler_2d, WIDE


def only_for(dtypes: tuple[torch.dtype, ...], fn: Callable[..., object]) -> Callable[..., object]:
    """``fn`` where the first argument has one of these dtypes; elsewhere the operator stays whole. Raises RuntimeError
    for a plane of size 0, as eager does."""

    def chosen(x: Tensor, *args: object, **kwargs: object) -> object:
        if any(size == 0 for size in x.shape[2:]):
            raise RuntimeError(f"sizes to resample must be greater than 0, found {tuple(x.shape)}")
        return fn(x, *args, **kwargs) if x.dtype in dtypes else NotImplemented

    return chosen


def native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> object:
    """In training the operator writes the running statistics, which its schema does not say: written out here."""
    if not training or mean is None or var is None:
        return NotImplemented
    functional = torch.ops.aten._native_batch_norm_legit_functional.default
    out, centre, scale, new_mean, new_var = functional(
        x, weight, bias, mean, var, True, momentum, eps
    )
    mean.copy_(new_mean)
    var.copy_(new_var)
    return out, centre, scale


# -- attention in its plain form: two products around a softmax. Half types are computed in float32, as the fused
#    kernels do inside; a row that is masked everywhere gives 0, and -inf as its logsumexp.


def _scores(query: Tensor, key: Tensor, scale: float | None) -> Tensor:
    """scale * query @ key^T, at least float32, (B, H, L, S); the heads of key may be shared by groups of query heads."""
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    if _has_wide_products(query):
        product = _grouped(query, key.transpose(-2, -1), _product_float32)
    else:
        product = _grouped(_wide(query), _wide(key).transpose(-2, -1), torch.matmul)
    return product * factor


def _weighted(weights: Tensor, value: Tensor) -> Tensor:
    """weights @ value."""
    if _has_wide_products(value):
        return _grouped(weights.to(value.dtype), value, torch.matmul)
    return _grouped(weights, _wide(value), torch.matmul)


def _grouped(left: Tensor, right: Tensor, multiply: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """left @ right where ``right`` has one head for each group of left's heads; no head is copied."""
    batch, heads, rows, inner = left.shape
    shared = right.shape[1]
    if shared == heads:
        return multiply(left, right)
    left = left.reshape(batch, shared, heads // shared * rows, inner)
    return multiply(left, right).view(batch, heads, rows, right.shape[-1])


def _has_wide_products(x: Tensor) -> bool:
    """CUDA multiplies halves into float32 at full speed; the CPU has no such operator and widens first."""
    return x.device.type == "cuda" and x.dtype in HALVES


def _product_float32(left: Tensor, right: Tensor) -> Tensor:
    batch, heads = left.shape[:2]
    flat = torch.ops.aten.bmm.dtype(left.flatten(0, 1), right.flatten(0, 1), torch.float32)
    return flat.view(batch, heads, *flat.shape[1:])


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALVES else x


def _mask(scores: Tensor, bias: Tensor | None, causal: bool) -> Tensor:
    if causal:
        rows = torch.arange(scores.shape[-2], device=scores.device)
        columns = torch.arange(scores.shape[-1], device=scores.device)
        scores = torch.where(columns[None, :] <= rows[:, None], scores, -math.inf)
    if bias is None:
        return scores
    return torch.where(bias, scores, -math.inf) if bias.dtype == torch.bool else scores + bias


def _softmax(scores: Tensor, masked: bool) -> tuple[Tensor, Tensor]:
    """(probabilities, logsumexp)."""
    if not masked:
        return torch.softmax(scores, -1), torch.logsumexp(scores, -1)
    top = scores.amax(-1, keepdim=True)
    top = torch.where(top == -math.inf, 0.0, top)
    powers = torch.exp(scores - top)
    sums = powers.sum(-1, keepdim=True)
    lse = (torch.log(sums) + top).squeeze(-1)
    return powers / torch.where(sums == 0, 1.0, sums), lse


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """(output in the dtype of query, logsumexp in float32 or float64)."""
    scores = _mask(_scores(query, key, scale), bias, causal)
    weights, lse = _softmax(scores, bias is not None)
    return _weighted(weights, value).to(query.dtype), lse


def _laid_out(out: Tensor, query: Tensor) -> Tensor:
    """In the order of the query in memory, as the fused kernels leave it: heads inside positions or outside."""
    if query.stride(1) < query.stride(2):
        return out.transpose(1, 2).contiguous().transpose(1, 2)
    return out.contiguous()


def flash_attention_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> object:
    if dropout_p != 0.0:
        return NotImplemented
    out, lse = attend(query, key, value, attn_mask, is_causal, scale)
    return _laid_out(out, query), lse


def flash_attention_cpu_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> object:
    """Recomputes the probabilities from the logsumexp."""
    if dropout_p != 0.0 or key.shape[1] != query.shape[1]:
        return NotImplemented
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    q, k, v, g, o = (_wide(x) for x in (query, key, value, grad, out))
    scores = _mask(_scores(q, k, factor), attn_mask, is_causal)
    level = lse.unsqueeze(-1)
    weights = torch.exp(scores - torch.where(level == -math.inf, 0.0, level))
    grad_weights = torch.matmul(g, v.transpose(-2, -1))
    slope = weights * (grad_weights - (g * o).sum(-1, keepdim=True)) * factor
    grads = (
        torch.matmul(slope, k),
        torch.matmul(slope.transpose(-2, -1), q),
        torch.matmul(weights.transpose(-2, -1), g),
    )
    return tuple(d.to(x.dtype) for d, x in zip(grads, (query, key, value)))


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> object:
    if dropout_p != 0.0 or return_debug_mask:
        return NotImplemented
    out, lse = attend(query, key, value, None, is_causal, scale)
    state = torch.zeros((2,), dtype=torch.uint64, device=query.device)
    unused = torch.zeros((), dtype=torch.uint64, device=query.device)
    debug = query.new_zeros((0,))
    return (
        _laid_out(out, query),
        lse,
        None,
        None,
        query.shape[2],
        key.shape[2],
        state,
        unused,
        debug,
    )


def efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> object:
    if dropout_p != 0.0:
        return NotImplemented
    out, lse = attend(query, key, value, attn_bias, is_causal, scale)
    seed = torch.zeros((), dtype=torch.int64, device=query.device)
    return _laid_out(out, query), lse, seed, seed.clone()


def cudnn_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> object:
    if dropout_p != 0.0 or return_debug_mask:
        return NotImplemented
    out, lse = attend(query, key, value, attn_bias, is_causal, scale)
    state = torch.zeros((), dtype=torch.int64, device=query.device)
    debug = query.new_zeros((0,))
    return (
        _laid_out(out, query),
        lse.unsqueeze(-1),
        None,
        None,
        query.shape[2],
        key.shape[2],
        state,
        state.clone(),
        debug,
    )
