"""The plan of memory: nothing overlaps, nothing is left out, and it never needs more than tensors of their own would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import bind, call_torch, compare, lowered, to_numpy
from running import run_schedule

from stax.artifact.artifact import Alloc, Arena, Free, Launch, Place, Step
from stax.artifact.memory import Tenancy
from stax.base.options import Options
from stax.ir.expr import Expr, const, sym
from stax.ir.extent import ALIGNMENT, MAX_TERMS, extent_bytes
from stax.ir.kernel import Kernel, Pointer
from stax.ir.program import Buffer, Extern, Origin, Program, Symbol, TensorRef
from stax.schedule.arena import SCALE, SLACK, Memory, memory
from stax.schedule.loops import KernelCall
from stax.schedule.memory import Lifetimes, lifetimes
from stax.schedule.schedule import schedule

S0, S1 = sym("s0"), sym("s1")
HINTS = {"s0": 70_000, "s1": 4_000}
SIZES = [const(n) for n in (0, 1, 127, 128, 129, 1000, 40_000, 40_001, 300_000)]


def whole(name: str, size: Expr) -> TensorRef:
    return TensorRef(name, (size,), (const(1),), const(0))


def kernel_call(reads: Sequence[str], writes: Sequence[str]) -> KernelCall:
    pointers = [("in", name) for name in reads] + [("out", name) for name in writes]
    kernel = Kernel(
        "poi", (), (), tuple(Pointer(f"p{i}", k, "float32") for i, (k, _) in enumerate(pointers)),
        (), (), "int32", False, (),
    )  # fmt: skip
    return KernelCall(kernel, tuple(name for _, name in pointers), ())


def program(sizes: dict[str, Expr], outputs: Sequence[str]) -> Program:
    symbols = tuple(Symbol(name, hint) for name, hint in HINTS.items())
    buffers = tuple(
        Buffer(name, "temp", "float32", (size,), (const(1),), const(0), "cuda")
        for name, size in sizes.items()
    )
    return Program(symbols, buffers, (), (), tuple(whole(o, sizes[o]) for o in outputs), ())


def planned(
    sizes: dict[str, Expr], steps: Sequence[KernelCall | Extern], outputs: Sequence[str]
) -> tuple[Memory, Lifetimes]:
    made = program(sizes, outputs)
    lives = lifetimes(made, steps)
    return memory(made, steps, lives), lives


def chain(sizes: Sequence[Expr]) -> tuple[Memory, Lifetimes]:
    """One kernel after another, each reading what the one before wrote; the last temp is the result."""
    names = [f"t{i}" for i in range(len(sizes))]
    steps = [kernel_call(names[max(i - 1, 0) : i], [name]) for i, name in enumerate(names)]
    return planned(dict(zip(names, sizes)), steps, names[-1:])


def allocations(plan: Memory) -> int:
    """How often a call asks for memory."""
    return sum(name not in plan.spots for names in plan.made for name in names)


def test_a_chain_of_equal_temps_is_one_piece_beside_the_result() -> None:
    """Every second temp lies where the result will be, so that even the peak is that of freeing each after its use."""
    plan, _ = chain([const(1 << 20)] * 8)
    assert allocations(plan) == 2 and plan.slots == (const(4 << 20),)
    assert {spot.home for spot in plan.spots.values()} == {"arena", "t7"}
    plan, _ = chain([S0 * 8] * 8)
    assert allocations(plan) == 2 and plan.slots == (S0 * 32,)


def test_small_temps_of_many_kernels_are_one_allocation() -> None:
    names = [f"t{i}" for i in range(20)]
    steps = [*(kernel_call([], [n]) for n in names), kernel_call(names, ["out"])]
    plan, _ = planned({**dict.fromkeys(names, const(3)), "out": const(5000)}, steps, ["out"])
    assert allocations(plan) == 2 and plan.slots == (const(20 * ALIGNMENT),)


def test_sizes_of_the_call_share_only_where_they_are_equal() -> None:
    plan, _ = chain([S0, S1, S0, S1, const(4)])
    assert set(plan.slots) == {S0 * 4, S1 * 4}
    assert [plan.spots[f"t{i}"].slot for i in range(4)] in ([0, 1, 0, 1], [1, 0, 1, 0])


def test_a_plan_made_at_small_sizes_holds_at_large_ones() -> None:
    """At 70 and 40 000 elements all fits into what a plan may waste; what would stack s0 beside s1 does not, once they
    are large."""
    sizes = {"a": S0, "b": S0, "x": S1, "c": S1 * 2, "d": S1 * 2, "y": S0}
    steps = [kernel_call([], ["a"]), kernel_call(["a"], ["b"]), kernel_call(["b"], ["x"]), kernel_call([], ["c"]), kernel_call(["c"], ["d"]), kernel_call(["d"], ["y"])]  # fmt: skip
    for hints in ({"s0": 70, "s1": 40}, {"s0": 3, "s1": 3}):
        made = replace(program(sizes, ["x", "y"]), symbols=tuple(Symbol(*h) for h in hints.items()))
        lives = lifetimes(made, steps)
        plan = memory(made, steps, lives)
        for scale in (1, SCALE):
            env = {name: hint * scale for name, hint in hints.items()}
            assert peak(plan, lives, sizes, env) <= separate_peak(lives, sizes, env) + SLACK


def test_what_operators_touch_and_results_keep_memory_of_their_own() -> None:
    called = Extern(("m",), "aten.mm.default", (whole("a", const(8)),), (), Origin("mm"))
    steps = [kernel_call([], ["a", "b"]), called, kernel_call(["b", "m"], ["out"])]
    plan, _ = planned(dict.fromkeys(("a", "b", "m", "out"), const(8)), steps, ["out"])
    assert set(plan.spots) == {"b"}
    assert plan.gone[1] == ("a",) and set(plan.gone[2]) == {"b", "m"} | (
        {"arena"} if plan.slots else set()
    )


def test_an_arena_that_would_outlive_a_large_temp_holds_the_others() -> None:
    """a (large) dies before out (large) begins; b lives through both: a is freed, not kept in the arena."""
    steps = [kernel_call([], ["a", "b"]), kernel_call(["a"], ["c"]), kernel_call(["b", "c"], ["out"]), kernel_call(["c", "out"], ["last"])]  # fmt: skip
    large = const(1 << 20)
    sizes = {"a": large, "b": const(9), "c": const(9), "out": large, "last": const(2 << 20)}
    plan, lives = planned(sizes, steps, ["out", "last"])
    assert peak(plan, lives, sizes) <= separate_peak(lives, sizes) + SLACK
    assert {"b", "c"} <= set(plan.spots)


# -- any program

names = st.integers(0, 30).map("t{}".format)


@st.composite
def programs(draw: st.DrawFn) -> tuple[dict[str, Expr], list[KernelCall | Extern], list[str]]:
    choices = st.sampled_from([*SIZES, S0, S0 * 4, S1, S0 * S1])
    sizes: dict[str, Expr] = {}
    steps: list[KernelCall | Extern] = []
    for k in range(draw(st.integers(1, 12))):
        made = [f"t{k}_{j}" for j in range(draw(st.integers(1, 3)))]
        known = sorted(sizes)
        reads = draw(st.lists(st.sampled_from(known), unique=True, max_size=3)) if known else []
        sizes |= {name: draw(choices) for name in made}
        if draw(st.integers(0, 4)) == 0:
            args = tuple(whole(r, sizes[r]) for r in reads)
            steps.append(Extern(tuple(made), "aten.f.default", args, (), Origin("f")))
        else:
            steps.append(kernel_call(reads, made))
    outputs = draw(st.lists(st.sampled_from(sorted(sizes)), unique=True, min_size=1, max_size=3))
    return sizes, steps, outputs


def rounded(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT


def bytes_of(size: Expr, env: Mapping[str, int] = HINTS) -> int:
    return size.evaluate(env) * 4


def lives_of(lives: Lifetimes, sizes: dict[str, Expr]) -> dict[str, tuple[int, int]]:
    """Of what kernels make."""
    born = {n: k for k, made in enumerate(lives.born) for n in made}
    end = {n: k for k, gone in enumerate(lives.dead) for n in gone}
    return {n: (k, end.get(n, len(lives.born))) for n, k in born.items()}


def _most(pieces: Sequence[tuple[int, int, int]]) -> int:
    last = max((end for _, end, _ in pieces), default=0)
    return max((sum(rounded(n) for a, b, n in pieces if a <= k <= b) for k in range(last + 1)), default=0)  # fmt: skip


def separate_peak(lives: Lifetimes, sizes: dict[str, Expr], env: Mapping[str, int] = HINTS) -> int:
    return _most([(*life, bytes_of(sizes[n], env)) for n, life in lives_of(lives, sizes).items()])


def peak(
    plan: Memory, lives: Lifetimes, sizes: dict[str, Expr], env: Mapping[str, int] = HINTS
) -> int:
    """Read off what is made and what goes, as the host function will do it."""
    begin = {n: k for k, made in enumerate(plan.made) for n in made}
    end = {n: k for k, gone in enumerate(plan.gone) for n in gone}
    pieces: list[tuple[int, int, int]] = []
    for name, k in begin.items():
        if name == plan.arena:
            pieces += [(k, end[name], s.evaluate(env)) for s in plan.slots]
        elif name not in plan.spots:
            pieces.append((k, end.get(name, len(lives.born)), bytes_of(sizes[name], env)))
    return _most(pieces)


@settings(max_examples=300, deadline=None)
@given(programs())
def test_no_two_tensors_at_one_place_at_once(
    made: tuple[dict[str, Expr], list[KernelCall | Extern], list[str]],
) -> None:
    sizes, steps, outputs = made
    plan, lives = planned(sizes, steps, outputs)
    alive = lives_of(lives, sizes)
    for (a, at), (b, other) in combinations(plan.spots.items(), 2):
        together = alive[a][0] <= alive[b][1] and alive[b][0] <= alive[a][1]
        if together and (at.home, at.slot) == (other.home, other.slot):
            assert sizes[a].is_const and sizes[b].is_const
            assert at.offset + bytes_of(sizes[a]) <= other.offset or other.offset + bytes_of(sizes[b]) <= at.offset  # fmt: skip
    for name, spot in plan.spots.items():
        home = plan.slots[spot.slot] if spot.home == plan.arena else sizes[spot.home] * 4
        assert spot.offset % ALIGNMENT == 0
        if sizes[name].is_const:
            assert home.is_const and spot.offset + bytes_of(sizes[name]) <= home.value
        else:
            assert home == sizes[name] * 4 and spot.offset == 0
        assert spot.home == plan.arena or alive[spot.home][0] > alive[name][1]


@settings(max_examples=300, deadline=None)
@given(programs())
def test_the_peak_is_no_higher_than_without(
    made: tuple[dict[str, Expr], list[KernelCall | Extern], list[str]],
) -> None:
    """Claim 7.5, with what operators make counted too: both sides hold it equally long."""
    sizes, steps, outputs = made
    plan, lives = planned(sizes, steps, outputs)
    calls = [(k, n) for k, s in enumerate(steps) if isinstance(s, Extern) for n in s.outs]
    end = {n: k for k, gone in enumerate(lives.dead) for n in gone}
    others = [(k, end.get(n, len(steps)), bytes_of(sizes[n])) for k, n in calls]
    own = [(*life, bytes_of(sizes[n])) for n, life in lives_of(lives, sizes).items()]
    begin = {n: k for k, names in enumerate(plan.made) for n in names}
    gone = {n: k for k, names in enumerate(plan.gone) for n in names}
    shared = [(k, gone.get(n, len(steps)), bytes_of(sizes[n])) for n, k in begin.items() if n not in plan.spots and n != plan.arena]  # fmt: skip
    if plan.arena in begin:
        shared += [(begin[plan.arena], gone[plan.arena], s.evaluate(HINTS)) for s in plan.slots]
    assert _most([*shared, *others]) <= _most([*own, *others]) + SLACK


@settings(max_examples=300, deadline=None)
@given(programs())
def test_the_steps_of_every_plan_pass_verification(
    made: tuple[dict[str, Expr], list[KernelCall | Extern], list[str]],
) -> None:
    """Each temp is made once before its first use and goes after its last (claim 7.4), by the rules of an artifact."""
    sizes, steps, outputs = made
    plan, lives = planned(sizes, steps, outputs)
    for k, gone in enumerate(lives.dead):
        assert set(plan.gone[k]) - {plan.arena} == set(gone)
    tenancy, live = Tenancy(), set[str]()
    for k, step in enumerate(steps):
        for name in plan.made[k]:
            live.add(name)
            assert tenancy.follow(_made(name, plan, sizes), ()) is None
        reads = step.tensors if isinstance(step, KernelCall) else [r.buffer for r in step.args if isinstance(r, TensorRef)]  # fmt: skip
        assert live >= set(reads)
        if isinstance(step, KernelCall):
            assert tenancy.follow(Launch(0, step.tensors, ()), step.tensors) is None
        live.update(step.outs if isinstance(step, Extern) else ())
        assert live >= set(plan.gone[k])
        assert tenancy.follow(Free(plan.gone[k]), plan.gone[k]) is None
        live -= set(plan.gone[k])
    assert live == {n for n in live if n in outputs}


def _made(name: str, plan: Memory, sizes: dict[str, Expr]) -> Step:
    if name == plan.arena:
        return Arena(name, plan.slots)
    layout = ("float32", (sizes[name],), (const(1),))
    spot = plan.spots.get(name)
    return Alloc(name, *layout) if spot is None else Place(name, spot.home, spot.slot, spot.offset, *layout)  # fmt: skip


def test_a_plan_reads_like_what_the_host_function_does() -> None:
    plan, _ = chain([S0, S0, const(1000), S0])
    assert plan.text.splitlines() == [
        "arena: 4096, 4*s0 bytes",
        "t0: byte 0 of arena[1]",
        "t1: byte 0 of t3[0]",
        "t2: byte 0 of arena[0]",
        "step 0: makes arena, t0; frees -",
        "step 1: makes t3, t1; frees t0",
        "step 2: makes t2; frees t1",
        "step 3: makes -; frees t2, arena",
    ]


def test_a_buffer_may_be_called_arena() -> None:
    plan, _ = planned(dict.fromkeys(("arena", "b", "c"), const(8)), [kernel_call([], ["arena"]), kernel_call(["arena"], ["b"]), kernel_call(["b"], ["c"])], ["c"])  # fmt: skip
    assert plan.arena == "arena_" and "arena" in plan.spots


# -- numbers


def deep(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a = (x.sum(0) + y).softmax(-1)
    b = (x - a).t().contiguous().sum(1)
    c = torch.cumsum(x, 0) * b
    return (c.sum(0) * b).softmax(-1), c.amax(1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_out_of_shared_memory(dynamic: bool) -> None:
    args = [torch.randn(9, 130), torch.randn(130)]
    made = lowered(deep, args, dynamic)
    plan = schedule(made, Options(fusion=False))
    assert len(plan.memory.spots) >= 3 and plan.memory.slots
    sizes = bind(made, args)
    got = run_schedule(plan, [to_numpy(a) for a in args], sizes, call_torch)
    compare(got, deep(*args))


# -- extents


def test_bytes_of_a_dense_tensor_are_its_elements() -> None:
    assert extent_bytes("float32", (S0, S1), (S1, const(1))) == S0 * S1 * 4
    assert extent_bytes("float16", (S0, const(8)), (const(1), S0)) == S0 * 16
    assert extent_bytes("int64", (), ()) == const(8)
    assert extent_bytes("bool", (const(0), S0), (S0, const(1))) == const(0)
    long = sum((sym(f"a{i}") for i in range(MAX_TERMS)), const(0))
    assert extent_bytes("bool", (long, S0), (S0, long)) is None
