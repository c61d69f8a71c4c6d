"""trace(): run a callable once on fake tensors and hand over what it did as a functional graph with guards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from stax.artifact.containers import register_known
from stax.artifact.signature import Input, Signature, Tree
from stax.base.errors import CaptureError
from stax.base.target import Target
from stax.capture.calls import Calls
from stax.capture.captured import Captured
from stax.capture.device import as_if
from stax.capture.faults import REFUSALS, explain
from stax.capture.findings import Sizes
from stax.capture.graph import Graph, live
from stax.capture.guards import guard_set
from stax.capture.inputs import Entry, Inputs
from stax.capture.modules import captured_modules, find_module, swapped
from stax.capture.names import check_containers, check_leaves, result_names, user_names
from stax.capture.recorder import Recorder
from stax.capture.results import output_of, result_of
from stax.capture.sizes import Environment, Fakes
from stax.capture.sources import Watcher
from stax.capture.storage import Memory
from stax.capture.value import Geometry, Value, same_sizes
from stax.capture.where import Places
from stax.runtime.signature import (
    flatten,
    flatten_call,
    types_of,
    unflatten_call,
)

Decompositions = Mapping[Any, Callable[..., Any] | None]


def trace(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    dynamic: bool,
    target: Target,
    decompositions: Decompositions,
) -> Captured:
    """Runs ``fn`` once on fake tensors. Errors of the program itself propagate as they are; what can not be traced raises
    CaptureError with the user's file:line. One trace at a time: while it runs, the module holds fakes and torch.cuda
    answers for the target, for all threads."""
    register_known()
    call, leaves = flatten_call(args, kwargs)
    session = Session.open(dynamic, target, decompositions)
    try:
        result = session.run(fn, args, dict(kwargs), call, leaves)
        return session.finish(call, leaves, result)
    except REFUSALS as error:
        raise explain(error, session.places) from error
    except CaptureError as error:
        error.where = error.where or session.places.of(error)
        raise


@dataclass(frozen=True, eq=False)
class Session:
    """The parts of one trace."""

    target: Target
    places: Places
    env: Environment | None
    fake_mode: FakeTensorMode
    inputs: Inputs
    recorder: Recorder
    calls: Calls
    watcher: Watcher

    @staticmethod
    def open(dynamic: bool, target: Target, decompositions: Decompositions) -> Session:
        places = Places()
        env = Environment(places.here) if dynamic else None
        fake_mode = Fakes(allow_non_fake_inputs=True, shape_env=env)
        inputs = Inputs(fake_mode, Memory(), target.kind, env)
        recorder = Recorder(decompositions, places, inputs)
        calls = Calls(decompositions)
        return Session(target, places, env, fake_mode, inputs, recorder, calls, Watcher(places))

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Tree,
        leaves: list[Any],
    ) -> Any:
        """The callable's return value, on fakes."""
        with contextlib.ExitStack() as stack:
            module = find_module(fn)
            if module is not None:
                stack.enter_context(swapped(module, self.inputs.parameter))
            for other in captured_modules(fn):
                stack.enter_context(swapped(other, self._captured))
            stack.enter_context(as_if(self.target))
            names = user_names(fn, call)
            check_leaves(names, leaves)
            fakes = self._arguments(names, leaves)
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
            if self.env is not None:
                # NOTE: some C++ composites take numbers alone; torch's Python forms of them take symbols.
                stack.enter_context(enable_python_dispatcher())
            stack.enter_context(self.fake_mode)
            stack.enter_context(self.recorder)
            stack.enter_context(self.calls)
            # NOTE: a container may compute while it is rebuilt, as transformers' caches do.
            fake_args, fake_kwargs = unflatten_call(call, fakes, types_of((args, kwargs)))
            given = flatten_call(fake_args, fake_kwargs)
            stack.enter_context(self.watcher)
            result = fn(*fake_args, **fake_kwargs)
        check_containers(names, given, flatten_call(fake_args, fake_kwargs))
        return result

    def _arguments(self, names: list[str], leaves: list[Any]) -> list[Any]:
        return [
            self.inputs.argument(i, leaf, names[i]) if isinstance(leaf, Tensor) else leaf
            for i, leaf in enumerate(leaves)
        ]

    def _captured(self, name: str, tensor: Tensor, source: str) -> Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self.inputs.constant(tensor).fake

    def finish(self, call: Tree, leaves: list[Any], result: Any) -> Captured:
        out_tree, out_leaves = flatten(result)
        names = result_names(out_tree)
        with torch.no_grad(), self.fake_mode:
            results = [result_of(v, n, self.recorder) for v, n in zip(out_leaves, names)]
            written = self._written()
            updates = [self.recorder.read(e.fake) for e in written]
        roots = [r for r in results if isinstance(r, Value)] + updates
        kept = live(self.recorder.values, roots)
        entries = self._kept_entries(kept, roots, written)
        sizes = Sizes(self.env, entries)
        graph = self._graph(entries, kept, sizes)
        outputs = tuple(output_of(r, graph, sizes) for r in results)
        guards = guard_set(entries, graph, sizes, leaves, written)
        return Captured(
            graph=graph.fx,
            inputs=tuple(e.value.name for e in entries),
            outputs=outputs,
            mutations=tuple((e.value.name, graph.node(v)) for e, v in zip(written, updates)),
            symbols=sizes.symbols(),
            guards=guards,
            signature=Signature(
                call, tuple(Input(e.source, e.leaf, e.name) for e in entries), out_tree
            ),
            constants=tuple((e.value.name, e.real) for e in entries if e.source == "constant"),
            traced_sources=self.watcher.sources(),
        )

    def _graph(self, entries: list[Entry], kept: list[Value], sizes: Sizes) -> Graph:
        graph = Graph(sizes)
        for entry in entries:
            graph.placeholder(entry.value)
        for value in kept:
            graph.add(value)
        return graph

    def _written(self) -> list[Entry]:
        """Inputs that the program changed. Raises CaptureError for changes that no copy can bring back."""
        found: list[Entry] = []
        for entry in self.inputs.ordered():
            now = Geometry.of(entry.fake)
            if not _same_layout(entry.geometry, now):
                raise CaptureError(
                    f"the program changes the shape or strides of {entry.text} in place",
                    hint="make a new view instead of x.t_() or x.resize_()",
                )
            storage = self.inputs.memory.storage_of(entry.fake)
            if entry.literal or storage is None or storage.version == 0:
                continue
            if entry.source == "constant":
                raise CaptureError(
                    f"the program writes {entry.text}, which is no argument of it",
                    hint="pass it as an argument, or make it a buffer of the compiled module",
                )
            found.append(entry)
        return found

    def _kept_entries(
        self, kept: list[Value], roots: list[Value], written: list[Entry]
    ) -> list[Entry]:
        """All arguments, and of the rest what is read or written."""
        used = {id(o) for v in kept for o in v.operands()} | {id(r) for r in roots}
        used |= {id(e.value) for e in written}
        return [e for e in self.inputs.ordered() if e.source == "arg" or id(e.value) in used]


def _same_layout(a: Geometry, b: Geometry) -> bool:
    return (
        same_sizes(a.shape, b.shape)
        and same_sizes(a.strides, b.strides)
        and same_sizes((a.offset,), (b.offset,))
        and a.dtype == b.dtype
    )
