"""How the user would write each tensor of a call: "x", "mask['causal']", in the parameter names of the callable."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch

from stax.artifact.signature import Tree
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
