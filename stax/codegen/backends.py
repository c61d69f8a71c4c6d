"""Which emitter prints kernels for which target kind, and in which loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import cast

from stax.base.errors import OptionError
from stax.base.target import Target
from stax.ir.kernel import Kernel, Statement
from stax.ir.source import Source

Emit = Callable[[Kernel, Target], Source]
Loops = Callable[[Kernel], Sequence[Sequence[Statement]]]

# NOTE: imported on use, so that a CPU compile does not load the Triton emitter.
BACKENDS: Mapping[str, str] = {"cpu": "stax.codegen.cpp", "cuda": "stax.codegen.triton"}


def emitter(target: Target) -> Emit:
    """The emitter of a target. Raises OptionError for a kind without one."""
    return cast(Emit, _part(target, "emit", "emit"))


def looper(target: Target) -> Loops:
    """What tells the loops over the reduced elements that the emitter prints: the statements that each evaluates. Raises
    OptionError."""
    return cast(Loops, _part(target, "plan", "loops"))


def _part(target: Target, module: str, name: str) -> object:
    package = BACKENDS.get(target.kind)
    if package is None:
        raise OptionError("no code generator", expected=" | ".join(BACKENDS), found=target.kind)
    return getattr(import_module(f"{package}.{module}"), name)
