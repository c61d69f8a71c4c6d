"""Artifact: everything a machine needs to run a compiled function, as plain data. Binaries are named by digest."""

from __future__ import annotations

from dataclasses import dataclass

from stax.artifact.guards import GuardSet
from stax.artifact.signature import Signature
from stax.base.target import Target, Toolchain
from stax.ir.expr import Expr
from stax.ir.program import Arg, Literal, Symbol, TensorRef
from stax.ir.source import Config, Param

SCHEMA = 2


@dataclass(frozen=True)
class Constraints:
    """What gates loading, as opposed to what is hashed. Empty or 0 means "anything".

    ``cpu_level``: least psABI level. ``cuda_arch``: compute capability of the cubins: "sm_90" (same major, device minor
    >= it) or "sm_90a" (that device only).
    ``glibc``: least version "2.31" of symbols a .so needs. ``torch_min``: least torch release for the extern calls.
    """

    cpu_level: str = ""
    cuda_arch: str = ""
    glibc: str = ""
    torch_min: str = ""


@dataclass(frozen=True)
class Binary:
    """One kernel. ``digest`` names the blob (cubin or .so), ``key`` the kernel key it was built under. ``grid`` are
    expressions over the size parameters' names and the config's block names; ``meta`` the builder's facts for the launcher
    (symbol, shared_bytes, num_warps, …)."""

    name: str
    language: str
    entry: str
    key: str
    digest: str
    params: tuple[Param, ...]
    grid: tuple[Expr, ...]
    config: Config
    meta: tuple[tuple[str, int | str], ...]


@dataclass(frozen=True)
class Constant:
    """A tensor baked in at capture; ``digest`` names the blob of its dense row-major bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True)
class Alloc:
    """Make an uninitialised tensor ``name`` on the artifact's device."""

    name: str
    dtype: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]


@dataclass(frozen=True)
class Arena:
    """Make ``name``: one piece of uninitialised memory on the artifact's device, made of slots of so many bytes, each of
    which begins at a multiple of stax.ir.extent.ALIGNMENT bytes from the start. No tensor: only Place and Free may name it."""

    name: str
    slots: tuple[Expr, ...]


@dataclass(frozen=True)
class Place:
    """Tensor ``name`` lies ``offset`` bytes into slot ``slot`` of ``home``: an Arena, or a tensor of an Alloc (slot 0) that
    no step has used yet. Only Launch and Free may name it. It must end before its home does, in time and in space; in a
    slot whose size is no constant it is all there is."""

    name: str
    home: str
    slot: int
    offset: int
    dtype: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]


@dataclass(frozen=True)
class Launch:
    """Run binary ``binary`` (index into Artifact.binaries) on these tensors, in pointer-parameter order; ``sizes`` are its
    size parameters over the artifact's symbols."""

    binary: int
    tensors: tuple[str, ...]
    sizes: tuple[Expr, ...]


@dataclass(frozen=True)
class Layout:
    """Sizes and strides in elements."""

    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]


@dataclass(frozen=True)
class Call:
    """Call torch operator ``target`` ("aten.mm.default") and name its results ("" drops one). ``layouts``, beside
    ``outs``: what later steps rely on (None: nothing); a result laid out otherwise is copied. Empty stands for all None.
    """

    outs: tuple[str, ...]
    target: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    layouts: tuple[Layout | None, ...] = ()


@dataclass(frozen=True)
class Free:
    """Drop the last references to these tensors."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """From here on launches may write flat input ``target`` in place, which the caller sees changed."""

    target: str


@dataclass(frozen=True)
class CopyBack:
    """Copy tensor ``source`` into flat input ``target``, which the caller sees changed."""

    target: str
    source: str


@dataclass(frozen=True)
class Return:
    """The flat results. A TensorRef on an input is that input when shape, strides and offset are its own, else a view of it."""

    outputs: tuple[TensorRef | Expr | Literal, ...]


Step = Alloc | Arena | Place | Launch | Call | Free | Change | CopyBack | Return


@dataclass(frozen=True)
class TracedSource:
    """A Python function that ran during capture: where it is found again and the digest of its code."""

    module: str
    qualname: str
    digest: str


@dataclass(frozen=True)
class Artifact:
    """``inputs`` name the flat tensor inputs in order (constants included, see Signature.inputs); every name used in
    ``forward`` is an input or the out of an earlier step. ``backward`` is empty for inference."""

    schema: int
    target: Target
    toolchain: Toolchain
    constraints: Constraints
    signature: Signature
    symbols: tuple[Symbol, ...]
    guards: GuardSet
    inputs: tuple[str, ...]
    constants: tuple[Constant, ...]
    binaries: tuple[Binary, ...]
    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    traced_sources: tuple[TracedSource, ...]
    origin: str
