"""The dispatch mode that records what a traced program does to fake tensors as functional operators on values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import SymBool, SymFloat, Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from stax.base.errors import CaptureError
from stax.capture.inplace import SILENT_WRITES, functional_form, written_names
from stax.capture.inputs import Inputs
from stax.capture.storage import Handle
from stax.capture.value import Geometry, Pair, Shape, Value, rebuild, same_sizes
from stax.capture.views import SAME, View, item_view, strided_view
from stax.capture.where import Places

aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
# What C++ asks of a tensor whose sizes are symbols; a number it takes is guarded.
_QUESTIONS = frozenset({aten.size.default, aten.stride.default, aten.storage_offset.default})


class Recorder(TorchDispatchMode):
    """Sits above a FakeTensorMode. A real tensor that the
    program touches becomes a constant of ``inputs``."""

    def __init__(
        self,
        decompositions: Mapping[Any, Callable[..., Any] | None],
        places: Places,
        inputs: Inputs,
    ) -> None:
        super().__init__()
        self.memory = inputs.memory
        self.values: list[Value] = []
        self._literals: dict[int, Tensor] = {}
        self._decompositions = decompositions
        self._places = places
        self._inputs = inputs

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No wrapper of torch._dynamo.disable around every operator."""
        return False

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _DEVICE:
            return args[0].device if not isinstance(args[0], FakeTensor) else args[0].fake_device
        if func in _QUESTIONS:
            return func(*args)
        watcher = sys.getprofile()
        if watcher is None:
            return self._dispatch(func, args, kwargs or {})
        sys.setprofile(None)
        try:
            return self._dispatch(func, args, kwargs or {})
        finally:
            sys.setprofile(watcher)

    def _dispatch(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not isinstance(func, OpOverload):
            raise CaptureError(f"the operator {func} takes functions", where=self._places.here())
        if func in SAME:
            return self._same(func, args)
        args, kwargs = rebuild(args, self._plain), rebuild(kwargs, self._plain)
        decomposition = self._decompositions.get(func)
        if decomposition is not None:
            with self:
                out = decomposition(*args, **kwargs)
            if out is not NotImplemented:
                return out
        if func is aten.cat.default:
            args = (_without_empty(args[0]), *args[1:])
        if func in SILENT_WRITES:
            return self._batch_norm(func, args, kwargs)
        if written_names(func):
            return self._write(func, args, kwargs)
        if func._can_decompose() and func not in self._decompositions:
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        return self._record(func, args, kwargs)

    # -- arguments
    def _plain(self, leaf: Any) -> Any:
        """Real tensors as fakes; symbolic floats and conditions as numbers, which torch guards."""
        if isinstance(leaf, SymFloat):
            return float(leaf)
        return bool(leaf) if isinstance(leaf, SymBool) else self._faked(leaf)

    def _faked(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and not isinstance(leaf, FakeTensor):
            return self._inputs.constant(leaf).fake
        return leaf

    def handle(self, tensor: Tensor) -> Handle:
        """What is known of a tensor of the program. A real one becomes a graph input."""
        if not isinstance(tensor, FakeTensor):
            return self._inputs.constant(tensor)
        found = self.memory.find(tensor)
        if found is None:
            raise CaptureError(
                "a tensor came from outside of the trace",
                where=self._places.here(),
                hint="another tracer or a hook made it; pass it as an argument",
            )
        return found

    def read(self, tensor: Tensor) -> Value:
        """The value that a tensor has now."""
        return self.memory.read(self.handle(tensor), self.emit)

    def _pair(self, tensor: Tensor) -> Pair:
        return self.memory.pair(self.handle(tensor), self.emit)

    def emit(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pair:
        """Run ``func`` on fakes and record it on values; Pairs stand where it takes tensors. One tensor results."""
        fake = func(*rebuild(args, _fake_of), **rebuild(kwargs, _fake_of))
        geometry = Geometry.of(args[0].fake if func is aten.copy.default else fake)
        value = self._add(func, rebuild(args, _value_of), rebuild(kwargs, _value_of), geometry)
        return Pair(fake, value)

    def _add(self, func: Callable[..., Any], args: Any, kwargs: Any, geometry: Shape) -> Value:
        value = Value(func, args, kwargs, geometry, self._places.here())
        self.values.append(value)
        return value

    # -- the plain case
    def _record(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        held, named = rebuild(args, self._value_or_leaf), rebuild(kwargs, self._value_or_leaf)
        out = func(*args, **kwargs)
        if out is None and func in _CHECKS:
            raise CaptureError(
                f"{func} checks data while the program runs",
                where=self._places.here(),
                hint="check it outside of the program",
            )
        if func in _UNSAFE and out is not None:
            out = [
                torch.empty_strided(o.shape, o.stride(), dtype=o.dtype, device=o.device)
                for o in out
            ]
        if isinstance(out, Tensor):
            if self.memory.find(out) is None:
                value = self._moved_literal(func, args, out)
                value = value or self._add(func, held, named, Geometry.of(out))
                self._bind(out, value, func, args, kwargs)
        elif isinstance(out, (tuple, list)) and any(isinstance(o, Tensor) for o in out):
            shape = tuple(Geometry.of(o) if isinstance(o, Tensor) else None for o in out)
            whole = self._add(func, held, named, shape)
            self._bind_items(out, whole, func, args, kwargs)
        return out

    def _value_or_leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return self.read(leaf)
        if isinstance(leaf, torch.Generator):
            raise CaptureError(
                "a random generator is an argument",
                where=self._places.here(),
                hint="use torch.manual_seed and the default generator",
            )
        return leaf

    def _bind(
        self, out: Tensor, value: Value, func: OpOverload, args: tuple[Any, ...], kwargs: Any
    ) -> None:
        parent = self._viewed(out, args)
        if parent is None:
            self.memory.root(out, value)
            return
        if func is aten.as_strided.default:
            view = strided_view(args[0], args, kwargs)
            self.memory.view(out, value, parent.storage.root, view)
            return
        self.memory.view(out, value, parent, _view_of(func, args, kwargs, parent.fake))

    def _bind_items(
        self, outs: Any, whole: Value, func: OpOverload, args: tuple[Any, ...], kwargs: Any
    ) -> None:
        for index, out in enumerate(outs):
            if not isinstance(out, Tensor):
                continue
            value = Value(None, (whole,), {}, Geometry.of(out), whole.where, index=index)
            self.values.append(value)
            parent = self._viewed(out, args)
            if parent is None:
                self.memory.root(out, value)
                continue
            one = item_view(_view_of(func, args, kwargs, parent.fake), index, outs)
            if one is None:
                raise CaptureError(f"{func} returns views in a way that is not known")
            self.memory.view(out, value, parent, one)

    def _viewed(self, out: Tensor, args: tuple[Any, ...]) -> Handle | None:
        """The argument whose memory ``out`` shares."""
        storage = self.memory.storage_of(out)
        if storage is None:
            return None
        for arg in args:
            if isinstance(arg, Tensor):
                found = self.memory.find(arg)
                if found is not None and found.storage is storage:
                    return found
        return storage.root

    def _same(self, func: OpOverload, args: tuple[Any, ...]) -> Any:
        """detach and alias: a new tensor, the same value. lift_fresh of a real tensor: a constant of the program."""
        source = args[0]
        if not isinstance(source, FakeTensor) and func is aten.lift_fresh.default:
            return self._literal(source)
        source = self._faked(source)
        out = func(source)
        if self.memory.find(out) is None:
            handle = self.handle(source)
            self.memory.view(out, self.memory.read(handle, self.emit), handle, None)
        return out

    def _literal(self, real: Tensor) -> Tensor:
        """torch.tensor(...) inside the program."""
        out = aten.lift_fresh.default(real)
        self.memory.root(out, self._literal_value(real, out))
        return out

    def _literal_value(self, real: Tensor, fake: Tensor) -> Value:
        """A number as a full(), anything longer as an input; real may lie elsewhere than fake says."""
        if real.numel() <= 1 and real.dtype in _FILLABLE:
            with unset_fake_temporarily():
                number = real.item() if real.numel() else 0
            options = {"dtype": real.dtype, "device": fake.device}
            value = self._add(
                aten.full.default, (list(real.shape), number), options, Geometry.of(fake)
            )
        else:
            value = self._inputs.literal(real, fake)
        self._literals[id(value)] = real
        return value

    def _moved_literal(self, func: OpOverload, args: tuple[Any, ...], out: Tensor) -> Value | None:
        """A constant of the program on another device is a constant there; no copy at every call."""
        if func is not aten._to_copy.default:
            return None
        real = self._literals.get(id(self.read(args[0])))
        same = real is not None and real.dtype == out.dtype and real.stride() == out.stride()
        return self._literal_value(real, out) if same and real is not None else None

    # -- writes
    def _write(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.Tag.inplace_view in func.tags or func in _RESHAPING:
            return self._write_shape(func, args, kwargs)
        bound = _bound(func, args, kwargs)
        out = func(*args, **kwargs)
        if func in _OVERWRITES:
            self.assign(args[0], _OVERWRITES[func](self, *args, **kwargs))
            return out
        form = functional_form(func)
        if form is None:
            raise CaptureError(
                f"{func} writes its argument and has no functional form", where=self._places.here()
            )
        kept = {k: v for k, v in kwargs.items() if k not in form.drop}
        for argument in form.func._schema.arguments[len(args) :]:
            if not argument.has_default_value() and not argument.kwarg_only:
                kept.setdefault(argument.name, bound[argument.name])
        with self:
            results = form.func(*args, **kept)
        many = results if isinstance(results, (tuple, list)) else (results,)
        contents = many[form.results :]
        targets = [bound[name] for name in form.written]
        if len(targets) == 1 and isinstance(targets[0], (list, tuple)):
            targets = list(targets[0])
        for target, content in zip(targets, contents, strict=True):
            if target is not None:
                self.assign(target, self._pair(content))
        return tuple(many[: form.results]) if form.results else out

    def assign(self, target: Tensor, new: Pair) -> None:
        """``target`` holds ``new`` from here on, converted and broadcast to it as copy_ does."""
        old = self.handle(target)
        if new.fake.dtype != target.dtype or new.fake.device != target.device:
            options = {"dtype": target.dtype, "device": target.device}
            new = self.emit(aten._to_copy.default, (new,), options)
        if not same_sizes(new.fake.shape, target.shape):
            new = self.emit(aten.expand.default, (new, list(target.shape)), {})
        self.memory.write(old, new, self.emit)

    def _write_shape(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """x.t_() and its kin: the tensor becomes a view of itself."""
        target = args[0]
        view_func = None if func in _RESHAPING else functional_form(func)
        if func is aten.detach_.default:
            return target
        if view_func is None:
            if func is aten.resize_.default and same_sizes(args[1], target.shape):
                return target
            raise CaptureError(
                f"{func} changes the memory of a tensor",
                where=self._places.here(),
                hint="make a new tensor instead",
            )
        before = self._pair(target)
        twin = Pair(aten.alias.default(target), before.value)
        view = _view_of(view_func.func, args, kwargs, target)
        value = self.emit(view.func, (twin, *args[1:]), kwargs).value
        func(*args, **kwargs)
        self.memory.rename(target, twin.fake, value, view)
        return target

    def _batch_norm(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """native_batch_norm and cudnn_batch_norm write the running statistics without saying so."""
        bound = _bound(func, args, kwargs)
        training = bound["training"]
        updates = training and bound["running_mean"] is not None
        legit = SILENT_WRITES[func] if updates else aten.native_batch_norm.default
        if func is legit:
            return self._record(func, args, kwargs)
        with self:
            out = legit(*bound.values())
            if func is aten.cudnn_batch_norm.default:
                out = (*out, bound["input"].new_empty((0,), dtype=torch.uint8))
        return out


def _filled(recorder: Recorder, target: Tensor, value: Any = 0) -> Pair:
    pair = Pair(target, recorder.read(target))
    return recorder.emit(aten.full_like.default, (pair, value), {})


def _copied(recorder: Recorder, target: Tensor, source: Tensor, *_: Any, **__: Any) -> Pair:
    return Pair(source, recorder.read(source))


# Writes that keep nothing of what was there.
_OVERWRITES: Mapping[Any, Callable[..., Pair]] = {
    aten.copy_.default: _copied,
    aten.fill_.Tensor: _copied,
    aten.fill_.Scalar: _filled,
    aten.zero_.default: _filled,
}
_RESHAPING = frozenset(
    {
        aten.resize_.default,
        aten.resize_as_.default,
        aten.set_.default,
        aten.set_.source_Tensor,
        aten.set_.source_Storage,
        aten.set_.source_Storage_storage_offset,
        aten.set_.source_Tensor_storage_offset,
    }
)


def _bound(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by their schema names, defaults filled in."""
    schema = func._schema.arguments
    found = {a.name: a.default_value for a in schema if a.has_default_value()}
    found.update(zip((a.name for a in schema), args))
    found.update(kwargs)
    return {a.name: found[a.name] for a in schema if a.name in found}


_CHECKS = frozenset({aten._assert_async.default, aten._assert_async.msg})
# Split results that promise not to be written where the others see it: each is memory of its own.
_UNSAFE = frozenset({aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default})
_FILLABLE = frozenset(
    {
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.float16, torch.bfloat16, torch.float32, torch.float64,
    }
)  # fmt: skip


def _without_empty(tensors: list[Tensor]) -> list[Tensor]:
    """cat skips tensors of shape (0,) among others of any rank, for old times' sake."""
    first = next((t for t in tensors if t.dim() != 1), None)
    if first is None:
        return tensors
    return [t for t in tensors if t.dim() != 1 or t.dtype != first.dtype]


def _view_of(func: OpOverload, args: tuple[Any, ...], kwargs: Any, base: Tensor) -> View:
    marked = rebuild(args, lambda leaf: View.BASE if leaf is base else leaf)
    return View(func, marked, tuple(kwargs.items()))


def _fake_of(leaf: Any) -> Any:
    return leaf.fake if isinstance(leaf, Pair) else leaf


def _value_of(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, Pair) else leaf
