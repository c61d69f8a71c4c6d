"""Claims 7.x: the host function of a CUDA artifact (spec 9.7, Listing 9.6), read off the text that runs it and off what it
asks of a machine that only writes down."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from stax.artifact.artifact import Alloc, Arena, Artifact, Call, Free, Launch, Place, Step
from stax.artifact.codec import decode, encode
from stax.artifact.guards import TensorGuard
from stax.base.observe import ignore
from stax.base.options import Options
from stax.base.target import Toolchain
from stax.build.job import BuildResult, Built, Job
from stax.capture.decompose import decompositions
from stax.capture.trace import trace
from stax.ir.program import TensorRef
from stax.pipeline.stages import Product, Workshop, compile_captured
from stax.runtime.check import compile_guards
from stax.runtime.guards import Bound, holds
from stax.store.memory import MemoryStore
from stax.store.records import Records
from tests.claims.examples import HOPPER, random, sum_of_squares
from tests.cuda_host import Machine

CODES = {"int32": "i", "int64": "q"}


class Writing:
    """A builder that compiles nothing and writes down what it was asked for at once."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def build(self, jobs: Sequence[Job]) -> Iterator[BuildResult]:
        self.asked.append([job.entry for job in jobs])
        for job in jobs:
            yield Built(job.key.digest, job.entry.encode(), _facts(job), 0.0)

    def close(self) -> None:
        pass


def _facts(job: Job) -> tuple[tuple[str, int | str], ...]:
    given = [p for p in job.params if p.kind != "block"]
    abi = "".join(CODES[p.dtype] if p.kind == "size" else "Q" for p in given)
    warps = job.config["num_warps"]
    facts = {"symbol": job.entry, "num_warps": warps, "shared_bytes": 0, "abi": abi + "QQ", "scratch_params": 2}  # fmt: skip
    return tuple(sorted(facts.items()))


def compiled(
    fn: Callable[..., Any], args: Sequence[torch.Tensor], builder: Writing, dynamic: bool = False
) -> Product:
    def fail(error: Exception) -> None:
        raise error

    captured = trace(
        fn, tuple(args), {}, dynamic=dynamic, target=HOPPER, decompositions=decompositions()
    )
    shop = Workshop(Records(MemoryStore(), "test"), builder, Toolchain(), ignore, fail)
    return compile_captured(captured, HOPPER, Options(), shop, "claims")


def artifact_of(
    fn: Callable[..., Any], args: Sequence[torch.Tensor], dynamic: bool = False
) -> Artifact:
    return decode(encode(compiled(fn, args, Writing(), dynamic).artifact))


def launched(artifact: Artifact, *args: torch.Tensor) -> tuple[Machine, str, Any]:
    """One call; the kernels do nothing."""
    machine = Machine(artifact)
    machine.run = lambda handle, args: None  # type: ignore[method-assign]
    forward, text = machine.forward()
    symbols = tuple(args[b.input].shape[b.dim] for b in artifact.guards.bindings)
    return machine, text, forward(args, symbols)


def steps(artifact: Artifact, *kinds: type[Step]) -> list[Any]:
    return [step for step in artifact.forward if isinstance(step, kinds)]


def softmaxes(x: torch.Tensor) -> torch.Tensor:
    """Three launches, each along the other dimension."""
    return torch.softmax(torch.softmax(torch.softmax(x, 0), 1), 0)


def test_claim_7_1_kernels_are_built_together_before_the_first_call() -> None:
    """The claim: every kernel is handed to the compile pool, then one wait. Stax: the builder gets all of them in one
    request, whose results are part of the artifact; when a host function exists, nothing is left to compile."""
    builder = Writing()
    product = compiled(softmaxes, random((64, 96)), builder)
    (asked,) = builder.asked
    assert len(steps(product.artifact, Launch)) == 3
    assert len(asked) == len(product.artifact.binaries) == 2  # the first and the last are the same
    assert {b.digest for b in product.artifact.binaries} <= product.blobs.keys()


def test_claim_7_2_inputs_are_checked_for_size_and_stride() -> None:
    """The claim: assert_size_stride(x, (64, 16384), (16384, 1), 'input'). Stax: a guard that is data, whose failure is a
    reason in the user's terms and another artifact, not an assertion."""
    artifact = artifact_of(sum_of_squares, random((64, 16384)))
    (guard,) = [g for g in artifact.guards.guards if isinstance(g, TensorGuard)]
    assert tuple(e.value for e in guard.shape) == (64, 16384)
    assert tuple(e.value for e in guard.strides if e is not None) == (16384, 1)
    wrong = torch.empty(16384, 64, device="meta").t()
    reason = holds(artifact.guards, Bound((), (wrong,), tensor_names=("input",)))
    assert reason is not None and "input" in str(reason)
    assert compile_guards(artifact.guards)((), (wrong,)) is None


