"""A CUDA artifact by hand: a cubin, an operator, views, constants, dynamic sizes, streams, misaligned memory."""

from __future__ import annotations

import timeit
from dataclasses import replace

import pytest
import torch

from stax.artifact.artifact import (
    Alloc,
    Artifact,
    Binary,
    Call,
    Constant,
    Constraints,
    Free,
    Launch,
    Layout,
    Return,
)
from stax.artifact.codec import decode, encode
from stax.artifact.guards import Binding, GuardSet, TensorGuard
from stax.artifact.signature import Input
from stax.base.digest import sha256
from stax.base.target import Target, Toolchain
from stax.build.job import Job
from stax.ir.expr import ceildiv, const, sym
from stax.ir.program import Symbol, TensorRef, contiguous
from stax.ir.source import Config, Param
from stax.runtime.dispatch import Dispatcher, Hit
from stax.runtime.guards import Bound
from stax.runtime.load import Executable, load
from tests.artifacts import S0, artifact, shape, tensor, whole

pytestmark = pytest.mark.gpu

TEXT = """
import triton
import triton.language as tl


@triton.jit
def add_scaled(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    mask = x < xnumel
    a = tl.load(in_ptr0 + x, mask)
    b = tl.load(in_ptr1 + x % 4, mask)
    tl.store(out_ptr0 + x, a + 2.0 * b, mask)
"""
PARAMS = (
    Param("in", "in_ptr0", "float32", True),
    Param("in", "in_ptr1", "float32", True),
    Param("out", "out_ptr0", "float32", True),
    Param("size", "xnumel", "int32"),
    Param("block", "XBLOCK"),
)
CONFIG = Config.of(XBLOCK=256, num_warps=4, num_stages=1)


def cubin() -> tuple[Binary, bytes]:
    from stax.build.triton import compile_triton

    major, minor = torch.cuda.get_device_capability()
    target = Target("cuda", f"sm_{major}{minor}")
    job = Job("triton", "add_scaled", TEXT, PARAMS, CONFIG, target, Toolchain())
    data, meta = compile_triton(job)
    grid = (ceildiv(sym("xnumel"), sym("XBLOCK")),)
    facts = tuple(sorted(meta.items()))
    return Binary(
        "triton_add_0",
        "triton",
        "add_scaled",
        job.key.digest,
        sha256(data),
        PARAMS,
        grid,
        CONFIG,
        facts,
    ), data


@pytest.fixture(scope="module")
def made() -> tuple[Artifact, dict[str, bytes], torch.Tensor]:
    """(x: [s0, 8], w: [8, 4]) → (x @ w + 2 * table, its first column), with a constant table of 4."""
    binary, data = cubin()
    table = torch.randn(4)
    raw = table.numpy().tobytes()
    out = shape(S0, 4)
    base = artifact(
        (
            tensor(0, Input("arg", 0), shape(S0, 8)),
            tensor(1, Input("arg", 1), shape(8, 4)),
            tensor(2, Input("constant", name="table"), shape(4)),
        ),
        (
            Call(
                ("t0",),
                "aten.mm.default",
                (whole("in0", shape(S0, 8)), whole("in1", shape(8, 4))),
                (),
                (Layout(out, contiguous(out)),),
            ),
            Alloc("t1", "float32", out, contiguous(out)),
            Launch(0, ("t0", "in2", "t1"), (S0 * 4,)),
            Free(("t0",)),
            Return((whole("t1", out), TensorRef("t1", shape(S0), shape(4), const(0)))),
        ),
        args=2,
        symbols=(Symbol("s0", 3),),
        bindings=(Binding("s0", 0, 0),),
        constants=(Constant("table", "float32", (4,), sha256(raw)),),
    )
    return (
        replace(on_cuda(base), binaries=(binary,)),
        {sha256(data): data, sha256(raw): raw},
        table.cuda(),
    )


def on_cuda(base: Artifact) -> Artifact:
    guards = tuple(
        replace(g, device="cuda") if isinstance(g, TensorGuard) else g for g in base.guards.guards
    )
    major, minor = torch.cuda.get_device_capability()
    return replace(
        base,
        target=Target("cuda", f"sm_{major}{minor}"),
        constraints=Constraints(cuda_arch=f"sm_{major}{minor}"),
        guards=GuardSet(base.guards.bindings, guards),
    )


