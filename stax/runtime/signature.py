"""Values to trees and back: the arguments of a call become flat leaves, flat results become the return value.

Shared with capture. Containers are tuple, list, dict (exact types, keys str or int, insertion order is part of the
structure), namedtuples, dataclasses, and every type registered with torch.utils._pytree; all else is a leaf.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import defaultdict, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree

from stax.artifact.signature import Tree
from stax.base.errors import CaptureError, LoadError

MAX_DEPTH = 64
LEAF = Tree("leaf")
_DATACLASS = '"dataclass"'
Types = Mapping[str, type]
NO_TYPES: Types = {}


def flatten_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tree, list[Any]]:
    """The tree of (args, kwargs) and its leaves in order. Raises CaptureError past MAX_DEPTH levels."""
    return flatten((tuple(args), dict(kwargs)))


def unflatten_call(
    tree: Tree, leaves: Iterable[Any], types: Types = NO_TYPES
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of a call tree."""
    args, kwargs = unflatten(tree, leaves, types)
    return args, kwargs


def flatten(value: object) -> tuple[Tree, list[Any]]:
    """The tree of any value and its leaves in order."""
    leaves: list[Any] = []
    return _flatten(value, leaves, 0), leaves


def unflatten(tree: Tree, leaves: Iterable[Any], types: Types = NO_TYPES) -> Any:
    """The value of a tree. ``types`` maps "module:qualname" to classes; others are looked up among what is already
    imported, and nothing is imported here. A namedtuple whose class is absent gets one of the same fields, an object
    becomes a dict of its keys."""
    return builder(tree, types)(iter(leaves))


def _flatten(value: Any, leaves: list[Any], depth: int) -> Tree:
    if depth > MAX_DEPTH:
        raise CaptureError("arguments are nested too deep", expected=f"<= {MAX_DEPTH} levels")
    shape = node_of(value)
    if shape is None:
        leaves.append(value)
        return LEAF
    kind, children, keys, name, context = shape
    trees = tuple(_flatten(child, leaves, depth + 1) for child in children)
    return Tree(kind, trees, keys, name, context)


Node = tuple[str, tuple[Any, ...], tuple[str | int, ...], str, str]


def node_of(value: Any) -> Node | None:
    """(kind, children, keys, type name, context) of a container, None for a leaf. One level."""
    cls = type(value)
    if cls is tuple:
        return "tuple", value, (), "", ""
    if cls is list:
        return "list", tuple(value), (), "", ""
    if cls is dict:
        return _dict_node(value)
    if cls in _VALUES:
        return "object", _VALUES[cls][0](value), (), type_name(cls), ""
    if isinstance(value, torch.Tensor):
        return None
    if isinstance(value, tuple) and hasattr(cls, "_fields") and cls not in _pytree.SUPPORTED_NODES:
        return "namedtuple", tuple(value), tuple(cls._fields), type_name(cls), ""  # type: ignore[attr-defined]
    if cls in _pytree.SUPPORTED_NODES:
        return _registered_node(value)
    if dataclasses.is_dataclass(value):
        return _dataclass_node(value)
    return None


def _dict_node(value: dict[Any, Any]) -> Node | None:
    if all(type(k) is str or type(k) is int for k in value):
        return "dict", tuple(value.values()), tuple(value), "", ""
    return None


def _registered_node(value: Any) -> Node | None:
    cls = type(value)
    children, context = _pytree.SUPPORTED_NODES[cls].flatten_fn(value)
    serial = _pytree.SUPPORTED_SERIALIZED_TYPES.get(cls)
    dump = serial.to_dumpable_context if serial is not None else None
    try:
        text = json.dumps(dump(context) if dump else context, sort_keys=True)
        if not dump and json.loads(text) != context:
            return None
    except (TypeError, ValueError, NotImplementedError):
        return None
    return "object", tuple(children), _keys_of(context, len(children)), type_name(cls), text


def _keys_of(context: object, count: int) -> tuple[str | int, ...]:
    """Names of an object's children when its context lists them, as OrderedDict's and ModelOutput's does."""
    if (
        isinstance(context, (list, tuple))
        and len(context) == count
        and all(type(k) in (str, int) for k in context)
    ):
        return tuple(context)
    return ()


def _dataclass_node(value: Any) -> Node | None:
    fields = dataclasses.fields(value)
    if not all(f.init and hasattr(value, f.name) for f in fields):
        return None
    children = tuple(getattr(value, f.name) for f in fields)
    return "object", children, tuple(f.name for f in fields), type_name(type(value)), _DATACLASS


def type_name(cls: type) -> str:
    """ "module:qualname", as in Tree.type."""
    return f"{cls.__module__}:{cls.__qualname__}"


