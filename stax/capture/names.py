"""How the user would write each tensor of a call: "x", "mask['causal']", in the parameter names of the callable."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stax.artifact.signature import Tree
from stax.base.errors import CaptureError
from stax.runtime.literals import to_literal
from stax.runtime.signature import leaf_names


def user_names(fn: Callable[..., Any], call: Tree) -> list[str]:
    """One name a leaf of the call."""
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return list(leaf_names(call))
    return [_user_name(name, parameters) for name in leaf_names(call)]


def _user_name(name: str, parameters: list[inspect.Parameter]) -> str:
    match = re.match(r"(args|kwargs)\[([^\]]*)\](.*)", name)
    if match is None:
        return name
    kind, key, rest = match.groups()
    if kind == "kwargs":
        return key.strip("'\"") + rest
    index = int(key)
    if index < len(parameters) and parameters[index].kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        return parameters[index].name + rest
    return name


def result_names(out: Tree) -> list[str]:
    """One name a leaf of the return value: "result[0]"."""
    call = Tree("tuple", (Tree("tuple", (out,)), Tree("dict")))
    return [name.replace("args[0]", "result", 1) for name in leaf_names(call)]


def check_leaves(names: list[str], leaves: list[Any]) -> None:
    """Every leaf of a call is a tensor or a constant. Raises CaptureError naming the first that is neither."""
    for name, leaf in zip(names, leaves, strict=True):
        if isinstance(leaf, Tensor):
            continue
        try:
            to_literal(leaf)
        except TypeError as error:
            module = type(leaf).__module__.partition(".")[0]
            raise CaptureError(
                f"unsupported argument {name}",
                expected="a tensor or a constant, in tuples, lists, dicts and registered containers",
                found=f"{module}.{type(leaf).__qualname__}",
                hint="convert it with torch.as_tensor"
                if module == "numpy"
                else "register its class with torch.utils._pytree.register_pytree_node",
            ) from error


def check_containers(
    names: list[str], before: tuple[Tree, list[Any]], after: tuple[Tree, list[Any]]
) -> None:
    """Raises CaptureError when the program put something else into a list, dict or object of the caller."""
    changed = [n for n, a, b in zip(names, before[1], after[1]) if a is not b]
    if before[0] != after[0] or changed:
        raise CaptureError(
            f"the program changes a container among its arguments{f': {changed[0]}' if changed else ''}",
            hint="return what is new, or write tensors in place",
        )
