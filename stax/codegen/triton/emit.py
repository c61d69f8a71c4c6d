"""Kernel → Triton text, with its parameters, grid and candidate configurations. Writes text; imports no Triton."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import replace

from stax.base.errors import VerifyError
from stax.base.target import Target
from stax.codegen.triton.body import Body
from stax.codegen.triton.heuristics import candidates
from stax.codegen.triton.layout import (
    MAX_GRID_YZ,
    Group,
    Layout,
    layout_of,
    persistent_block,
)
from stax.codegen.triton.pairs import pairs_of
from stax.codegen.triton.plan import Phase, plan
from stax.codegen.triton.prelude import functions_for
from stax.codegen.triton.reductions import accumulated, group_of, paired, reduced
from stax.codegen.triton.relaxed import relaxed
from stax.ir.expr import Expr, ceildiv, const, minimum, sym
from stax.ir.kernel import Kernel, Statement, Store
from stax.ir.source import Param, Source
from stax.ir.value import substitute

MAX_NAME = 120
# Below this many elements wide loads gain nothing.
SHORT = 8192
_LOOP = "    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):"


def emit(kernel: Kernel, target: Target) -> Source:
    """The source of one kernel. Pointers are assumed to be multiples of 16 bytes (Param.divisible16): whoever launches
    checks them. Raises VerifyError for a dtype or operator that Triton can not express."""
    if target.kind != "cuda":
        raise VerifyError("Triton text for another target", expected="cuda", found=str(target))
    kernel = _without_single_points(kernel)
    layout = layout_of(kernel)
    lines = _lines(kernel, layout)
    heading = _index_lines(kernel, layout, "\n".join(lines))
    entry = entry_name(kernel)
    body = "\n".join(_both_ways(heading, lines) if _tail_matters(layout) else heading + lines)
    sizes = sorted(set(re.findall(r"\bks\d+\b", body)), key=lambda n: int(n[2:]))
    params = _params(kernel, layout, sizes)
    space = candidates(kernel, layout, target.arch)
    return Source(
        language="triton",
        form=kernel.form,
        entry=entry,
        text=_text(entry, params, body, target.arch),
        params=params,
        sizes=(*(g.numel for g in layout.groups), *(sym(n) for n in sizes)),
        grid=_grid(layout),
        space=space,
        default=space[0],
    )


def entry_name(kernel: Kernel) -> str:
    """triton_<form>_fused_<operators>."""
    name = re.sub(r"\W", "_", "_".join(kernel.fused))
    return f"triton_{kernel.form}_fused_{name[:MAX_NAME]}"


def _without_single_points(kernel: Kernel) -> Kernel:
    """Axes of extent 1 are 0 everywhere."""
    single = {a.name: const(0) for a in (*kernel.axes, *kernel.reduce_axes) if a.extent == 1}
    if not single:
        return kernel
    statements = tuple(
        replace(
            s,
            body=substitute(s.body, single),
            stores=tuple(Store(t.pointer, t.offset.subs(single)) for t in s.stores),
        )
        for s in kernel.statements
    )
    return replace(
        kernel,
        statements=statements,
        axes=tuple(a for a in kernel.axes if a.name not in single),
        reduce_axes=tuple(a for a in kernel.reduce_axes if a.name not in single),
    )


def _text(entry: str, params: tuple[Param, ...], body: str, arch: str) -> str:
    functions = functions_for(body, arch)
    imports = ["import triton", "import triton.language as tl"]
    if "libdevice." in body or any("libdevice." in f for f in functions):
        imports.append("from triton.language.extra import libdevice")
    words = [p.name if p.kind != "block" else f"{p.name}: tl.constexpr" for p in params]
    kernel = f"@triton.jit\ndef {entry}({', '.join(words)}):\n{body}\n"
    return "\n".join(imports) + "\n\n\n" + "\n\n".join((*functions, kernel))


def _params(kernel: Kernel, layout: Layout, sizes: list[str]) -> tuple[Param, ...]:
    pointers = sorted(kernel.pointers, key=lambda p: p.kind != "in")
    found = [
        Param("in" if p.kind == "in" else "out", p.name, p.dtype, divisible16=True)
        for p in pointers
    ]
    for g in layout.groups:
        found.append(Param("size", f"{g.prefix}numel", layout.index, divisible16=g.numel % 16 == 0))
    found += [Param("size", name, layout.index) for name in sizes]
    blocks = [g for g in layout.groups if g.prefix != "r0_" or kernel.form == "red"]
    return (*found, *(Param("block", g.block) for g in blocks))


def _grid(layout: Layout) -> tuple[Expr, ...]:
    """Over numels and block names: x first. A long y dimension continues in the third one."""
    parts = [
        ceildiv(sym(f"{g.prefix}numel"), sym(g.block))
        for g in reversed(layout.groups)
        if g.prefix != "r0_"
    ]
    if len(parts) == 2 and not _y_fits(layout):
        return (parts[0], minimum(parts[1], MAX_GRID_YZ), ceildiv(parts[1], MAX_GRID_YZ))
    return tuple(parts)


def _y_fits(layout: Layout) -> bool:
    """A grid's second dimension holds the programs of y whatever the block."""
    y = next(g.numel for g in layout.groups if g.prefix == "y")
    return y.is_const and y.value <= MAX_GRID_YZ