def types_of(value: object) -> dict[str, type]:
    """The classes of all namedtuples and objects inside a value, by Tree.type: the ``types`` of :func:`unflatten`."""
    found: dict[str, type] = {}
    shape = node_of(value)
    if shape is None:
        return found
    if shape[3]:
        found[shape[3]] = type(value)
    for child in shape[1]:
        found |= types_of(child)
    return found


# Containers whose state is their children alone, with what takes them apart and puts them together.
_VALUES: Mapping[type, tuple[Callable[[Any], tuple[Any, ...]], Callable[[list[Any]], Any]]] = {
    torch.Size: (tuple, torch.Size),
    slice: (lambda s: (s.start, s.stop, s.step), lambda c: slice(*c)),
    range: (lambda r: (r.start, r.stop, r.step), lambda c: range(*c)),
}

Build = Callable[[Iterator[Any]], Any]


def builder(tree: Tree, types: Types = NO_TYPES) -> Build:
    """A function from an iterator of leaves to the value of ``tree``; classes are looked up now, once."""
    if tree.kind == "leaf":
        return next
    parts = [builder(child, types) for child in tree.children]
    join = _joiner(tree, types)
    return lambda leaves: join([part(leaves) for part in parts])


def _joiner(tree: Tree, types: Types) -> Callable[[list[Any]], Any]:
    if tree.kind == "tuple":
        return tuple
    if tree.kind == "list":
        return list
    if tree.kind == "dict":
        keys = tree.keys
        return lambda children: dict(zip(keys, children, strict=True))
    cls = types.get(tree.type) or find_type(tree.type)
    if tree.kind == "namedtuple":
        return _namedtuple_joiner(tree, cls)
    return _object_joiner(tree, cls)


def _namedtuple_joiner(tree: Tree, cls: type | None) -> Callable[[list[Any]], Any]:
    if cls is None or not issubclass(cls, tuple) or getattr(cls, "_fields", None) != tree.keys:
        name = tree.type.rpartition(":")[2].rpartition(".")[2]
        cls = namedtuple(
            name if name.isidentifier() else "Output", [str(k) for k in tree.keys], rename=True
        )
    return cls._make  # type: ignore[attr-defined, no-any-return]


def _object_joiner(tree: Tree, cls: type | None) -> Callable[[list[Any]], Any]:
    if cls is not None and cls in _VALUES:
        return _VALUES[cls][1]
    if cls is not None and cls in _pytree.SUPPORTED_NODES:
        context = _context(cls, tree)
        make = _pytree.SUPPORTED_NODES[cls].unflatten_fn
        return lambda children: make(children, context)
    keys = tree.keys or tuple(range(len(tree.children)))
    if cls is not None and dataclasses.is_dataclass(cls) and tree.context == _DATACLASS:
        names = [str(k) for k in keys]
        return lambda children: cls(**dict(zip(names, children, strict=True)))
    return lambda children: dict(zip(keys, children, strict=True))


_FACTORIES = frozenset(
    ("builtins", name) for name in ("list", "dict", "set", "tuple", "int", "float", "str")
)


def _context(cls: type, tree: Tree) -> Any:
    try:
        data = json.loads(tree.context)
    except ValueError as error:
        raise LoadError(
            "bad container context", found=tree.context[:80], where=tree.type
        ) from error
    # NOTE: torch's loader of a defaultdict imports whatever module the context names.
    if (
        cls is defaultdict
        and (data.get("default_factory_module"), data.get("default_factory_name")) not in _FACTORIES
    ):
        raise LoadError(
            "refused default_factory",
            expected="a builtin container or number",
            found=tree.context[:80],
        )
    serial = _pytree.SUPPORTED_SERIALIZED_TYPES.get(cls)
    load = serial.from_dumpable_context if serial is not None else None
    return load(data) if load else data


def find_type(name: str) -> type | None:
    """The class "module:qualname" if it is a builtin value type, registered with pytree, or in a module that is
    already imported. Imports nothing: the name may come from the wire."""
    for cls in (*_VALUES, *_pytree.SUPPORTED_NODES):
        if type_name(cls) == name:
            return cls
    module_name, _, qualname = name.partition(":")
    found: object = sys.modules.get(module_name)
    for part in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, type) else None


def leaf_count(tree: Tree) -> int:
    return 1 if tree.kind == "leaf" else sum(leaf_count(child) for child in tree.children)


def leaf_names(tree: Tree) -> tuple[str, ...]:
    """How a user would write each leaf of a call tree: "args[0]['x'][1]", "kwargs['mask']"."""
    args, kwargs = tree.children
    return (*_names(args, "args"), *_names(kwargs, "kwargs"))