def test_claim_7_3_one_device_one_stream_buffers_and_launches_in_order() -> None:
    """The claim: inside the context of device 0, buf1 of (64, 2) and buf2 of (64,) by empty_strided, one raw stream, then
    the looped kernel over 128 × 8192 and the persistent one over 64 × 2. Stax: the same, but that a host with one device
    has no context to enter."""
    artifact = artifact_of(sum_of_squares, random((64, 16384)))
    x = torch.empty(64, 16384)
    machine, text, (out,) = launched(artifact, x)
    assert out.shape == (64,) and text.count("raw_stream(") == 1
    assert [one[0] for one in machine.launches] == [0, 1]
    assert len({one[6] for one in machine.launches}) == 1
    (first, second), between = machine.launches, machine.launches[0][5][1]
    assert first[5][0] == x.data_ptr() and second[5][:2] == (between, out.data_ptr())
    assert (first[5][2:4], second[5][2:4]) == ((128, 8192), (64, 2))
    sizes = [s.shape for s in steps(artifact, Alloc, Place)]
    assert sorted(product(e.value for e in shape) for shape in sizes) == [64, 128]
    several = Machine(artifact, devices=2)
    several.run = lambda handle, args: None  # type: ignore[method-assign]
    several.forward()[0]((x,), ())
    assert several.exchanges == [x.get_device(), 0]


def product(sizes: Iterator[int]) -> int:
    out = 1
    for size in sizes:
        out *= size
    return out


def test_claim_7_4_everything_goes_right_after_its_last_use() -> None:
    """The claim: ``del`` of the input after kernel 0 and of buf1 after kernel 1. Stax: what has memory of its own is freed
    so; what only kernels touch lies in one piece of memory, where its place is free for others from then on, and the
    piece goes after the last use of anything in it. An input belongs to the caller, who holds it until the call returns:
    nothing is gained by dropping it."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = torch.softmax(torch.softmax(x, 0), 1) @ w
        return torch.softmax(torch.softmax(h, 1), 0)

    artifact = artifact_of(fn, random((64, 64), (64, 64)))
    last: dict[str, int] = {}
    freed: dict[str, int] = {}
    for k, step in enumerate(artifact.forward):
        if isinstance(step, Free):
            freed |= dict.fromkeys(step.names, k)
        elif isinstance(step, Launch):
            last |= dict.fromkeys(step.tensors, k)
        elif isinstance(step, Call):
            last |= {ref.buffer: k for ref in step.args if isinstance(ref, TensorRef)}
    temps = freed.keys() - {s.name for s in steps(artifact, Arena)}
    assert len(temps) >= 3 and all(freed[name] == last[name] + 1 for name in temps)
    for arena in steps(artifact, Arena):
        inside = [s.name for s in steps(artifact, Place) if s.home == arena.name]
        assert freed[arena.name] == max(freed[name] for name in inside)


def test_claim_7_4_one_allocation_holds_all_that_only_kernels_touch() -> None:
    """Where the claim has an allocation a buffer, Stax has one beside the results, however many kernels there are."""

    def many(x: torch.Tensor) -> torch.Tensor:
        for k in range(12):
            x = torch.softmax(x, k % 2)
        return x

    artifact = artifact_of(many, random((64, 64)))
    machine, _, (out,) = launched(artifact, torch.empty(64, 64))
    assert len(machine.launches) == 12 and len(steps(artifact, Place)) == 11
    assert (
        len(machine.allocated) == 2 and sum(t.nbytes for t in machine.allocated) == 2 * out.nbytes
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_claim_7_5_no_synchronisation_and_a_grid_from_the_chosen_config(dynamic: bool) -> None:
    """The claim: dependent kernels follow each other in the stream without a wait, and the grid is computed when they are
    launched. Stax: where sizes are known it is a number in the text already. That freed memory serves again at once is
    the property of plans that tests/schedule/test_arena.py holds, with the peak."""
    artifact = artifact_of(softmaxes, random((64, 96)), dynamic)
    x = torch.empty(64, 96)
    machine, text, _ = launched(artifact, x)
    assert "sync" not in text and "wait" not in text
    for (handle, grid, warps, *_), step in zip(
        machine.launches, steps(artifact, Launch), strict=True
    ):
        binary = artifact.binaries[step.binary]
        assert handle == step.binary
        sizes = [p.name for p in binary.params if p.kind == "size"]
        env = dict(zip((s.name for s in artifact.symbols), x.shape))
        known = {**dict(zip(sizes, (e.evaluate(env) for e in step.sizes))), **dict(binary.config.values)}  # fmt: skip
        expected = [e.evaluate(known) for e in binary.grid]
        assert grid == (*expected, 1, 1)[:3] and warps == binary.config["num_warps"]
    numbers = re.findall(r"launch\(h\d+, (\d+), (\d+), (\d+), ", text)
    assert len(numbers) == (0 if dynamic else 3)