# -- indices and masks


def _index_lines(kernel: Kernel, layout: Layout, body: str) -> list[str]:
    """The lines before the body: numels, index vectors, masks, and the axes that the text uses."""
    lines = [f"    {g.prefix}numel = {g.numel.value}" for g in layout.groups if g.numel.is_const]
    if kernel.form == "per":
        lines.append(f"    R0_BLOCK: tl.constexpr = {persistent_block(kernel)}")
    if kernel.form != "poi":
        lines += ["    rnumel = r0_numel", "    RBLOCK: tl.constexpr = R0_BLOCK"]
    if "GROUP" in body:
        group = group_of(kernel)
        lines.append(f"    GROUP: tl.constexpr = {group} if R0_BLOCK >= {group} else 1")
    for g in layout.groups:
        lines += _reduced_lines(kernel, layout) if g.prefix == "r0_" else _outer_lines(layout, g)
    for g in reversed(layout.groups):
        if g.prefix != "r0_" or kernel.form == "per":
            lines += [f"    {text}" for text in axis_lines(g, body)]
    return lines


def _tail_matters(layout: Layout) -> bool:
    """One plain axis, long or unknown, whose length may not be a multiple of 16: the mask would make every load narrow."""
    numel = layout.groups[0].numel
    plain = len(layout.groups) == 1 and len(layout.groups[0].axes) == 1
    return plain and numel % 16 != 0 and not (numel.is_const and numel.value < SHORT)


def _both_ways(heading: list[str], lines: list[str]) -> list[str]:
    """The body twice: full blocks without a mask, whose loads are as wide as the hardware's, and the last one with it."""
    masked = "    xmask = xindex < xnumel"
    top = [line for line in heading if line != masked]
    inner = [f"    {line}" for line in lines]
    full = "        xmask = tl.full([XBLOCK], True, tl.int1)"
    return [
        *top,
        "    if xoffset + XBLOCK <= xnumel:",
        full,
        *inner,
        "    else:",
        f"    {masked}",
        *inner,
    ]


def _wide(layout: Layout, text: str) -> str:
    return f"{text}.to(tl.int64)" if layout.index == "int64" else text


def _outer_lines(layout: Layout, g: Group) -> list[str]:
    p = g.prefix
    program = f"tl.program_id({'xyz'.index(p)})"
    if p == "y" and len(layout.groups) == 2 and not _y_fits(layout):
        program = "(tl.program_id(1) + tl.program_id(2) * tl.num_programs(1))"
    arange = f"tl.arange(0, {g.block}){layout.spread(p)}"
    return [
        f"    {p}offset = {_wide(layout, program)} * {g.block}",
        f"    {p}index = {p}offset + {_wide(layout, arange)}",
        f"    {p}mask = {p}index < {p}numel",
        *(f"    {line}" for line in _always(g, layout, f"{p}mask")),
    ]


def _reduced_lines(kernel: Kernel, layout: Layout) -> list[str]:
    arange = _wide(layout, f"tl.arange(0, R0_BLOCK){layout.spread('r0_')}")
    if kernel.form == "red":
        return [f"    r0_base = {arange}", "    rbase = r0_base"]
    true = f"tl.full([R0_BLOCK], True, tl.int1){layout.spread('r0_')}"
    return [
        f"    r0_index = {arange}",
        "    r0_offset = 0",
        f"    r0_mask = {true if layout.whole else 'r0_index < r0_numel'}",
        "    roffset = r0_offset",
        "    rindex = r0_index",
    ]


