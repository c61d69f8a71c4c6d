"""Artifacts that pass the codec and still mean harm: loading and running them raises errors, and never crashes."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgpack
import pytest
import torch

from stax.artifact.artifact import Artifact, Call, Return
from stax.artifact.codec import decode, encode
from stax.artifact.signature import Tree
from stax.base.errors import LoadError, SchemaError, StoreError
from stax.ir.expr import const
from stax.ir.program import Listed, Literal, TensorRef
from stax.runtime.load import load
from tests.artifacts import (
    LEAF,
    Input,
    artifact,
    blobs,
    changed,
    counter,
    linear_relu,
    shape,
    strided,
    take,
    tensor,
    whole,
)
from tests.fuzz.test_hostile_artifact import places, replaced

RAW = b"\0" * 20
SEEDS: tuple[Artifact, ...] = (linear_relu(), counter(), changed(), strided(), take(RAW, 5))


@pytest.mark.parametrize("seed", range(len(SEEDS)))
def test_only_load_errors(seed: int) -> None:
    """Pieces of an artifact where others belong, loaded with its honest kernels."""
    own = random.Random(seed)
    held = blobs(SEEDS[seed], (RAW,))
    plain = msgpack.unpackb(encode(SEEDS[seed]))
    paths = [p for p in places(plain) if p]
    loaded = 0
    for _ in range(1500):
        piece: Any = plain
        for i in own.choice(paths):
            piece = piece[i]
        try:
            mutant = decode(msgpack.packb(replaced(plain, own.choice(paths), piece)))
            load(mutant, held)
            loaded += 1
        except (LoadError, StoreError):
            continue
    assert loaded


def calling(target: str, *args: Any) -> Artifact:
    return artifact(
        (tensor(0, Input("arg", 0), shape(4)),),
        (Call(("t0",), target, args, ()), Return((TensorRef("t0", shape(4), shape(1), const(0)),))),
        args=1,
        out=LEAF,
    )


@pytest.mark.parametrize(
    "target",
    [
        "aten.__class__.__name__",
        "aten.__init__.__globals__",
        "aten.relu.__class__",
        "aten.relu._schema",
        "aten.name.x",
        "prims.__dict__.x",
        "aten.set_.source_Tensor",
        "aten.resize.out",
        "aten.item.default",
        "aten.size.int",
        "aten.copy_.default",
        "aten._print.default",
        "aten.from_file.default",
        "aten.save.default",
    ],
)
def test_names_that_are_no_functional_operator(target: str) -> None:
    with pytest.raises(LoadError):
        load(calling(target, whole("in0", shape(4))), {})


@pytest.mark.parametrize(
    "args",
    [
        (),
        (Literal("x"),),
        (const(2**62),),
        (Listed((Literal(None),)),),
        (whole("in0", shape(2**40)),),
        (TensorRef("in0", shape(4), shape(2**40), const(0)),),
        (TensorRef("in0", shape(4), shape(-1), const(3)),),
        (TensorRef("in0", shape(4), shape(1), const(-1)),),
        (TensorRef("in0", shape(-4), shape(1), const(0)),),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_torch(args: tuple[Any, ...]) -> None:
    executable = load(calling("aten.relu.default", *args), {})
    with pytest.raises((RuntimeError, TypeError)):
        executable.run((torch.zeros(4),))


def test_memory_that_does_not_exist_is_refused() -> None:
    from stax.artifact.artifact import Alloc, Arena

    base = counter()
    for step in (
        *(Alloc("big", "float32", shape(size), shape(1)) for size in (2**50, 2**62, -1)),
        *(Arena("big", slots) for slots in (shape(2**50), shape(2**62), shape(*[2**62] * 8))),
    ):
        with pytest.raises((RuntimeError, OverflowError)):
            load(replace(base, forward=(step, *base.forward)), blobs(base)).run((torch.zeros(6),))


def test_trees_that_name_strangers() -> None:
    for tree in (
        Tree("object", (LEAF,), ("x",), "os:system", '"dataclass"'),
        Tree("namedtuple", (LEAF,), ("x y",), "os:__dict__"),
        Tree("object", (LEAF,), (), "builtins:eval", "[]"),
        Tree("dict", (LEAF,), ("__class__",)),
    ):
        base = counter()
        odd = replace(base, signature=replace(base.signature, out=tree))
        executable = load(decode(encode(odd)), blobs(base))
        value = executable.rebuild(executable.run((torch.zeros(6),)))
        assert type(value) is dict or isinstance(value, tuple)


def test_deep_expressions_are_refused() -> None:
    plain = msgpack.unpackb(encode(linear_relu()))
    text = "((" * 60 + "s0" + ") // (2))" * 60
    paths = [p for p in places(plain) if len(p) > 4 and _at(plain, p) == "s0"]
    for path in paths:
        with pytest.raises(SchemaError):
            decode(msgpack.packb(replaced(plain, path, text)))


def _at(value: Any, path: tuple[int, ...]) -> Any:
    for i in path:
        value = value[i]
    return value
