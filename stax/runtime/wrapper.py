"""The steps of an artifact as one generated straight-line host function: (inputs, symbols) → flat outputs.

Kernels receive ``data_ptr()`` of each tensor, so offsets inside a kernel count from the tensor's own first element: the
storage offset of an input is not applied again. A TensorRef on an input counts from the start of its storage, as torch's
as_strided does; on a temp the two are the same. The text is made from indices and integers alone.
A CUDA kernel may assume pointers at multiples of 16 bytes: a tensor that lies otherwise is copied first.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from stax.artifact.artifact import (
    Alloc,
    Artifact,
    Call,
    CopyBack,
    Free,
    Launch,
    Layout,
    Return,
    Step,
)
from stax.artifact.guards import TensorGuard
from stax.artifact.verify import POINTERS
from stax.base.errors import LoadError
from stax.ir.expr import Expr, const
from stax.ir.program import Arg, Listed, TensorRef, contiguous
from stax.runtime.alloc import aligned, allocator, laid_out, view
from stax.runtime.literals import from_literal
from stax.runtime.spell import spell, spell_tuple

Forward = Callable[[Sequence[torch.Tensor], Sequence[int]], tuple[Any, ...]]
Entry = Callable[[int, int], int]
ITEM_BYTES = 8


@dataclass(frozen=True)
class Geometry:
    """What is known of a tensor before the call. ``offset`` None: unknown, refs count from its first element."""

    shape: tuple[Expr, ...]
    strides: tuple[Expr | None, ...]
    offset: Expr | None


class Frames:
    """Argument memory of CPU launches: one array a running call, kept for the next. Safe for concurrent calls, because
    list.pop and list.append are atomic."""

    def __init__(self, template: array[int]) -> None:
        self._template = template
        self._free: list[tuple[array[int], int]] = []
        self.give = self._free.append

    def take(self) -> tuple[array[int], int]:
        """An array that nobody else uses now, and its address."""
        try:
            return self._free.pop()
        except IndexError:
            fresh = array("q", self._template)
            return fresh, fresh.buffer_info()[0]


def generate(artifact: Artifact, kernels: Any) -> tuple[Forward, str]:
    """The host function and its text. ``kernels``: for a CPU artifact the entry of each binary; for a CUDA artifact a
    function from a device index to the loaded kernels. Raises LoadError for an operator that this torch lacks."""
    emitter = _Emitter(artifact, kernels)
    return emitter.compile(), emitter.text


def _raise_bounds(kernel: str) -> NoReturn:
    raise IndexError(f"index out of range in {kernel}")


class _Emitter:
    """Collects lines and the objects that they name."""

    def __init__(self, artifact: Artifact, kernels: Any) -> None:
        self.artifact = artifact
        self.cuda = artifact.target.kind == "cuda"
        self.lines: list[str] = []
        self.names = {s.name: f"s{i}" for i, s in enumerate(artifact.symbols)}
        self.locals = {name: f"x{i}" for i, name in enumerate(artifact.inputs)}
        self.known = _input_geometry(artifact)
        self.frame: list[int] = []
        self.allocated: set[str] = set()
        sources = zip(artifact.inputs, artifact.signature.inputs)
        self.static = {name for name, s in sources if s.source in ("parameter", "buffer")}
        self.copies: dict[str, str] = {}
        self.objects: dict[str, Any] = {
            "empty": allocator(artifact.target.kind),
            "view": view,
            "laid_out": laid_out,
            "aligned": aligned,
            "raise_bounds": _raise_bounds,
            "grad_enabled": torch.is_grad_enabled,
            "set_grad": torch._C._set_grad_enabled,
        }
        if self.cuda:
            self.objects |= _cuda_objects(kernels)
        else:
            self.objects |= {f"k{i}": entry for i, entry in enumerate(kernels)}
        for step in artifact.forward:
            _EMIT[type(step)](self, step)
        self.objects["frames"] = Frames(array("q", self.frame))
        self.text = self._text()

    def compile(self) -> Forward:
        objects = dict(self.objects)
        exec(compile(self.text, "<stax forward>", "exec"), objects)
        return objects["forward"]

    def _text(self) -> str:
        head = (
            [f"{''.join(f'{self.locals[n]}, ' for n in self.artifact.inputs)}= inputs"]
            if self.artifact.inputs
            else []
        )
        if self.names:
            head.append(f"{''.join(f'{s}, ' for s in self.names.values())}= symbols")
        if self.cuda:
            head += _cuda_head(self.artifact)
        elif any(isinstance(step, Launch) for step in self.artifact.forward):
            head.append("a, b = frame = frames.take()")
            self.lines.insert(len(self.lines) - 1, "frames.give(frame)")
        body = "\n  ".join([*head, *self.lines])
        restore = "  if grad: set_grad(True)" + ("\n  if p != d: exchange(p)" if self.cuda else "")
        start = " p = d = -1\n" if self.cuda else ""
        return (
            f"def forward(inputs, symbols):\n{start} grad = grad_enabled()\n if grad: set_grad(False)\n"
            f" try:\n  {body}\n finally:\n{restore}\n"
        )

    def line(self, text: str) -> None:
        self.lines.append(text)

    def hold(self, value: object) -> str:
        """A name for an object."""
        name = f"o{len(self.objects)}"
        self.objects[name] = value
        return name

    def define(self, name: str, geometry: Geometry | None) -> str:
        """A local variable for a new tensor."""
        self.locals[name] = f"t{len(self.locals)}"
        if geometry is not None:
            self.known[name] = geometry
        return self.locals[name]

    # -- steps

    def alloc(self, step: Alloc) -> None:
        local = self.define(step.name, Geometry(step.shape, step.strides, const(0)))
        self.allocated.add(step.name)
        dtype = self.hold(getattr(torch, step.dtype))
        sizes, strides = spell_tuple(step.shape, self.names), spell_tuple(step.strides, self.names)
        self.line(f"{local} = empty({sizes}, {strides}, {dtype})")

    def launch(self, step: Launch) -> None:
        if self.cuda:
            self.launch_cuda(step)
            return
        at = len(self.frame)
        for name in step.tensors:
            self.line(f"a[{len(self.frame)}] = {self.locals[name]}.data_ptr()")
            self.frame.append(0)
        for expr in step.sizes:
            if not expr.is_const:
                self.line(f"a[{len(self.frame)}] = {spell(expr, self.names)}")
            self.frame.append(expr.value if expr.is_const else 0)
        where = f"b + {at * ITEM_BYTES}, b + {(at + len(step.tensors)) * ITEM_BYTES}"
        name = self.hold(self.artifact.binaries[step.binary].name)
        self.line(f"if k{step.binary}({where}): raise_bounds({name})")

    def launch_cuda(self, step: Launch) -> None:
        binary = self.artifact.binaries[step.binary]
        given = [p for p in binary.params if p.kind in POINTERS]
        pointers = [
            f"{self.aligned(name) if p.divisible16 else self.locals[name]}.data_ptr(), "
            for name, p in zip(step.tensors, given)
        ]
        names = {name: str(value) for name, value in binary.config.values}
        params = [p.name for p in binary.params if p.kind == "size"]
        for i, (param, size) in enumerate(zip(params, step.sizes)):
            self.line(f"z{i} = {spell(size, self.names)}")
            names[param] = f"z{i}"
        grid = [spell(e, names) for e in binary.grid]
        grid += ["1"] * (3 - len(grid))
        sizes = "".join(f"z{i}, " for i in range(len(params)))
        self.line(
            f"k[{step.binary}].launch(({', '.join(grid)}), ({''.join(pointers)}), ({sizes}), stream)"
        )

    def aligned(self, name: str) -> str:
        """A local whose first element lies at a multiple of 16 bytes. What the artifact allocates always does."""
        if name in self.allocated:
            return self.locals[name]
        local = self.locals[name]
        if name not in self.copies:
            self.copies[name] = f"y{len(self.copies)}"
            self.line(
                f"{self.copies[name]} = aligned({local}) if {local}.data_ptr() & 15 else {local}"
            )
        return self.copies[name]

    def call(self, step: Call) -> None:
        operator, listed = _operator(step)
        args = [self.argument(arg) for arg in step.args]
        # Each key is the name of an argument of the operator, so it is no text of the wire any more.
        args += [f"{key}={self.argument(arg)}" for key, arg in step.kwargs]
        layouts = step.layouts or (None,) * len(step.outs)
        outs = [self.result(name, layout) for name, layout in zip(step.outs, layouts)]
        target = "".join(f"{out}, " for out in outs) if listed else outs[0]
        self.line(f"{target} = {self.hold(operator)}({', '.join(args)})")
        for out, layout in zip(outs, layouts):
            if layout is not None and out != "_":
                sizes, strides = (
                    spell_tuple(layout.shape, self.names),
                    spell_tuple(layout.strides, self.names),
                )
                self.line(f"{out} = laid_out({out}, {sizes}, {strides})")
        if "_" in outs:
            self.line("del _")

    def result(self, name: str, layout: Layout | None) -> str:
        if not name:
            return "_"
        return self.define(
            name, None if layout is None else Geometry(layout.shape, layout.strides, None)
        )

    def free(self, step: Free) -> None:
        gone = [self.locals[name] for name in step.names]
        gone += [self.copies.pop(name) for name in step.names if name in self.copies]
        if gone:
            self.line(f"del {', '.join(gone)}")

    def copy_back(self, step: CopyBack) -> None:
        self.line(f"{self.locals[step.target]}.copy_({self.locals[step.source]})")

    def give_back(self, step: Return) -> None:
        self.line(f"return ({''.join(f'{self.argument(out)}, ' for out in step.outputs)})")

    # -- arguments

    def argument(self, arg: Arg) -> str:
        if isinstance(arg, TensorRef):
            return self.ref(arg)
        if isinstance(arg, Expr):
            return spell(arg, self.names)
        if isinstance(arg, Listed):
            return f"[{', '.join(self.argument(item) for item in arg.items)}]"
        value = from_literal(arg.value)
        return repr(value) if value is None or isinstance(value, bool) else self.hold(value)

    def ref(self, ref: TensorRef) -> str:
        local, known = self.locals[ref.buffer], self.known.get(ref.buffer)
        sizes, strides = spell_tuple(ref.shape, self.names), spell_tuple(ref.strides, self.names)
        offset = spell(ref.offset, self.names)
        if known is None:
            return f"view({local}, {sizes}, {strides}, {offset})"
        if is_whole(ref, known):
            return local
        if known.offset is None:
            return f"{local}.as_strided({sizes}, {strides}, {local}.storage_offset() + {offset})"
        if ref.buffer in self.static:
            # Its data may be assigned anew, at another offset, without a guard that looks.
            shift = spell(ref.offset - known.offset, self.names)
            return f"{local}.as_strided({sizes}, {strides}, {local}.storage_offset() + {shift})"
        return f"{local}.as_strided({sizes}, {strides}, {offset})"


_EMIT: Mapping[type[Step], Callable[[_Emitter, Any], None]] = {
    Alloc: _Emitter.alloc,
    Launch: _Emitter.launch,
    Call: _Emitter.call,
    Free: _Emitter.free,
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


def _cuda_objects(kernels: Callable[[int], Sequence[Any]]) -> dict[str, Any]:
    return {
        "kernels": kernels,
        "current_device": torch.cuda.current_device,
        "exchange": torch.cuda._exchange_device,
        "raw_stream": torch._C._cuda_getCurrentRawStream,
    }


def _cuda_head(artifact: Artifact) -> list[str]:
    """Make the inputs' device current, and find its kernels and stream."""
    first = next(
        (
            g.input
            for g in artifact.guards.guards
            if isinstance(g, TensorGuard) and g.device == "cuda"
        ),
        None,
    )
    device = "current_device()" if first is None else f"inputs[{first}].get_device()"
    lines = [f"d = {device}", "p = exchange(d)", "k = kernels(d)", "stream = raw_stream(d)"]
    # Constants were loaded on one device of the host; the call may be on another.
    held = [f"x{i}" for i, s in enumerate(artifact.signature.inputs) if s.source == "constant"]
    return lines + [f"if {x}.get_device() != d: {x} = {x}.to(d)" for x in held]
