"""Which emitter prints kernels for which target kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import cast

from stax.base.errors import OptionError
from stax.base.target import Target
from stax.ir.kernel import Kernel
from stax.ir.source import Source

Emit = Callable[[Kernel, Target], Source]

# NOTE: imported on use, so that a CPU compile does not load the Triton emitter.
BACKENDS: Mapping[str, str] = {
    "cpu": "stax.codegen.cpp.emit:emit",
    "cuda": "stax.codegen.triton.emit:emit",
}


def emitter(target: Target) -> Emit:
    """The emitter of a target. Raises OptionError for a kind without one."""
    path = BACKENDS.get(target.kind)
    if path is None:
        raise OptionError("no code generator", expected=" | ".join(BACKENDS), found=target.kind)
    module, _, name = path.partition(":")
    return cast(Emit, getattr(import_module(module), name))
