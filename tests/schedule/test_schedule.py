"""Schedules against eager through the numpy oracle, and the shapes that the specification demands of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering import bind, call_torch, compare, lowered, to_numpy
from running import run_schedule

from stax.base.options import Options
from stax.ir.kernel import Kernel
from stax.ir.program import Extern
from stax.ir.verify import verify_kernel
from stax.schedule.schedule import Schedule, schedule

R = torch.randn
Fn = Callable[..., Any]


def rope(q: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return q * c + torch.cat((-q[..., 32:], q[..., :32]), -1) * s


def rms_residual(
    x: torch.Tensor, r: torch.Tensor, w: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    h = x + r
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * w, h


def layer_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(var + 1e-5) * w


def masked_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    mask = torch.full((7, 7), float("-inf")).triu(1)
    return torch.softmax(q @ k.transpose(-1, -2) / 8 + mask, -1) @ v


CASES: dict[str, tuple[Fn, tuple[tuple[int, ...], ...], int]] = {
    "example_1_1": (lambda a, b: (torch.relu(a + b) * 2).sum(-1), ((64, 128), (64, 128)), 1),
    "transpose_add": (lambda x, y: x.t() + y, ((512, 256), (256, 512)), 1),
    "softmax": (lambda x: F.softmax(x, -1), ((25, 100),), 1),
    "softmax_outer": (lambda x: F.softmax(x, 0), ((25, 100),), 1),
    "layer_norm": (layer_norm, ((8, 7, 96), (96,)), 1),
    "rms_residual": (rms_residual, ((8, 7, 96), (8, 7, 96), (96,)), 1),
    "rope": (rope, ((2, 4, 7, 64), (1, 1, 7, 64), (1, 1, 7, 64)), 2),
    "gelu": (lambda x: F.gelu(x, approximate="tanh"), ((33, 65),), 1),
    "swiglu": (lambda x, y: F.silu(x) * y, ((17, 23), (17, 23)), 1),
    "reshapes": (
        lambda x: (
            x.reshape(x.shape[0], -1).exp().reshape(x.shape).permute(2, 0, 1).contiguous() * 2
        ),
        ((3, 4, 6),),
        1,
    ),
    "many_sums": (lambda x: (x.sum(0), x.sum(1), x.amax(), x.mean((0, 1)), x * 2), ((17, 23),), 3),
    "arg": (lambda x: (x.argmax(-1), x.max(0)), ((17, 23),), 2),
    "moments": (lambda x: (x.var(-1), x.std(0), x.logsumexp(-1)), ((17, 23),), 2),
    "select_row": (lambda x, y: x[1] * y + x[:, 2].sum(), ((4, 6), (6,)), 2),
    "one_row": (lambda x: x.sum(0, keepdim=True) + x, ((1, 9),), 1),
}


def kernels(plan: Schedule) -> list[Kernel]:
    return [s.kernel for s in plan.steps if not isinstance(s, Extern)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_equals_eager(name: str, dynamic: bool, fusion: bool) -> None:
    fn, shapes, most = CASES[name]
    args = [R(*s) for s in shapes]
    plan = schedule(lowered(fn, args, dynamic), Options(fusion=fusion))
    for kernel in kernels(plan):
        verify_kernel(kernel)
    out = run_schedule(plan, [to_numpy(a) for a in args], bind(plan.program, args), call_torch)
    compare(out, fn(*args))
    if fusion:
        assert len(kernels(plan)) <= most, [k.fused for k in kernels(plan)]


def test_dynamic_plan_serves_other_sizes() -> None:
    fn, shapes, _ = CASES["rms_residual"]
    plan = schedule(lowered(fn, [R(*s) for s in shapes], True), Options())
    args = [R(3, 5, 160), R(3, 5, 160), R(160)]
    sizes = bind(plan.program, args)
    compare(run_schedule(plan, [to_numpy(a) for a in args], sizes, call_torch), fn(*args))


def test_matmul_stays_whole_and_its_neighbours_fuse() -> None:
    args = [R(2, 4, 7, 16) for _ in range(3)]
    plan = schedule(lowered(masked_attention, args), Options())
    out = run_schedule(plan, [to_numpy(a) for a in args], {}, call_torch)
    compare(out, masked_attention(*args))
    assert [k.form for k in kernels(plan)].count("per") == 1


def test_example_1_1_is_one_persistent_kernel_with_merged_axes() -> None:
    plan = schedule(lowered(CASES["example_1_1"][0], [R(64, 128), R(64, 128)]), Options())
    (kernel,) = kernels(plan)
    assert kernel.form == "per" and kernel.index_dtype == "int32" and kernel.inner
    assert [(a.name, a.extent) for a in kernel.axes] == [("x0", 64)]
    assert [(a.name, a.extent) for a in kernel.reduce_axes] == [("r0_0", 128)]
    assert kernel.fused == ("add", "mul", "relu", "sum")


def test_axes_merge_when_every_access_allows_it() -> None:
    plan = schedule(lowered(lambda x: (x * x).sum(-1), [R(64, 2, 8192)]), Options())
    (kernel,) = kernels(plan)
    assert kernel.form == "red"
    assert [(a.name, a.extent) for a in kernel.axes] == [("x0", 128)]
    assert [v.args[0].text for s in kernel.statements for v in s.body.loads] == ["[r0_0 + 8192*x0]"]


@pytest.mark.parametrize(
    ("shape", "dim", "form"),
    [((8, 1024), 1, "per"), ((8, 1025), 1, "red"), ((64, 8), 0, "per"), ((65, 8), 0, "red")],
)
def test_reduction_form_follows_the_limits(shape: tuple[int, int], dim: int, form: str) -> None:
    plan = schedule(lowered(lambda x: x.sum(dim), [R(*shape)]), Options())
    assert [k.form for k in kernels(plan)] == [form]


def test_every_refusal_has_a_reason() -> None:
    plan = schedule(lowered(CASES["many_sums"][0], [R(17, 23)]), Options())
    assert any(not d.verdict for d in plan.decisions)
    assert all(d.reason for d in plan.decisions)


def test_wide_offsets_take_64_bits() -> None:
    args = [torch.empty(70000, 70000, device="meta")]
    plan = schedule(lowered(lambda x: x + 1, args), Options())
    assert [k.index_dtype for k in kernels(plan)] == ["int64"]


def test_equal_work_has_equal_kernels() -> None:
    def layers(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = F.softmax(x, -1) @ torch.eye(16)
        return x

    plan = schedule(lowered(layers, [R(8, 16)]), Options())
    softmaxes = [k for k in kernels(plan) if k.form == "per"]
    assert len(softmaxes) == 3 and len(set(softmaxes)) == 1


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_empty_spaces(shape: tuple[int, int]) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y.reshape(-1).exp(), y.sum(0), y.sum(1, keepdim=True) + y, y.t().contiguous() + 1

    args = [R(*shape)]
    plan = schedule(lowered(fn, args), Options())
    compare(run_schedule(plan, [to_numpy(a) for a in args], {}, call_torch), fn(*args))


def test_fast_numerics_keep_float32_between_joined_ops() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x * x) * 0.001

    x = torch.full((40,), 300.0, dtype=torch.float16)
    for numerics, expected in (("eager", float("inf")), ("fast", 90.0)):
        plan = schedule(lowered(fn, [x]), Options(numerics=numerics))
        (out,) = run_schedule(plan, [to_numpy(x)], {}, call_torch)
        torch.testing.assert_close(float(out.max()), expected, rtol=1e-3, atol=0)


def test_a_common_read_is_no_reason_to_divide_axes() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.reshape(6, 35) * 2, x.permute(2, 0, 1).contiguous().reshape(5, 42) + 1

    plan = schedule(lowered(fn, [R(6, 7, 5)]), Options())
    for kernel in kernels(plan):
        for statement in kernel.statements:
            for value in statement.body.loads:
                assert "//" not in value.text or len(kernels(plan)) == 2
    out = run_schedule(plan, [to_numpy(x := R(6, 7, 5))], {}, call_torch)
    compare(out, fn(x))


def test_draws_keep_their_order() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        late = torch.bernoulli(torch.sigmoid((x @ x) @ x))
        early = torch.rand(3)
        return early, late

    plan = schedule(lowered(fn, [R(8, 8)]), Options())
    drawn = [s.target for s in plan.steps if isinstance(s, Extern) and "mm" not in s.target]
    assert [t.split(".")[1] for t in drawn] == ["bernoulli", "rand"]


def test_a_position_counts_in_the_order_of_its_own_axes() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned = x.permute(3, 1, 0, 2)
        return turned.argmax(), x.sum(), x.argmin(), turned[:, 1].argmin()

    args = [R(4, 3, 5, 2)]
    plan = schedule(lowered(fn, args), Options())
    compare(run_schedule(plan, [to_numpy(a) for a in args], {}, call_torch), fn(*args))
