"""lower: a captured graph becomes a Program, one computation an operator. Fusing is the schedule's work."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch.fx

from stax.artifact.guards import StateGuard
from stax.base.errors import VerifyError
from stax.base.options import Options
from stax.capture.captured import Captured, Meta
from stax.ir.expr import Expr
from stax.ir.program import Buffer, Literal, Mutation, Program, TensorRef
from stax.lower import float8, views
from stax.lower.build import Builder, Call, Declined, Result
from stax.lower.empty import refuse_reads_of_nothing
from stax.lower.extern import call_torch
from stax.lower.rules import RULES
from stax.lower.scalars import read
from stax.lower.view import RULES as VIEW_RULES
from stax.lower.views import View, whole

# What loops compute in. Every other dtype is torch's; views of it are index maps like any other.
NATIVE_DTYPES = frozenset(
    "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()
)

# Assertions about sizes and metadata that the guards already hold.
NO_EFFECT = frozenset(
    "aten._assert_tensor_metadata.default aten._assert_scalar.default aten.sym_constrain_range.default "
    "aten.sym_constrain_range_for_size.default".split()
)

Env = dict[torch.fx.Node, Result]


def lower(captured: Captured, *, options: Options) -> Program:
    """The Program of a captured graph. Raises MissingRule for an operator without a rule under
    strict_native, CaptureError for a read of an empty tensor."""
    exact = StateGuard("deterministic", "True") in captured.guards.guards
    builder = Builder(captured.symbols, options, exact)
    env: Env = {}
    names = iter(captured.inputs)
    constants = {name for name, _ in captured.constants}
    live = _live(captured)
    for node in captured.graph.nodes:
        if node.op == "placeholder":
            name = next(names)
            env[node] = _input(builder, name, node, "constant" if name in constants else "input")
        elif node.op == "call_function":
            if node in live:
                env[node] = _result(builder, node, env)
        elif node.op != "output":
            raise VerifyError(
                "unexpected node in a captured graph", expected="call_function", found=node.op
            )
    outputs = tuple(_output(builder, item, env) for item in captured.outputs)
    mutations = tuple(_mutation(builder, target, node, env) for target, node in captured.mutations)
    program = Program(
        captured.symbols,
        tuple(builder.buffers),
        captured.inputs,
        tuple(builder.nodes),
        outputs,
        mutations,
    )
    refuse_reads_of_nothing(program)
    return program


def _live(captured: Captured) -> set[torch.fx.Node]:
    """Nodes that an output, a mutation or an effect needs."""
    roots = [o for o in captured.outputs if isinstance(o, torch.fx.Node)] + [
        n for _, n in captured.mutations
    ]
    live: set[torch.fx.Node] = set(roots)
    for node in reversed(captured.graph.nodes):
        if node in live or (node.op == "call_function" and node.is_impure()):
            live.add(node)
            live.update(node.all_input_nodes)
    return live


def _input(builder: Builder, name: str, node: torch.fx.Node, kind: str) -> View:
    meta = _meta(node)
    assert isinstance(meta, Meta)
    buffer = Buffer(name, kind, meta.dtype, meta.shape, meta.strides, meta.offset, meta.device)
    builder.buffers.append(buffer)
    return whole(buffer)


def _meta(node: torch.fx.Node) -> Meta | tuple[Meta | None, ...] | Expr | None:
    return node.meta.get("stax")


def _result(builder: Builder, node: torch.fx.Node, env: Env) -> Result:
    """The handle of one call_function node."""
    meta = _meta(node)
    if isinstance(meta, Expr):
        return meta
    if node.target is operator.getitem:
        source, position = node.args
        assert isinstance(source, torch.fx.Node) and isinstance(position, int)
        parts = env[source]
        assert isinstance(parts, list)
        return parts[position]
    args, kwargs = _arguments(node, env)
    if not isinstance(node.target, torch._ops.OpOverload):
        raise VerifyError(
            "unexpected call in a captured graph",
            expected="an ATen operator",
            found=str(node.target),
        )
    call = Call(builder, str(node.target), node.meta.get("where", ""), meta)
    return None if call.op in NO_EFFECT else _apply(call, node, args, kwargs)


def _apply(
    call: Call, node: torch.fx.Node, args: list[object], kwargs: dict[str, object]
) -> Result:
    rule = RULES.get(call.op)
    reason = f"{call.op} has no row in the rules"
    if rule is not None:
        reason = _foreign(call, args)
        found = Declined(reason) if reason else rule(call, *args, **kwargs)
        if not isinstance(found, Declined):
            return found
        reason = found.reason
    return call_torch(call, args, kwargs, _read_results(node, call), reason)


def _foreign(call: Call, args: list[object]) -> str:
    """Why no loop can compute this call: a dtype that only torch handles. "" when one can."""
    if call.op in VIEW_RULES and not call.op.split(".")[1].endswith("_copy"):
        return ""
    metas = call.meta if isinstance(call.meta, tuple) else (call.meta,)
    found = {m.dtype for m in metas if isinstance(m, Meta)} | {v.dtype for v in _views(args)}
    foreign = sorted(found - NATIVE_DTYPES - float8.native(call.op))
    return f"{call.op} of {foreign[0]}" if foreign else ""


def _views(args: Iterable[object]) -> Iterable[View]:
    for a in args:
        if isinstance(a, View):
            yield a
        elif isinstance(a, (list, tuple)):
            yield from _views(a)


def _read_results(node: torch.fx.Node, call: Call) -> list[bool]:
    if not isinstance(call.meta, tuple):
        return [True]
    wanted = [user.args[1] for user in node.users if user.target is operator.getitem]
    return [k in wanted for k in range(len(call.meta))]


def _arguments(node: torch.fx.Node, env: Env) -> tuple[list[object], dict[str, object]]:
    """Arguments as handles, in the order of the schema; keyword-only ones by name."""
    args = [_resolve(a, env) for a in node.args]
    kwargs = {k: _resolve(v, env) for k, v in node.kwargs.items()}
    if not kwargs or not isinstance(node.target, torch._ops.OpOverload):
        return args, kwargs
    for argument in node.target._schema.arguments[len(args) :]:
        if argument.kwarg_only or not kwargs.keys() & {
            a.name for a in _positional(node.target)[len(args) :]
        }:
            break
        args.append(kwargs.pop(argument.name, argument.default_value))
    return args, kwargs


def _positional(target: torch._ops.OpOverload) -> list[torch.Argument]:
    return [a for a in target._schema.arguments if not a.kwarg_only]


def _resolve(value: object, env: Env) -> object:
    if isinstance(value, torch.fx.Node):
        found = env[value]
        return found.value if isinstance(found, Expr) and found.is_const else found
    if isinstance(value, (list, tuple)):
        return [_resolve(v, env) for v in value]
    return value


# -- results of the whole program


def _output(
    builder: Builder, item: torch.fx.Node | TensorRef | Expr | Literal, env: Env
) -> TensorRef | Expr | Literal:
    if not isinstance(item, torch.fx.Node):
        return item
    handle = env[item]
    if handle is None:
        return Literal(None)
    if isinstance(handle, Expr):
        return handle
    if not isinstance(handle, View):
        raise VerifyError(
            "an output that is neither a tensor nor a size",
            found=str(handle),
            where=item.meta.get("where", ""),
        )
    meta = _meta(item)
    assert isinstance(meta, Meta)
    found = views.tensor_ref(handle, meta.strides)
    if found is None:
        copy = Call(builder, "aten.clone.default", item.meta.get("where", ""), meta).fill(
            read(handle)
        )
        found = views.tensor_ref(copy, meta.strides)
    assert found is not None
    return found


def _mutation(builder: Builder, target: str, node: torch.fx.Node, env: Env) -> Mutation:
    """The new contents of an input, in a temp of their own: a view or an input is copied first."""
    handle = env[node]
    assert isinstance(handle, View)
    if handle.buffer.kind != "temp" or not handle.is_whole:
        handle = Call(builder, "aten.copy.default", node.meta.get("where", ""), _meta(node)).fill(
            read(handle)
        )
    return Mutation(target, handle.buffer.name)
