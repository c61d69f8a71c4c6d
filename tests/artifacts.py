"""Artifacts made by hand, over C kernels that g++ builds: what the runtime is tested with, without a compiler of ours."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

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
    Step,
)
from stax.artifact.guards import Binding, GuardSet, RelationGuard, TensorGuard
from stax.artifact.signature import Input, Signature, Tree
from stax.base.digest import sha256
from stax.base.target import Target, Toolchain
from stax.ir.expr import Expr, const, sym
from stax.ir.program import Literal, Symbol, TensorRef, contiguous
from stax.ir.source import Config, Param

LEAF = Tree("leaf")
HEAD = "#include <cstdint>\n"
SOURCES = {
    # out[i, j] = relu(a[i, j] + b[j]); sizes: numel, columns
    "bias_relu": """
    extern "C" int64_t bias_relu(void* const* p, const int64_t* s) {
        const float* a = (const float*)p[0]; const float* b = (const float*)p[1]; float* out = (float*)p[2];
        for (int64_t i = 0; i < s[0]; i++) { float v = a[i] + b[i % s[1]]; out[i] = v < 0 ? 0 : v; }
        return 0;
    }""",
    # out[i] = sum of row i; sizes: rows, columns
    "row_sum": """
    extern "C" int64_t row_sum(void* const* p, const int64_t* s) {
        const float* a = (const float*)p[0]; float* out = (float*)p[1];
        for (int64_t i = 0; i < s[0]; i++) {
            float t = 0; for (int64_t j = 0; j < s[1]; j++) t += a[i * s[1] + j]; out[i] = t;
        }
        return 0;
    }""",
    # out[i] = a[index[i]]; sizes: count, extent
    "take": """
    extern "C" int64_t take(void* const* p, const int64_t* s) {
        const float* a = (const float*)p[0]; const int64_t* index = (const int64_t*)p[1]; float* out = (float*)p[2];
        int64_t bad = 0;
        for (int64_t i = 0; i < s[0]; i++) {
            if (index[i] < 0 || index[i] >= s[1]) { bad = 1; continue; }
            out[i] = a[index[i]];
        }
        return bad;
    }""",
    # out[i] = a[i * stride] + 1, in parallel; sizes: count, stride
    "add_one": """
    extern "C" int64_t add_one(void* const* p, const int64_t* s) {
        const float* a = (const float*)p[0]; float* out = (float*)p[1];
        #pragma omp parallel for
        for (int64_t i = 0; i < s[0]; i++) out[i] = a[i * s[1]] + 1;
        return 0;
    }""",
}
POINTERS = {"bias_relu": 2, "row_sum": 1, "take": 2, "add_one": 1}


@cache
def library(name: str) -> bytes:
    """The .so of one kernel, which leaves its OpenMP symbols to the process."""
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        (at / "k.cpp").write_text(HEAD + SOURCES[name])
        flags = ["-O2", "-fPIC", "-fopenmp"]
        subprocess.run(["g++", *flags, "-c", "k.cpp", "-o", "k.o"], cwd=at, check=True)
        subprocess.run(["g++", "-shared", "k.o", "-o", "k.so"], cwd=at, check=True)
        return (at / "k.so").read_bytes()


def binary(name: str) -> Binary:
    inputs = POINTERS[name]
    params = (
        *(Param("in", f"in_ptr{i}", "float32") for i in range(inputs)),
        Param("out", "out_ptr0", "float32"),
        Param("size", "ks0", "int64"),
        Param("size", "ks1", "int64"),
    )
    digest = sha256(library(name))
    return Binary(
        f"cpp_fused_{name}_0", "cpp", name, sha256(name.encode()), digest, params, (), Config(), ()
    )


def blobs(artifact: Artifact, constants: tuple[bytes, ...] = ()) -> dict[str, bytes]:
    """Everything that running the artifact needs, by digest."""
    return {
        sha256(data): data for data in (*(library(b.entry) for b in artifact.binaries), *constants)
    }


@dataclass(frozen=True)
class Tensor:
    """One input by hand: its guard, where it comes from."""

    guard: TensorGuard
    source: Input


def shape(*sizes: int | Expr) -> tuple[Expr, ...]:
    return tuple(const(s) for s in sizes)


def tensor(
    index: int,
    source: Input,
    sizes: tuple[Expr, ...],
    *,
    strides: tuple[Expr, ...] | None = None,
    offset: int | Expr = 0,
    dtype: str = "float32",
) -> Tensor:
    own = contiguous(sizes) if strides is None else strides
    return Tensor(TensorGuard(index, dtype, "cpu", sizes, own, const(offset)), source)


def whole(name: str, sizes: tuple[Expr, ...]) -> TensorRef:
    """A ref to all of a dense tensor."""
    return TensorRef(name, sizes, contiguous(sizes), const(0))


def call_tree(args: int) -> Tree:
    return Tree("tuple", (Tree("tuple", (LEAF,) * args), Tree("dict")))


def artifact(
    tensors: tuple[Tensor, ...],
    steps: tuple[Step, ...],
    *,
    args: int,
    binaries: tuple[str, ...] = (),
    symbols: tuple[Symbol, ...] = (),
    bindings: tuple[Binding, ...] = (),
    guards: tuple[RelationGuard, ...] = (),
    constants: tuple[Constant, ...] = (),
    out: Tree | None = None,
) -> Artifact:
    """Inputs are named in0, in1, …; the return value is a tuple of the outputs unless ``out`` says otherwise."""
    last = steps[-1]
    assert isinstance(last, Return)
    held = {i for i, t in enumerate(tensors) if t.source.source != "constant"}
    return Artifact(
        schema=SCHEMA,
        target=Target("cpu", "x86-64"),
        toolchain=Toolchain(stax="test"),
        constraints=Constraints(cpu_level="x86-64"),
        signature=Signature(
            call_tree(args),
            tuple(t.source for t in tensors),
            out or Tree("tuple", (LEAF,) * len(last.outputs)),
        ),
        symbols=symbols,
        guards=GuardSet(
            bindings, (*(t.guard for i, t in enumerate(tensors) if i in held), *guards)
        ),
        inputs=tuple(f"in{i}" for i in range(len(tensors))),
        constants=constants,
        binaries=tuple(binary(name) for name in binaries),
        forward=steps,
        backward=(),
        traced_sources=(),
        origin="tests",
    )


S0 = sym("s0")


def linear_relu() -> Artifact:
    """(x: [s0, 8]) with parameter weight [4, 8] and buffer bias [4] → (relu(x @ weight.T + bias), its row sums, x, its
    first column as a view, s0, "done")."""
    out = shape(S0, 4)
    return artifact(
        (
            tensor(0, Input("arg", 0), shape(S0, 8)),
            tensor(1, Input("parameter", name="weight"), shape(4, 8)),
            tensor(2, Input("buffer", name="bias"), shape(4)),
        ),
        (
            Call(
                ("t0",),
                "aten.mm.default",
                (whole("in0", shape(S0, 8)), TensorRef("in1", shape(8, 4), shape(1, 8), const(0))),
                (),
                (Layout(out, contiguous(out)),),
            ),
            Alloc("t1", "float32", out, contiguous(out)),
            Launch(0, ("t0", "in2", "t1"), (S0 * 4, const(4))),
            Free(("t0", "in2")),
            Alloc("t2", "float32", shape(S0), shape(1)),
            Launch(1, ("t1", "t2"), (S0, const(4))),
            Return(
                (
                    whole("t1", out),
                    whole("t2", shape(S0)),
                    whole("in0", shape(S0, 8)),
                    TensorRef("t1", shape(S0), shape(4), const(0)),
                    S0,
                    Literal("done"),
                )
            ),
        ),
        args=1,
        binaries=("bias_relu", "row_sum"),
        symbols=(Symbol("s0", 3),),
        bindings=(Binding("s0", 0, 0),),
    )


def counter() -> Artifact:
    """(x: [6]): x becomes x + 1 in place; gives nothing but x itself."""
    return artifact(
        (tensor(0, Input("arg", 0), shape(6)),),
        (
            Alloc("t0", "float32", shape(6), shape(1)),
            Launch(0, ("in0", "t0"), shape(6, 1)),
            CopyBack("in0", "t0"),
            Free(("t0",)),
            Return((whole("in0", shape(6)),)),
        ),
        args=1,
        binaries=("add_one",),
        out=LEAF,
    )


def changed() -> Artifact:
    """(x: [6]) → x, which a kernel has made x + 1."""
    return artifact(
        (tensor(0, Input("arg", 0), shape(6)),),
        (
            Change("in0"),
            Launch(0, ("in0", "in0"), shape(6, 1)),
            Return((whole("in0", shape(6)),)),
        ),
        args=1,
        binaries=("add_one",),
        out=LEAF,
    )


def strided() -> Artifact:
    """(x: [4] with stride 2 and offset 3) → x + 1, and the view of x's first two elements."""
    return artifact(
        (tensor(0, Input("arg", 0), shape(4), strides=shape(2), offset=3),),
        (
            Alloc("t0", "float32", shape(4), shape(1)),
            Launch(0, ("in0", "t0"), shape(4, 2)),
            Return((whole("t0", shape(4)), TensorRef("in0", shape(2), shape(2), const(3)))),
        ),
        args=1,
        binaries=("add_one",),
    )


