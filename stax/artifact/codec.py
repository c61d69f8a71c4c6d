"""Artifact to canonical msgpack and back. Reading treats the bytes as hostile: it is driven by the schema, checks every
type, length and count before it allocates, and ends with :mod:`stax.artifact.verify`. Only SchemaError comes out.

On the wire a record is the array of its fields in order, a union is [tag, data], a constant expression is an integer and
any other its text.
"""

from __future__ import annotations

from typing import Any, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]

from stax.artifact.artifact import (
    SCHEMA,
    Alloc,
    Arena,
    Artifact,
    Binary,
    Call,
    Change,
    Constant,
    Constraints,
    CopyBack,
    Free,
    Launch,
    Layout,
    Place,
    Return,
    TracedSource,
)
from stax.artifact.forms import (
    Form,
    boolean,
    either,
    integer,
    list_of,
    maybe,
    nested,
    optional,
    record,
    row,
    text,
    union,
)
from stax.artifact.guards import (
    Binding,
    ConstantGuard,
    DistinctGuard,
    GuardSet,
    RelationGuard,
    StateGuard,
    TensorGuard,
)
from stax.artifact.reader import Reader, fault, within
from stax.artifact.scalars import expr, literal, optional_expr
from stax.artifact.signature import Input, Signature, Tree
from stax.artifact.verify import verify
from stax.base.errors import SchemaError
from stax.base.target import Target, Toolchain
from stax.ir.expr import Expr
from stax.ir.program import Listed, Literal, Symbol, TensorRef
from stax.ir.source import Config, Param

_packb = cast(Any, msgpack.packb)  # pyright: ignore[reportUnknownMemberType]
MAX_BYTES = 1 << 28
MAX_DEPTH = 64
MAX_RANK = 64
MAX_ITEMS = 1 << 20

_name = text(512)
_word = text(64)
_message = text(1 << 14)
_count = integer(0, 1 << 24)
_int64 = integer(-(1 << 63), (1 << 63) - 1)
_shape = list_of(expr, MAX_RANK)
_names = list_of(_name, MAX_ITEMS)

_tree = record(
    Tree,
    kind=_word,
    children=list_of(nested(lambda: _tree, MAX_DEPTH), MAX_ITEMS),
    keys=list_of(either(text(1 << 12), _int64), MAX_ITEMS),
    type=_name,
    context=_message,
)
_signature = record(
    Signature,
    call=_tree,
    inputs=list_of(record(Input, source=_word, leaf=integer(-1, 1 << 24), name=_name), MAX_ITEMS),
    out=_tree,
)

_guard = union(
    {
        "tensor": (
            TensorGuard,
            record(
                TensorGuard,
                input=_count,
                dtype=_word,
                device=_word,
                shape=_shape,
                strides=list_of(optional_expr(), MAX_RANK),
                offset=expr,
            ),
        ),
        "relation": (
            RelationGuard,
            record(
                RelationGuard, left=expr, relation=_word, right=expr, text=_message, where=_message
            ),
        ),
        "constant": (ConstantGuard, record(ConstantGuard, leaf=_count, value=literal, type=_word)),
        "distinct": (
            DistinctGuard,
            record(DistinctGuard, pairs=list_of(row(_count, _count), 1 << 22)),
        ),
        "state": (StateGuard, record(StateGuard, name=_word, value=_word)),
    }
)
_guards = record(
    GuardSet,
    bindings=list_of(record(Binding, symbol=_word, input=_count, dim=_count), MAX_ITEMS),
    guards=list_of(_guard, MAX_ITEMS),
)

