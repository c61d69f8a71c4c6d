"""Compiled: a callable that finds the artifact for each call, pulls it, or compiles it."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stax.api.entries import admit, changed_sources
from stax.api.reports import Stats
from stax.api.session import Session
from stax.api.states import State, States
from stax.artifact.artifact import Artifact
from stax.artifact.keys import Key
from stax.base.errors import (
    BuildError,
    CaptureError,
    FarmError,
    Incompatible,
    LoadError,
    OptionError,
    RequireHitMiss,
    SpecializationLimit,
    StoreError,
    VerifyError,
)
from stax.base.observe import Event
from stax.base.options import Options
from stax.base.target import Target, cpu_levels_of
from stax.base.version import VERSION
from stax.pipeline.kept import binaries, find
from stax.runtime.constraints import Facts, machine_facts
from stax.runtime.cpu import Libraries
from stax.runtime.dispatch import Dispatcher, Hit
from stax.runtime.load import Executable, load
from stax.runtime.request import call_class, request_key
from stax.runtime.signature import flatten_call, types_of
from stax.runtime.state import is_watched

# What a caller must mend, or asked to be told; anything else that stops a compile is a reason to run eagerly.
CALLERS = (BuildError, FarmError, Incompatible, OptionError, RequireHitMiss, SpecializationLimit)

_REQUIRES_GRAD = operator.attrgetter("requires_grad")


class Compiled:
    """See :func:`stax.compile`. Safe to call from several threads; one of them compiles, the others wait for it."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        dynamic: bool,
        fullgraph: bool,
        options: Options,
        target: Target | None,
        session: Session,
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn
        self.module = owner_of(fn)
        self.dynamic = dynamic
        self.fullgraph = fullgraph
        self.options = options
        self.target = target
        self.session = session
        self._states = States(fn, self.module)
        self._libraries = Libraries()
        self._lock = threading.RLock()
        self._compilations = 0
        self._refused: dict[object, str] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_watched():
            return self.fn(*args, **kwargs)
        state = self._states.current()
        found = state.dispatcher.lookup(args, kwargs)
        if type(found) is not Hit:
            return self._missed(args, kwargs)
        if torch.is_grad_enabled() and (state.wants_grad or any(map(_REQUIRES_GRAD, found.inputs))):
            return self._needs_training(args, kwargs)
        return found.entry.call(found.inputs, found.symbols)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """A decorated method binds like the function it wraps."""
        return self if instance is None else functools.partial(self.__call__, instance)

    def stats(self) -> Stats:
        """Counts so far; a snapshot."""
        counters = self.session.counters
        with counters.lock:
            counts, sizes = dict(counters.counts), dict(counters.bytes)
            misses = tuple(counters.misses)
        reads = self.session.store_counters.read()
        return Stats(
            artifacts=len(self._states),
            captures=counts.get("stage.trace", 0),
            builds=counts.get("job.done", 0),
            hits={
                "local": reads.get("local.get.ok", 0),
                "remote": reads.get("remote.get.ok", 0),
                "artifact": counts.get("artifact.hit", 0),
                "kernel": counts.get("job.hit", 0),
                "tuning": counts.get("tune.hit", 0),
            },
            misses=misses,
            eager=counts.get("eager", 0),
            bytes={t: reads.get(f"{t}.get.bytes", 0) for t in ("local", "remote")} | sizes,
            degraded=sum(n for name, n in reads.items() if name.startswith("degraded")),
            measurements=counts.get("tune.measure", 0),
        )

    def explain(self, *args: Any, **kwargs: Any) -> tuple[str, ...]:
        """Why no loaded artifact serves this call; empty when one does. Compiles nothing."""
        found = self._states.current().dispatcher.lookup(args, kwargs)
        return () if isinstance(found, Hit) else tuple(str(r) for r in found.reasons)

    # -- gradients

    def _wants_grad(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        if self._states.current().wants_grad:
            return True
        if self.module is not None and any(p.requires_grad for p in self.module.parameters()):
            return True
        return any(isinstance(x, Tensor) and x.requires_grad for x in flatten_call(args, kwargs)[1])

    def _needs_training(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.fullgraph:
            raise CaptureError(
                "a call that needs gradients",
                expected="inputs without requires_grad, or torch.no_grad()",
                found="grad mode on and an input or parameter that requires grad",
                hint="call it under torch.no_grad() or torch.inference_mode()",
            )
        return self._eager("it needs gradients", args, kwargs)

    def _eager(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._tell("eager", reason=reason)
        return self.fn(*args, **kwargs)

    # -- misses

    def _missed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.is_grad_enabled() and self._wants_grad(args, kwargs):
            return self._needs_training(args, kwargs)
        with self._lock:
            state = self._states.current()
            found = state.dispatcher.lookup(args, kwargs)
            if isinstance(found, Hit):
                return found.entry.call(found.inputs, found.symbols)
            call = (state, call_class(args, kwargs, dynamic=False, device=""))
            if call in self._refused:
                return self._eager(self._refused[call], args, kwargs)
            reasons = [f"memory: {r}" for r in found.reasons]
            hit = self._pull(state, args, kwargs, reasons)
            for reason in reasons:
                self._tell("miss", reason=reason)
            if hit is None and self.session.mode != "auto":
                raise RequireHitMiss(
                    f"no artifact for this call in mode {self.session.mode}",
                    found="; ".join(reasons),
                    where=self.session.records.store.url,
                    hint="warm it with stax warm, or use mode='auto'",
                )
            if hit is None:
                try:
                    hit = self._compile(state, args, kwargs)
                except Exception as error:
                    # Broad: what a fake kernel raises can be anything, and need not be what eager raises.
                    if self._is_for_the_caller(error):
                        raise
                    self._refused[call] = f"{type(error).__name__}: {error}"
                    return self._eager(self._refused[call], args, kwargs)
        if hit is None:
            return self._eager("max_compilations is reached", args, kwargs)
        return hit.entry.call(hit.inputs, hit.symbols)

    def _is_for_the_caller(self, error: Exception) -> bool:
        """Errors that running eagerly would hide: of the machine, the farm or the settings; all with fullgraph."""
        return self.fullgraph or self.options.strict_native or isinstance(error, CALLERS)

    def _pull(
        self, state: State, args: tuple[Any, ...], kwargs: dict[str, Any], reasons: list[str]
    ) -> Hit | None:
        """A hit from the store, kept for later calls; ``reasons`` gains why each candidate was not it."""
        facts = machine_facts()
        for target in self._targets(args, kwargs, facts):
            try:
                key = self._key(args, kwargs, target)
            except CaptureError as error:
                reasons.append(f"{target}: {error}")
                return None
            try:
                hit = self._pull_key(state, key, target, facts, args, kwargs, reasons)
            except StoreError as error:
                self.session.degrade(error)
                reasons.append(f"{target}: {error}")
                continue
            if hit is not None:
                return hit
        return None

    def _pull_key(
        self,
        state: State,
        key: Key,
        target: Target,
        facts: Facts,
        args: Any,
        kwargs: Any,
        reasons: list[str],
    ) -> Hit | None:
        records = self.session.records
        unreadable: list[str] = []
        kept = find(records, key, unreadable.append)
        reasons.extend(f"{target}: {reason}" for reason in unreadable)
        if not kept and not unreadable:
            reasons.append(f"{target}: no record under request {key.digest[:12]}")
        for one in kept:
            changed = changed_sources(one.artifact.traced_sources)
            if changed:
                reasons.append(f"{target}: {'; '.join(changed[:3])}")
                continue
            try:
                blobs = records.fetch(binaries(one.artifact))
                executable = self._load(one.artifact, blobs, facts, args, kwargs)
            except LoadError as error:
                reasons.append(f"{target}: {error}")
                continue
            hit = admit(state.dispatcher, self.module, executable, args, kwargs)
            if isinstance(hit, Hit):
                self._tell("artifact.hit", target=str(target))
                return hit
            reasons.extend(f"{target}: {reason}" for reason in hit)
        return None

    def _compile(self, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hit | None:
        options = self.options
        if self._compilations >= options.max_compilations:
            if self.fullgraph:
                raise self._limit("max_compilations", options.max_compilations)
            return None
        full = len(state.dispatcher) >= options.max_specializations
        if full and self.fullgraph:
            raise self._limit("max_specializations", options.max_specializations)
        self._compilations += 1
        # NOTE: on use: the compiler costs seconds of imports that a node which only pulls never pays.
        from stax.api.making import Maker

        target = self._targets(args, kwargs, machine_facts())[0]
        maker = Maker(self.session, self.session.records, self.session.degrade)
        made = maker.make(
            self.fn, args, kwargs, dynamic=self.dynamic, options=options, target=target
        )
        self._states.settle(state)
        executable = self._load(made.artifact, made.blobs, machine_facts(), args, kwargs)
        if full:
            return self._run_once(executable, args, kwargs)
        try:
            maker.publish(made, self._key(args, kwargs, target))
        except StoreError as error:
            self.session.degrade(error)
        except CaptureError as error:
            self._tell("miss", reason=f"not published: {error}")
        return self._own(admit(state.dispatcher, self.module, executable, args, kwargs))

    def _load(
        self, artifact: Artifact, blobs: Mapping[str, bytes], facts: Facts, args: Any, kwargs: Any
    ) -> Executable:
        types = types_of((args, kwargs))
        loaded = load(artifact, blobs, libraries=self._libraries, facts=facts, types=types)
        self.session.dumps.watch("load", loaded)
        return loaded

    def _run_once(
        self, executable: Executable, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Hit:
        self._tell("miss", reason="max_specializations is reached: compiled, run, not kept")
        return self._own(admit(Dispatcher(self.module), self.module, executable, args, kwargs))

    def _own(self, found: Hit | tuple[str, ...]) -> Hit:
        """A fresh artifact must hold for the call it was made from."""
        if isinstance(found, Hit):
            return found
        raise VerifyError(
            "a fresh artifact refuses the call it was made from",
            found="; ".join(found),
            where=_name_of(self.fn),
        )

    def _limit(self, name: str, limit: int) -> SpecializationLimit:
        return SpecializationLimit(
            f"{name} is reached", expected=f"at most {limit}", found="one more", where=_name_of(self.fn),
            hint=f"raise Options({name}=...) or use dynamic=True",
        )  # fmt: skip

    def _key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: Target) -> Key:
        return request_key(
            self.fn, args, kwargs, dynamic=self.dynamic, options=self.options, target=target,
            stax_version=VERSION,
        )  # fmt: skip

    def _targets(self, args: Any, kwargs: Any, facts: Facts) -> Sequence[Target]:
        """Targets whose artifacts this call may use, the best first; compiling takes the first."""
        if self.target is not None:
            return (self.target,)
        if _device_of(self.module, args, kwargs) == "cuda":
            return cuda_targets(facts)
        levels = cpu_levels_of(facts.cpu_flags)
        return tuple(Target("cpu", level) for level in reversed(levels))

    def _tell(self, name: str, **fields: object) -> None:
        self.session.observer(Event(name, fields))


def cuda_targets(facts: Facts) -> Sequence[Target]:
    """The one architecture that this machine's GPU runs best."""
    if not facts.cuda:
        raise LoadError(
            "tensors on cuda, but torch sees no CUDA device", hint="check torch.cuda.is_available()"
        )
    major, minor = facts.cuda[0]
    return (Target("cuda", f"sm_{major}{minor}"),)


def _name_of(fn: Any) -> str:
    return getattr(fn, "__qualname__", type(fn).__qualname__)


def owner_of(fn: Any) -> nn.Module | None:
    """The module whose parameters a callable reads: itself, or the one its method is bound to."""
    if isinstance(fn, nn.Module):
        return fn
    bound = getattr(fn, "__self__", None)
    return bound if isinstance(bound, nn.Module) else None


def _device_of(module: nn.Module | None, args: Any, kwargs: Any) -> str:
    for leaf in flatten_call(args, kwargs)[1]:
        if isinstance(leaf, Tensor):
            return leaf.device.type
    first = None if module is None else next(iter(module.parameters()), None)
    return "cpu" if first is None else first.device.type
