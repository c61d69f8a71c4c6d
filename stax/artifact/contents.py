"""What a Python value means to a program, as plain data: constants by value, functions by code, classes by name and code.

Never ids, addresses, paths, line numbers or the order of sets. What is met is visited once; functions and classes are
kept apart in tables, so a recursion ends. Installed packages count by name and version, torch, the standard library and
Stax itself by name: their versions are part of the toolchain."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket

from stax.artifact.places import Places
from stax.artifact.sources import code_digest
from stax.base.digest import digest
from stax.base.errors import CaptureError

EXTERNAL = frozenset(
    {*sys.stdlib_module_names, "torch", "stax", "numpy", "sympy", "functorch", "triton"}
    - {"__main__"}
)
MAX_VALUES = 200_000
MAX_CONSTANT_BYTES = 1 << 28
# Keys of configurations that say where a model came from, not what it computes.
VOLATILE = frozenset({"_name_or_path", "name_or_path", "transformers_version", "_commit_hash"})
Data = Any


class Contents:
    """Collects functions and classes behind the values it is shown. ``functions`` and ``classes`` map a label, which is
    "module:qualname" and a count when several share it, to their data; ``packages`` the installed packages that were met to
    their versions. ``places`` gains where each value was read."""

    def __init__(self, places: Places | None = None) -> None:
        self.places = places or Places()
        self.functions: dict[str, Data] = {}
        self.classes: dict[str, Data] = {}
        self.packages: dict[str, str] = {}
        self._external: dict[str, bool] = {}
        self._labels: dict[int, str] = {}
        self._memo: dict[int, Data] = {}
        self._alive: list[object] = []
        self._methods: set[tuple[int, str]] = set()
        self._bytes = 0
        self._waiting: list[tuple[str, FunctionType, type | None]] = []

    # -- values
    def of(self, value: Any, where: str) -> Data:
        """The data of a value. Raises CaptureError, naming ``where``, for a value whose meaning can not be told."""
        if value is None or type(value) in (bool, int, float, str, bytes):
            return value
        known = self._memo.get(id(value))
        if known is not None:
            return known
        if len(self._memo) > MAX_VALUES:
            raise _unsafe(where, value, "too many values hang on it")
        self._alive.append(value)
        self._memo[id(value)] = ("again", type(value).__name__)
        found = self._memo[id(value)] = digest(self._data(value, where))
        return found

    def _data(self, value: Any, where: str) -> Data:
        if isinstance(value, Tensor):
            return self._tensor(value, where)
        if isinstance(value, type):
            return "class", self.class_label(value)
        if isinstance(value, FunctionType):
            return "function", self.function_label(value)
        if isinstance(value, (MethodType, functools.partial)):
            return self._bound(value, where)
        if isinstance(value, ModuleType):
            return "module", value.__name__
        if isinstance(value, Enum):
            return "enum", type(value).__qualname__, value.name
        if isinstance(value, (Mapping, list, tuple, set, frozenset)):
            return self._container(value, where)
        if isinstance(value, nn.Module):
            return "nn", self.module(value, where, content=True)
        plain = _torch_text(value)
        return plain if plain is not None else self._object(value, where)

    def _bound(self, value: Any, where: str) -> Data:
        if isinstance(value, MethodType):
            return "method", self.of(value.__func__, where), self.of(value.__self__, where)
        held = (
            self.of(value.func, where),
            self.of(value.args, where),
            self.of(value.keywords, where),
        )
        return "partial", *held

    def _container(self, value: Any, where: str) -> Data:
        kind = type(value).__qualname__
        if isinstance(value, Mapping):
            self.places.items(cast("Mapping[Any, Any]", value))
            kept = [kv for kv in cast("Mapping[Any, Any]", value).items() if kv[0] not in VOLATILE]
            return kind, [(self.of(k, where), self.of(v, f"{where}[{k!r}]")) for k, v in kept]
        members = cast("Sequence[Any]", value)
        parts = [self.of(v, f"{where}[{i}]") for i, v in enumerate(members)]
        if isinstance(value, list):
            self.places.items(cast("list[Any]", value))
        if isinstance(value, (set, frozenset)):
            self.places.members(value)
            return kind, sorted(digest(p) for p in parts)
        return kind, parts

    def _tensor(self, value: Tensor, where: str) -> Data:
        """A tensor that is no input: its elements become part of the artifact, so they count."""
        self.places.tensor(value)
        size = value.numel() * value.element_size()
        self._bytes += size
        if value.device.type == "meta" or self._bytes > MAX_CONSTANT_BYTES:
            raise _unsafe(
                where, value, "its elements would have to be read", "pass it as an argument"
            )
        with torch.no_grad():
            dense = value.detach().cpu().contiguous().view(-1).view(torch.uint8)
        content = digest(dense.numpy().tobytes())
        return "tensor", tensor_data(value), content

    def _object(self, value: Any, where: str) -> Data:
        cls = cast("type[object]", type(value))
        name = f"{cls.__module__}:{cls.__qualname__}"
        if cls in _EXACT:
            return name, _EXACT[cls](value)
        if isinstance(value, (BuiltinFunctionType, OpOverload, OpOverloadPacket)):
            return "builtin", str(value.__name__)
        if name in _INERT:
            return "inert", name
        if isinstance(value, io.IOBase) or hasattr(cls, "__next__"):
            raise _unsafe(where, value, "its state can not be read")
        state = cast("dict[str, Any] | None", getattr(value, "__dict__", None))
        # NOTE: by name, because imports point down. A trace runs through it: its own tables mean nothing.
        if name == "stax.api.compiled:Compiled" and state is not None:
            return "compiled", self.of(state["fn"], where)
        slots = [s for c in cls.__mro__ for s in _slots(c) if hasattr(value, s)]
        if state is None and not slots:
            raise _unsafe(where, value, "its state can not be read")
        self.places.items(state or {})
        held = [*(state or {}).items(), *((s, getattr(value, s)) for s in slots)]
        data = [(k, self.of(v, f"{where}.{k}")) for k, v in held if k not in VOLATILE]
        return "object", self.class_label(cls), data

    def _is_external(self, module: str | None) -> bool:
        """Code that counts by name, or by name and version."""
        root = (module or "builtins").partition(".")[0]
        known = self._external.get(root)
        if known is None:
            installed = root not in EXTERNAL and _is_installed(root)
            if installed:
                self.packages[root] = str(getattr(sys.modules[root], "__version__", ""))
            known = self._external[root] = installed or root in EXTERNAL
        return known

    # -- functions and classes
    def function_label(self, fn: FunctionType, owner: type | None = None) -> str:
        """The label of a function; its code and what it refers to are visited later, by :meth:`settle`."""
        inner = getattr(fn, "__wrapped__", None)
        wraps = isinstance(inner, FunctionType) and not self._is_external(inner.__module__)
        if self._is_external(fn.__module__) and not wraps:
            return f"{fn.__module__}:{fn.__qualname__}"
        known = self._labels.get(id(fn))
        if known is not None:
            return known
        label = self._label(fn, f"{fn.__module__}:{fn.__qualname__}", self.functions)
        self.functions[label] = None
        self._waiting.append((label, fn, owner))
        return label

    def class_label(self, cls: type) -> str:
        """The label of a class. All its methods count, of a Module those that its forward reaches."""
        if self._is_external(cls.__module__) and not self._patched(cls):
            return f"{cls.__module__}:{cls.__qualname__}"
        known = self._labels.get(id(cls))
        if known is not None:
            return known
        label = self._label(cls, f"{cls.__module__}:{cls.__qualname__}", self.classes)
        self.classes[label] = None
        is_module = issubclass(cls, nn.Module)
        bases = [b.__qualname__ if is_module else self.class_label(b) for b in cls.__mro__[1:]]
        members = dict(cls.__dict__)
        for key in (k for k, v in members.items() if _is_constant(v)):
            self.places.item(cls.__dict__, key, members[key])
        reached = ("forward", "__call__") if is_module else tuple(members)
        constants = [
            (k, self.of(v, f"{label}.{k}"))
            for k, v in members.items()
            if not k.startswith("__") and _is_constant(v)
        ]
        self.classes[label] = (bases, constants, [(k, self.member(cls, k)) for k in reached])
        return label

    def member(self, cls: type, name: str) -> Data:
        """The function behind an attribute of a class, as found through its bases; None when there is none."""
        for base in cls.__mro__:
            if name in base.__dict__:
                self.places.item(base.__dict__, name, base.__dict__[name])
                found = [self.function_label(f, cls) for f in functions_of(base.__dict__[name])]
                return found or None
        return None

    def _patched(self, cls: type) -> bool:
        """A Module class of a package whose forward somebody replaced."""
        forward = cls.__dict__.get("forward") if issubclass(cls, nn.Module) else None
        return isinstance(forward, FunctionType) and not self._is_external(forward.__module__)

    def _label(self, value: object, name: str, table: dict[str, Data]) -> str:
        label, count = name, 1
        while label in table:
            count += 1
            label = f"{name}#{count}"
        self._labels[id(value)] = label
        self._alive.append(value)
        return label

    def settle(self) -> None:
        """Visits the functions that were met and what they refer to, until nothing new turns up."""
        while self._waiting:
            label, fn, owner = self._waiting.pop(0)
            self.functions[label] = self._function(fn, label, owner)

    def _function(self, fn: FunctionType, label: str, owner: type | None) -> Data:
        names = tuple(dict.fromkeys(_names(fn.__code__)))
        closure: list[Data] = []
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
            # NOTE: a cell is empty until its variable is assigned.
            with contextlib.suppress(ValueError):
                self.places.cell(cell)
                closure.append(
                    (name, self.of(cell.cell_contents, f"{label}, closure variable {name}"))
                )
        for name in (n for n in names if n in fn.__globals__):
            self.places.item(fn.__globals__, name, fn.__globals__[name])
        return (
            code_digest(fn.__code__),
            self.of(fn.__defaults__, f"{label}, a default"),
            self.of(fn.__kwdefaults__, f"{label}, a default"),
            closure,
            [(n, self._global(fn.__globals__[n], names)) for n in names if n in fn.__globals__],
            [(n, self.member(owner, n)) for n in names] if owner is not None else [],
            [(n, self._global(sys.modules[n], names)) for n in names if n in sys.modules],
        )

    def _global(self, value: Any, names: Sequence[str]) -> Data:
        """A global that a function names. An opaque one counts by its type: programs may hold loggers and locks."""
        if isinstance(value, ModuleType):
            if self._is_external(value.__name__):
                return "module", value.__name__
            inside = [(n, value.__dict__[n]) for n in names if n in value.__dict__]
            for name, inner in inside:
                self.places.item(value.__dict__, name, inner)
            return "module", [(n, self._global(v, ())) for n, v in inside if v is not value]
        try:
            return self.of(value, "a global")
        except CaptureError:
            return "opaque", type(value).__qualname__

    # -- modules
    def module(self, root: nn.Module, where: str, *, content: bool) -> Data:
        """The tree of a module; with ``content`` the elements of its tensors too, because they become constants."""
        tensors = self._module_tensors(root, where) if content else None
        return self.module_tree(root), self.module_state(root, where), module_tensors(root), tensors

    def _module_tensors(self, root: nn.Module, where: str) -> Data:
        for _, module in _modules(root):
            for table in _tensor_tables(module):
                self.places.items(table)
        named = [*root.named_parameters(), *root.named_buffers()]
        return [self.of(tensor, f"{where}.{name}") for name, tensor in named]

    def module_tree(self, root: nn.Module) -> Data:
        """Names, classes, modes and hooks."""
        for _, module in _modules(root):
            self.places.item(module.__dict__, "training", module.training)
            self.places.items(module.__dict__["_modules"])
            for table in _tensor_tables(module):
                for key in (k for k, v in table.items() if v is None):
                    self.places.item(table, key, None)
        return [
            (name, self.class_label(type(m)), m.training, self._hooks(m))
            for name, m in _modules(root, every=True)
        ]

    def _hooks(self, module: nn.Module) -> Data:
        tables = [(k, v) for k, v in module.__dict__.items() if k.endswith("_hooks")]
        for _, table in (kv for kv in tables if kv[0] in _CALL_HOOKS):
            self.places.items(table)
        return [(k, [self.of(h, f"a hook in {k}") for h in v.values()]) for k, v in tables if v]

    def module_state(self, root: nn.Module, where: str) -> Data:
        """Plain attributes and configurations, by value."""
        for _, module in _modules(root):
            self.places.length(module.__dict__)
            for key, value in attributes(module):
                self.places.item(module.__dict__, key, value)
        return [
            (name, [(k, self.of(v, f"{where}.{name}.{k}")) for k, v in attributes(m)])
            for name, m in _modules(root)
        ]


def _modules(root: nn.Module, *, every: bool = False) -> list[tuple[str, nn.Module]]:
    """Submodules by name; ``every``: also under further names of the same one."""
    found = cast("list[tuple[str, nn.Module]]", [*root.named_modules(remove_duplicate=not every)])
    for name, module in found:
        if isinstance(module, torch.jit.ScriptModule):
            hint = "compile the module it was made of"
            raise _unsafe(name or "the module", module, "it is TorchScript", hint)
    return found


def _tensor_tables(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """A module's own parameters and buffers by name, also those that are None."""
    return module.__dict__["_parameters"], module.__dict__["_buffers"]


