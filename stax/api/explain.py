"""explain(): what a call compiles to, kernel by kernel, and what each should cost. Builds nothing and runs nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stax.api.reports import CallReport, ExplainReport, KernelReport
from stax.base.devices import NAMED_DEVICES, Device, device_of
from stax.base.errors import OptionError
from stax.base.options import Options
from stax.base.target import Target
from stax.capture.decompose import decompositions
from stax.capture.trace import trace
from stax.codegen.backends import emitter, looper
from stax.codegen.triton.cost import grid_of, predict_s
from stax.ir.kernel import Kernel
from stax.ir.program import Extern
from stax.ir.traffic import traffic
from stax.lower.lower import lower
from stax.schedule.schedule import Schedule, schedule


def explain(
    fn: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | Target,
    dynamic: bool = False,
    strict_native: bool = False,
    options: Options | None = None,
    device: str = "",
) -> ExplainReport:
    """The kernels and calls to torch of ``fn(*args, **kwargs)`` on ``target``, whose device need not be here.

    ``device`` names the GPU whose facts are used: default, one of this machine that has the target's architecture, else
    the architecture's own row. Raises CaptureError, MissingRule, OptionError.
    """
    chosen = options or Options()
    if strict_native:
        chosen = chosen.with_(strict_native=True)
    wanted = target if isinstance(target, Target) else Target.parse(target)
    named, facts = _device(wanted, device)
    captured = trace(
        fn, tuple(args), dict(kwargs or {}), dynamic=dynamic, target=wanted, decompositions=decompositions(),
    )  # fmt: skip
    plan = schedule(lower(captured, options=chosen), chosen)
    calls = Counter(s.target for s in plan.steps if isinstance(s, Extern))
    return ExplainReport(
        target=str(wanted),
        device=named,
        floor_bytes_s=None if facts is None else facts.floor_bytes_s,
        kernels=_kernels(plan, wanted, facts),
        calls=tuple(CallReport(name, count) for name, count in calls.items()),
        decisions=tuple((d.subject, d.verdict, d.reason) for d in plan.decisions),
    )


def _device(target: Target, name: str) -> tuple[str, Device | None]:
    """(name, facts) of the device that predictions are for; no facts of CPUs are known."""
    if name and (target.kind != "cuda" or name not in NAMED_DEVICES):
        raise OptionError(
            "unknown device", expected=" | ".join(NAMED_DEVICES), found=repr(name),
            hint=f"leave it out for what is known of {target}",
        )  # fmt: skip
    if target.kind != "cuda":
        return "", None
    found = name or _present(target.arch)
    return found if found in NAMED_DEVICES else target.arch, device_of(target.arch, found)


def _present(arch: str) -> str:
    """The name of this machine's first GPU of an architecture, or ""."""
    for k in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(k)
        if arch == f"sm_{major}{minor}":
            return torch.cuda.get_device_name(k)
    return ""


def _kernels(plan: Schedule, target: Target, device: Device | None) -> tuple[KernelReport, ...]:
    """Distinct kernels in the order of first use."""
    launches = Counter(s.kernel for s in plan.steps if not isinstance(s, Extern))
    return tuple(_kernel(k, count, target, device) for k, count in launches.items())


def _kernel(kernel: Kernel, launches: int, target: Target, device: Device | None) -> KernelReport:
    source = emitter(target)(kernel, target)
    moved = traffic(kernel, loops=looper(target)(kernel))
    config = source.default
    return KernelReport(
        name=source.entry,
        form=kernel.form,
        launches=launches,
        grid=grid_of(source, config, kernel.hints),
        config=dict(config.values),
        read_bytes=moved.read_bytes,
        written_bytes=moved.written_bytes,
        reread_bytes=moved.reread_bytes,
        floor_s=None if device is None else moved.moved_bytes / device.floor_bytes_s,
        predicted_s=None if device is None else predict_s(kernel, source, config, moved, device),
        measured_s=None,
    )
