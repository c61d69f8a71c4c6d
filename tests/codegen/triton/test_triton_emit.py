"""The text of the examples of the specification, and the rules that the text follows."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from stax.base.devices import DEVICES, Device
from stax.base.errors import VerifyError
from stax.base.target import Target
from stax.codegen.triton.emit import emit
from stax.codegen.triton.layout import coalesced_bytes, layout_of
from stax.codegen.triton.plan import plan
from stax.ir.expr import const, sym
from stax.ir.kernel import Kernel, Size
from stax.ir.source import Config, Source
from stax.ir.value import Value, local, scalar
from tests.conftest import Golden
from tests.kernels import (
    KS0,
    R0,
    X0,
    X1,
    X2,
    add_relu_sum,
    add_transposed,
    arg_extremes,
    at,
    dynamic,
    dynamic_flat,
    embedding,
    f32,
    full_sum,
    in_place,
    layer_norm,
    make,
    outer_sum,
    padded,
    scatter_add,
    softmax,
    st,
)

HOPPER = Target("cuda", "sm_90")


def text_of(kernel: Kernel) -> str:
    return emit(kernel, HOPPER).text


def gelu_backward(count: int = 2048) -> Kernel:
    """Listing 9.3: the upstream gradient is one element."""
    h = at("in_ptr1", X0)
    phi = scalar(
        "mul",
        f32(0.5),
        scalar("add", f32(1), scalar("erf", scalar("mul", h, f32(0.7071067811865476)))),
    )
    density = scalar(
        "mul", f32(0.3989422804014327), scalar("exp", scalar("mul", f32(-0.5), scalar("mul", h, h)))
    )
    slope = scalar("add", phi, scalar("mul", h, density))
    body = scalar("mul", at("in_ptr0", 0), slope)
    pointers = ["in_ptr0:float32", "in_ptr1:float32", "out_ptr0:float32"]
    return make(
        [st("v0", body, ("out_ptr0", X0))], x=[count], pointers=pointers, fused=["gelu_backward"]
    )


def split_sum() -> tuple[Kernel, Kernel]:
    """Listing 9.4: the sum of squares of 64 × 16384, in two kernels."""
    x = at("in_ptr0", R0 + X0 * 8192)
    pointers = ["in_ptr0:float32", "out_ptr0:float32"]
    first = make(
        [st("v0", scalar("mul", x, x), ("out_ptr0", X0), space="xr", combine="sum")],
        x=[128], r=[8192], form="red", pointers=pointers, fused=["mul", "sum"],
    )  # fmt: skip
    second = make(
        [st("v0", at("in_ptr0", R0 + X0 * 2), ("out_ptr0", X0), space="xr", combine="sum")],
        x=[64], r=[2], form="per", pointers=pointers, fused=["mul", "sum"],
    )  # fmt: skip
    return first, second


def only_softmax(kernel: Kernel) -> Kernel:
    """Without the stores of its maximum and exponentials."""
    kept = tuple(
        replace(s, stores=() if s.name in ("v0", "v1") else s.stores) for s in kernel.statements
    )
    pointers = tuple(p for p in kernel.pointers if p.name not in ("out_ptr0", "out_ptr1"))
    return replace(kernel, statements=kept, pointers=pointers)


GOLDEN = {
    "listing_9_1": lambda: add_relu_sum().kernel,
    "listing_9_2": lambda: add_transposed().kernel,
    "listing_9_3": gelu_backward,
    "listing_9_4_first": lambda: split_sum()[0],
    "listing_9_4_second": lambda: split_sum()[1],
    "listing_9_5": lambda: only_softmax(softmax(256, 1000).kernel),
    "softmax_looped": lambda: only_softmax(softmax(256, 5000).kernel),
    "layer_norm": lambda: layer_norm().kernel,
    "argmax": lambda: arg_extremes().kernel,
    "embedding": lambda: embedding().kernel,
    "scatter_add": lambda: scatter_add().kernel,
    "padded": lambda: padded().kernel,
    "dynamic": lambda: dynamic().kernel,
    "dynamic_flat": lambda: dynamic_flat().kernel,
    "full_sum": lambda: full_sum().kernel,
    "in_place": lambda: in_place().kernel,
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_text(name: str, golden: Golden) -> None:
    source = emit(GOLDEN[name](), HOPPER)
    golden.check(name, f"{source.text}\n{described(source)}")


def described(source: Source) -> str:
    """What goes with the text, as comments."""
    params = (
        f"{p.kind} {p.name} {p.dtype}{' /16' if p.divisible16 else ''}".rstrip()
        for p in source.params
    )
    lines = [f"params: {', '.join(params)}"]
    lines.append(f"sizes: {', '.join(e.text for e in source.sizes)}")
    lines.append(f"grid: {', '.join(e.text for e in source.grid)}")
    lines += [", ".join(f"{n}={v}" for n, v in config.values) for config in source.space]
    return "".join(f"# {line}\n" for line in lines)


# -- structure (the checklist of 9.1 to 9.5)


def test_parameters_come_in_order() -> None:
    kinds = [p.kind for p in emit(softmax(37, 5000).kernel, HOPPER).params]
    assert kinds == ["in", "out", "out", "out", "size", "size", "block", "block"]


def test_static_numels_are_literals_and_dynamic_ones_stay() -> None:
    assert "    xnumel = 64\n    r0_numel = 128\n" in text_of(add_relu_sum().kernel)
    assert not re.search(r"^    (xnumel|r0_numel) = ", text_of(dynamic().kernel), re.MULTILINE)


def test_the_loop_loads_once() -> None:
    assert text_of(split_sum()[0]).count("tl.load(") == 1


def test_persistent_softmax_reads_and_writes_each_row_once() -> None:
    text = text_of(only_softmax(softmax(256, 1000).kernel))
    assert (text.count("tl.load("), text.count("tl.store(")) == (1, 1)
    assert "R0_BLOCK: tl.constexpr = 1024" in text
    assert 'tl.where(r0_mask & xmask, tmp1, float("-inf"))' in text


def test_a_full_block_needs_no_mask() -> None:
    text = text_of(add_relu_sum().kernel)
    assert "r0_mask = tl.full([R0_BLOCK], True, tl.int1)[None, :]" in text
    assert "r0_mask &" not in text


def test_equal_kernels_have_equal_texts() -> None:
    assert emit(softmax().kernel, HOPPER) == emit(softmax().kernel, HOPPER)


@pytest.mark.parametrize(("cols", "block"), [(1, 1), (2, 2), (3, 4), (1000, 1024), (1024, 1024)])
def test_persistent_block_is_the_next_power_of_two(cols: int, block: int) -> None:
    assert f"R0_BLOCK: tl.constexpr = {block}\n" in text_of(add_relu_sum(4, cols).kernel)


def test_a_persistent_reduction_needs_a_bound() -> None:
    kernel = replace(dynamic().kernel, form="per")
    with pytest.raises(VerifyError, match="upper bound"):
        emit(kernel, HOPPER)
    bounded = replace(kernel, sizes=(kernel.sizes[0], Size("ks1", 2, 200, 70)))
    assert "R0_BLOCK: tl.constexpr = 256\n" in text_of(bounded)


def test_full_blocks_of_an_odd_length_have_no_mask() -> None:
    text = text_of(gelu_backward(100_001))
    whole, last = text.split("    else:\n")
    assert "xmask = tl.full([XBLOCK], True, tl.int1)" in whole
    assert "xmask = xindex < xnumel" in last
    assert "if xoffset" not in text_of(gelu_backward(101))


# -- index width


def test_indices_are_wide_when_the_kernel_says_so() -> None:
    source = emit(dynamic_flat().kernel, HOPPER)
    assert "tl.program_id(0).to(tl.int64) * XBLOCK" in source.text
    assert [p.dtype for p in source.params if p.kind == "size"] == ["int64"]


def test_the_last_block_does_not_wrap() -> None:
    """2**31 - 1 elements fit int32, but the block that holds the last one reaches past it."""
    near = make(
        [st("v0", at("in_ptr0", X0), ("out_ptr0", X0))],
        x=[2**31 - 1],
        pointers=["in_ptr0:float32", "out_ptr0:float32"],
    )
    assert layout_of(near).index == "int64"
    far = replace(near, axes=(replace(near.axes[0], extent=const(2**30)),))
    assert layout_of(far).index == "int32"


# -- tiling (9.3)


def test_opposite_directions_make_two_dimensions() -> None:
    source = emit(add_transposed().kernel, HOPPER)
    assert [p.name for p in source.params if p.kind == "size"] == ["ynumel", "xnumel"]
    assert [e.text for e in source.sizes] == ["256", "512"]
    assert len(source.grid) == 2


def test_tiling_takes_the_split_that_coalesces_most() -> None:
    kernel = add_transposed().kernel
    assert coalesced_bytes(kernel, ()) == 8
    assert coalesced_bytes(kernel, (1,)) == 12


def test_three_directions_make_three_dimensions() -> None:
    e = 64
    body = scalar(
        "add",
        scalar(
            "add", at("in_ptr0", X0 + X1 * e + X2 * e * e), at("in_ptr1", X1 + X0 * e + X2 * e * e)
        ),
        at("in_ptr2", X2 + X1 * e + X0 * e * e),
    )
    pointers = [f"{p}:float32" for p in ("in_ptr0", "in_ptr1", "in_ptr2", "out_ptr0")]
    kernel = make(
        [st("v0", body, ("out_ptr0", X2 + X1 * e + X0 * e * e))], x=[e, e, e], pointers=pointers
    )
    assert [g.prefix for g in layout_of(kernel).groups] == ["z", "y", "x"]


def test_short_axes_are_not_worth_a_dimension() -> None:
    assert len(layout_of(add_transposed(4, 512).kernel).groups) == 1


def test_a_long_y_continues_in_the_third_grid_dimension() -> None:
    kernel = add_transposed(10_000_000, 64).kernel
    source = emit(kernel, HOPPER)
    env = {"xnumel": 64, "ynumel": 10_000_000, "XBLOCK": 32, "YBLOCK": 32}
    x, y, z = (e.evaluate(env) for e in source.grid)
    assert x == 2
    assert y <= 65_535
    assert y * z * 32 >= 10_000_000
    assert "tl.program_id(2) * tl.num_programs(1)" in source.text


# -- passes of looped kernels


def test_each_level_of_reductions_is_one_loop() -> None:
    phases = plan(softmax(8, 5000).kernel, pairs=())
    assert [[s.name for s in p.inside] for p in phases] == [["v0"], ["v1", "v2"], ["v1", "v3"], []]
    assert [sorted(p.finished) for p in phases] == [["v0"], ["v2"], [], []]


def test_a_maximum_and_its_exponentials_are_one_loop() -> None:
    phases = plan(softmax(8, 5000).kernel)
    assert [[s.name for s in p.inside] for p in phases] == [["v0"], ["v1", "v3"], []]
    assert [[(q.first, q.second) for q in p.pairs] for p in phases] == [[("v0", "v2")], [], []]


def test_a_sum_and_the_squares_around_its_mean_are_one_loop() -> None:
    phases = plan(replace(layer_norm(8, 5000).kernel, form="red"))
    assert [len(p.pairs) for p in phases] == [1, 0, 0]


def test_what_is_changed_in_place_is_stored_last() -> None:
    """x - mean(x) written over x: a store before the last read would change what is read."""
    x = at("inout_ptr0", R0 + X0 * 3000)
    centred = scalar("sub", x, local("v0", "float32"))
    kernel = make(
        [
            st("v0", x, space="xr", combine="sum"),
            st("v1", centred, ("inout_ptr0", R0 + X0 * 3000), space="xr"),
            st("v2", local("v1", "float32"), space="xr", combine="max"),
            st("v3", scalar("mul", local("v1", "float32"), local("v2", "float32")), ("out_ptr0", R0 + X0 * 3000), space="xr"),
        ],
        x=[4], r=[3000], form="red", pointers=["inout_ptr0:float32", "out_ptr0:float32"],
    )  # fmt: skip
    stored = [[t.pointer for _, t in p.inside_stores] for p in plan(kernel)]
    assert stored == [[], [], ["inout_ptr0", "out_ptr0"], []]


# -- launch configurations (9.6)


def test_bytes_in_flight_by_littles_law() -> None:
    hopper = DEVICES["sm_90"]
    assert hopper == Device(132, 3.35e12, 50e6)
    assert hopper.bytes_in_flight == pytest.approx(2.01e6)
    assert hopper.bytes_in_flight_each == pytest.approx(15.2e3, rel=0.01)


# The fastest on an H200, or within 4 % of it (tests/gpu/measure_kernels.py): XBLOCK, R0_BLOCK, num_warps.
MEASURED = {
    "softmax 4096x16384": (softmax(4096, 16384), 1, 4096, 32),
    "columns 16384x4096": (outer_sum(16384, 4096), 16, 256, 16),
    "columns 2048x32768": (outer_sum(2048, 32768), 32, 128, 16),
    "columns 65536x512": (outer_sum(65536, 512), 4, 1024, 16),
}


@pytest.mark.parametrize("name", MEASURED)
def test_looped_defaults_are_those_measured(name: str) -> None:
    case, x, r, warps = MEASURED[name]
    assert emit(case.kernel, HOPPER).default == Config.of(
        XBLOCK=x, R0_BLOCK=r, num_warps=warps, num_stages=1
    )


@pytest.mark.parametrize(("rows", "cols"), [(32768, 1024), (131072, 256), (1_000_000, 32)])
def test_persistent_rows_take_a_thousand_elements(rows: int, cols: int) -> None:
    config = emit(softmax(rows, cols).kernel, HOPPER).default
    assert (config["XBLOCK"] * cols, config["num_warps"]) == (1024, 2)


@pytest.mark.parametrize("arch", DEVICES)
def test_candidates_are_few_powers_of_two(arch: str) -> None:
    for kernel in (
        gelu_backward(),
        softmax().kernel,
        softmax(8, 5000).kernel,
        outer_sum().kernel,
        add_transposed().kernel,
    ):
        source = emit(kernel, Target("cuda", arch))
        assert 1 <= len(source.space) <= 6
        assert len(set(source.space)) == len(source.space)
        assert source.default == source.space[0]
        blocks = [p.name for p in source.params if p.kind == "block"]
        for config in source.space:
            sizes = [config[b] for b in blocks] + [config["num_warps"]]
            assert all(n & (n - 1) == 0 and n > 0 for n in sizes)


def test_grid_covers_every_element() -> None:
    grid = emit(add_relu_sum().kernel, HOPPER).grid
    assert [e.evaluate({"xnumel": 64, "XBLOCK": 8}) for e in grid] == [8]
    assert [e.evaluate({"xnumel": 0, "XBLOCK": 8}) for e in grid] == [0]
    assert [e.evaluate({"xnumel": 65, "XBLOCK": 8}) for e in grid] == [9]


def test_sizes_are_over_the_kernels_symbols() -> None:
    source = emit(dynamic_flat().kernel, HOPPER)
    assert [e.text for e in source.sizes] == [(KS0 * sym("ks1")).text]


def test_a_size_that_is_always_a_multiple_of_16_is_marked() -> None:
    body: Value = at("in_ptr0", X0)
    kernel = make(
        [st("v0", body, ("out_ptr0", X0))],
        x=[KS0 * 128], sizes=[Size("ks0", 2, None, 8)], pointers=["in_ptr0:float32", "out_ptr0:float32"], index_dtype="int64",
    )  # fmt: skip
    assert next(p for p in emit(kernel, HOPPER).params if p.name == "xnumel").divisible16
    assert not next(
        p for p in emit(dynamic_flat().kernel, HOPPER).params if p.name == "xnumel"
    ).divisible16
