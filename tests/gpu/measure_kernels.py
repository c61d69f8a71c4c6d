"""python -m tests.gpu.measure_kernels: every candidate of a few kernels against eager and torch.compile, one JSON line
a kernel. ``gbs`` counts the fewest bytes the job must move over the median time of a launch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from stax.codegen.triton.emit import emit
from stax.ir.kernel import Kernel, Size, Statement
from stax.ir.value import Value, cast, local, rebuild, rewrite, scalar, walk
from stax.runtime.cuda import current_stream
from tests.gpu.test_cuda_launch import built, prepared, target
from tests.kernels import KS0, R0, X0, add_transposed, at, layer_norm, make, outer_sum, softmax, st

BIG = 1 << 26
Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Job:
    name: str
    kernel: Kernel
    shapes: tuple[tuple[int, ...], ...]
    eager: Callable[..., object]
    dtype: torch.dtype = torch.float32
    sizes: tuple[tuple[str, int], ...] = ()


def microseconds(work: Callable[[], object]) -> float:
    """Median device time of one call, the L2 cache flushed between calls."""
    flush = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    for _ in range(5):
        work()
    times: list[float] = []
    for _ in range(25):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return median(times)


def halves(kernel: Kernel, dtype: str) -> Kernel:
    """The kernel over half-typed buffers, computed in float32."""

    def swap(v: Value, args: tuple[Value, ...]) -> Value:
        if v.op != "load" or v.dtype != "float32":
            return rebuild(v, args)
        return cast(Value("load", dtype, args, v.attr), "float32")

    statements: list[Statement] = []
    for s in kernel.statements:
        statements.append(replace(s, body=rewrite(s.body, swap), stores=()))
        if s.stores:
            space = "x" if s.combine else s.space
            body = cast(local(s.name, s.dtype), dtype)
            statements.append(Statement(f"{s.name}_half", space, None, body, s.stores))
    pointers = tuple(replace(p, dtype=dtype) for p in kernel.pointers)
    return replace(kernel, statements=tuple(statements), pointers=pointers)


def only_last(kernel: Kernel) -> Kernel:
    """Only the last statement's store."""
    last = kernel.statements[-1].name
    kept = tuple(replace(s, stores=s.stores if s.name == last else ()) for s in kernel.statements)
    held = {t.pointer for s in kept for t in s.stores}
    read = {v.attr[0] for s in kept for v in walk(s.body) if v.op == "load"}
    pointers = tuple(p for p in kernel.pointers if p.name in held | read)
    return replace(kernel, statements=kept, pointers=pointers)


def flat(count: int) -> Kernel:
    body = scalar("add", scalar("mul", at("in_ptr0", X0), at("in_ptr1", X0)), at("in_ptr0", X0))
    pointers = ["in_ptr0:float32", "in_ptr1:float32", "out_ptr0:float32"]
    return make([st("v0", body, ("out_ptr0", X0))], x=[count], pointers=pointers)


def dynamic_flat(count: int) -> Kernel:
    kernel = flat(count)
    axes = (replace(kernel.axes[0], extent=KS0),)
    sizes = (Size("ks0", 2, None, count),)
    return replace(kernel, axes=axes, sizes=sizes, index_dtype="int64")


def row_sum(rows: int, cols: int) -> Kernel:
    x = at("in_ptr0", R0 + X0 * cols)
    statement = st("v0", scalar("mul", x, x), ("out_ptr0", X0), space="xr", combine="sum")
    pointers = ["in_ptr0:float32", "out_ptr0:float32"]
    return make(
        [statement], x=[rows], r=[cols], form="per" if cols <= 1024 else "red", pointers=pointers
    )


def jobs() -> list[Job]:
    bf16 = torch.bfloat16
    mul_add = lambda a, b: a * b + a  # noqa: E731
    norm = lambda x, w, b: torch.nn.functional.layer_norm(x, x.shape[-1:], w, b)  # noqa: E731
    soft = lambda x: torch.softmax(x, -1)  # noqa: E731
    found = [
        Job("mul_add f32", flat(BIG), ((BIG,), (BIG,), (BIG,)), mul_add),
        Job("mul_add bf16", halves(flat(BIG), "bfloat16"), ((BIG,), (BIG,), (BIG,)), mul_add, bf16),
        Job("mul_add odd bf16", halves(flat(BIG + 1), "bfloat16"), ((BIG + 1,),) * 3, mul_add, bf16),
        Job("mul_add dynamic f32", dynamic_flat(BIG), ((BIG,),) * 3, mul_add, sizes=(("ks0", BIG),)),
        Job("x.t()+y", add_transposed(8192, 8192).kernel, ((8192, 8192),) * 3, lambda a, b: a.t() + b),
        Job("column sum", outer_sum(16384, 4096).kernel, ((16384, 4096), (4096,)), lambda a: a.sum(0)),
    ]  # fmt: skip
    for rows, cols in ((32768, 1024), (16384, 4096), (4096, 16384)):
        soft_kernel = only_last(softmax(rows, cols).kernel)
        norm_kernel = only_last(layer_norm(rows, cols).kernel)
        norm_kernel = replace(norm_kernel, form="per" if cols <= 1024 else "red")
        shapes = ((rows, cols), (cols,), (cols,), (rows, cols))
        size = f"{rows}x{cols}"
        found += [
            Job(f"softmax {size} f32", soft_kernel, ((rows, cols),) * 2, soft),
            Job(
                f"softmax {size} bf16",
                halves(soft_kernel, "bfloat16"),
                ((rows, cols),) * 2,
                soft,
                bf16,
            ),
            Job(f"layer_norm {size} bf16", halves(norm_kernel, "bfloat16"), shapes, norm, bf16),
            Job(
                f"sum x*x {size}",
                row_sum(rows, cols),
                ((rows, cols), (rows,)),
                lambda a: (a * a).sum(1),
            ),
        ]
    return found


def measure(job: Job) -> dict[str, object]:
    source = emit(job.kernel, target())
    tensors = [torch.randn(s, device="cuda", dtype=torch.float32).to(job.dtype) for s in job.shapes]
    moved = sum(t.numel() * t.element_size() for t in tensors)
    pointers = [t.data_ptr() for t in tensors]
    inputs = tensors[: sum(p.kind == "in" for p in source.params)]
    found: dict[str, float] = {}
    for config in source.space:
        kernel = built(source, config)
        grid, values = prepared(source, dict(job.sizes), config)
        work = lambda k=kernel, g=grid, v=values: k.launch(g, pointers, v, current_stream(0))  # noqa: E731
        found[" ".join(f"{n}={v}" for n, v in config.values)] = microseconds(work)
    default = next(iter(found.values()))
    best = min(found, key=lambda n: found[n])
    compiled = torch.compile(job.eager, dynamic=bool(job.sizes))
    others = {
        "eager": microseconds(lambda: job.eager(*inputs)),
        "inductor": microseconds(lambda: compiled(*inputs)),
    }
    rates = {"default": default, "best": found[best], **others}
    return {
        "job": job.name,
        **{f"{n}_gbs": round(moved / t / 1e3) for n, t in rates.items()},
        "best": best,
        "us": {n: round(t, 1) for n, t in found.items()},
    }


if __name__ == "__main__":
    for one in jobs():
        print(json.dumps(measure(one)), flush=True)
