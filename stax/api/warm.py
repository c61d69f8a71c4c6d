"""warm(): compile for listed targets ahead of use, publish, and tag the bundle."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from torch import Tensor

from stax.api.compiled import owner_of
from stax.api.entries import changed_sources
from stax.api.making import Maker, key_of
from stax.api.reports import WarmReport
from stax.api.session import Session
from stax.artifact.artifact import Artifact
from stax.artifact.guards import TensorGuard
from stax.artifact.keys import Key
from stax.base.errors import Corrupt, Missing, OptionError, StoreError
from stax.base.observe import Event, Observer
from stax.base.options import Environment, Options
from stax.base.target import Target
from stax.build.job import Builder
from stax.pipeline.kept import Kept, find
from stax.runtime.bind import Binder
from stax.runtime.guards import Bound, holds
from stax.runtime.load import constant_tensor
from stax.runtime.signature import flatten_call
from stax.store import layout
from stax.store.base import Store
from stax.store.forms import Bundle, Record
from stax.tune.isolate import Measurer


def warm(
    fn: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    targets: Sequence[str | Target],
    dynamic: bool = False,
    strict_native: bool = False,
    options: Options | None = None,
    store: str | Store | None = None,
    builder: Builder | None = None,
    tag: str | None = None,
    observer: Observer | None = None,
    environment: Environment | None = None,
    measurer: Measurer | None = None,
) -> WarmReport:
    """Compile ``fn(*args, **kwargs)`` for each of ``targets`` and publish it; nothing runs, so no target's device is needed,
    unless ``options.tune`` asks for launch configurations of which the store has no record (see stax.compile, ``measurer``).

    What the store already holds is not built again, so a warm that was interrupted goes on where it stopped. A store
    that fails is an error here (StoreError), unlike in compile(): publishing is the purpose. With ``tag``, the tag points
    at the new bundle when all has been published. Raises CaptureError, MissingRule, BuildError, StoreError, OptionError.
    """
    chosen = options or Options()
    if strict_native:
        chosen = chosen.with_(strict_native=True)
    wanted = [t if isinstance(t, Target) else Target.parse(t) for t in targets]
    if not wanted:
        raise OptionError(
            "no target to warm",
            expected="at least one target",
            found="none",
            hint="--target cpu:x86-64-v3",
        )
    session = Session(
        store=store,
        builder=builder,
        observer=observer,
        environment=environment,
        farm_only=True,
        measurer=measurer,
    )
    if tag is not None:
        layout.check_tag(session.environment.tier, tag)
    with closing(session):
        tally = _Tally()
        for target in wanted:
            _warm_one(fn, tuple(args), dict(kwargs or {}), target, dynamic, chosen, session, tally)
        return _publish_bundle(session, wanted, tally, tag)


class _Tally:
    """What has been gathered so far; lives inside one call of warm."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.keys: dict[str, str] = {}
        self.records: list[Record] = []
        self.sizes: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.kernels: dict[str, bool] = {}
        self.hits = 0
        self.published = 0

    def add_time(self, event: Event) -> None:
        seconds = event.fields.get("seconds")
        if event.name.startswith("stage.") and isinstance(seconds, float):
            name = event.name.removeprefix("stage.")
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds


def _warm_one(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    target: Target,
    dynamic: bool,
    options: Options,
    session: Session,
    tally: _Tally,
) -> None:
    key = key_of(fn, args, kwargs, dynamic=dynamic, options=options, target=target)
    tally.keys[str(target)] = key.digest
    kept = _already(key, fn, args, kwargs, session, tally)
    if kept is not None:
        session.observer(Event("artifact.hit", {"target": str(target)}))
        tally.hits += 1
        tally.records.append(kept.record)
        tally.kernels |= {b.key: False for b in kept.artifact.binaries}
        return
    maker = Maker(session, session.published, on_store_error=_raise)
    made = maker.make(
        fn, args, kwargs, dynamic=dynamic, options=options, target=target, observe=tally.add_time
    )
    record, sizes = maker.publish(made, key)
    tally.records.append(record)
    tally.published += sum(
        sizes[d] for d in sizes if d not in {r.digest for r in made.kernels if not r.built}
    )
    tally.kernels |= {r.key: r.built for r in made.kernels}
    tally.sizes |= sizes


def _raise(error: StoreError) -> None:
    raise error


def _already(
    key: Key,
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    session: Session,
    tally: _Tally,
) -> Kept | None:
    """A whole artifact in the store that is valid for these very arguments, their device aside."""

    def miss(reason: str) -> None:
        session.observer(Event("miss", {"reason": reason}))

    for kept in find(session.published, key, miss):
        try:
            blobs = session.published.fetch(kept.record.blobs)
        except (Missing, Corrupt) as error:
            miss(f"artifact of request {kept.record.key[:12]}: {error}")
            continue
        if _serves(kept.artifact, blobs, fn, args, kwargs):
            tally.sizes |= {d: len(raw) for d, raw in blobs.items()}
            return kept
    return None


def _serves(
    artifact: Artifact,
    blobs: Mapping[str, bytes],
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> bool:
    """The guards hold for the call, whatever device its tensors are on now, and the code is what was traced."""
    tree, leaves = flatten_call(args, kwargs)
    signature = artifact.signature
    if tree != signature.call or changed_sources(artifact.traced_sources):
        return False
    own = [i for i in signature.inputs if i.source in ("parameter", "buffer")]
    static = Binder(owner_of(fn), own).bind()
    if isinstance(static, str):
        return False
    rest = iter(static)
    baked = {c.name: constant_tensor(c, blobs, "cpu") for c in artifact.constants}
    tensors: list[Tensor] = []
    for item in signature.inputs:
        if item.source == "arg":
            tensors.append(leaves[item.leaf])
        else:
            tensors.append(baked[item.name] if item.source == "constant" else next(rest))
    guards = tuple(
        replace(g, device=tensors[g.input].device.type) if isinstance(g, TensorGuard) else g
        for g in artifact.guards.guards
    )
    bound = Bound(leaves, tensors)
    return holds(replace(artifact.guards, guards=guards), bound, artifact.symbols) is None


def _publish_bundle(
    session: Session, targets: Sequence[Target], tally: _Tally, tag: str | None
) -> WarmReport:
    needed = sorted({d for r in tally.records for d in r.blobs})
    bundle = Bundle(
        targets=tuple(sorted({str(t) for t in targets})),
        records=tuple(tally.records),
        blobs=tuple((d, tally.sizes[d]) for d in needed),
    )
    records = session.published
    digest = records.put_bundle(bundle)
    if tag is not None:
        records.set_tag(session.environment.tier, tag, digest)
        session.observer(Event("tag.published", {"tag": tag, "bundle": digest}))
    return WarmReport(
        keys=tally.keys,
        artifacts=len(tally.records),
        artifacts_hit=tally.hits,
        kernels_total=len(tally.kernels),
        kernels_built=sum(tally.kernels.values()),
        kernels_hit=sum(not built for built in tally.kernels.values()),
        measurements=session.counters.counts.get("tune.measure", 0),
        bytes_published=tally.published,
        seconds={**tally.seconds, "total": time.perf_counter() - tally.began},
        bundle=digest,
        tag=tag,
    )
