"""The lines of one reduction: of a row held in registers, or one step of a loop with what follows the loop."""

from __future__ import annotations

from stax.codegen.triton.body import Body, Var
from stax.codegen.triton.layout import Layout
from stax.codegen.triton.pairs import Pair
from stax.codegen.triton.spell import TYPES, cast_text, combine_of, identity_text
from stax.ir.dtypes import DTYPES, accumulator
from stax.ir.kernel import Kernel, Statement

LOAD_BYTES = 16


def reduced(body: Body, s: Statement) -> Var:
    """A whole reduction held in registers."""
    value, dtype = _prepared(body, s)
    row = combine_of(str(s.combine), dtype)
    identity = identity_text(row.identity, dtype)
    mask = _mask(body)
    kept = body.let(f"tl.where({mask}, {value.text}, {identity})", value.dims) if mask else value
    block = f"{kept.text}, {_rindex(body).text}" if _is_arg(s) else kept.text
    return body.let(_finished(s, block), body.layout.outer)


def accumulated(body: Body, s: Statement) -> str:
    """One step of a looped reduction; returns the line to write after the loop."""
    value, dtype = _prepared(body, s)
    row = combine_of(str(s.combine), dtype)
    n = body.number()
    shape, acc = body.layout.shape(value.dims), f"_tmp{n}"
    body.outer.append(
        f"{acc} = tl.full({shape}, {identity_text(row.identity, dtype)}, {TYPES[dtype]})"
    )
    body.env[s.name] = Var(f"tmp{n}", body.layout.outer)
    if _is_arg(s):
        return f"tmp{n} = {_finished(s, _arg_step(body, s, acc, value, dtype))}"
    step = body.let(row.step.format(acc, value.text), value.dims).text
    body.inner.append(f"{acc} = tl.where({_mask(body)}, {step}, {acc})")
    return f"tmp{n} = {_finished(s, acc)}"


def _arg_step(body: Body, s: Statement, acc: str, value: Var, dtype: str) -> str:
    """Each lane meets its positions in ascending order, so a later element wins only when it is better, and the first NaN
    wins for good. A lane starts at its first position, which it keeps when nothing beats the identity."""
    at, shape = f"{acc}_index", body.layout.shape(value.dims)
    body.outer.append(f"{at} = tl.broadcast_to(r0_base, {shape})")
    sign = ">" if s.combine == "argmax" else "<"
    better = f"({value.text} {sign} {acc})"
    if DTYPES[dtype].is_float:
        better = f"({better} | (({value.text} != {value.text}) & ({acc} == {acc})))"
    wins = body.let(f"{_mask(body)} & {better}", value.dims).text
    body.inner.append(f"{acc} = tl.where({wins}, {value.text}, {acc})")
    body.inner.append(f"{at} = tl.where({wins}, {_rindex(body).text}, {at})")
    return f"{acc}, {at}"


def paired(body: Body, pair: Pair, first: Statement, loose: bool) -> str:
    """One step of two reductions together; returns the line to write after the loop. A thread first joins the elements
    of one wide load, GROUP neighbours, so that most of the work is done without rescaling."""
    value, dtype = _prepared(body, first)
    n, m = body.number(), body.number()
    a, b = f"_tmp{n}", f"_tmp{m}"
    whole = body.layout.shape(value.dims)
    rows, block = whole[1:-1].split(", ")
    lanes, groups = f"[{rows}, {block} // GROUP]", f"[{rows}, {block} // GROUP, GROUP]"
    softmax = pair.kind == "softmax"
    fast = loose and dtype == "float32"
    start = 'float("-inf")' if softmax else "0"
    for name, value0 in ((a, start), (b, "0")):
        body.outer.append(f"{name} = tl.full({lanes}, {value0}, {TYPES[dtype]})")
    inside = f"tl.broadcast_to(r0_mask, {whole})"
    kept = body.let(f"tl.where({inside}, {value.text}, {start})", value.dims).text
    y = f"tl.reshape({kept}, {groups})"
    for name in (pair.first, pair.second):
        body.env[name] = Var(f"tmp{n if name == pair.first else m}", body.layout.outer)
    if softmax:
        body.inner.append(f"{a}, {b} = online_step({a}, {b}, {y}, {fast})")
        finish = f"tmp{n}, tmp{m} = online_finish({a}, {b}, {fast})"
        return f"{finish}\n{_safe_line(n, m)}" if pair.safe else finish
    before = "r0_offset // R0_BLOCK * GROUP * 1.0"
    words = [a, b, y, f"tl.reshape({inside}, {groups})", before, whole_text(body.layout), "GROUP"]
    body.inner.append(f"{a}, {b} = moments_step({', '.join(words)})")
    return f"tmp{n}, tmp{m} = moments_finish({a}, {b}, r0_numel, R0_BLOCK, GROUP)"


def _safe_line(top: int, total: int) -> str:
    """An infinite maximum was not to be subtracted: exp of -inf is 0, of inf is inf."""
    ends = f'tl.where(tmp{top} > 0, float("inf"), 0.0)'
    return f'tmp{total} = tl.where(tl.abs(tmp{top}) == float("inf"), {ends}, tmp{total})'


def whole_text(layout: Layout) -> str:
    """Whether every block of the loop is full: known when the kernel is compiled, as text."""
    numel = layout.groups[-1].numel
    return f"{numel.value} % R0_BLOCK == 0" if numel.is_const else "False"


def group_of(kernel: Kernel) -> int:
    """Neighbouring elements of a row that one thread loads at once; 1 where rows do not run along memory."""
    if not kernel.inner:
        return 1
    sizes = [DTYPES[p.dtype].itemsize for p in kernel.pointers if p.kind != "out"]
    return LOAD_BYTES // max(min(sizes, default=4), 2)


def _mask(body: Body) -> str:
    return " & ".join(body.layout.mask(g.prefix for g in body.layout.groups))


def _prepared(body: Body, s: Statement) -> tuple[Var, str]:
    """(the value to reduce over the whole block, the dtype in which it is reduced)."""
    dtype = accumulator(s.body.dtype)
    if dtype == "bool" and s.combine in ("argmax", "argmin"):
        dtype = "int32"
    value = body.value(s.body)
    full = body.layout.outer | {"r0_"}
    if dtype != s.body.dtype:
        value = body.let(cast_text(s.body.dtype, dtype, value.text), value.dims)
    return body.let(f"tl.broadcast_to({value.text}, {body.layout.shape(full)})", full), dtype


def _rindex(body: Body) -> Var:
    full = body.layout.outer | {"r0_"}
    return body.let(f"tl.broadcast_to(rindex, {body.layout.shape(full)})", full)


def _finished(s: Statement, block: str) -> str:
    """The text that reduces ``block`` (argmax: two blocks) to one value a row, in the statement's dtype."""
    dtype = accumulator(s.body.dtype)
    row = combine_of(str(s.combine), "int32" if _is_arg(s) else dtype)
    done = f"{row.finish.format(*block.split(', '))}[:, None]"
    return done if dtype == s.dtype == "bool" else f"{done}.to({TYPES[s.dtype]})"


def _is_arg(s: Statement) -> bool:
    return s.combine in ("argmax", "argmin")
