"""Invariants of an artifact that its schema can not say: names, counts, indices and order. Pure; raises SchemaError.

What it does not prove is checked when it runs: torch's as_strided refuses a view outside its storage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NoReturn

from stax.artifact.artifact import (
    SCHEMA,
    Alloc,
    Arena,
    Artifact,
    Binary,
    Call,
    Change,
    CopyBack,
    Free,
    Launch,
    Place,
    Return,
    Step,
)
from stax.artifact.guards import (
    RELATIONS,
    ConstantGuard,
    DistinctGuard,
    Guard,
    RelationGuard,
    TensorGuard,
)
from stax.artifact.memory import Tenancy
from stax.artifact.signature import Tree
from stax.base.errors import SchemaError
from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr
from stax.ir.program import Arg, Listed, TensorRef

DEVICES = ("cpu", "cuda")
LANGUAGES = {"cpu": "cpp", "cuda": "triton"}
TREE_KINDS = ("leaf", "tuple", "list", "dict", "namedtuple", "object")
SOURCES = ("arg", "parameter", "buffer", "constant")
STATES = (
    "grad_enabled",
    "inference_mode",
    "autocast_cpu",
    "autocast_cuda",
    "default_dtype",
    "deterministic",
    "matmul_tf32",
)
POINTERS = ("in", "out", "inout")
OUTPUTS = (TensorRef,)
_TARGET = re.compile(r"(aten|prims)\.[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
# Operators of the allowed namespaces that reach outside the tensors they are given.
_REFUSED = frozenset("aten.from_file aten.save aten.load aten.open aten.warn aten.set_data".split())


def verify(artifact: Artifact) -> None:
    """Raises SchemaError, whose ``where`` is a path, at the first broken invariant."""
    if artifact.schema != SCHEMA:
        _fault(f"schema {SCHEMA}", str(artifact.schema), "schema")
    if artifact.target.kind not in DEVICES:
        _fault(" | ".join(DEVICES), artifact.target.kind, "target.kind")
    symbols = _unique((s.name for s in artifact.symbols), "symbols")
    for i, symbol in enumerate(artifact.symbols):
        _check(
            _IDENTIFIER.fullmatch(symbol.name), "an identifier", symbol.name, f"symbols[{i}].name"
        )
    _unique(artifact.inputs, "inputs")
    _verify_signature(artifact)
    _verify_guards(artifact, symbols)
    for i, constant in enumerate(artifact.constants):
        _check(constant.dtype in DTYPES, "a dtype", constant.dtype, f"constants[{i}].dtype")
        _check(
            _DIGEST.fullmatch(constant.digest),
            "a sha256",
            constant.digest,
            f"constants[{i}].digest",
        )
    for i, binary in enumerate(artifact.binaries):
        _verify_binary(binary, LANGUAGES[artifact.target.kind], f"binaries[{i}]")
    _verify_forward(artifact, symbols)
    if artifact.backward:
        _fault("no backward in this schema", f"{len(artifact.backward)} steps", "backward")


def _fault(expected: str, found: str, where: str) -> NoReturn:
    raise SchemaError(
        "bad artifact", expected=expected, found=found[:120], where=f"artifact.{where}"
    )


def _check(holds: object, expected: str, found: object, where: str) -> None:
    if not holds:
        _fault(expected, str(found), where)


def _unique(names: Iterable[str], where: str) -> frozenset[str]:
    seen: set[str] = set()
    for i, name in enumerate(names):
        _check(name and name not in seen, "a name used once", repr(name), f"{where}[{i}]")
        seen.add(name)
    return frozenset(seen)


# -- signature


def _verify_signature(artifact: Artifact) -> None:
    signature = artifact.signature
    call = signature.call
    shaped = call.kind == "tuple" and [c.kind for c in call.children] == ["tuple", "dict"]
    _check(shaped, "the tree of (args, kwargs)", call.kind, "signature.call")
    _verify_tree(call, "signature.call")
    _verify_tree(signature.out, "signature.out")
    _check(
        all(type(k) is str for k in call.children[1].keys),
        "str keys",
        "int",
        "signature.call[1].keys",
    )
    same = len(signature.inputs) == len(artifact.inputs)
    _check(same, f"{len(artifact.inputs)} inputs", len(signature.inputs), "signature.inputs")
    leaves = _leaves(call)
    constants = _unique((c.name for c in artifact.constants), "constants")
    taken: set[int] = set()
    for i, item in enumerate(signature.inputs):
        where = f"signature.inputs[{i}]"
        _check(item.source in SOURCES, " | ".join(SOURCES), item.source, where)
        if item.source == "arg":
            _check(
                0 <= item.leaf < leaves and item.leaf not in taken,
                "a leaf of its own",
                item.leaf,
                where,
            )
            taken.add(item.leaf)
        elif item.source == "constant":
            _check(item.name in constants, "a constant", item.name, where)
        else:
            _check(item.name, "the name of a parameter or buffer", "none", where)


def _verify_tree(tree: Tree, where: str) -> None:
    _check(tree.kind in TREE_KINDS, " | ".join(TREE_KINDS), tree.kind, where)
    count = len(tree.children)
    if tree.kind == "leaf":
        _check(count == 0, "no children", count, where)
    if tree.kind in ("dict", "namedtuple") or (tree.kind == "object" and tree.keys):
        _check(len(tree.keys) == count, f"{count} keys", len(tree.keys), where)
        _check(len(set(tree.keys)) == count, "distinct keys", "a repeated one", where)
    if tree.kind in ("namedtuple", "object"):
        _check(tree.type.count(":") == 1, "module:qualname", tree.type, where)
    for i, child in enumerate(tree.children):
        _verify_tree(child, f"{where}[{i}]")


def _leaves(tree: Tree) -> int:
    return 1 if tree.kind == "leaf" else sum(_leaves(child) for child in tree.children)


# -- guards


def _verify_guards(artifact: Artifact, symbols: frozenset[str]) -> None:
    ranks = _tensor_guards(artifact)
    bound: set[str] = set()
    for i, binding in enumerate(artifact.guards.bindings):
        where = f"guards.bindings[{i}]"
        _check(binding.symbol in symbols, "a symbol of the artifact", binding.symbol, where)
        _check(
            binding.dim < ranks.get(binding.input, 0), "a dimension of an input", binding.dim, where
        )
        bound.add(binding.symbol)
    for name in sorted(symbols - bound):
        _fault("a binding for every symbol", name, "guards.bindings")
    told = {g.leaf for g in artifact.guards.guards if isinstance(g, ConstantGuard)}
    told |= {item.leaf for item in artifact.signature.inputs if item.source == "arg"}
    for leaf in range(_leaves(artifact.signature.call)):
        _check(
            leaf in told,
            "a guard for every leaf of the call",
            f"none for leaf {leaf}",
            "guards.guards",
        )
    for i, guard in enumerate(artifact.guards.guards):
        _verify_guard(guard, artifact, symbols, f"guards.guards[{i}]")


def _tensor_guards(artifact: Artifact) -> dict[int, int]:
    """Ranks by input; every input but a constant has exactly one TensorGuard."""
    ranks: dict[int, int] = {}
    for i, guard in enumerate(artifact.guards.guards):
        if isinstance(guard, TensorGuard):
            fresh = guard.input < len(artifact.inputs) and guard.input not in ranks
            _check(fresh, "one guard an input", guard.input, f"guards.guards[{i}].input")
            ranks[guard.input] = len(guard.shape)
    for i, item in enumerate(artifact.signature.inputs):
        _check(
            item.source == "constant" or i in ranks,
            "a tensor guard",
            f"none for input {i}",
            "guards.guards",
        )
    return ranks


def _verify_guard(guard: Guard, artifact: Artifact, symbols: frozenset[str], where: str) -> None:
    if isinstance(guard, TensorGuard):
        _check(guard.dtype in DTYPES, "a dtype", guard.dtype, where)
        _check(guard.device in DEVICES, " | ".join(DEVICES), guard.device, where)
        _check(
            len(guard.strides) == len(guard.shape),
            f"{len(guard.shape)} strides",
            len(guard.strides),
            where,
        )
        _known(
            (*guard.shape, *(s for s in guard.strides if s is not None), guard.offset),
            symbols,
            where,
        )
    elif isinstance(guard, RelationGuard):
        _check(guard.relation in RELATIONS, " | ".join(RELATIONS), guard.relation, where)
        _known((guard.left, guard.right), symbols, where)
    elif isinstance(guard, ConstantGuard):
        tensors = {item.leaf for item in artifact.signature.inputs if item.source == "arg"}
        fits = guard.leaf < _leaves(artifact.signature.call) and guard.leaf not in tensors
        _check(fits, "a leaf that is no tensor", guard.leaf, where)
    elif isinstance(guard, DistinctGuard):
        count = len(artifact.inputs)
        _check(
            all(a < count and b < count for a, b in guard.pairs), f"inputs < {count}", "more", where
        )
    else:
        _check(guard.name in STATES, " | ".join(STATES), guard.name, where)


def _known(exprs: Iterable[Expr], symbols: frozenset[str], where: str) -> None:
    for expr in exprs:
        if not expr.symbols <= symbols:
            _fault("bound symbols", expr.text, where)


# -- binaries and steps


def _verify_binary(binary: Binary, language: str, where: str) -> None:
    _check(binary.language == language, language, binary.language, f"{where}.language")
    _check(_DIGEST.fullmatch(binary.digest), "a sha256", binary.digest, f"{where}.digest")
    _check(_IDENTIFIER.fullmatch(binary.entry), "an identifier", binary.entry, f"{where}.entry")
    kinds = (*POINTERS, "size", "block")
    for i, param in enumerate(binary.params):
        _check(param.kind in kinds, " | ".join(kinds), param.kind, f"{where}.params[{i}].kind")
    names = {p.name for p in binary.params if p.kind == "size"} | {
        name for name, _ in binary.config.values
    }
    _known(binary.grid, frozenset(names), f"{where}.grid")


def _verify_forward(artifact: Artifact, symbols: frozenset[str]) -> None:
    inputs = frozenset(artifact.inputs)
    sealed = inputs
    live, ever, tenancy = set(inputs), set(inputs), Tenancy()
    ends = bool(artifact.forward) and isinstance(artifact.forward[-1], Return)
    _check(ends, "a last step Return", "none", "forward")
    for i, step in enumerate(artifact.forward):
        where = f"forward[{i}]"
        if isinstance(step, Return) and i != len(artifact.forward) - 1:
            _fault("Return as the last step alone", f"step {i}", where)
        _known(_exprs(step), symbols, where)
        reads = tuple(_reads(step))
        for name in reads:
            _check(name in live, "a name that is defined and not freed", repr(name), where)
        refusal = tenancy.follow(step, reads)
        if refusal is not None:
            _fault(*refusal, where)
        _verify_step(step, artifact, sealed, where)
        if isinstance(step, Change):
            sealed -= {step.target}
        for name in _defines(step):
            _check(name and name not in ever, "a new name", repr(name), where)
            live.add(name)
            ever.add(name)
        if isinstance(step, Free):
            kept = (inputs - sealed).isdisjoint(step.names)
            _check(kept, "changed inputs that live to the end", step.names, where)
            live.difference_update(step.names)


def _verify_step(step: Step, artifact: Artifact, sealed: frozenset[str], where: str) -> None:
    """``sealed``: inputs that no kernel may write."""
    if isinstance(step, Alloc):
        _check(step.dtype in DTYPES, "a dtype", step.dtype, where)
        _check(
            len(step.strides) == len(step.shape),
            f"{len(step.shape)} strides",
            len(step.strides),
            where,
        )
    elif isinstance(step, Launch):
        _verify_launch(step, artifact, sealed, where)
    elif isinstance(step, Call):
        _check(is_allowed(step.target), "a functional aten or prims operator", step.target, where)
        _check(
            len(dict(step.kwargs)) == len(step.kwargs), "distinct keywords", "a repeated one", where
        )
    elif isinstance(step, (Change, CopyBack)):
        sources = zip(artifact.inputs, artifact.signature.inputs)
        fits = step.target in {n for n, i in sources if i.source != "constant"}
        _check(fits, "an input that is no constant", step.target, where)
    elif isinstance(step, Return):
        count = _leaves(artifact.signature.out)
        _check(len(step.outputs) == count, f"{count} outputs", len(step.outputs), where)


def _verify_launch(step: Launch, artifact: Artifact, sealed: frozenset[str], where: str) -> None:
    _check(step.binary < len(artifact.binaries), "an index of a binary", step.binary, where)
    params = artifact.binaries[step.binary].params
    given = [p for p in params if p.kind in POINTERS]
    pointers = len(given)
    sizes = sum(p.kind == "size" for p in params)
    _check(len(step.tensors) == pointers, f"{pointers} tensors", len(step.tensors), where)
    _check(len(step.sizes) == sizes, f"{sizes} sizes", len(step.sizes), where)
    written = {name for name, p in zip(step.tensors, given) if p.kind != "in"}
    _check(
        not written & sealed,
        "kernels that write no input but a changed one",
        sorted(written),
        where,
    )


def is_allowed(target: str) -> bool:
    """Whether an extern call may name this operator: "aten.<name>.<overload>", not in place, not writing to an out."""
    if not _TARGET.fullmatch(target):
        return False
    _, name, overload = target.split(".")
    in_place = name.endswith("_") and not name.endswith("__")
    return not in_place and "out" not in overload.split("_") and f"aten.{name}" not in _REFUSED


def refs(args: Iterable[Arg]) -> Iterator[TensorRef]:
    """Every TensorRef among arguments, nested ones too."""
    for arg in args:
        if isinstance(arg, TensorRef):
            yield arg
        elif isinstance(arg, Listed):
            yield from refs(arg.items)


def _arguments(step: Call) -> tuple[Arg, ...]:
    return (*step.args, *(value for _, value in step.kwargs))


def _reads(step: Step) -> Iterator[str]:
    if isinstance(step, Launch):
        yield from step.tensors
    elif isinstance(step, Call):
        yield from (ref.buffer for ref in refs(_arguments(step)))
    elif isinstance(step, Free):
        yield from step.names
    elif isinstance(step, Place):
        yield step.home
    elif isinstance(step, Change):
        yield step.target
    elif isinstance(step, CopyBack):
        yield from (step.target, step.source)
    elif isinstance(step, Return):
        yield from (out.buffer for out in step.outputs if isinstance(out, OUTPUTS))


def _defines(step: Step) -> Iterator[str]:
    if isinstance(step, (Alloc, Arena, Place)):
        yield step.name
    elif isinstance(step, Call):
        yield from (name for name in step.outs if name)


def _exprs(step: Step) -> Iterator[Expr]:
    if isinstance(step, (Alloc, Place)):
        yield from (*step.shape, *step.strides)
    elif isinstance(step, Arena):
        yield from step.slots
    elif isinstance(step, Launch):
        yield from step.sizes
    elif isinstance(step, Call):
        yield from _argument_exprs(_arguments(step))
        yield from (
            e for layout in step.layouts if layout for e in (*layout.shape, *layout.strides)
        )
    elif isinstance(step, Return):
        yield from _argument_exprs(step.outputs)


def _argument_exprs(args: Iterable[Arg]) -> Iterator[Expr]:
    for arg in args:
        if isinstance(arg, Expr):
            yield arg
        elif isinstance(arg, TensorRef):
            yield from (*arg.shape, *arg.strides, arg.offset)
        elif isinstance(arg, Listed):
            yield from _argument_exprs(arg.items)
