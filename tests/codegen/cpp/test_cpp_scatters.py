"""Writes at computed places on the CPU: which loops may run at once, and the whole way through the compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import stax
from stax.base.errors import VerifyError
from stax.base.target import Target
from stax.build.local import LocalBuilder
from stax.codegen.cpp.apart import keeps_apart
from stax.codegen.cpp.emit import emit
from stax.codegen.cpp.plan import plan
from stax.ir.expr import Expr, const
from stax.ir.kernel import Kernel, Size
from stax.ir.value import Value, bound, index, scalar, scatter
from tests import kernels
from tests.kernels import KS0, R0, X0, X1, X2, at, make, st
from tests.scatters import ALL

CPU = Target("cpu", "x86-64-v3")
MANY = 512


def row(rows: Expr | int = 10) -> Value:
    return bound(at("in_ptr0", X1, "int64"), rows)


def plus(a: Value, b: Value) -> Value:
    return scalar("add", a, b)


def times(a: Value, b: Expr | int) -> Value:
    return scalar("mul", a, index(b))


def into(place: Value, *x: Expr | int, sizes: tuple[Size, ...] = ()) -> Kernel:
    value = at("in_ptr1", X0)
    return make(
        [st("v0", scatter("update_ptr0", value, [place], mode="add"))],
        x=x,
        pointers=["in_ptr0:int64", "in_ptr1:float32", "update_ptr0:float32"],
        sizes=sizes,
    )


S0 = Size("ks0", 2, None, 64)
# Axes x0 (outermost), x1 and x2, of which x1 has the indices; which of them threads may share.
APART: dict[str, tuple[Kernel, str]] = {
    "last dimension": (into(plus(times(row(), 16), index(X2)), 4, 8, 16), "2"),
    "around": (into(plus(times(row(), 16), index(160 * X0 + X2)), 4, 8, 16), "02"),
    "first dimension": (into(plus(row(), index(10 * X0)), 4, 8, 1), "0"),
    "symbolic": (
        into(plus(times(row(KS0), 16), index(16 * KS0 * X0 + X2)), 4, 8, 16, sizes=(S0,)), "02",
    ),
    "a constant aside": (into(plus(times(row(), 16), index(X2 + 3)), 4, 8, 16), "2"),
    "rows that overlap": (into(plus(times(row(), 8), index(X2)), 4, 8, 16), ""),
    "columns that overlap": (into(plus(row(20), index(10 * X0)), 4, 8, 1), ""),
    "an index that was not checked": (
        into(plus(times(at("in_ptr0", X1, "int64"), 16), index(X2)), 4, 8, 16), "",
    ),
    "a product of axes": (into(plus(times(row(), 128), index(X0 * X2)), 4, 8, 16), ""),
    "everything at one place": (into(row(), 4, 8, 16), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_axes_along_which_nothing_is_written_twice(name: str) -> None:
    kernel, expected = APART[name]
    found = [str(k) for k, a in enumerate(kernel.axes) if keeps_apart(kernel, a)]
    assert "".join(found) == expected


def test_only_such_lanes_vectorise_and_only_such_loops_are_shared() -> None:
    rows = emit(kernels.scatter_add().kernel, CPU).text
    assert "omp simd" in rows and "parallel" not in rows
    one_place = emit(into(row(), 64, 64, 64), CPU).text
    assert "omp" not in one_place
    around = into(plus(times(row(), 16), index(160 * X0 + X2)), MANY, 64, 16)
    assert plan(around).outer[0].name == "x0" and plan(around).shared == 1
    assert "#pragma omp parallel for schedule(static) reduction(|:bad)\n" in emit(around, CPU).text


def test_a_reduction_beside_a_scatter_is_refused() -> None:
    kernel = make(
        [
            st("v0", at("in_ptr1", R0), combine="sum", space="xr"),
            st("v1", scatter("update_ptr0", at("in_ptr1", 0), [index(X0)])),
        ],
        x=[4],
        r=[const(8)],
        form="red",
        pointers=["in_ptr1:float32", "update_ptr0:float32"],
    )
    with pytest.raises(VerifyError, match="a scatter beside a reduction"):
        emit(kernel, CPU)


# -- the whole way


@pytest.fixture(scope="module")
def builder() -> Iterator[LocalBuilder]:
    made = LocalBuilder()
    yield made
    made.close()


@pytest.mark.parametrize(
    "name",
    ["index_add", "scatter_add_3d", "index_put", "index_put_add_two", "setitem", "index_fill", "twice", "embedding_padding", "after_a_sum"],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_equals_eager(name: str, dtype: torch.dtype, builder: LocalBuilder) -> None:
    fn, args = ALL[name].fn, ALL[name].args(dtype=dtype)
    compiled = stax.compile(
        fn, fullgraph=True, strict_native=True, store="memory:", builder=builder
    )
    loose = 1e-5 if dtype == torch.float32 else 4e-2
    torch.testing.assert_close(compiled(*args), fn(*args), rtol=loose, atol=loose)


def test_many_threads(builder: LocalBuilder) -> None:
    """Enough rows for threads, most of them at few places."""
    generator = torch.Generator().manual_seed(1)
    old = torch.randn(MANY, 64, 8, generator=generator, dtype=torch.float64)
    index_ = torch.randint(0, 3, (MANY, 200, 8), generator=generator)
    new = torch.randn(MANY, 200, 8, generator=generator, dtype=torch.float64)

    def fn(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        return x.scatter_add(1, i, v)

    compiled = stax.compile(
        fn, fullgraph=True, strict_native=True, store="memory:", builder=builder
    )
    for _ in range(3):
        torch.testing.assert_close(compiled(old, index_, new), fn(old, index_, new))


@pytest.mark.parametrize(
    ("name", "bad"), [("index_add", -1), ("index_add", 9), ("index_put", -10), ("scatter", -1)]
)
def test_out_of_range_is_an_index_error_and_no_write(
    name: str, bad: int, builder: LocalBuilder
) -> None:
    """pytorch #185885: index_add with -1 raises; the caller's tensors are as they were."""
    fn, args = ALL[name].fn, ALL[name].args()
    compiled = stax.compile(
        fn, fullgraph=True, strict_native=True, store="memory:", builder=builder
    )
    compiled(*args)
    before = [a.clone() for a in args]
    args[1][-1] = before[1][-1] = bad
    with pytest.raises(IndexError):
        compiled(*args)
    assert all(map(torch.equal, args, before))


