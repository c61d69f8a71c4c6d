"""Options.tune from the top: real tracing and real cubins for sm_90, scripted times, a store between machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import stax
from stax.artifact.codec import decode
from stax.base.errors import OptionError
from stax.base.options import Options
from stax.build.local import LocalBuilder
from stax.store import MemoryStore
from stax.store.records import Records
from stax.tune.isolate import Measurer
from stax.tune.measurement import Measurement
from tests.tune.doubles import ScriptedMeasurer

X, W = torch.randn(256, 2048), torch.randn(2048)
DEFAULT = Options(tune="default")


def first(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return torch.softmax(x * w, -1), (x + w).sum(0)


def same_kernels(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return torch.softmax(x * w, -1), (x + w).sum(0)


@pytest.fixture(scope="module")
def builder() -> Iterator[LocalBuilder]:
    made = LocalBuilder(2)
    yield made
    made.close()


def warm(
    fn: Any,
    store: MemoryStore,
    builder: LocalBuilder,
    measurer: Measurer | None,
    options: Options = DEFAULT,
    target: str = "cuda:sm_90",
) -> tuple[Any, list[tuple[tuple[str, int], ...]]]:
    """The report, and the configuration of each kernel of the artifact."""
    report = stax.warm(
        fn,
        (X, W),
        targets=[target],
        store=store,
        builder=builder,
        options=options,
        measurer=measurer,
    )
    records = Records(store, "dev")
    (record,) = records.find("request", next(iter(report.keys.values())))
    artifact = decode(records.get_blob(str(record.body["artifact"])))
    return report, [b.config.values for b in artifact.binaries]


def prefers_last(seen: dict[object, float]) -> ScriptedMeasurer:
    """Each configuration of a kernel is faster than the one before, in the order of arrival."""

    def times(work: Any) -> Measurement:
        seen[work.entry] = seen.get(work.entry, 100.0) - 1
        return Measurement(seen[work.entry], 0.001)

    return ScriptedMeasurer(times)


def test_tuned_once_then_taken_from_the_store_by_a_machine_without_a_gpu(
    builder: LocalBuilder,
) -> None:
    store, measurer = MemoryStore(), prefers_last({})
    report, configs = warm(first, store, builder, measurer)
    assert report.measurements == len(measurer.asked) > 4
    # Of all that was built, what was chosen is published.
    assert 2 <= report.kernels_built == report.kernels_total == len(configs)
    again, others = warm(same_kernels, store, builder, None)
    assert (again.artifacts_hit, again.measurements, again.kernels_built) == (0, 0, 0)
    assert others == configs


def test_the_chosen_configuration_is_the_one_that_is_launched(builder: LocalBuilder) -> None:
    _, untuned = warm(first, MemoryStore(), builder, None, Options())
    _, tuned = warm(first, MemoryStore(), builder, prefers_last({}))
    assert [sorted(n for n, _ in c) for c in tuned] == [sorted(n for n, _ in c) for c in untuned]
    assert tuned != untuned


def test_buffers_are_as_large_as_the_program_says(builder: LocalBuilder) -> None:
    measurer = ScriptedMeasurer()
    warm(lambda x, w: (x * w)[:, ::2] + 1, MemoryStore(), builder, measurer)
    sizes = {tuple(m.elements for m in work.memory) for work in measurer.asked}
    assert sizes == {(256 * 2048, 2048, 256 * 1024)}


def test_no_gpu_and_no_records_is_an_error_that_names_the_next_step(builder: LocalBuilder) -> None:
    with pytest.raises(OptionError, match="tune once on a machine with such a GPU"):
        warm(first, MemoryStore(), builder, None)


def test_compile_does_not_hide_it_behind_eager(builder: LocalBuilder) -> None:
    compiled = stax.compile(
        first, target="cuda:sm_90", store=MemoryStore(), builder=builder, options=DEFAULT
    )
    with pytest.raises(OptionError, match="tune='default' must measure"):
        compiled(X, W)


@pytest.mark.parametrize("tune", ["default", "max"])
def test_claim_6_4_kernels_of_a_cpu_are_never_measured(builder: LocalBuilder, tune: str) -> None:
    report, _ = warm(first, MemoryStore(), builder, None, Options(tune=tune), "cpu:x86-64-v2")
    assert report.measurements == 0 and report.kernels_built >= 2


def test_an_unknown_value_is_refused() -> None:
    with pytest.raises(OptionError, match=r"expected off \| default \| max; found 'best'"):
        Options(tune="best")
