"""A Kernel in, the text of one C++ function out.

Every function has the same type: ``int64_t entry(void* const* ptrs, const int64_t* sizes)``, with the pointers and the
sizes in the order of the Kernel. It returns 0, or 1 + k when the k-th checked index was out of range; then nothing was
read there. The text needs no header of torch.
"""

from __future__ import annotations

import re

from stax.base.errors import VerifyError
from stax.base.target import Target
from stax.codegen.cpp.column import print_column
from stax.codegen.cpp.index import spell_expr
from stax.codegen.cpp.plan import plan
from stax.codegen.cpp.pointwise import print_pointwise
from stax.codegen.cpp.prelude import prelude
from stax.codegen.cpp.row import print_row
from stax.codegen.cpp.tile import print_tile
from stax.codegen.cpp.types import memory_type
from stax.codegen.cpp.values import Names
from stax.ir.expr import sym
from stax.ir.kernel import Kernel, Pointer
from stax.ir.ranges import positive
from stax.ir.source import Config, Param, Source

_NAME_LIMIT = 80
_DECLARATION = re.compile(r" *const \w+ ([ct]\d+) =")
_VALUE = re.compile(r"\b[ct]\d+\b")
PRINTERS = {
    "row": print_row,
    "column": print_column,
    "pointwise": print_pointwise,
    "tile": print_tile,
}


def emit(kernel: Kernel, target: Target) -> Source:
    """The C++ source of ``kernel``; the same text for every CPU target. Raises VerifyError for a kernel without a C++ form."""
    if target.kind != "cpu":
        raise VerifyError("C++ is emitted for the CPU only", expected="cpu", found=target.kind)
    entry = entry_name(kernel)
    body = _body(kernel)
    text = _function(kernel, entry, body)
    pointers = tuple(
        Param("in" if p.kind == "in" else "out", p.name, p.dtype) for p in kernel.pointers
    )
    sizes = tuple(Param("size", s.name, "int64") for s in kernel.sizes)
    return Source(
        language="cpp",
        form=kernel.form,
        entry=entry,
        text=prelude(text) + text,
        params=(*pointers, *sizes),
        sizes=tuple(sym(s.name) for s in kernel.sizes),
        grid=(),
        space=(Config(),),
        default=Config(),
    )


def entry_name(kernel: Kernel) -> str:
    """cpp_<form>_fused_<operators>, cut at a whole operator."""
    name = f"cpp_{kernel.form}_fused"
    for op in kernel.fused:
        word = re.sub(r"\W+", "_", op).strip("_")
        if len(name) + 1 + len(word) > _NAME_LIMIT:
            break
        name += f"_{word}"
    return name


def _body(kernel: Kernel) -> list[str]:
    if any(a.extent == 0 for a in kernel.axes):
        return ["return 0;"]
    chosen = plan(kernel)
    lines = [*_guards(kernel), *_live(PRINTERS[chosen.kind](kernel, chosen, Names(kernel)))]
    if kernel.bounds_checked:
        return ["uint64_t bad = 0;", *lines, "return bad ? 1 + __builtin_ctzll(bad) : 0;"]
    return [*lines, "return 0;"]


def _live(lines: list[str]) -> list[str]:
    """Without the declarations of values that no later line names."""
    used: set[str] = set()
    kept: list[str] = []
    for line in reversed(lines):
        declared = _DECLARATION.match(line)
        if declared and declared[1] not in used:
            continue
        used.update(_VALUE.findall(line[declared.end() :] if declared else line))
        kept.append(line)
    return kept[::-1]


def _guards(kernel: Kernel) -> list[str]:
    """Nothing is read when there is no point to compute."""
    ranges = kernel.ranges
    return [
        f"if ({spell_expr(a.extent, ranges)} <= 0) return 0;"
        for a in kernel.axes
        if not positive(a.extent, ranges)
    ]


def _function(kernel: Kernel, entry: str, body: list[str]) -> str:
    head = f'extern "C" int64_t {entry}(void* const* ptrs, const int64_t* sizes) {{'
    lines = [_pointer(i, p) for i, p in enumerate(kernel.pointers)]
    lines += [f"const int64_t {s.name} = sizes[{i}];" for i, s in enumerate(kernel.sizes)]
    return "\n".join([head, *(f"    {line}" for line in (*lines, *body)), "}", ""])


def _pointer(i: int, p: Pointer) -> str:
    const = "const " if p.kind == "in" else ""
    kind = f"{const}{memory_type(p.dtype)}* __restrict__"
    return f"{kind} {p.name} = ({const}{memory_type(p.dtype)}*)ptrs[{i}];"