_MACHINERY = frozenset(
    {"training", "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
)


def attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """A module's own attributes without torch's machinery."""
    for key, value in module.__dict__.items():
        machinery = key in _MACHINERY or key.endswith(
            ("_hooks", "_hooks_with_kwargs", "_hooks_always_called")
        )
        if not machinery and key not in VOLATILE and key not in _NN_FLAGS:
            yield key, value


# The tables that a call looks at; the others say more about hooks in these, or are for saving and loading.
_CALL_HOOKS = frozenset(
    {"_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"}
)
_NN_FLAGS = frozenset(
    {"_is_full_backward_hook", "_is_hf_initialized", "generation_config", "_compiled_call_impl"}
)


def module_tensors(root: nn.Module) -> Data:
    """Names and metadata of parameters and buffers, ties included."""
    first: dict[int, str] = {}
    found: list[Data] = []
    for kind in ("parameters", "buffers"):
        for name, tensor in getattr(root, f"named_{kind}")(remove_duplicate=False):
            tied = first.setdefault(id(tensor), name)
            found.append((kind, name, tied, tensor_data(tensor)))
    return found


def tensor_data(tensor: Tensor) -> Data:
    """Type, dtype, sizes, strides, and whether gradients are wanted."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return type(tensor).__name__, str(tensor.dtype), shape, strides, tensor.requires_grad


def functions_of(value: Any) -> Iterator[FunctionType]:
    """The functions behind a class attribute: a function, or those of a property, class or static method."""
    if isinstance(value, FunctionType):
        yield value
    for name in ("__func__", "fget", "fset", "func"):
        inner = getattr(value, name, None) if not isinstance(value, FunctionType) else None
        if isinstance(inner, FunctionType):
            yield inner


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _names(const)


def _is_installed(root: str) -> bool:
    module = sys.modules.get(root)
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    return bool({"site-packages", "dist-packages"} & set(PurePath(file).parts))


def _is_constant(value: Any) -> bool:
    if isinstance(value, (tuple, list, set, frozenset)):
        return all(_is_constant(v) for v in cast("Sequence[Any]", value))
    return value is None or isinstance(value, (bool, int, float, str, Enum, torch.dtype))


def _slots(cls: type) -> tuple[str, ...]:
    slots: str | Sequence[str] = cls.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(n for n in names if n not in ("__dict__", "__weakref__"))


def _torch_text(value: Any) -> Data:
    if isinstance(value, torch.device):
        return "device", value.type
    if isinstance(value, slice):
        return "slice", repr(cast("object", value))
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return type(value).__name__, str(value)
    if value is Ellipsis or value is NotImplemented or isinstance(value, (complex, range)):
        return type(value).__name__, repr(value)
    return None


def _pattern(value: re.Pattern[str]) -> Data:
    return value.pattern, value.flags


_EXACT: Mapping[type, Any] = {re.Pattern: _pattern}
_INERT = frozenset(
    {
        "logging:Logger",
        "_thread:lock",
        "_thread:RLock",
        "_thread:_local",
        "threading:Event",
        "contextvars:ContextVar",
        "builtins:object",
    }
)


def _unsafe(where: str, value: object, why: str, hint: str = "") -> CaptureError:
    return CaptureError(
        f"no fingerprint for {where}: {why}",
        found=type(value).__qualname__,
        hint=hint or "make it a constant, an argument or a buffer",
    )
