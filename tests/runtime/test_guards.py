"""The generated check agrees with the slow reference, which names the guard that fails."""

from __future__ import annotations

import math
import timeit
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stax.artifact.guards import (
    Binding,
    ConstantGuard,
    DistinctGuard,
    Guard,
    GuardSet,
    RelationGuard,
    StateGuard,
    TensorGuard,
)
from stax.ir.expr import Expr, const, maximum, sym
from stax.ir.program import Symbol
from stax.runtime.check import compile_guards
from stax.runtime.guards import Bound, holds
from stax.runtime.literals import constant_guard
from stax.runtime.state import STATES, current_state, state_guards

DTYPES = [torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64]
CONSTANTS = [
    None,
    True,
    False,
    0,
    1,
    -(2**70),
    0.0,
    -0.0,
    1.5,
    math.nan,
    math.inf,
    "",
    "a",
    1j,
    complex(0, -0.0),
]
CONSTANTS += [torch.float32, torch.device("cpu"), torch.channels_last, torch.strided]


def plain(draw: st.DrawFn) -> torch.Tensor:
    sizes = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    return torch.zeros(sizes, dtype=dtype)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Zero-dimensional, empty, transposed, expanded, strided, offset, lazily conjugated or negated, or a subclass."""
    x = plain(draw)
    for step in draw(
        st.lists(
            st.sampled_from(
                ["t", "expand", "slice", "offset", "conj", "imag", "parameter", "sparse"]
            ),
            max_size=2,
        )
    ):
        if x.layout is not torch.strided:
            break
        if step == "t" and x.dim() >= 2:
            x = x.transpose(0, 1)
        elif step == "expand":
            x = x.unsqueeze(0).expand(draw(st.integers(0, 3)), *x.shape)
        elif step == "slice" and x.dim() and x.size(-1) > 1:
            x = x[..., :: draw(st.integers(1, 2))]
        elif step == "offset" and x.dim() and x.size(0) > 1:
            x = x[1:]
        elif step == "conj" and x.is_complex():
            x = x.conj()
        elif step == "imag" and x.is_complex() and x.is_conj():
            x = x.imag
        elif step == "parameter" and x.is_floating_point():
            x = torch.nn.Parameter(x)
        elif step == "sparse" and x.dim() == 2 and x.is_contiguous() and not x.is_conj():
            x = x.detach().to_sparse()
    return x


@dataclass(frozen=True)
class Case:
    guards: GuardSet
    symbols: tuple[Symbol, ...]
    calls: tuple[Bound, ...]


def expression(draw: st.DrawFn, value: int, env: dict[str, int]) -> Expr:
    """An expression that mostly is ``value`` under ``env``; now and then it divides by zero."""
    if not env or draw(st.booleans()):
        return const(value)
    name = draw(st.sampled_from(sorted(env)))
    s = sym(name)
    whole = draw(st.sampled_from([s, s * 2, (s * 3) // (s - 1), (s + 5) % (s + 1), maximum(s, 2)]))
    if draw(st.integers(0, 5)) == 0 or (env[name] == 1 and "//" in whole.text):
        return whole + value
    return whole + (value - whole.evaluate(env))


def bound_sizes(draw: st.DrawFn, example: list[torch.Tensor]) -> tuple[Binding, ...]:
    """Some dimensions of the example, each with a symbol of its own."""
    places = [(i, d) for i, x in enumerate(example) for d in range(x.dim()) if draw(st.booleans())]
    return tuple(Binding(f"s{k}", i, d) for k, (i, d) in enumerate(places))


def tensor_guards(
    draw: st.DrawFn, example: list[torch.Tensor], bindings: tuple[Binding, ...], env: dict[str, int]
) -> list[Guard]:
    own = {(b.input, b.dim): sym(b.symbol) for b in bindings}
    guards: list[Guard] = []
    for i, x in enumerate(example):
        shape = tuple(own.get((i, d)) or expression(draw, n, env) for d, n in enumerate(x.shape))
        strides = tuple(
            None if draw(st.integers(0, 3)) == 0 else expression(draw, n, env) for n in x.stride()
        )
        dtype = str(x.dtype).removeprefix("torch.")
        offset = expression(draw, x.storage_offset(), env)
        guards.append(TensorGuard(i, dtype, "cpu", shape, strides, offset))
    return guards


def other_guards(draw: st.DrawFn, env: dict[str, int], tensors: int) -> list[Guard]:
    guards: list[Guard] = []
    for relation in draw(st.lists(st.sampled_from(["==", "!=", "<", "<="]), max_size=2)):
        left, right = (expression(draw, draw(st.integers(-2, 5)), env) for _ in range(2))
        guards.append(RelationGuard(left, relation, right))
    if tensors > 1:
        guards.append(DistinctGuard(((0, 1),)))
    if draw(st.booleans()):
        value = draw(st.sampled_from(["True", "False", "off", "float32", "?"]))
        guards.append(StateGuard(draw(st.sampled_from(sorted(STATES))), value))
    return guards


def another_call(draw: st.DrawFn, leaves: list[object], example: list[torch.Tensor]) -> Bound:
    """The example's call with some tensors and constants replaced."""
    other = [x if draw(st.booleans()) else draw(st.one_of(tensors(), st.just(3))) for x in example]
    if len(other) > 1 and draw(st.booleans()):
        other[1] = other[0]
    changed = [v if draw(st.booleans()) else draw(st.sampled_from(CONSTANTS)) for v in leaves]
    return Bound(tuple(changed), tuple(other))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Guards that hold for an example, or nearly; calls with the example and with others."""
    drawn = draw(st.lists(tensors(), min_size=1, max_size=3))
    example = [x if x.layout is torch.strided else x.to_dense() for x in drawn]
    bindings = bound_sizes(draw, example)
    env = {b.symbol: example[b.input].size(b.dim) for b in bindings}
    highest = st.sampled_from([None, 3, 9])
    symbols = tuple(Symbol(n, v, draw(st.integers(0, 2)), draw(highest)) for n, v in env.items())
    leaves = draw(st.lists(st.sampled_from(CONSTANTS), max_size=3))
    guards = [
        *tensor_guards(draw, example, bindings, env),
        *other_guards(draw, env, len(example)),
        *(constant_guard(i, leaf) for i, leaf in enumerate(leaves)),
    ]
    first = Bound(tuple(leaves), tuple(example))
    calls = (first, *(another_call(draw, leaves, example) for _ in range(3)))
    return Case(GuardSet(bindings, tuple(draw(st.permutations(guards)))), symbols, calls)


@settings(max_examples=600, deadline=None)
@given(cases())
def test_fast_equals_slow(case: Case) -> None:
    dynamic = compile_guards(case.guards, case.symbols)
    static = compile_guards(case.guards, case.symbols, frozenset(range(9)))
    token = object()
    for call in (*case.calls, case.calls[0]):
        slow = holds(case.guards, call, case.symbols)
        values = dynamic(call.leaves, call.tensors)
        assert (values is None) == (slow is not None), slow
        assert (static(call.leaves, call.tensors) is None) == (slow is not None), slow
        if values is not None:
            env = dict(zip((s.name for s in case.symbols), values))
            assert all(
                env[b.symbol] == call.tensors[b.input].shape[b.dim] for b in case.guards.bindings
            )
    for _ in range(2):
        first = case.calls[0]
        slow = holds(case.guards, first, case.symbols)
        assert (static(first.leaves, first.tensors, token) is None) == (slow is not None)


@settings(max_examples=600, deadline=None)
@given(cases())
def test_a_call_after_an_accepted_one_is_judged_as_if_it_were_the_first(case: Case) -> None:
    for static in (frozenset[int](), frozenset([0])):
        check = compile_guards(case.guards, case.symbols, static)
        for call in (*case.calls, *case.calls, *reversed(case.calls)):
            again = compile_guards(case.guards, case.symbols, static)
            expected = again(call.leaves, call.tensors)
            for _ in range(2):
                assert check(call.leaves, call.tensors) == expected


def test_sizes_that_change_at_every_call_are_not_learned_each_time() -> None:
    s = sym("s0")
    each = TensorGuard(0, "float32", "cpu", (s,), (const(1),), const(0))
    check = compile_guards(GuardSet((Binding("s0", 0, 0),), (each,)), (Symbol("s0", 3),))
    learned = 0
    for n in range(2, 500):
        before = check._dynamic._seen
        assert check((), (torch.zeros(n),)) == (n,)
        learned += check._dynamic._seen is not before
    assert learned < 10


def test_an_accepted_call_says_nothing_about_gradients_modes_or_views() -> None:
    x = torch.zeros(3, 4)
    check = compile_guards(GuardSet((), (guard(x), *state_guards(("autocast_cpu",)))))
    assert check((), (x,)) == check((), (x,)) == ()
    assert check((), (torch.zeros(3, 4, requires_grad=True),)) == ()
    assert check((), (torch.nn.Parameter(x),)) == ()
    assert check((), (torch.zeros(16)[4:].view(3, 4),)) is None
    assert check((), (torch._neg_view(x),)) is None
    assert check((), (x.to_sparse(),)) is None
    assert check((), (None,)) is None
    with torch.autocast("cpu"):
        assert check((), (x,)) is None
    with torch.inference_mode():
        assert check((), (torch.zeros(3, 4),)) == () and check((), (x,)) == ()
    assert check((), (x,)) == ()


def guard(x: torch.Tensor, index: int = 0) -> TensorGuard:
    strides = tuple(const(s) for s in x.stride())
    dtype = str(x.dtype).removeprefix("torch.")
    return TensorGuard(
        index, dtype, "cpu", tuple(const(s) for s in x.shape), strides, const(x.storage_offset())
    )


X = torch.zeros(3, 4)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (torch.zeros(3, 5), "x.size(1) is 5, expected 4"),
        (torch.zeros(4, 3).t(), "x.stride(0) is 1, expected 4"),
        (torch.zeros(13)[1:].view(3, 4), "x.storage_offset() is 1, expected 0"),
        (torch.zeros(3, 4).double(), "x has dtype torch.float64, expected torch.float32"),
        (torch.zeros(3), "x has 1 dimensions, expected 2"),
        (torch.zeros(3, 4, device="meta"), "x is on meta, expected cpu"),
        (torch.zeros(3, 4).to_sparse(), "x has layout torch.sparse_coo, expected torch.strided"),
        (torch.zeros(3, 4, dtype=torch.complex64).conj().imag, "x is a lazy negation or conjugate"),
        (7, "x is a int, expected a plain Tensor"),
    ],
)
def test_a_reason_is_in_the_users_terms(found: object, text: str) -> None:
    reason = holds(GuardSet((), (guard(X),)), Bound((), (found,), tensor_names=("x",)))
    assert reason is not None and str(reason).startswith(text)
    assert compile_guards(GuardSet((), (guard(X),)))((), (found,)) is None


def test_a_relation_tells_its_text_its_values_and_its_place() -> None:
    s = sym("s0")
    tensor = TensorGuard(0, "float32", "cpu", (s,), (const(1),), const(0))
    relation = RelationGuard(s, "<=", const(4), "x.size(0) <= 4", "model.py:41")
    guards = GuardSet((Binding("s0", 0, 0),), (tensor, relation))
    reason = holds(guards, Bound((), (torch.zeros(7),)))
    assert str(reason) == "expected x.size(0) <= 4 with s0 = 7 (model.py:41)"
    low = holds(guards, Bound((), (torch.zeros(1),), tensor_names=("x",)), (Symbol("s0", 3),))
    assert str(low) == "x.size(0) is 1, expected 2 .. "


def test_a_constant_and_shared_memory() -> None:
    call = Bound((2,), (X, X[1:]), ("scale",), ("x", "y"))
    assert str(holds(GuardSet((), (ConstantGuard(0, 1, "int"),)), call)) == "scale is 2, expected 1"
    shared = GuardSet((), (DistinctGuard(((0, 1),)),))
    assert str(holds(shared, call)) == "x and y share memory, and one of them is written"
    assert holds(shared, Bound((), (X, torch.zeros(3, 4)))) is None


def test_states_hold_now_and_not_when_changed() -> None:
    guards = GuardSet((), state_guards())
    check = compile_guards(guards)
    call = Bound((), ())
    assert holds(guards, call) is None and check((), ()) == ()
    changes = [
        torch.no_grad(),
        torch.inference_mode(),
        torch.autocast("cpu"),
        torch.autocast("cpu", torch.float16),
    ]
    for change in changes:
        with change:
            assert holds(guards, call) is not None and check((), ()) is None
    torch.set_default_dtype(torch.float64)
    try:
        assert str(holds(guards, call)) == "default_dtype is float64, expected float32"
        assert check((), ()) is None
    finally:
        torch.set_default_dtype(torch.float32)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert current_state("matmul_tf32") == "True" and check((), ()) is None
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"


def test_modes_and_transforms_are_refused() -> None:
    guards = GuardSet((), ())
    check = compile_guards(guards)
    seen: list[bool] = []

    def probe(x: torch.Tensor) -> torch.Tensor:
        seen.append(check((), ()) is None and holds(guards, Bound((), ())) is not None)
        return x

    torch.func.vmap(probe)(torch.zeros(2))
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        pass

    with Mode():
        probe(X)
    assert seen == [True, True] and check((), ()) == ()


def test_static_tensors_are_told_again_when_their_data_changes() -> None:
    p = torch.nn.Parameter(torch.zeros(3, 4))
    check = compile_guards(GuardSet((), (guard(p.data),)), (), frozenset([0]))
    token = object()
    assert check((), (p,), token) == () and check((), (p,), token) == ()
    for other in (
        torch.zeros(4, 3).t(),
        torch.zeros(3, 4).double(),
        torch.zeros(2),
    ):
        before = p.data
        p.data = other
        assert check((), (p,), token) is None
        p.data = before
        assert check((), (p,), token) == ()
    with torch.inference_mode():
        assert check((), (p,), token) == ()
    assert check((), (p,), object()) == ()


def cost_us(call: Callable[[], object]) -> float:
    """Least cost of a call in microseconds, printed and held to bounds that only a mistake of order exceeds."""
    return min(timeit.repeat(call, number=1000, repeat=7)) / 1000 * 1e6


@pytest.mark.parametrize("count", [1, 10, 150])
def test_a_static_guard_is_cheap(count: int) -> None:
    tensors = tuple(torch.nn.Parameter(torch.zeros(8, 8)) for _ in range(count))
    guards = GuardSet((), tuple(guard(t.data, i) for i, t in enumerate(tensors)))
    check = compile_guards(guards, (), frozenset(range(count)))
    token = object()
    assert check((), tensors, token) == ()
    took = cost_us(lambda: check((), tensors, token))
    print(f"guards of {count} static tensors: {took:.2f} us")
    assert took < 20 + 1.0 * count


@pytest.mark.parametrize("count", [1, 5])
def test_a_dynamic_guard_is_cheap(count: int) -> None:
    s = sym("s0")
    sizes, strides = (s, const(8)), (const(8), const(1))
    each = tuple(TensorGuard(i, "float32", "cpu", sizes, strides, const(0)) for i in range(count))
    check = compile_guards(GuardSet((Binding("s0", 0, 0),), each), (Symbol("s0", 3),))
    tensors = tuple(torch.zeros(5, 8) for _ in range(count))
    assert check((), tensors) == (5,)
    took = cost_us(lambda: check((), tensors))
    print(f"guards of {count} tensors with a symbol: {took:.2f} us")
    assert took < 10 + 4 * count
