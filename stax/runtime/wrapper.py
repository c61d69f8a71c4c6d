"""The steps of an artifact as one generated straight-line host function: (inputs, symbols) → flat outputs.

Kernels receive ``data_ptr()`` of each tensor, so offsets inside a kernel count from the tensor's own first element: the
storage offset of an input is not applied again. A TensorRef on an input counts from the start of its storage, as torch's
as_strided does; on a temp the two are the same. The text is made from indices and integers alone.
A CUDA kernel may assume pointers at multiples of 16 bytes: a tensor that lies otherwise is copied first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import increment_version

from stax.artifact.artifact import (
    Alloc,
    Arena,
    Artifact,
    Call,
    Change,
    CopyBack,
    Free,
    Launch,
    Layout,
    Place,
    Return,
    Step,
)
from stax.artifact.guards import TensorGuard
from stax.base.errors import LoadError
from stax.ir.expr import Expr, const
from stax.ir.program import Arg, Listed, TensorRef, contiguous
from stax.runtime.alloc import laid_out, view
from stax.runtime.arenas import Arenas
from stax.runtime.launcher import Host, cuda_host
from stax.runtime.launches import CpuLaunches, CudaLaunches, Launches
from stax.runtime.literals import from_literal
from stax.runtime.spell import spell, spell_tuple
from stax.runtime.text import Text

Forward = Callable[[Sequence[torch.Tensor], Sequence[int]], tuple[Any, ...]]


@dataclass(frozen=True)
class Geometry:
    """What is known of a tensor before the call. ``offset`` None: unknown, refs count from its first element."""

    shape: tuple[Expr, ...]
    strides: tuple[Expr | None, ...]
    offset: Expr | None


def generate(artifact: Artifact, kernels: Any, host: Host | None = None) -> tuple[Forward, str]:
    """The host function and its text. ``kernels``: for a CPU artifact the entry of each binary; for a CUDA artifact a
    function from a device index to the loaded kernels, and ``host`` what to launch them with (this process's own when
    absent). Raises LoadError for an operator that this torch lacks."""
    emitter = _Emitter(artifact, kernels, host)
    return emitter.compile(), emitter.text


class _Emitter:
    """Writes each step."""

    def __init__(self, artifact: Artifact, kernels: Any, host: Host | None) -> None:
        self.artifact = artifact
        self.out = Text(artifact.inputs, [s.name for s in artifact.symbols])
        self.launches: Launches = (
            CudaLaunches(self.out, artifact, kernels, host or cuda_host())
            if artifact.target.kind == "cuda"
            else CpuLaunches(self.out, artifact, kernels)
        )
        self.arenas = Arenas(self.out)
        self.known = _input_geometry(artifact)
        self.changed: dict[str, str] = {}
        sources = zip(artifact.inputs, artifact.signature.inputs)
        self.static = {name for name, s in sources if s.source in ("parameter", "buffer")}
        self.out.objects |= {
            "empty": self.launches.empty,
            "view": view,
            "laid_out": laid_out,
            "grad_enabled": torch.is_grad_enabled,
            "set_grad": torch._C._set_grad_enabled,
        }
        for step in artifact.forward:
            _EMIT[type(step)](self, step)
        self.text = self._text()

    def compile(self) -> Forward:
        objects = dict(self.out.objects)
        exec(compile(self.text, "<stax forward>", "exec"), objects)
        return objects["forward"]

    def _text(self) -> str:
        """NOTE: only torch operators heed grad mode, so a function of kernels alone leaves it as it is."""
        out, launches = self.out, self.launches
        inputs = [out.locals[name] for name in self.artifact.inputs]
        lines = [*_unpacked(inputs, "inputs"), *_unpacked(out.symbols.values(), "symbols")]
        lines += [*launches.head(), *out.lines[:-1], *launches.tail(), out.lines[-1]]
        before, after = [], []
        if out.operators:
            before += ["grad = grad_enabled()", "if grad: set_grad(False)"]
            after.append("if grad: set_grad(True)")
        if launches.restore():
            before.insert(0, "p = d = -1")
            after.append(launches.restore())
        if after:
            lines = [*before, "try:", *_indented(lines), "finally:", *_indented(after)]
        return "\n".join(["def forward(inputs, symbols):", *_indented(lines), ""])

    # -- steps

    def alloc(self, step: Alloc) -> None:
        local = self.out.define(step.name)
        self.known[step.name] = Geometry(step.shape, step.strides, const(0))
        self.out.fresh.add(step.name)
        dtype = self.out.hold(getattr(torch, step.dtype))
        sizes, strides = (
            spell_tuple(step.shape, self.out.symbols),
            spell_tuple(step.strides, self.out.symbols),
        )
        self.out.line(f"{local} = empty({sizes}, {strides}, {dtype})")

    def arena(self, step: Arena) -> None:
        self.arenas.arena(step)

    def place(self, step: Place) -> None:
        self.arenas.place(step)

    def launch(self, step: Launch) -> None:
        self.launches.launch(step)

    def call(self, step: Call) -> None:
        operator, listed = _operator(step)
        self.out.operators = True
        args = [self.argument(arg) for arg in step.args]
        # Each key is the name of an argument of the operator, so it is no text of the wire any more.
        args += [f"{key}={self.argument(arg)}" for key, arg in step.kwargs]
        layouts = step.layouts or (None,) * len(step.outs)
        outs = [self.result(name, layout) for name, layout in zip(step.outs, layouts)]
        target = "".join(f"{out}, " for out in outs) if listed else outs[0]
        self.out.line(f"{target} = {self.out.hold(operator)}({', '.join(args)})")
        for out, layout in zip(outs, layouts):
            if layout is not None and out != "_":
                sizes, strides = (
                    spell_tuple(layout.shape, self.out.symbols),
                    spell_tuple(layout.strides, self.out.symbols),
                )
                self.out.line(f"{out} = laid_out({out}, {sizes}, {strides})")
        if "_" in outs:
            self.out.line("del _")

    def result(self, name: str, layout: Layout | None) -> str:
        if not name:
            return "_"
        if layout is not None:
            self.known[name] = Geometry(layout.shape, layout.strides, None)
        return self.out.define(name)

    def free(self, step: Free) -> None:
        gone = [self.out.locals[name] for name in step.names if name in self.out.locals]
        gone += self.launches.forget(step.names)
        if gone:
            self.out.line(f"del {', '.join(gone)}")

    def change(self, step: Change) -> None:
        """NOTE: a launch that needs aligned memory replaces a tensor that has none by a copy, which goes back at the end."""
        local = self.out.locals[step.target]
        self.out.objects["changed"] = increment_version
        self.out.line(f"changed({local})")
        if self.artifact.target.kind == "cuda":
            self.changed[local] = self.out.name("c")
            self.out.line(f"{self.changed[local]} = {local}")

    def copy_back(self, step: CopyBack) -> None:
        self.out.operators = True
        self.out.line(f"{self.out.locals[step.target]}.copy_({self.out.locals[step.source]})")

    def give_back(self, step: Return) -> None:
        for local, kept in self.changed.items():
            self.out.operators = True
            self.out.line(f"if {local} is not {kept}: {local} = {kept}.copy_({local})")
        self.out.line(f"return ({''.join(f'{self.argument(out)}, ' for out in step.outputs)})")

    # -- arguments

    def argument(self, arg: Arg) -> str:
        if isinstance(arg, TensorRef):
            return self.ref(arg)
        if isinstance(arg, Expr):
            return spell(arg, self.out.symbols)
        if isinstance(arg, Listed):
            return f"[{', '.join(self.argument(item) for item in arg.items)}]"
        value = from_literal(arg.value)
        return repr(value) if value is None or isinstance(value, bool) else self.out.hold(value)

    def ref(self, ref: TensorRef) -> str:
        local, known = self.out.locals[ref.buffer], self.known.get(ref.buffer)
        sizes, strides = (
            spell_tuple(ref.shape, self.out.symbols),
            spell_tuple(ref.strides, self.out.symbols),
        )
        offset = spell(ref.offset, self.out.symbols)
        if known is not None and is_whole(ref, known):
            return local
        self.out.operators = True
        if known is None:
            return f"view({local}, {sizes}, {strides}, {offset})"
        if known.offset is None:
            return f"{local}.as_strided({sizes}, {strides}, {local}.storage_offset() + {offset})"
        if ref.buffer in self.static:
            # Its data may be assigned anew, at another offset, without a guard that looks.
            shift = spell(ref.offset - known.offset, self.out.symbols)
            return f"{local}.as_strided({sizes}, {strides}, {local}.storage_offset() + {shift})"
        return f"{local}.as_strided({sizes}, {strides}, {offset})"


_EMIT: Mapping[type[Step], Callable[[_Emitter, Any], None]] = {
    Alloc: _Emitter.alloc,
    Arena: _Emitter.arena,
    Place: _Emitter.place,
    Launch: _Emitter.launch,
    Call: _Emitter.call,
    Free: _Emitter.free,
    Change: _Emitter.change,
    CopyBack: _Emitter.copy_back,
    Return: _Emitter.give_back,
}


def is_whole(ref: TensorRef, known: Geometry) -> bool:
    """Whether a ref is the tensor itself. A stride counts only where the dimension may have two elements."""
    if ref.shape != known.shape or ref.offset != (
        const(0) if known.offset is None else known.offset
    ):
        return False
    return all(
        mine == own or own is None or (size.is_const and size.value <= 1)
        for size, mine, own in zip(ref.shape, ref.strides, known.strides)
    )


def _input_geometry(artifact: Artifact) -> dict[str, Geometry]:
    known: dict[str, Geometry] = {}
    for guard in artifact.guards.guards:
        if isinstance(guard, TensorGuard):
            known[artifact.inputs[guard.input]] = Geometry(guard.shape, guard.strides, guard.offset)
    constants = {c.name: c for c in artifact.constants}
    for name, item in zip(artifact.inputs, artifact.signature.inputs):
        if item.source == "constant":
            shape = tuple(const(n) for n in constants[item.name].shape)
            known[name] = Geometry(shape, contiguous(shape), const(0))
    return known


def _operator(step: Call) -> tuple[Callable[..., Any], bool]:
    """The operator of a call and whether its results come as a sequence. Verification has limited the names to the
    functional part of two namespaces; the schema has the last word."""
    space, name, overload = step.target.split(".")
    try:
        found = getattr(getattr(getattr(torch.ops, space), name), overload)
    except AttributeError:
        found = None
    if not isinstance(found, torch._ops.OpOverload):
        raise LoadError(
            "this torch lacks an operator", expected=step.target, found=torch.__version__
        )
    schema = found._schema
    kinds = [str(r.type) for r in schema.returns]
    single = kinds == ["Tensor"]
    fits = kinds == ["List[Tensor]"] or (kinds and set(kinds) == {"Tensor"})
    if (
        schema.is_mutable
        or not fits
        or (len(kinds) != len(step.outs) and kinds != ["List[Tensor]"])
    ):
        raise LoadError(
            "refused operator", expected="a functional one that gives tensors", found=str(schema)
        )
    return getattr(found, "_op", found), not single


def _unpacked(names: Iterable[str], source: str) -> list[str]:
    left = "".join(f"{name}, " for name in names)
    return [f"{left}= {source}"] if left else []


def _indented(lines: Iterable[str]) -> list[str]:
    return [f" {line}" for line in lines]
