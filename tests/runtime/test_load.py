"""Hand-made artifacts against torch: every kind of step, dynamic sizes, constants, threads, what must be refused."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from stax.artifact.artifact import Artifact, Call, Constraints, Return
from stax.artifact.codec import decode, encode
from stax.artifact.signature import Tree
from stax.base.errors import Corrupt, Incompatible, LoadError, Missing
from stax.ir.expr import const
from stax.ir.program import Literal, TensorRef
from stax.runtime.load import Executable, load
from tests import artifacts
from tests.artifacts import (
    S0,
    blobs,
    changed,
    counter,
    linear_relu,
    shape,
    shared,
    strided,
    take,
    whole,
)


def loaded(artifact: Artifact, *constants: bytes) -> Executable:
    return load(decode(encode(artifact)), blobs(artifact, constants))


def test_kernels_calls_views_and_symbols() -> None:
    run = loaded(linear_relu()).run
    weight, bias = torch.randn(4, 8), torch.randn(4)
    for n in (2, 5, 64):
        x = torch.randn(n, 8)
        y, sums, same, column, size, word = run((x, weight, bias))
        expected = torch.relu(x @ weight.T + bias)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(sums, expected.sum(1))
        assert same is x
        assert column.data_ptr() == y.data_ptr()
        torch.testing.assert_close(column, expected[:, 0])
        assert (size, word) == (n, "done")


def test_two_sizes_keep_their_results_apart() -> None:
    run = loaded(linear_relu()).run
    weight, bias = torch.randn(4, 8), torch.randn(4)
    a, b = torch.randn(3, 8), torch.randn(7, 8)
    first = run((a, weight, bias))[0]
    second = run((b, weight, bias))[0]
    torch.testing.assert_close(first, torch.relu(a @ weight.T + bias))
    torch.testing.assert_close(second, torch.relu(b @ weight.T + bias))


def test_mutation_is_seen_by_the_caller() -> None:
    run = loaded(counter()).run
    x = torch.arange(6.0)
    version = x._version
    (y,) = run((x,))
    assert y is x and x._version > version
    assert x.tolist() == [1, 2, 3, 4, 5, 6]


def test_an_input_that_a_kernel_changes() -> None:
    run = loaded(changed()).run
    with torch.inference_mode():
        unversioned = torch.zeros(6)
    for x in (torch.arange(6.0), unversioned):
        before, version = x.clone(), 0 if x.is_inference() else x._version
        (y,) = run((x,))
        assert y is x and torch.equal(x, before + 1)
        assert x.is_inference() or x._version > version


def test_a_kernel_counts_from_data_ptr_and_a_view_from_the_storage() -> None:
    run = loaded(strided()).run
    base = torch.arange(16.0)
    x = base.as_strided((4,), (2,), 3)
    y, view = run((x,))
    assert y.tolist() == [4, 6, 8, 10]
    assert view.tolist() == [3, 5] and view.data_ptr() == x.data_ptr()
    base[3] = -1
    assert view[0] == -1


def test_temps_in_shared_memory() -> None:
    executable = loaded(shared())
    for n in (2, 130, 5):
        x, y = torch.randn(n), torch.randn(6)
        first, second = executable.run((x, y))
        torch.testing.assert_close(first, x + 3)
        torch.testing.assert_close(second, y + 6)
    assert executable.text.count("empty(") == 3


def test_constants_and_bounds() -> None:
    table = torch.randn(5)
    raw = table.numpy().tobytes()
    executable = loaded(take(raw, 5), raw)
    held = executable.constants["table"]
    index = torch.tensor([4, 0, 0])
    torch.testing.assert_close(executable.run((index, held))[0], table[index])
    for bad in (5, -1):
        with pytest.raises(IndexError, match="index out of range in cpp_fused_take_0"):
            executable.run((torch.tensor([0, bad]), held))
    torch.testing.assert_close(executable.run((index, held))[0], table[index])


def test_a_parameter_may_move_within_its_storage() -> None:
    run = loaded(linear_relu()).run
    weight, bias, x = torch.nn.Parameter(torch.randn(4, 8)), torch.randn(4), torch.randn(3, 8)
    weight.data = torch.randn(36)[4:].view(4, 8)
    y = run((x, weight, bias))[0]
    torch.testing.assert_close(y, torch.relu(x @ weight.detach().T + bias))


def test_threads_share_one_executable() -> None:
    run = loaded(linear_relu()).run
    weight, bias = torch.randn(4, 8), torch.randn(4)
    wrong: list[int] = []

    def work(seed: int) -> None:
        own = torch.Generator().manual_seed(seed)
        for i in range(150):
            x = torch.randn(2 + (seed * 7 + i) % 40, 8, generator=own)
            y, sums, *_ = run((x, weight, bias))
            expected = torch.relu(x @ weight.T + bias)
            if not (
                torch.allclose(y, expected, atol=1e-5)
                and torch.allclose(sums, expected.sum(1), atol=1e-4)
            ):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_no_gradient_is_recorded_and_grad_mode_is_restored() -> None:
    run = loaded(linear_relu()).run
    weight = torch.nn.Parameter(torch.randn(4, 8))
    y = run((torch.randn(3, 8), weight, torch.zeros(4)))[0]
    assert not y.requires_grad and torch.is_grad_enabled()
    with torch.no_grad():
        run((torch.randn(3, 8), weight, torch.zeros(4)))
        assert not torch.is_grad_enabled()


def test_autocast_does_not_reach_the_operators() -> None:
    run = loaded(linear_relu()).run
    weight, bias, x = torch.randn(4, 8), torch.randn(4), torch.randn(3, 8)
    with torch.autocast("cpu"):
        y = run((x, weight, bias))[0]
    torch.testing.assert_close(y, torch.relu(x @ weight.T + bias))


def only_calls(step: Call, sizes: tuple[int, ...], output: str) -> Artifact:
    return artifacts.artifact(
        (artifacts.tensor(0, artifacts.Input("arg", 0), shape(4, 6)),),
        (
            step,
            Return(
                (TensorRef(output, shape(*sizes), artifacts.contiguous(shape(*sizes)), const(0)),)
            ),
        ),
        args=1,
        out=Tree("leaf"),
    )


def test_a_result_of_another_layout_is_copied() -> None:
    step = Call(
        ("t0",),
        "aten.t.default",
        (whole("in0", shape(4, 6)),),
        (),
        (artifacts.Layout(shape(6, 4), shape(4, 1)),),
    )
    x = torch.randn(4, 6)
    (y,) = loaded(only_calls(step, (6, 4), "t0")).run((x,))
    assert torch.equal(y, x.t()) and y.stride() == (4, 1)


def test_results_in_a_list_and_dropped_ones() -> None:
    step = Call(
        ("", "t0"),
        "aten.split.Tensor",
        (whole("in0", shape(4, 6)), Literal(2)),
        (("dim", Literal(0)),),
    )
    x = torch.randn(4, 6)
    (y,) = loaded(only_calls(step, (2, 6), "t0")).run((x,))
    assert torch.equal(y, x[2:])


def test_keywords_and_torch_constants() -> None:
    step = Call(
        ("t0",),
        "aten._to_copy.default",
        (whole("in0", shape(4, 6)),),
        (("dtype", Literal(("dtype", "bfloat16"))),),
    )
    x = torch.randn(4, 6)
    (y,) = loaded(only_calls(step, (4, 6), "t0")).run((x,))
    assert torch.equal(y, x.bfloat16())


@pytest.mark.parametrize(
    "target",
    [
        "aten.add_.Tensor",
        "aten.add.out",
        "aten.no_such_operator.default",
        "aten.item.default",
        "prims.nothing.default",
    ],
)
def test_operators_that_are_refused(target: str) -> None:
    step = Call(("t0",), target, (whole("in0", shape(4, 6)),), ())
    with pytest.raises(LoadError):
        loaded(only_calls(step, (4, 6), "t0"))


def test_a_view_outside_its_storage_is_refused_when_it_runs() -> None:
    artifact = replace(
        strided(),
        forward=(
            *strided().forward[:-1],
            Return((TensorRef("in0", shape(99), shape(2), const(3)),) * 2),
        ),
    )
    with pytest.raises(RuntimeError, match="out of bounds"):
        loaded(artifact).run((torch.arange(16.0).as_strided((4,), (2,), 3),))


def test_blobs_are_verified() -> None:
    artifact = counter()
    held = blobs(artifact)
    (digest,) = held
    with pytest.raises(Missing):
        load(artifact, {})
    with pytest.raises(Corrupt):
        load(artifact, {digest: held[digest][:-1] + b"x"})
    raw = torch.zeros(5).numpy().tobytes()
    with pytest.raises(LoadError, match="another size"):
        load(
            replace(take(raw, 5), constants=(replace(take(raw, 5).constants[0], shape=(4,)),)),
            blobs(take(raw, 5), (raw,)),
        )


def test_constraints_are_checked() -> None:
    artifact = replace(counter(), constraints=Constraints(torch_min="99.0"))
    with pytest.raises(Incompatible, match="torch"):
        load(artifact, blobs(artifact))


def test_the_symbols_may_be_handed_in() -> None:
    executable = loaded(linear_relu())
    inputs = (torch.randn(5, 8), torch.randn(4, 8), torch.randn(4))
    values = executable.check((), inputs)
    assert values == (5,)
    torch.testing.assert_close(executable.run(inputs, values)[0], executable.run(inputs)[0])
    assert S0.text == "s0"