@pytest.fixture(scope="module")
def executable(made: tuple[Artifact, dict[str, bytes], torch.Tensor]) -> Executable:
    return load(decode(encode(made[0])), made[1])


def expected(x: torch.Tensor, w: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return x @ w + 2 * table


def test_sizes_and_streams(
    made: tuple[Artifact, dict[str, bytes], torch.Tensor], executable: Executable
) -> None:
    table, held = made[2], executable.constants["table"]
    w = torch.randn(8, 4, device="cuda")
    for n in (2, 3, 1000):
        x = torch.randn(n, 8, device="cuda")
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                y, column = executable.run((x, w, held))
            torch.cuda.current_stream().wait_stream(stream)
            torch.testing.assert_close(y, expected(x, w, table))
            assert torch.equal(column, y[:, 0])


def test_a_misaligned_tensor_is_copied(
    made: tuple[Artifact, dict[str, bytes], torch.Tensor],
) -> None:
    steps = (
        Alloc("t1", "float32", shape(S0, 4), shape(4, 1)),
        Launch(0, ("in0", "in2", "t1"), (S0 * 4,)),
        Return((whole("t1", shape(S0, 4)), TensorRef("in0", shape(S0), shape(4), const(1)))),
    )
    base = made[0]
    guards = (
        replace(base.guards.guards[0], shape=shape(S0, 4), strides=shape(4, 1), offset=const(1)),
        *base.guards.guards[1:],
    )
    odd = load(replace(base, forward=steps, guards=GuardSet(base.guards.bindings, guards)), made[1])
    x = torch.randn(5 * 4 + 1, device="cuda")[1:].view(5, 4)
    w = torch.randn(8, 4, device="cuda")
    inputs = (x, w, odd.constants["table"])
    assert odd.guards_hold(Bound((x, w), inputs)) is None
    y, column = odd.run(inputs)
    torch.testing.assert_close(y, x + 2 * made[2])
    assert column.data_ptr() == x.data_ptr()


def test_dispatch_and_cost(
    made: tuple[Artifact, dict[str, bytes], torch.Tensor], executable: Executable
) -> None:
    x, w = torch.randn(64, 8, device="cuda"), torch.randn(8, 4, device="cuda")
    dispatcher = Dispatcher()
    dispatcher.add(executable, (x, w), {})
    found = dispatcher.lookup((x, w), {})
    assert isinstance(found, Hit)
    torch.testing.assert_close(
        found.entry.call(found.inputs, found.symbols)[0], expected(x, w, made[2])
    )
    assert not isinstance(dispatcher.lookup((x.cpu(), w), {}), Hit)
    if torch.cuda.device_count() > 1:
        assert not isinstance(dispatcher.lookup((x.to("cuda:1"), w), {}), Hit)
    kwargs: dict[str, object] = {}
    lookup = (
        min(timeit.repeat(lambda: dispatcher.lookup((x, w), kwargs), number=1000, repeat=5)) / 1000
    )
    run = (
        min(
            timeit.repeat(
                lambda: executable.run(found.inputs, found.symbols), number=1000, repeat=5
            )
        )
        / 1000
    )
    eager = min(timeit.repeat(lambda: expected(x, w, made[2]), number=1000, repeat=5)) / 1000
    print(
        f"dispatch {lookup * 1e6:.2f} us, run (mm, one launch, one view) {run * 1e6:.2f} us, eager {eager * 1e6:.2f} us"
    )


def test_another_device_of_the_host(
    made: tuple[Artifact, dict[str, bytes], torch.Tensor], executable: Executable
) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    x, w = torch.randn(5, 8, device="cuda:1"), torch.randn(8, 4, device="cuda:1")
    y = executable.run((x, w, executable.constants["table"]))[0]
    assert y.get_device() == 1 and torch.cuda.current_device() == 0
    torch.testing.assert_close(y, expected(x, w, made[2].to("cuda:1")))
