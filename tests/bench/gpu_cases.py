"""The memory-bound jobs of gpu_kernels.py: what to run, on which tensors, and the fewest bytes it must move.

The first seventeen are those that the figures of torch.compile were published for here; the others are Stax's own choice.
``least_bytes`` counts each input once and each output once, as far as the job needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

Tensors = tuple[torch.Tensor, ...]
BF16, F32 = torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Case:
    """``share`` is the part of the copy rate that is asked of Stax; 0 where nothing is asked."""

    name: str
    fn: Callable[..., object]
    args: Tensors
    least_bytes: int
    share: float = 0.0
    peer: bool = False


def make(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*sizes, device="cuda", dtype=dtype)


def picks(below: int, *sizes: int) -> torch.Tensor:
    return torch.randint(0, below, sizes, device="cuda")


def nbytes(*tensors: torch.Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


# -- the peer's jobs


def gelu_bias(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + w)


def add_relu_sum(x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return (F.relu(x + r) * 2).sum(-1)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x, -1)


def layer_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, w)


def rmsnorm_residual(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Tensors:
    h = x + r
    scale = torch.rsqrt((h.float() ** 2).mean(-1, keepdim=True) + 1e-6)
    return h, h * scale.to(x.dtype) * w


def swiglu(x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return F.silu(x) * r


def cross_entropy(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x.float(), t)


def square_sum(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sum(-1)


def full_sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum()


def transpose_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.t() + y


def col_sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0)


def gelu_bwd(h: torch.Tensor, go: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.gelu_backward(go, h)


def batchnorm_train(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, w, w, True)


def rope(q: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    half = q.shape[-1] // 2
    return q * c + torch.cat((-q[..., half:], q[..., :half]), -1) * s


def embedding_add(i: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    return e[i] + 1


def peer_cases() -> Iterator[Case]:
    rows, cols = 16384, 8192
    x, r, w = make(rows, cols), make(rows, cols), make(cols)
    n = nbytes(x)
    yield Case("gelu_bias", gelu_bias, (x, w), 2 * n, 0.9, True)
    yield Case("add_relu_sum", add_relu_sum, (x, r), 2 * n, 0.9, True)
    yield Case("softmax_8192", softmax, (x,), 2 * n, 0.9, True)
    yield Case("layernorm_8192", layer_norm, (x, w), 2 * n, 0.9, True)
    yield Case("rmsnorm_residual", rmsnorm_residual, (x, r, w), 4 * n, 0.9, True)
    yield Case("swiglu", swiglu, (x, r), 3 * n, 0.9, True)
    del x, r
    short, long = make(4096, 1000), make(1024, 131072)
    yield Case("softmax_1000", softmax, (short,), 2 * nbytes(short), 0.0, True)
    yield Case("softmax_131072", softmax, (long,), 2 * nbytes(long), 0.8, True)
    labels = picks(131072, 1024)
    yield Case("cross_entropy_131072", cross_entropy, (long, labels), nbytes(long), 0.9, True)
    del long
    x = make(64, 1 << 22, dtype=F32)
    yield Case("split_reduction", square_sum, (x,), nbytes(x), 0.9, True)
    x = make(1 << 28, dtype=F32)
    yield Case("full_sum", full_sum, (x,), nbytes(x), 0.9, True)
    x, y = make(16384, 16384), make(16384, 16384)
    yield Case("transpose_add", transpose_add, (x, y), 3 * nbytes(x), 0.9, True)
    del y
    x = make(16384, 8192, dtype=F32)
    yield Case("col_sum", col_sum, (x,), nbytes(x), 0.9, True)
    h, go = make(1 << 28), make(1 << 28)
    yield Case("gelu_bwd", gelu_bwd, (h, go), 3 * nbytes(h), 0.0, True)
    del h, go
    x, w = make(32, 64, 512, 512), make(64, dtype=F32)
    yield Case("batchnorm_train", batchnorm_train, (x, w), 3 * nbytes(x), 0.0, True)
    q, c, s = make(8, 32, 4096, 128), make(4096, 128), make(4096, 128)
    yield Case("rope", rope, (q, c, s), 2 * nbytes(q), 0.9, True)
    indices, table = picks(128000, 65536), make(128000, 4096)
    moved = 2 * indices.numel() * table.shape[1] * table.element_size()
    yield Case("embedding_add", embedding_add, (indices, table), moved, 0.9, True)


# -- our own


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    return F.log_softmax(x, -1)


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), w)


def group_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, 32, w, w)


def residual_layer_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Tensors:
    h = x + r
    return h, layer_norm(h, w)


def causal_softmax(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[-1]
    at = torch.arange(n, device=x.device)
    return F.softmax(x.masked_fill(at[None, :] > at[:, None], float("-inf")), -1)


def swap_heads(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).contiguous()


def dequantize(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (q.float() * scale).to(BF16)


def adam_step(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> Tensors:
    m = m * 0.9 + g * 0.1
    v = v * 0.95 + g * g * 0.05
    return p - 1e-3 * (m / (v.sqrt() + 1e-8) + 0.01 * p), m, v


def bias_gradient(g: torch.Tensor) -> torch.Tensor:
    return g.sum(0)


def mean_pool(x: torch.Tensor) -> torch.Tensor:
    return x.mean(1)


def arg_max(x: torch.Tensor) -> torch.Tensor:
    return x.argmax(-1)


def interleaved_rope(q: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    a, b = q[..., ::2], q[..., 1::2]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)


def softmax_backward(g: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._softmax_backward_data(g, y, -1, BF16)


def standardize(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)


def own_cases() -> Iterator[Case]:
    x = make(8192, 32000)
    yield Case("log_softmax_32000", log_softmax, (x,), 2 * nbytes(x))
    yield Case("argmax_32000", arg_max, (x,), nbytes(x))
    x, w = make(65536, 4096), make(4096)
    yield Case("rms_norm_4096", rms_norm, (x, w), 2 * nbytes(x))
    yield Case(
        "residual_layer_norm_4096", residual_layer_norm, (x, make(65536, 4096), w), 4 * nbytes(x)
    )
    yield Case("bias_gradient_4096", bias_gradient, (x,), nbytes(x))
    yield Case("softmax_backward_4096", softmax_backward, (x, make(65536, 4096)), 3 * nbytes(x))
    x = make(32768, 1024, dtype=F32)
    yield Case("layer_norm_f32_1024", layer_norm, (x, make(1024, dtype=F32)), 2 * nbytes(x))
    yield Case("softmax_f32_1024", softmax, (x,), 2 * nbytes(x))
    x = make(4096, 16384, dtype=F32)
    yield Case("softmax_f32_16384", softmax, (x,), 2 * nbytes(x))
    yield Case("standardize_f32_16384", standardize, (x,), 2 * nbytes(x))
    x = make(64, 2048, 2048)
    yield Case("causal_softmax_2048", causal_softmax, (x,), 2 * nbytes(x))
    x = make(16, 4096, 32, 128)
    yield Case("swap_heads", swap_heads, (x,), 2 * nbytes(x))
    yield Case("mean_pool", mean_pool, (x.view(16, 4096, 4096),), nbytes(x))
    q, c, s = make(8, 32, 4096, 128), make(4096, 64), make(4096, 64)
    yield Case("interleaved_rope", interleaved_rope, (q, c, s), 2 * nbytes(q))
    x = make(32, 320, 128, 128)
    yield Case("group_norm", group_norm, (x, make(320)), 2 * nbytes(x))
    q8 = torch.randint(-128, 128, (16384, 8192), device="cuda", dtype=torch.int8)
    yield Case("dequantize_int8", dequantize, (q8, make(16384, 1, dtype=F32)), 3 * nbytes(q8))
    state = tuple(make(1 << 26, dtype=F32) for _ in range(4))
    yield Case("adam_step", adam_step, (*state[:3], state[3].abs()), 7 * nbytes(state[0]))