def axis_lines(g: Group, body: str) -> list[str]:
    """Each axis of a group that ``body`` uses, from the group's index vector."""
    lines: list[str] = []
    step = const(1)
    for axis, name in reversed(list(g.names())):
        text = f"{g.prefix}index"
        if step != 1:
            text = f"({text} // ({step.text}))"
        if axis is not g.axes[0]:
            text = f"({text} % ({axis.extent.text}))"
        if re.search(rf"\b{name}\b", body):
            lines.append(f"{name} = {text}")
        step = step * axis.extent
    return lines[::-1]


# -- the body


def _lines(kernel: Kernel, layout: Layout) -> list[str]:
    pairs = pairs_of(kernel)
    kernel, loose = relaxed(kernel, pairs)
    if kernel.form != "red":
        return _whole_lines(kernel, layout)
    return _looped_lines(kernel, layout, plan(kernel, pairs), loose)


def _whole_lines(kernel: Kernel, layout: Layout) -> list[str]:
    """Every statement once, in order; stores last, so that nothing waits for them."""
    body = Body(kernel, layout)
    for s in kernel.statements:
        if s.body.op == "scatter":
            body.scatter_values(s.body)
        else:
            body.env[s.name] = reduced(body, s) if s.combine else body.value(s.body)
    for s in kernel.statements:
        if s.body.op == "scatter":
            body.scatter(s.body, _dims(s, layout))
        for store in s.stores:
            body.store(body.env[s.name], store, _dims(s, layout))
    return [f"    {line}" for line in body.outer]


def _dims(s: Statement, layout: Layout) -> frozenset[str]:
    return layout.outer if s.space == "x" or s.combine else layout.outer | {"r0_"}


def _looped_lines(
    kernel: Kernel, layout: Layout, phases: Sequence[Phase], loose: Set[str]
) -> list[str]:
    last_use = {
        v.key: k for k, phase in enumerate(phases) for s in phase.inside for v in s.body.loads
    }
    body = Body(kernel, layout, last_use)
    reduced = layout.groups[-1]
    lines: list[str] = []
    for k, phase in enumerate(phases):
        for s in phase.before:
            _evaluate(body, s, phase, loose)
        for name, store in phase.before_stores:
            body.store(body.env[name], store, layout.outer)
        if not phase.inside:
            lines += [f"    {line}" for line in body.outer]
            continue
        body.open_loop(k)
        after = [_evaluate(body, s, phase, loose) for s in phase.inside]
        for name, store in phase.inside_stores:
            body.store(body.env[name], store, layout.outer | {"r0_"})
        lines += [f"    {line}" for line in body.outer]
        lines += _loop_lines(reduced, layout, body.inner)
        body.close_loop()
        body.outer += [line for text in after for line in text.splitlines()]
    return lines


def _evaluate(body: Body, s: Statement, phase: Phase, loose: Set[str]) -> str:
    """One statement inside a loop or before it; returns the lines that must follow the loop, or nothing."""
    for pair in phase.pairs:
        if s.name == pair.first:
            return paired(body, pair, s, pair.second in loose)
    if s.name in phase.finished:
        return accumulated(body, s)
    if s.body.op == "scatter":
        body.scatter(s.body, _dims(s, body.layout))
    else:
        body.env[s.name] = body.value(s.body)
    return ""


def _loop_lines(reduced: Group, layout: Layout, inner: list[str]) -> list[str]:
    head = [
        "r0_index = r0_offset + r0_base",
        "r0_mask = r0_index < r0_numel",
        *_always(reduced, layout, "r0_mask"),
        "roffset = r0_offset",
        "rindex = r0_index",
        *axis_lines(reduced, "\n".join(inner)),
    ]
    return [_LOOP, *(f"        {line}" for line in (*head, *inner))]


def _always(g: Group, layout: Layout, mask: str) -> list[str]:
    """A mask that every block of a group passes whole is no mask: known when the kernel is compiled."""
    if not g.numel.is_const:
        return []
    shape = layout.shape({g.prefix})
    return [
        f"if {g.numel.value} % {g.block} == 0:",
        f"    {mask} = tl.full({shape}, True, tl.int1)",
    ]