_ref = record(TensorRef, buffer=_name, shape=_shape, strides=_shape, offset=expr)
_literal = record(Literal, value=literal)
_argument: Form = union(
    {
        "ref": (TensorRef, _ref),
        "expr": (Expr, expr),
        "literal": (Literal, _literal),
        "list": (
            Listed,
            record(Listed, items=list_of(nested(lambda: _argument, MAX_DEPTH), 1 << 16)),
        ),
    }
)
_output = union({"ref": (TensorRef, _ref), "expr": (Expr, expr), "literal": (Literal, _literal)})
_layout = maybe(record(Layout, shape=_shape, strides=_shape))
_step = union(
    {
        "alloc": (Alloc, record(Alloc, name=_name, dtype=_word, shape=_shape, strides=_shape)),
        "arena": (Arena, record(Arena, name=_name, slots=list_of(expr, MAX_ITEMS))),
        "place": (
            Place,
            record(
                Place,
                name=_name,
                home=_name,
                slot=_count,
                offset=integer(0, 1 << 62),
                dtype=_word,
                shape=_shape,
                strides=_shape,
            ),
        ),
        "launch": (
            Launch,
            record(Launch, binary=_count, tensors=_names, sizes=list_of(expr, 1 << 12)),
        ),
        "call": (
            Call,
            record(
                Call,
                outs=list_of(_name, 256),
                target=_name,
                args=list_of(_argument, 256),
                kwargs=list_of(row(_word, _argument), 256),
                layouts=list_of(_layout, 256),
            ),
        ),
        "free": (Free, record(Free, names=_names)),
        "change": (Change, record(Change, target=_name)),
        "copy_back": (CopyBack, record(CopyBack, target=_name, source=_name)),
        "return": (Return, record(Return, outputs=list_of(_output, MAX_ITEMS))),
    }
)
_param = record(Param, kind=_word, name=_word, dtype=_word, divisible16=boolean)
_binary = record(
    Binary,
    name=_name,
    language=_word,
    entry=_name,
    key=_word,
    digest=_word,
    params=list_of(_param, 1 << 12),
    grid=list_of(expr, 3),
    config=record(Config, values=list_of(row(_word, _int64), 256)),
    meta=list_of(row(_word, either(_message, _int64)), 256),
)
_symbol = record(Symbol, name=_word, hint=_int64, lo=_int64, hi=optional(_int64))
_artifact = record(
    Artifact,
    schema=integer(SCHEMA, SCHEMA),
    target=record(Target, kind=_word, arch=_word, features=list_of(_word, 256)),
    toolchain=record(Toolchain, stax=_word, torch=_word, triton=_word, ptxas=_name, cxx=_name),
    constraints=record(Constraints, cpu_level=_word, cuda_arch=_word, glibc=_word, torch_min=_word),
    signature=_signature,
    symbols=list_of(_symbol, MAX_ITEMS),
    guards=_guards,
    inputs=_names,
    constants=list_of(
        record(
            Constant,
            name=_name,
            dtype=_word,
            shape=list_of(integer(0, 1 << 62), MAX_RANK),
            digest=_word,
        ),
        MAX_ITEMS,
    ),
    binaries=list_of(_binary, MAX_ITEMS),
    forward=list_of(_step, MAX_ITEMS),
    backward=list_of(_step, MAX_ITEMS),
    traced_sources=list_of(
        record(TracedSource, module=_name, qualname=_name, digest=_word), MAX_ITEMS
    ),
    origin=_message,
)


def encode(artifact: Artifact) -> bytes:
    """Canonical bytes: equal artifacts give equal bytes. Raises SchemaError for a value that the schema can not carry
    or that breaks an invariant, so nothing is stored that could not be read."""
    verify(artifact)
    return pack(artifact)


def pack(artifact: Artifact) -> bytes:
    """The bytes of :func:`encode` without the check of invariants."""
    try:
        data = [SCHEMA, _artifact.pack(artifact)]
    except SchemaError as error:
        raise within(error, "artifact") from None
    return _packb(data, use_bin_type=True, unicode_errors="surrogatepass")


def decode(data: bytes) -> Artifact:
    """The artifact of :func:`encode`, verified. Raises SchemaError for any other bytes."""
    if len(data) > MAX_BYTES:
        fault(f"at most {MAX_BYTES} bytes", len(data))
    reader = Reader(data)
    try:
        reader.header(2, 2)
        _schema(reader.scalar())
        artifact = _artifact.read(reader)
        reader.finish()
    except SchemaError as error:
        raise within(error, "artifact") from None
    verify(artifact)
    return artifact


def _schema(found: object) -> None:
    if type(found) is not int or found != SCHEMA:
        raise SchemaError(
            "artifact of another schema",
            expected=str(SCHEMA),
            found=str(found)[:20],
            hint="rebuild it with this Stax",
        )
