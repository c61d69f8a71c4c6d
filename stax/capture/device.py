"""Tracing for CUDA where there is no GPU: what torch asks of the machine is answered for the target instead."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._subclasses import fake_tensor

from stax.base.errors import CaptureError
from stax.base.target import Target

# torch's table of device guards, by c10::DeviceType; the entry of "meta" does nothing.
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_CPU, _CUDA, _META, _COUNT = 0, 1, 14, 21


@contextlib.contextmanager
def as_if(target: Target) -> Iterator[None]:
    """While open, torch.cuda speaks of one GPU of the target's arch. Does nothing for a CPU target. Process-wide."""
    if target.kind != "cuda":
        yield
        return
    ensure_guard()
    with contextlib.ExitStack() as stack:
        for name, answer in _answers(target.arch).items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        # NOTE: a fake CUDA tensor makes a real one first, for the sake of backwards; where there is no GPU that raises.
        if hasattr(fake_tensor, "init_gpu_context"):
            stack.enter_context(mock.patch.object(fake_tensor, "init_gpu_context", _no_context))
        yield


def _no_context(device: torch.device) -> None:
    """In place of what would start CUDA on this machine."""


def _answers(arch: str) -> dict[str, Callable[..., Any]]:
    major, minor = divmod(int(arch.removeprefix("sm_")), 10)
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: (major, minor),
        "is_bf16_supported": lambda including_emulation=True: major >= 8 or including_emulation,
    }


def ensure_guard() -> None:
    """Operators that take a device switch to it first. A build without CUDA has no switch for it and refuses even fake
    tensors, so it gets the one of "meta". Raises CaptureError when this torch keeps its switches elsewhere."""
    if torch.backends.cuda.is_built():
        return
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    try:
        table = (ctypes.c_void_p * _COUNT).in_dll(library, _REGISTRY)
    except ValueError as error:
        raise _refused() from error
    if table[_CUDA]:
        return
    if not table[_CPU] or not table[_META]:
        raise _refused()
    table[_CUDA] = table[_META]


def _refused() -> CaptureError:
    return CaptureError(
        "this CPU build of torch can not trace for CUDA",
        found=f"torch {torch.__version__}",
        hint="install a CUDA build of torch; no GPU is needed",
    )
