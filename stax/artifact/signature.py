"""Signature: how the arguments of a call become the flat tensor inputs, and the flat results become its return value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tree:
    """A nest of containers as data.

    ``kind``: leaf | tuple | list | dict | namedtuple | object. ``keys`` are a dict's keys, or the field names of an
    object; ``type`` is "module:qualname" of a namedtuple or registered object; ``context`` JSON text that rebuilds it.
    """

    kind: str
    children: tuple[Tree, ...] = ()
    keys: tuple[str | int, ...] = ()
    type: str = ""
    context: str = ""


@dataclass(frozen=True)
class Input:
    """One flat tensor input. ``source``: "arg" (``leaf`` is its leaf in the call), "parameter" or "buffer" (``name`` is its
    name in the module's state_dict order of named_parameters/named_buffers), or "constant" (``name`` is the artifact's constant)."""

    source: str
    leaf: int = -1
    name: str = ""


@dataclass(frozen=True)
class Signature:
    """``call``: the tree of (args, kwargs). Its leaves are tensors or Python constants (the latter guarded). ``out``: the tree of the
    return value, whose leaves are the artifact's outputs in order."""

    call: Tree
    inputs: tuple[Input, ...]
    out: Tree
