"""Artifact + blobs → Executable: constraints checked, digests verified again, binaries loaded, host function made.

Needs no compiler; nothing of the artifact is run before all of it was checked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stax.artifact.artifact import Artifact, Call, Constant
from stax.artifact.guards import StateGuard
from stax.artifact.verify import verify
from stax.base.digest import sha256
from stax.base.errors import Corrupt, LoadError, Missing
from stax.runtime.check import FastGuards, compile_guards
from stax.runtime.constraints import Facts, check, machine_facts
from stax.runtime.cpu import Libraries
from stax.runtime.cuda import load_cubin
from stax.runtime.guards import Bound, Reason, holds
from stax.runtime.signature import NO_TYPES, Types, builder, compile_flattener, leaf_names
from stax.runtime.state import any_autocast
from stax.runtime.wrapper import Forward, generate

Blobs = Mapping[str, bytes]


def load(
    artifact: Artifact,
    blobs: Blobs,
    *,
    libraries: Libraries | None = None,
    facts: Facts | None = None,
    types: Types = NO_TYPES,
) -> Executable:
    """An artifact ready to run on this machine. ``blobs`` holds its binaries and constants by digest.

    ``libraries`` is shared by whoever loads several artifacts, so that equal kernels load once; ``facts`` are read from
    this machine when not handed in; ``types`` as in :func:`stax.runtime.signature.unflatten`. Raises Incompatible,
    SchemaError, Corrupt, Missing, LoadError.
    """
    verify(artifact)
    check(artifact.constraints, facts or machine_facts())
    kernels = _kernels(artifact, blobs, libraries or Libraries())
    constants = {
        c.name: constant_tensor(c, blobs, artifact.target.kind) for c in artifact.constants
    }
    return Executable(artifact, kernels, constants, types)


class Executable:
    """A loaded artifact. Immutable apart from caches; safe to run from several threads at once."""

    def __init__(
        self,
        artifact: Artifact,
        kernels: Any,
        constants: Mapping[str, Tensor],
        types: Types = NO_TYPES,
    ) -> None:
        signature = artifact.signature
        self.artifact = artifact
        self.constants = constants
        self.flatten = compile_flattener(signature.call)
        self.check: FastGuards = compile_guards(
            artifact.guards,
            artifact.symbols,
            frozenset(i for i, s in enumerate(signature.inputs) if s.source != "arg"),
        )
        self._forward, self.text = generate(artifact, kernels)
        self._rebuild = builder(signature.out, types)
        self._symbols = _symbol_reader(artifact)
        self._autocast = _autocast_devices(artifact)
        # What :meth:`run` comes to for inputs and symbols that the guards gave.
        self.run_checked: Forward = self.run if self._autocast else self._forward
        self.tensor_names = _tensor_names(artifact)

    def guards_hold(self, call: Bound) -> Reason | None:
        """The first guard that fails for a bound call, or None: the slow reference, which explains."""
        return holds(self.artifact.guards, call, self.artifact.symbols)

    def run(
        self, inputs: Sequence[Tensor], symbols: Sequence[int] | None = None
    ) -> tuple[Any, ...]:
        """The flat outputs for flat tensor inputs (constants included) that the guards hold for. ``symbols`` are the
        sizes that the guards gave, read from the inputs when absent. Raises IndexError as a kernel's bounds check does.
        """
        values = self._symbols(inputs) if symbols is None else symbols
        if (
            self._autocast
            and any_autocast()
            and any(map(torch.is_autocast_enabled, self._autocast))
        ):
            return self._without_autocast(inputs, values)
        return self._forward(inputs, values)

    def _without_autocast(
        self, inputs: Sequence[Tensor], symbols: Sequence[int]
    ) -> tuple[Any, ...]:
        # The casts of autocast are steps of the artifact already; operators must not cast again.
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return self._forward(inputs, symbols)

    def rebuild(self, outputs: Sequence[Any]) -> Any:
        """The return value that the user sees."""
        return self._rebuild(iter(outputs))


def _tensor_names(artifact: Artifact) -> tuple[str, ...]:
    leaves = leaf_names(artifact.signature.call)
    return tuple(leaves[s.leaf] if s.source == "arg" else s.name for s in artifact.signature.inputs)


def _symbol_reader(artifact: Artifact) -> Callable[[Sequence[Tensor]], tuple[int, ...]]:
    places = {b.symbol: (b.input, b.dim) for b in reversed(artifact.guards.bindings)}
    order = [places[s.name] for s in artifact.symbols]
    return lambda inputs: tuple(inputs[i].shape[d] for i, d in order)


def _autocast_devices(artifact: Artifact) -> tuple[str, ...]:
    """Devices whose autocast may be on when the artifact runs, while it calls operators that would heed it."""
    if not any(isinstance(step, Call) for step in artifact.forward):
        return ()
    off = {g.name for g in artifact.guards.guards if isinstance(g, StateGuard) and g.value == "off"}
    return tuple(d for d in ("cpu", "cuda") if f"autocast_{d}" not in off)


def _kernels(artifact: Artifact, blobs: Blobs, libraries: Libraries) -> Any:
    """What the wrapper launches: entries for the CPU, for CUDA a function from a device to its kernels."""
    data = [blob(blobs, b.digest) for b in artifact.binaries]
    if artifact.target.kind == "cuda":
        return CudaKernels(artifact, data)
    return [libraries.entry(b.digest, d, b.entry) for b, d in zip(artifact.binaries, data)]


class CudaKernels:
    """The cubins of an artifact, loaded once a device. Safe to use from several threads."""

    def __init__(self, artifact: Artifact, data: Sequence[bytes]) -> None:
        self._binaries = artifact.binaries
        self._data = data
        self._lock = threading.Lock()
        self._loaded: dict[int, list[Any]] = {}

    def __call__(self, device: int) -> Sequence[Any]:
        found = self._loaded.get(device)
        return self._load(device) if found is None else found

    def _load(self, device: int) -> Sequence[Any]:
        with self._lock:
            if device not in self._loaded:
                pairs = zip(self._binaries, self._data)
                self._loaded[device] = [
                    load_cubin(d, b.entry, dict(b.meta), device) for b, d in pairs
                ]
            return self._loaded[device]


def blob(blobs: Blobs, digest: str) -> bytes:
    """The bytes that a digest names. Raises Missing, or Corrupt when they are others."""
    data = blobs.get(digest)
    if data is None:
        raise Missing("blob of an artifact is missing", expected=digest)
    if sha256(data) != digest:
        raise Corrupt("blob is not what its name says", expected=digest, found=sha256(data))
    return data


def constant_tensor(constant: Constant, blobs: Blobs, device: str) -> Tensor:
    """A constant from its dense row-major bytes. Raises LoadError when their number is not that of its shape."""
    data = blob(blobs, constant.digest)
    dtype: torch.dtype = getattr(torch, constant.dtype)
    expected = dtype.itemsize
    for size in constant.shape:
        expected *= size
    if len(data) != expected:
        raise LoadError(
            "constant of another size",
            expected=f"{expected} bytes",
            found=str(len(data)),
            where=constant.name,
        )
    if not data:
        return torch.empty(constant.shape, dtype=dtype, device=device)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(constant.shape).to(device)
