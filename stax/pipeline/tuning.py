"""A schedule's kernels with the launch configurations that tuning chose for them."""

from __future__ import annotations

from collections.abc import Mapping

from stax.base.target import Target
from stax.build.job import Built, Job, job_of
from stax.ir.kernel import Kernel
from stax.ir.program import Buffer, Extern
from stax.pipeline.assemble import Chosen
from stax.schedule.schedule import Schedule
from stax.tune.subject import Subject
from stax.tune.tune import Bench, tune

Choice = dict[Kernel, tuple[Chosen, Job]]


def tune_all(
    plan: Schedule, chosen: Choice, target: Target, strategy: str, bench: Bench
) -> tuple[Choice, Mapping[str, Built]]:
    """``chosen`` with tuned configurations, and what has been built of them on the way. Raises OptionError."""
    elements = elements_of(plan)
    subjects = [
        Subject(kernel, one.source, elements[kernel], target, strategy)
        for kernel, (one, _) in chosen.items()
    ]
    tuned = tune(subjects, bench)
    found: Choice = {}
    for subject, config in zip(subjects, tuned.configs):
        job = job_of(subject.source, config, target, bench.toolchain, bench.timeout_s)
        found[subject.kernel] = Chosen(subject.source, config, job.key.digest), job
    return found, tuned.built


def elements_of(plan: Schedule) -> dict[Kernel, tuple[int, ...]]:
    """For each kernel, how many elements the buffers of its first launch span, at the hints."""
    hints = {s.name: s.hint for s in plan.program.symbols}
    table = plan.program.table
    found: dict[Kernel, tuple[int, ...]] = {}
    for step in plan.steps:
        if not isinstance(step, Extern) and step.kernel not in found:
            found[step.kernel] = tuple(span(table[name], hints) for name in step.tensors)
    return found


def span(buffer: Buffer, hints: Mapping[str, int]) -> int:
    """Elements from a buffer's first to its last one; 0 for an empty one."""
    shape = [e.evaluate(hints) for e in buffer.shape]
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s.evaluate(hints) for n, s in zip(shape, buffer.strides))