def cached(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    x.index_copy_(0, i, v)
    return v @ x.t()


def twice(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    x[i] = v
    x.index_add_(0, i, v)
    return x


def read_before(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    y = x * 2
    x.index_add_(0, i, v)
    return y + x


def returned_apart(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    y = x.index_add(0, i, v)
    x.copy_(y)
    return y


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("fn", [cached, twice, read_before, returned_apart])
def test_an_input_that_is_written(
    fn: Callable[..., Tensor], dynamic: bool, builder: LocalBuilder
) -> None:
    """In place or not: the same values, the same tensor where eager gives the input itself, and a new version."""
    compiled = stax.compile(fn, dynamic=dynamic, fullgraph=True, store="memory:", builder=builder)
    ours, theirs = ALL["index_copy"].args(), ALL["index_copy"].args()
    for _ in range(2):
        version = ours[0]._version
        found, expected = compiled(*ours), fn(*theirs)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(ours, theirs)
        assert (found is ours[0]) == (expected is theirs[0])
        assert ours[0]._version > version
    with torch.inference_mode():
        torch.testing.assert_close(compiled(*ours), fn(*theirs))
    wide = [t.repeat(1, 2)[:, 6:] if t.dim() == 2 else t for t in ours]
    again = [t.clone() for t in wide]
    torch.testing.assert_close(compiled(*wide), fn(*again))
    torch.testing.assert_close(wide, again)
