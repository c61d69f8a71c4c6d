"""pull() and load(): a bundle by tag, fetched, verified and run without the model's Python code."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stax.api.entries import admit
from stax.api.reports import PullReport
from stax.api.session import Session
from stax.artifact.artifact import Artifact, Constraints
from stax.base.errors import Corrupt, Incompatible, LoadError, Missing, RequireHitMiss, UserError
from stax.base.observe import Event, Observer
from stax.base.options import Environment
from stax.base.target import Target
from stax.pipeline.kept import binaries, read
from stax.runtime.constraints import Facts, check, machine_facts
from stax.runtime.cpu import Libraries
from stax.runtime.dispatch import Dispatcher, Hit
from stax.runtime.load import Executable
from stax.runtime.load import load as load_artifact
from stax.store import layout
from stax.store.base import Store
from stax.store.file import open_file
from stax.store.forms import Bundle
from stax.store.records import Records


def pull(
    name: str,
    *,
    target: str | Target | None = None,
    store: str | Store | None = None,
    to: str | Path | None = None,
    observer: Observer | None = None,
    environment: Environment | None = None,
) -> PullReport:
    """Fetch a tagged bundle (or one by digest), all of it or one target's part, into the local tier, or into the store
    folder ``to``, which then serves as ``file://`` store of its own. Raises Missing, Corrupt, SchemaError, Transient, or
    Refused where the folder can not be written."""
    began = time.perf_counter()
    wanted = None if target is None else str(_target(target))
    session = Session(store=store, observer=observer, environment=environment)
    records = session.records
    bundle = _part(records.get_bundle(resolve(records, name)), wanted)
    fetched = records.fetch(d for d, _ in bundle.blobs)
    folder = session.environment.cache_dir if to is None else Path(to)
    digest = _copy(bundle, fetched, folder, name, session)
    return PullReport(
        bundle=digest,
        targets=bundle.targets,
        artifacts=len(bundle.records),
        blobs=len(fetched),
        bytes=sum(len(raw) for raw in fetched.values()),
        seconds=time.perf_counter() - began,
    )


def _copy(bundle: Bundle, blobs: Mapping[str, bytes], to: Path, name: str, session: Session) -> str:
    from stax.store.layers import Verified  # only a copy needs a second store

    folder = Records(
        Verified(open_file(to.expanduser().absolute().as_uri(), "")), session.environment.tier
    )
    for record in bundle.records:
        given = {d: blobs[d] for d in record.blobs}
        folder.publish(record, given)
        try:
            folder.fetch(given)
        except Corrupt:
            folder.publish(record, given)  # now the folder knows which of them it held damaged
    digest = folder.put_bundle(bundle)
    if not layout.is_digest(name):
        folder.set_tag(session.environment.tier, name, digest)
    return digest


def _part(bundle: Bundle, target: str | None) -> Bundle:
    if target is None:
        return bundle
    chosen = tuple(r for r in bundle.records if r.body.get("target") == target)
    if not chosen:
        raise Missing(
            "the bundle has nothing for this target", expected=target, found=", ".join(bundle.targets),
            hint="warm it for this target, or name one that it has",
        )  # fmt: skip
    needed = {d for r in chosen for d in r.blobs}
    return Bundle((target,), chosen, tuple(b for b in bundle.blobs if b[0] in needed), bundle.body)


def resolve(records: Records, name: str) -> str:
    """The digest that a tag points at; a digest is itself. Raises Missing with the tags that exist, OptionError for what is
    neither."""
    if layout.is_digest(name):
        return name
    layout.check_tag(records.tier, name)
    try:
        return records.get_tag(records.tier, name)
    except Missing as error:
        known = records.list_tags(records.tier)
        raise Missing(
            f"no tag {name!r} in tier {records.tier}",
            found=", ".join(known[:8]) or "no tag at all",
            where=records.store.url,
            hint="stax ls shows the tags of a store",
        ) from error


def _target(target: str | Target) -> Target:
    return target if isinstance(target, Target) else Target.parse(target)


class Loaded:
    """A pulled callable: the bundle's artifacts behind their guards. It never traces or builds; a call that no artifact
    serves raises RequireHitMiss with the reasons."""

    def __init__(
        self, executables: Sequence[Executable], module: nn.Module | None, name: str
    ) -> None:
        self.artifacts = tuple(e.artifact for e in executables)
        self._executables = tuple(executables)
        self._module = module
        self._dispatcher = Dispatcher(module)
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = self._dispatcher.lookup(args, kwargs)
        if type(found) is not Hit:
            found = self._admit(args, kwargs)
        if torch.is_grad_enabled() and any(x.requires_grad for x in found.inputs):
            raise UserError(
                "a loaded artifact gives no gradients",
                expected="torch.no_grad(), or inputs and parameters without requires_grad",
                found="grad mode on and a tensor that requires grad",
                hint="call it under torch.no_grad() or torch.inference_mode()",
            )
        return found.entry.call(found.inputs, found.symbols)

    def _admit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hit:
        reasons: list[str] = []
        for executable in self._executables:
            found = admit(self._dispatcher, self._module, executable, args, kwargs)
            if isinstance(found, Hit):
                return found
            reasons.extend(found)
        raise RequireHitMiss(
            f"no artifact of {self._name} serves this call",
            found="; ".join(dict.fromkeys(reasons)),
            hint="warm the bundle for such a call",
        )


def load(
    name: str,
    *,
    target: str | Target | None = None,
    store: str | Store | None = None,
    module: nn.Module | None = None,
    state_dict: Mapping[str, Tensor] | None = None,
    observer: Observer | None = None,
    environment: Environment | None = None,
) -> Loaded:
    """A callable from a tag or a bundle digest, for this machine's best target or the one named.

    Parameters and buffers come from ``module`` (live: later changes of it are seen) or ``state_dict`` (by the names the
    compiled module gave them). Raises Missing, Corrupt, Incompatible (with the constraint that does not hold), LoadError.
    """
    session = Session(store=store, observer=observer, environment=environment)
    records = session.records
    bundle = records.get_bundle(resolve(records, name))
    artifacts = _loadable(records, bundle, None if target is None else str(_target(target)))
    needed = sorted({d for a in artifacts for d in binaries(a)})
    blobs = records.fetch(needed)
    owner = module if module is not None else holder(state_dict or {}, artifacts)
    libraries, facts = Libraries(), machine_facts()
    executables = [load_artifact(a, blobs, libraries=libraries, facts=facts) for a in artifacts]
    session.observer(Event("bundle.loaded", {"artifacts": len(artifacts), "blobs": len(blobs)}))
    return Loaded(executables, owner, name)


def _loadable(records: Records, bundle: Bundle, target: str | None) -> list[Artifact]:
    """Artifacts of the named target, else of the strongest target that this machine can run for each device kind. Those of
    other targets are not even read: a pull of one target's part has not brought them."""
    facts = machine_facts()
    names = {str(r.body.get("target")) for r in bundle.records} if target is None else {target}
    refusals: list[str] = []
    found: dict[str, list[Artifact]] = {}
    for name in sorted(names, key=_strength, reverse=True):
        kind = name.partition(":")[0]
        if kind in found:
            continue
        artifacts = _of_target(records, bundle, name, facts, refusals)
        if artifacts:
            found[kind] = artifacts
    if not found:
        raise Incompatible(
            "the bundle has nothing that this machine can run",
            expected=target or "a target of this machine",
            found="; ".join(refusals) or ", ".join(bundle.targets),
            hint="warm it for a target that stax doctor lists",
        )
    return [artifact for artifacts in found.values() for artifact in artifacts]


