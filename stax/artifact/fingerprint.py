"""The fingerprint of a callable, without running it: digests of its code, closure, module tree and tensor metadata.

Two processes that load the same program agree on it; it changes when something changes that tracing could see."""

from __future__ import annotations

import functools
import sys
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from stax.artifact.contents import Contents, module_tensors
from stax.artifact.places import Places
from stax.base.digest import digest

Fingerprint = tuple[tuple[str, str], ...]


def fingerprint(fn: Any, places: Places | None = None) -> Fingerprint:
    """Named component digests, for Key.of; ``places`` gains where each value was read. Raises CaptureError when the callable holds something whose meaning can not
    be told, such as an open file: it then has no request key, and the error says why."""
    contents = Contents(places)
    parts: dict[str, object] = {"python": sys.version_info[:2]}
    module = root_module(fn)
    if module is not None:
        parts["module"] = contents.module_tree(module)
        parts["attributes"] = contents.module_state(module, type(module).__name__)
        parts["tensors"] = module_tensors(module)
    parts["callable"] = _callable(fn, module, contents)
    contents.settle()
    parts["packages"] = contents.packages
    parts["classes"] = sorted(contents.classes.items())
    parts["functions"] = sorted(contents.functions.items())
    return tuple((name, digest(value, f"fingerprint/{name}")) for name, value in parts.items())


def root_module(fn: Any) -> nn.Module | None:
    """The module whose parameters are the callable's own: fn itself, or the self of a bound method of one."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, MethodType):
        fn = fn.__self__
    return fn if isinstance(fn, nn.Module) else None


def _callable(fn: Any, module: nn.Module | None, contents: Contents) -> object:
    """How the callable is reached from its module: partial arguments, the method's name; else the callable itself."""
    if isinstance(fn, functools.partial):
        bound = (
            contents.of(fn.args, "a partial argument"),
            contents.of(fn.keywords, "a partial argument"),
        )
        return "partial", _callable(fn.func, module, contents), bound
    if fn is module:
        return "module"
    if isinstance(fn, MethodType) and module is not None and isinstance(fn.__func__, FunctionType):
        return "method", contents.function_label(fn.__func__, type(module))
    return contents.of(fn, str(getattr(fn, "__qualname__", type(fn).__qualname__)))