def shared() -> Artifact:
    """(x: [s0], y: [6]) → (x + 3, y + 6) with every temp in an arena or in the memory of a result: of x two temps at the
    sizes of the call, and of y one of 24 bytes at 512 and one at 0, in turns."""
    x, y = shape(S0), shape(6)
    return artifact(
        (tensor(0, Input("arg", 0), x), tensor(1, Input("arg", 1), y)),
        (
            Arena("arena", (const(1024), S0 * 4)),
            Alloc("r0", "float32", x, shape(1)),
            Place("a0", "r0", 0, 0, "float32", x, shape(1)),
            Launch(0, ("in0", "a0"), (S0, const(1))),
            Place("a1", "arena", 1, 0, "float32", x, shape(1)),
            Launch(0, ("a0", "a1"), (S0, const(1))),
            Free(("a0",)),
            Place("b0", "arena", 0, 512, "float32", y, shape(1)),
            Launch(0, ("in1", "b0"), shape(6, 1)),
            Place("b1", "arena", 0, 0, "float32", y, shape(1)),
            Launch(0, ("b0", "b1"), shape(6, 1)),
            Free(("b0",)),
            Place("b2", "arena", 0, 512, "float32", y, shape(1)),
            Launch(0, ("b1", "b2"), shape(6, 1)),
            Free(("b1",)),
            Alloc("r1", "float32", y, shape(1)),
            Place("b3", "r1", 0, 0, "float32", y, shape(1)),
            Launch(0, ("b2", "b3"), shape(6, 1)),
            Free(("b2",)),
            Place("b4", "arena", 0, 0, "float32", y, shape(1)),
            Launch(0, ("b3", "b4"), shape(6, 1)),
            Free(("b3",)),
            Launch(0, ("a1", "r0"), (S0, const(1))),
            Launch(0, ("b4", "r1"), shape(6, 1)),
            Free(("a1", "b4", "arena")),
            Return((whole("r0", x), whole("r1", y))),
        ),
        args=2,
        binaries=("add_one",),
        symbols=(Symbol("s0", 3),),
        bindings=(Binding("s0", 0, 0),),
    )


def take(table: bytes, count: int) -> Artifact:
    """(index: int64 [s0]) → table[index], for a constant table of ``count`` floats."""
    digest = sha256(table)
    return artifact(
        (
            tensor(0, Input("arg", 0), shape(S0), dtype="int64"),
            tensor(1, Input("constant", name="table"), shape(count)),
        ),
        (
            Alloc("t0", "float32", shape(S0), shape(1)),
            Launch(0, ("in1", "in0", "t0"), (S0, const(count))),
            Return((whole("t0", shape(S0)),)),
        ),
        args=1,
        binaries=("take",),
        symbols=(Symbol("s0", 3),),
        bindings=(Binding("s0", 0, 0),),
        constants=(Constant("table", "float32", (count,), digest),),
        out=LEAF,
    )


def limited(base: Artifact, left: Expr, relation: str, right: Expr, text: str) -> Artifact:
    """The same artifact with one more guard."""
    more = RelationGuard(left, relation, right, text, "model.py:7")
    return replace(base, guards=GuardSet(base.guards.bindings, (*base.guards.guards, more)))
