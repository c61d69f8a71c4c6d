"""Values to trees and back; the generated flattener takes exactly the calls of its tree."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree

from stax.artifact.signature import Tree
from stax.base.errors import CaptureError, LoadError
from stax.runtime.signature import (
    builder,
    compile_flattener,
    difference,
    flatten,
    flatten_call,
    leaf_count,
    leaf_names,
    node_of,
    types_of,
    unflatten,
)

Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class State:
    keys: Any
    values: Any = 3


class Output(OrderedDict):
    """As transformers' ModelOutput: a mapping with attributes, registered with pytree."""


_pytree.register_pytree_node(
    Output,
    lambda o: (list(o.values()), list(o.keys())),
    lambda values, keys: Output(zip(keys, values)),
    serialized_type_name="tests.Output",
)

leaves = st.one_of(st.none(), st.integers(), st.text(max_size=2), st.just(torch.float32))
keys = st.one_of(st.text(max_size=3), st.integers(-3, 3))


def nests(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.tuples(inner, inner).map(lambda p: Point(*p)),
        st.tuples(inner, inner).map(lambda p: State(*p)),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(OrderedDict),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(Output),
        st.lists(inner, max_size=3).map(lambda items: deque(items, maxlen=4)),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(lambda d: defaultdict(list, d)),
        st.lists(st.integers(0, 5), max_size=3).map(torch.Size),
        st.tuples(inner, inner, inner).map(lambda t: slice(*t)),
    )


values = st.recursive(leaves, nests, max_leaves=8)
calls = st.tuples(
    st.lists(values, max_size=3).map(tuple),
    st.dictionaries(st.text(max_size=3), values, max_size=2),
)


@settings(max_examples=300, deadline=None)
@given(calls)
def test_round_trip(call: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    tree, found = flatten_call(*call)
    assert unflatten(tree, found) == call
    assert repr(unflatten(tree, found)) == repr(call)
    assert leaf_count(tree) == len(found) == len(leaf_names(tree))
    assert difference(tree, tree) is None


@settings(max_examples=300, deadline=None)
@given(calls, calls)
def test_a_flattener_takes_the_calls_of_its_tree(
    one: tuple[tuple[Any, ...], dict[str, Any]], two: tuple[tuple[Any, ...], dict[str, Any]]
) -> None:
    tree, found = flatten_call(*one)
    flattener = compile_flattener(tree)
    given_leaves = flattener(*one)
    assert given_leaves is not None
    assert len(given_leaves) == len(found) and all(a is b for a, b in zip(given_leaves, found))
    other, others = flatten_call(*two)
    answer = flattener(*two)
    assert (difference(tree, other) is None) == (other == tree)
    if other == tree:
        assert answer is not None and list(answer) == others
    elif answer is not None:
        assert any(node_of(leaf) for leaf in answer), (
            "a leaf may be a container: its guard refuses it"
        )


def test_structure_counts_names_and_order() -> None:
    tree, _ = flatten_call((1, {"a": 2, "b": 3}), {"mask": None})
    flattener = compile_flattener(tree)
    assert flattener((1, {"a": 2, "b": 3}), {"mask": None}) == (1, 2, 3, None)
    for args, kwargs in [
        ((1,), {"mask": None}),
        ((1, {"b": 3, "a": 2}), {"mask": None}),
        ((1, OrderedDict(a=2, b=3)), {"mask": None}),
        ((1, {"a": 2, "b": 3}), {}),
        ((1, [2, 3]), {"mask": None}),
    ]:
        assert flattener(args, kwargs) is None
    assert leaf_names(tree) == ("args[0]", "args[1]['a']", "args[1]['b']", "kwargs['mask']")
    assert compile_flattener(flatten_call(({1: 2},), {})[0])(({True: 2},), {}) is None


def test_operators_that_give_named_results() -> None:
    found = torch.max(torch.arange(3.0), 0)
    tree, parts = flatten(found)
    assert tree.type == "torch.return_types:max"
    assert type(unflatten(tree, parts)) is type(found)


def test_classes_that_are_absent() -> None:
    made = unflatten(
        Tree("namedtuple", (Tree("leaf"),) * 2, ("a", "b"), "gone.module:Pair"), (1, 2)
    )
    assert (made.a, made.b) == (1, 2) and type(made).__name__ == "Pair"
    made = unflatten(
        Tree("object", (Tree("leaf"),) * 2, ("logits", "loss"), "gone:Output", "[]"), (1, 2)
    )
    assert made == {"logits": 1, "loss": 2}


def test_classes_of_a_function_are_handed_in() -> None:
    local = namedtuple("local", "x y")
    tree, parts = flatten([local(1, 2)])
    assert type(unflatten(tree, parts)[0]) is not local
    assert type(unflatten(tree, parts, types_of([local(1, 2)]))[0]) is local


def test_a_tree_from_the_wire_imports_nothing_and_makes_no_stranger() -> None:
    tree = Tree("object", (Tree("leaf"),), ("x",), "antigravity:Thing", "[]")
    assert unflatten(tree, (1,)) == {"x": 1} and "antigravity" not in sys.modules
    assert unflatten(Tree("namedtuple", (Tree("leaf"),), ("x",), "subprocess:Popen"), (1,)).x == 1
    hostile = (
        '{"default_factory_module": "os", "default_factory_name": "abort", "dict_context": ["a"]}'
    )
    with pytest.raises(LoadError):
        unflatten(Tree("object", (Tree("leaf"),), (), "collections:defaultdict", hostile), (1,))
    with pytest.raises(LoadError):
        builder(Tree("object", (Tree("leaf"),), (), "collections:OrderedDict", "{"))


def test_what_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(CaptureError, match="nested too deep"):
        flatten_call((loop,), {})


def test_the_runtime_can_neither_trace_nor_compile() -> None:
    code = (
        "import sys, stax.runtime.dispatch, stax.runtime.load, stax.runtime.constraints, stax.runtime.state\n"
        "print([m for m in ('torch._dynamo', 'sympy', 'triton', 'torch._inductor') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
