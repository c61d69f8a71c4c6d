"""Claims 7.x once more, end to end: real binaries for sm_90, results, and other calls than the compiled one.

Only the device is played: its memory is the CPU's. The text of the host function is read in test_host.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import stax
from stax.api.making import Maker
from stax.api.session import Session
from stax.artifact.artifact import Artifact
from stax.base.options import Options
from stax.build.local import LocalBuilder
from stax.store import MemoryStore
from tests.claims.examples import HOPPER, Fn, sum_of_squares
from tests.cuda_host import Machine, floats

X = (64, 16384)
POINTWISE = 4


class Sums(Machine):
    """Computes what the two kernels of Example 6.2 compute."""

    def run(self, handle: int, args: tuple[int, ...]) -> None:
        source, out, rows, length = args[:4]
        x = floats(source, rows * length).reshape(rows, length)
        floats(out, rows)[:] = (x * x if len(self.launches) == 1 else x).sum(1)


class Idle(Machine):
    """Computes nothing."""

    def run(self, handle: int, args: tuple[int, ...]) -> None:
        pass


@pytest.fixture(scope="module")
def builder() -> Iterator[LocalBuilder]:
    builder = LocalBuilder(2)
    yield builder
    builder.close()


def compiled(
    fn: Fn, x: torch.Tensor, builder: LocalBuilder, options: Options | None = None
) -> Artifact:
    session = Session(store=MemoryStore(), builder=builder)
    maker = Maker(session, session.records, session.degrade)
    made = maker.make(fn, (x,), {}, dynamic=False, options=options or Options(), target=HOPPER)
    return made.artifact


@pytest.fixture(scope="module")
def example(builder: LocalBuilder) -> Artifact:
    return compiled(sum_of_squares, torch.empty(X), builder)


def test_claim_7_2_inputs_are_checked_for_size_and_stride() -> None:
    """The claim: call() asserts sizes (64, 16384) and strides (16384, 1) of its input and clears the list of arguments.
    Stax checks them before, as guards: a call they do not hold for has an artifact of its own instead of an error. The
    arguments stay the caller's."""
    run = stax.compile(sum_of_squares, fullgraph=True)
    x = torch.randn(X)
    torch.testing.assert_close(run(x), sum_of_squares(x))
    assert run.explain(x) == ()
    (size,) = run.explain(torch.randn(64, 8192))
    (stride,) = run.explain(torch.randn(16384, 64).t())
    assert "16384" in size and "8192" in size
    assert "stride(0) is 1, expected 16384" in stride
    y = torch.randn(16384, 64).t()
    torch.testing.assert_close(run(y), sum_of_squares(y))
    assert run.stats().captures == 2


def test_claim_7_3_one_stream_and_launches_in_order(example: Artifact) -> None:
    """The claim: inside the context of device 0, buf1 (64, 2) and buf2 (64,) from empty_strided_cuda, then run(…, 128, 8192)
    and run(…, 64, 2) on one raw stream. Stax: the same launches on one stream; buf1 is 512 bytes of the call's only
    piece of temporary memory; the device is exchanged only where the machine has several."""
    machine = Sums(example)
    forward, text = machine.forward()
    x = torch.randn(X)
    (out,) = forward((x,), ())
    torch.testing.assert_close(out, sum_of_squares(x), rtol=1e-4, atol=1e-2)
    first, second = (one[5] for one in machine.launches)
    assert (first[0], first[2:4]) == (x.data_ptr(), (128, 8192))
    assert (second[1], second[2:4]) == (out.data_ptr(), (64, 2))
    assert first[1] == second[0]
    assert {one[6] for one in machine.launches} == {0xABC} and text.count("raw_stream(") == 1
    sizes = sorted(t.numel() * t.itemsize for t in machine.allocated)
    assert sizes == [64 * 4, 512]
    assert machine.exchanges == []
    several = Sums(example, devices=2)
    several.forward()[0]((x,), ())
    assert several.exchanges[0] == x.get_device() and len(several.exchanges) == 2


def test_claim_7_5_no_synchronisation_and_memory_used_again(builder: LocalBuilder) -> None:
    """Order alone makes the next kernel see the last one's results; the grid follows from the configuration when it is
    launched; temps whose time is over lend their memory, so that a chain of any length holds two of them at most."""

    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(POINTWISE):
            x = torch.sin(x) + 1
        return x

    x = torch.randn(1000, 1000)
    artifact = compiled(chain, x, builder, Options(fusion=False))
    machine = Idle(artifact)
    forward, text = machine.forward()
    (out,) = forward((x,), ())
    assert len(machine.launches) == 2 * POINTWISE
    assert not any(word in text for word in ("synchronize", "wait", "event"))
    for handle, grid, *_ in machine.launches:
        block = dict(artifact.binaries[handle].config.values)["XBLOCK"]
        assert grid == (-(-x.numel() // block), 1, 1)
    assert sum(t.numel() * t.itemsize for t in machine.allocated) <= 3 * x.numel() * x.itemsize
    assert out.shape == x.shape
