"""Host functions of CUDA artifacts on a machine without a GPU: memory of the CPU, kernels that are Python functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from stax.artifact.artifact import Artifact, Binary, Constraints
from stax.artifact.guards import GuardSet, TensorGuard
from stax.base.digest import sha256
from stax.base.target import Target
from stax.ir.expr import ceildiv, sym
from stax.ir.source import Config, Param
from stax.runtime.launcher import Host
from stax.runtime.wrapper import generate

Body = Callable[..., None]


def floats(address: int, count: int) -> Any:
    """Memory at an address."""
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def add(a: int, b: int, out: int, n: int) -> None:
    floats(out, n)[:] = floats(a, n) + floats(b, n)


def double(a: int, out: int, n: int) -> None:
    floats(out, n)[:] = 2 * floats(a, n)


def plus_one(a: int, out: int, n: int) -> None:
    floats(out, n)[:] = floats(a, n) + 1


BODIES: dict[str, Body] = {"add": add, "double": double, "plus_one": plus_one}


def cuda_binary(entry: str, pointers: str, *, divisible: bool = True) -> Binary:
    """``pointers``: "i" for each that is read, "o" for each that is written; one size, xnumel."""
    kinds = {"i": "in", "o": "out"}
    given = (Param(kinds[k], f"p{i}", "float32", divisible) for i, k in enumerate(pointers))
    meta: dict[str, int | str] = {
        "symbol": entry, "num_warps": 4, "shared_bytes": 0,
        "abi": "Q" * len(pointers) + "i" + "QQ", "scratch_params": 2,
    }  # fmt: skip
    return Binary(
        f"triton_{entry}", "triton", entry, sha256(entry.encode()), sha256(entry.encode()),
        (*given, Param("size", "xnumel", "int32"), Param("block", "XBLOCK")),
        (ceildiv(sym("xnumel"), sym("XBLOCK")),), Config.of(XBLOCK=4, num_warps=4),
        tuple(sorted(meta.items())),
    )  # fmt: skip


def on_cuda(base: Artifact, *binaries: Binary) -> Artifact:
    guards = tuple(
        replace(g, device="cuda") if isinstance(g, TensorGuard) else g for g in base.guards.guards
    )
    return replace(
        base,
        target=Target("cuda", "sm_90"),
        constraints=Constraints(cuda_arch="sm_90"),
        guards=GuardSet(base.guards.bindings, guards),
        binaries=binaries,
    )


@dataclass
class Machine:
    """Writes down what a host function asks for. A kernel's handle is its number."""

    artifact: Artifact
    devices: int = 1
    launches: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    allocated: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    queued: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    exchanges: list[int] = field(default_factory=list[int])
    fault: Exception | None = None

    @property
    def host(self) -> Host:
        return Host(
            self.devices, self._empty, lambda: 0, self._exchange, lambda device: 0xABC,
            self._launch, lambda kernel: kernel.index,
        )  # fmt: skip

    def forward(self) -> tuple[Callable[..., tuple[Any, ...]], str]:
        return generate(self.artifact, self._kernels, self.host)

    def _kernels(self, device: int) -> Sequence[_Kernel]:
        return [_Kernel(i, self) for i in range(len(self.artifact.binaries))]

    def _empty(self, sizes: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
        made = torch.empty_strided(sizes, strides, dtype=dtype)
        self.allocated.append(made)
        return made

    def _exchange(self, device: int) -> int:
        self.exchanges.append(device)
        return 0

    def _launch(
        self, handle: int, x: int, y: int, z: int, warps: int, shared: int, types: str, args: Any, stream: int,
    ) -> None:  # fmt: skip
        if self.fault is not None:
            raise self.fault
        self.launches.append((handle, (x, y, z), warps, shared, types, args, stream))
        self.run(handle, args)

    def run(self, handle: int, args: tuple[int, ...]) -> None:
        BODIES[self.artifact.binaries[handle].entry](*args[:-2])


@dataclass
class _Kernel:
    index: int
    machine: Machine

    def queue(self, x: int, y: int, z: int, args: tuple[int, ...], stream: int) -> None:
        self.machine.queued.append((self.index, (x, y, z), args, stream))