def _names(tree: Tree, prefix: str) -> Iterator[str]:
    if tree.kind == "leaf":
        yield prefix
        return
    fields = tree.kind in ("namedtuple", "object") and tree.keys
    keys = tree.keys or range(len(tree.children))
    for key, child in zip(keys, tree.children, strict=True):
        yield from _names(child, f"{prefix}.{key}" if fields else f"{prefix}[{key!r}]")


def difference(expected: Tree, found: Tree, where: str = "") -> str | None:
    """Why a call of structure ``found`` is not one of structure ``expected``; None when they are equal."""
    if expected == found:
        return None
    place = where or "the call"
    if expected.kind != found.kind or expected.type != found.type:
        return f"{place} is a {_kind_text(found)}, the artifact has a {_kind_text(expected)}"
    if expected.keys != found.keys:
        return f"{place} has {_few(found.keys)}, the artifact has {_few(expected.keys)}"
    if len(expected.children) != len(found.children):
        return f"{place} has {len(found.children)} items, the artifact has {len(expected.children)}"
    keys = expected.keys or (range(len(expected.children)) if where else ("args", "kwargs"))
    for key, left, right in zip(keys, expected.children, found.children):
        reason = difference(left, right, f"{where}[{key!r}]" if where else str(key))
        if reason is not None:
            return reason
    return f"{place} differs in its container's context"


def _kind_text(tree: Tree) -> str:
    return tree.type.rpartition(":")[2] if tree.type else tree.kind


def _few(keys: tuple[str | int, ...]) -> str:
    text = ", ".join(repr(k) for k in keys[:8])
    return f"keys ({text}{', ...' if len(keys) > 8 else ''})"


Flattener = Callable[[tuple[Any, ...], dict[str, Any]], "tuple[Any, ...] | None"]


def compile_flattener(tree: Tree) -> Flattener:
    """A straight-line function (args, kwargs) → leaves, or None when the structure is another one. Where the tree has a
    leaf it takes anything, a container too: the leaf's guard decides. Made from counts and keys alone: keys and objects
    enter as values, never as text."""
    lines: list[str] = []
    values: dict[str, Any] = {"_children": _same_node}
    args, kwargs = tree.children
    leaves = _emit_items("args", args, lines, values) + _emit_dict("kwargs", kwargs, lines, values)
    body = "\n ".join([*lines, f"return ({''.join(leaf + ', ' for leaf in leaves)})"])
    exec(f"def flatten(args, kwargs):\n {body}\n", values)
    return values["flatten"]


def _emit(var: str, tree: Tree, lines: list[str], values: dict[str, Any]) -> list[str]:
    if tree.kind == "leaf":
        return [var]
    if tree.kind in ("tuple", "list"):
        lines.append(f"if type({var}) is not {tree.kind}: return None")
        return _emit_items(var, tree, lines, values)
    if tree.kind == "dict":
        lines.append(f"if type({var}) is not dict: return None")
        return _emit_dict(var, tree, lines, values)
    node, part = f"n{len(values)}", f"{var}_c"
    values[node] = tree
    lines += [f"{part} = _children({node}, {var})", f"if {part} is None: return None"]
    return _emit_items(part, tree, lines, values)


def _emit_items(var: str, tree: Tree, lines: list[str], values: dict[str, Any]) -> list[str]:
    count = len(tree.children)
    lines.append(f"if len({var}) != {count}: return None")
    names = [f"{var}_{i}" for i in range(count)]
    if names:
        lines.append(f"{', '.join(names)}, = {var}")
    return [
        leaf
        for name, child in zip(names, tree.children)
        for leaf in _emit(name, child, lines, values)
    ]


def _emit_dict(var: str, tree: Tree, lines: list[str], values: dict[str, Any]) -> list[str]:
    if not tree.children:
        lines.append(f"if {var}: return None")
        return []
    keys = f"k{len(values)}"
    values[keys] = tree.keys
    lines.append(f"if tuple({var}) != {keys}: return None")
    if any(type(k) is int for k in tree.keys):
        kinds = f"k{len(values)}"
        values[kinds] = tuple(map(type, tree.keys))
        lines.append(f"if tuple(map(type, {var})) != {kinds}: return None")
    names = [f"{var}_{i}" for i in range(len(tree.keys))]
    lines.append(f"{', '.join(names)}, = {var}.values()")
    return [
        leaf
        for name, child in zip(names, tree.children)
        for leaf in _emit(name, child, lines, values)
    ]


def _same_node(tree: Tree, value: Any) -> tuple[Any, ...] | None:
    shape = node_of(value)
    if shape is None:
        return None
    kind, children, keys, name, context = shape
    same = (kind, len(children), keys, name, context) == (
        tree.kind,
        len(tree.children),
        tree.keys,
        tree.type,
        tree.context,
    )
    return children if same else None