def _of_target(
    records: Records, bundle: Bundle, target: str, facts: Facts, refusals: list[str]
) -> list[Artifact]:
    """The artifacts of one target that this machine can run; ``refusals`` gains why it can not run the others."""
    kind, arch = (*target.split(":"), "")[:2]
    wanted = Constraints(**{"cpu_level" if kind == "cpu" else "cuda_arch": arch})
    found: list[Artifact] = []
    for record in bundle.records:
        if record.body.get("target") != target:
            continue
        try:
            check(wanted, facts)
            artifact = read(records, record).artifact
            check(artifact.constraints, facts)
        except Incompatible as error:
            refusals.append(f"{target}: {error}")
            continue
        found.append(artifact)
    return found


def _strength(target: str) -> tuple[str, int, str]:
    """An order in which a target that is to be preferred comes later: psABI levels by name, CUDA by its number."""
    kind, arch = (*target.split(":"), "")[:2]
    digits = arch.removeprefix("sm_")
    return kind, int(digits) if digits.isdecimal() else 0, target


def holder(state: Mapping[str, Tensor], artifacts: Sequence[Artifact]) -> nn.Module:
    """A bare module tree that holds a state_dict under its names. Raises LoadError naming what is missing."""
    wanted = {
        (i.source, i.name)
        for a in artifacts
        for i in a.signature.inputs
        if i.source in ("parameter", "buffer")
    }
    absent = sorted(name for _, name in wanted if name not in state)
    if absent:
        raise LoadError(
            f"{len(absent)} tensors of the artifact are not in the state_dict",
            expected=", ".join(absent[:4]) + (" …" if len(absent) > 4 else ""),
            hint="pass module=, or the state_dict of the module that was compiled (non-persistent buffers included)",
        )
    root = nn.Module()
    for source, name in sorted(wanted):
        *path, last = name.split(".")
        at = root
        for part in path:
            if part not in at._modules:
                at.add_module(part, nn.Module())
            at = at.get_submodule(part)
        _hold(at, last, state[name], source)
    return root


def _hold(at: nn.Module, name: str, tensor: Tensor, source: str) -> None:
    if source == "parameter":
        at.register_parameter(name, nn.Parameter(tensor.detach(), requires_grad=False))
    else:
        at.register_buffer(name, tensor.detach())
