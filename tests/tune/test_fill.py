"""What buffers hold while a kernel is measured: no index may leave its bounds, no float may be zero for all."""

from __future__ import annotations

import pytest

from stax.ir.expr import sym
from stax.ir.interp import run_kernel
from stax.ir.kernel import Kernel, Size
from stax.ir.value import bound, cast, constant, index, load, local, scalar, scatter, where
from stax.tune.fill import SMALL, index_limits, memory_of
from tests.kernels import (
    X0,
    X1,
    KernelCase,
    add_broadcast,
    at,
    cases,
    embedding,
    make,
    scatter_add,
    st,
)


def test_an_index_stays_below_its_extent() -> None:
    kernel = embedding().kernel
    memory = dict(zip((p.name for p in kernel.pointers), memory_of(kernel, [40, 160, 640])))
    assert (memory["in_ptr0"].fill, memory["in_ptr0"].below) == ("below", 10)
    assert memory["in_ptr1"].fill == "normal" and memory["out_ptr0"].fill == "none"


def gather(of: str) -> Kernel:
    """table[f(index)], with an index that is plain, wrapped, computed, or not checked at all."""
    read = at("in_ptr0", X0, "int64")
    wrapped = where(
        scalar("lt", read, constant(0, "int64")), scalar("add", read, constant(6, "int64")), read
    )
    offset = {
        "plain": bound(read, 6),
        "wrapped": bound(wrapped, 6),
        "narrow": bound(cast(at("in_ptr0", X0, "int32"), "int64"), 6),
        "computed": bound(scalar("mul", read, constant(3, "int64")), 6),
        "unchecked": read,
        "both": scalar("add", bound(read, 6), bound(read, 4)),
    }[of]
    dtype = "int32" if of == "narrow" else "int64"
    body = load(
        "in_ptr1",
        "float32",
        (scalar("add", scalar("mul", offset, constant(8, "int64")), index(X1)),),
    )
    pointers = [f"in_ptr0:{dtype}", "in_ptr1:float32", "out_ptr0:float32"]
    return make([st("v0", body, ("out_ptr0", X0 * 8 + X1))], x=[5, 8], pointers=pointers)  # fmt: skip


@pytest.mark.parametrize(
    ("of", "limit"),
    [("plain", 6), ("wrapped", 6), ("narrow", 6), ("computed", 0), ("unchecked", 0), ("both", 4)],
)
def test_indices_by_how_they_are_used(of: str, limit: int) -> None:
    assert index_limits(gather(of)) == {"in_ptr0": limit}
    memory = memory_of(gather(of), [5, 80, 40])[0]
    assert (memory.fill, memory.below) == (("below", limit) if limit else ("zero", 0))


def test_an_index_that_an_earlier_statement_read() -> None:
    read = st("v0", at("in_ptr0", X0, "int64"))
    body = load("in_ptr1", "float32", (bound(local("v0", "int64"), 6),))
    kernel = make(
        [read, st("v1", body, ("out_ptr0", X0))],
        x=[5],
        pointers=["in_ptr0:int64", "in_ptr1:float32", "out_ptr0:float32"],
    )
    assert index_limits(kernel) == {"in_ptr0": 6}


def test_integers_that_address_nothing_are_small_and_bools_are_both() -> None:
    body = where(at("in_ptr0", X0, "bool"), at("in_ptr1", X0, "int64"), constant(1, "int64"))
    kernel = make(
        [st("v0", body, ("out_ptr0", X0))],
        x=[5],
        pointers=["in_ptr0:bool", "in_ptr1:int64", "out_ptr0:int64"],
    )
    assert [(m.fill, m.below) for m in memory_of(kernel, [5, 5, 5])] == [
        ("below", 2),
        ("below", SMALL),
        ("none", 0),
    ]


def test_an_index_that_places_a_write() -> None:
    """Checked: below its extent. Not checked: zeros alone. What is changed holds numbers before."""
    kernel = scatter_add().kernel
    assert index_limits(kernel) == {"in_ptr0": 10}
    assert [m.fill for m in memory_of(kernel, [40, 640, 160])] == ["below", "normal", "normal"]
    free = scatter("update_ptr0", constant(1, "float32"), [at("in_ptr0", X0, "int64")])
    free_kernel = make([st("v0", free)], x=[5], pointers=["in_ptr0:int64", "update_ptr0:float32"])
    assert index_limits(free_kernel) == {"in_ptr0": 0}


def test_an_extent_of_size_symbols_is_taken_at_the_hints() -> None:
    body = load("in_ptr1", "float32", (bound(at("in_ptr0", X0, "int64"), sym("ks0") * 2),))
    kernel = make(
        [st("v0", body, ("out_ptr0", X0))],
        x=[5],
        pointers=["in_ptr0:int64", "in_ptr1:float32", "out_ptr0:float32"],
        sizes=[Size("ks0", 2, None, 9)],
    )
    assert index_limits(kernel) == {"in_ptr0": 18}


def test_a_buffer_without_elements_still_has_an_address() -> None:
    kernel = add_broadcast().kernel
    assert [m.elements for m in memory_of(kernel, [1500, 50, 0, 0])] == [1500, 50, 1, 1]


@pytest.mark.parametrize("case", cases(), ids=lambda c: c.name)
def test_every_case_runs_on_such_indices(case: KernelCase) -> None:
    """The oracle raises for an index out of bounds."""
    buffers = case.inputs(seed=3)
    names = [p.name for p in case.kernel.pointers]
    for name, memory in zip(names, memory_of(case.kernel, [case.elements[n] for n in names])):
        if memory.fill == "below" and memory.below != SMALL:
            buffers[name][...] = memory.below - 1
        elif memory.fill == "zero":
            buffers[name][...] = 0
    run_kernel(case.kernel, buffers, case.env)
