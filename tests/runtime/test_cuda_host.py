"""The host function of a CUDA artifact: what it launches, allocates and asks, on a machine that only writes it down."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from stax.artifact.artifact import (
    Alloc,
    Arena,
    Artifact,
    Binary,
    Call,
    Change,
    Free,
    Launch,
    Return,
)
from stax.artifact.guards import Binding
from stax.artifact.signature import Input, Tree
from stax.base.errors import LaunchError, LoadError
from stax.ir.expr import ceildiv, const, sym
from stax.ir.program import Symbol, TensorRef
from stax.runtime import launcher
from stax.runtime.launcher import Handles, by_driver, torch_launcher, types_of
from tests.artifacts import LEAF, S0, artifact, shape, shared, tensor, whole
from tests.cuda_host import Machine, cuda_binary, on_cuda

ADD, DOUBLE = cuda_binary("add", "iio"), cuda_binary("double", "io")


def chain(n: Any, *binaries: Binary) -> Artifact:
    """(x, y) of ``n`` elements → 2 * (x + y)."""
    sizes = shape(n)
    base = artifact(
        tuple(tensor(i, Input("arg", i), sizes) for i in range(2)),
        (
            Alloc("t0", "float32", sizes, shape(1)),
            Launch(0, ("in0", "in1", "t0"), sizes),
            Alloc("t1", "float32", sizes, shape(1)),
            Launch(1, ("t0", "t1"), sizes),
            Free(("t0",)),
            Return((whole("t1", sizes),)),
        ),
        args=2,
        symbols=(Symbol("s0", 5),) if n is S0 else (),
        bindings=(Binding("s0", 0, 0),) if n is S0 else (),
    )
    return on_cuda(base, *(binaries or (ADD, DOUBLE)))


def test_what_is_known_is_a_number() -> None:
    machine = Machine(chain(10))
    forward, text = machine.forward()
    x, y = torch.randn(10), torch.randn(10)
    (out,) = forward((x, y), ())
    torch.testing.assert_close(out, 2 * (x + y))
    first, second = machine.launches
    assert first[:5] == (0, (3, 1, 1), 4, 0, "OOOiOO") and first[6] == 0xABC
    assert first[5][:2] == (x.data_ptr(), y.data_ptr()) and first[5][3:] == (10, 0, 0)
    assert second[5][:2] == (first[5][2], out.data_ptr())
    assert "launch(h0, 3, 1, 1, 4, 0, 'OOOiOO'" in text
    assert text.count(".data_ptr()") == 6  # a tensor each, and two of copies that are not made


def test_sizes_of_the_call_are_worked_out_once() -> None:
    machine = Machine(chain(S0, ADD, DOUBLE))
    forward, text = machine.forward()
    for n in (1, 5, 9):
        x, y = torch.randn(n), torch.randn(n)
        torch.testing.assert_close(forward((x, y), (n,))[0], 2 * (x + y))
    assert [one[1][0] for one in machine.launches] == [1, 1, 2, 2, 3, 3]
    assert not re.search(r"\bz\d", text)  # a symbol needs no variable of its own
    base = chain(S0)
    twice = tuple(replace(s, sizes=(S0 * 2,)) if isinstance(s, Launch) else s for s in base.forward)
    assert Machine(replace(base, forward=twice)).forward()[1].count("2*s0") == 1


@pytest.mark.parametrize("n", [0, S0])
def test_an_empty_grid_runs_nothing(n: Any) -> None:
    machine = Machine(chain(n))
    forward, text = machine.forward()
    (out,) = forward((torch.empty(0), torch.empty(0)), (0,) if n is S0 else ())
    assert out.shape == (0,)
    # torch's launcher takes an empty grid as nothing to do.
    assert all(one[1][0] == 0 for one in machine.launches) and ("launch" in text) is (n is S0)


def test_kernels_alone_leave_grad_mode_and_the_only_device_as_they_are() -> None:
    _, text = Machine(chain(8)).forward()
    assert "grad" not in text and "exchange" not in text and "finally" not in text
    machine = Machine(chain(8), devices=2)
    forward, text = machine.forward()
    forward((torch.randn(8), torch.randn(8)), ())
    assert machine.exchanges == [-1, 0] and "finally" in text


def test_operators_run_without_grad_mode() -> None:
    base = chain(8)
    call = Call(("t2",), "aten.neg.default", (whole("t1", shape(8)),), ())
    steps = (*base.forward[:-1], call, Return((TensorRef("t2", shape(8), shape(1), const(0)),)))
    forward, text = Machine(replace(base, forward=steps)).forward()
    assert "set_grad(False)" in text
    x = torch.randn(8, requires_grad=True)
    (out,) = forward((x, x), ())
    assert not out.requires_grad and torch.is_grad_enabled()
    torch.testing.assert_close(out, -4 * x.detach())


def test_a_misaligned_input_is_copied_once_and_let_go() -> None:
    base = chain(8)
    steps = (*base.forward[:2], Free(("in0", "in1")), *base.forward[2:])
    machine = Machine(replace(base, forward=steps))
    forward, text = machine.forward()
    x, y = torch.randn(9)[1:], torch.randn(8)
    torch.testing.assert_close(forward((x, y), ())[0], 2 * (x + y))
    assert machine.launches[0][5][0] % 16 == 0 and machine.launches[0][5][1] == y.data_ptr()
    assert re.search(r"del x0, x1, y\d+, y\d+\n", text)
    odd = replace(base, binaries=(cuda_binary("add", "iio", divisible=False), DOUBLE))
    machine = Machine(odd)
    machine.forward()[0]((x, y), ())
    assert machine.launches[0][5][0] == x.data_ptr()


def test_what_a_kernel_writes_into_a_misaligned_tensor_is_seen_later() -> None:
    base = chain(8)
    shifted = Call(("t0",), "aten.slice.Tensor", (whole("in0", shape(9)), const(0), const(1)), ())
    steps = (
        shifted,
        Launch(1, ("in1", "t0"), shape(8)),
        Return((TensorRef("t0", shape(8), shape(1), const(0)),)),
    )
    forward, _ = Machine(replace(base, forward=steps)).forward()
    y = torch.randn(8)
    torch.testing.assert_close(forward((torch.zeros(9), y), ())[0], 2 * y)


def test_what_a_kernel_changes_in_a_misaligned_input_goes_back_to_it() -> None:
    base = chain(8)
    steps = (
        Change("in0"),
        Launch(1, ("in1", "in0"), shape(8)),
        Alloc("t1", "float32", shape(8), shape(1)),
        Launch(1, ("in0", "t1"), shape(8)),
        Return((whole("in0", shape(8)), whole("t1", shape(8)))),
    )
    artifact = replace(
        base, forward=steps, signature=replace(base.signature, out=Tree("tuple", (LEAF, LEAF)))
    )
    forward, _ = Machine(artifact).forward()
    y = torch.randn(8)
    for x in (torch.zeros(8), torch.zeros(9)[1:]):
        before = x._version
        same, doubled = forward((x, y), ())
        assert same is x and x._version > before
        torch.testing.assert_close(x, 2 * y)
        torch.testing.assert_close(doubled, 4 * y)


def test_more_blocks_than_the_compiled_launcher_counts_go_to_the_driver() -> None:
    wide = replace(DOUBLE, grid=(sym("xnumel"), const(1 << 16), const(1 << 14)))
    machine = Machine(chain(S0, ADD, wide))
    machine.run = lambda handle, args: None  # type: ignore[method-assign]
    forward, _ = machine.forward()
    for n in (1, 2):
        forward((torch.zeros(n), torch.zeros(n)), (n,))
    assert [one[0] for one in machine.launches] == [0, 1, 0]
    assert [one[:2] for one in machine.queued] == [(1, (2, 1 << 16, 1 << 14))]
    fixed = Machine(chain(2, ADD, wide))
    fixed.forward()[0]((torch.zeros(2), torch.zeros(2)), ())
    assert len(fixed.queued) == 1 and len(fixed.launches) == 1


def test_a_launch_that_fails_names_the_kernel() -> None:
    machine = Machine(chain(8), fault=RuntimeError("CUDA driver error: invalid argument\nmore"))
    with pytest.raises(LaunchError, match="invalid argument") as caught:
        machine.forward()[0]((torch.zeros(8), torch.zeros(8)), ())
    assert caught.value.where == "add, grid (2, 1, 1)" and "more" not in str(caught.value)


@pytest.mark.parametrize("abi", ["QQiQQ", "QQQQQQ", "iQQQQQ", "QQQiiQQ"])
def test_a_cubin_with_other_parameters_is_refused(abi: str) -> None:
    meta = tuple(sorted({**dict(ADD.meta), "abi": abi}.items()))
    with pytest.raises(LoadError, match="other parameters"):
        Machine(chain(8, replace(ADD, meta=meta), DOUBLE)).forward()


def test_a_grid_that_divides_by_0_is_refused() -> None:
    bad = replace(ADD, grid=(ceildiv(sym("xnumel"), sym("XBLOCK") - 4),))
    with pytest.raises(LoadError, match="divides by 0"):
        Machine(chain(8, bad, DOUBLE)).forward()


# -- shared memory


def test_temps_of_kernels_are_addresses_in_one_allocation() -> None:
    base = shared()
    assert isinstance(base.forward[0], Arena)
    plus_one = cuda_binary("plus_one", "io")
    steps = tuple(
        replace(s, sizes=s.sizes[:1]) if isinstance(s, Launch) else s for s in base.forward
    )
    machine = Machine(replace(on_cuda(base, plus_one), forward=steps))
    forward, text = machine.forward()
    x, y = torch.randn(300), torch.randn(6)
    r0, r1 = forward((x, y), (300,))
    torch.testing.assert_close(r0, x + 3)
    torch.testing.assert_close(r1, y + 6)
    arena, first, second = (t.data_ptr() for t in machine.allocated)
    assert machine.allocated[0].numel() == 1024 + 1536  # 300 floats, to whole 512 bytes
    assert (first, second) == (r0.data_ptr(), r1.data_ptr())
    written = [args[1] for _, _, _, _, _, args, _ in machine.launches]
    expected = [first, arena + 1024, arena + 512, arena, arena + 512, second, arena, first, second]
    assert written == expected
    assert text.count("empty(") == 3 and text.count("aligned") == 2
    assert re.search(r" del t\d+\n return", text)  # what lies in the arena goes with it


def test_a_temp_of_less_than_nothing_is_refused() -> None:
    less = Arena("arena", (S0 - 8, const(512)))
    base = chain(S0)
    forward, _ = Machine(replace(base, forward=(less, *base.forward))).forward()
    x = torch.zeros(8)
    forward((x, x), (8,))
    with pytest.raises(RuntimeError, match="less than 0 bytes"):
        forward((x[:7], x[:7]), (7,))


# -- which launcher


class _Torch:
    """A torch._C with a compiled launcher that takes ``count`` arguments."""

    def __init__(self, count: int) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._StaticCudaLauncher = self
        self._count = count

    def _launch_kernel(self, *args: Any) -> None:
        if len(args) != self._count:
            raise TypeError("function takes exactly 9 arguments")
        self.calls.append(args)


@pytest.mark.parametrize("count", [9, 10])
def test_torchs_launcher_is_taken_where_it_is_called_like_this(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    fake = _Torch(count)
    monkeypatch.setattr(launcher.torch, "_C", fake)
    found = torch_launcher.__wrapped__()
    assert (found is not None) is (count == 9)
    assert [args[1] for args in fake.calls] == [0] * (count == 9)  # the trial queues nothing


def test_a_torch_without_one_leaves_it_to_the_driver() -> None:
    if not torch.cuda.is_available():
        assert torch_launcher() is None
    seen: list[Any] = []

    class Kernel:
        def queue(self, *args: Any) -> None:
            seen.append(args)

    by_driver(Kernel(), 1, 2, 3, 4, 0, "Oi", (7, 8), 9)
    assert seen == [(1, 2, 3, (7, 8), 9)]
    assert types_of("QiqQ") == "OilO"


def test_kernels_of_a_device_load_when_it_first_runs() -> None:
    asked: list[int] = []
    handles = Handles(lambda d: asked.append(d) or (f"k{d}",), lambda kernel: kernel.upper())
    assert (handles[1], handles[1], handles[0]) == (("K1",), ("K1",), ("K0",)) and asked == [1, 0]
