"""tune() with a scripted builder and measurer: what is built, measured, recorded, looked up, and what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import pytest

from stax.base.errors import OptionError, StoreError, Transient
from stax.base.observe import Event
from stax.base.target import Target, Toolchain
from stax.build.job import BuildResult, Built, Failed, Job
from stax.codegen.cpp.emit import emit as emit_cpp
from stax.codegen.triton.emit import emit
from stax.ir.source import Config
from stax.store import MemoryStore
from stax.store.forms import Record
from stax.store.records import Records
from stax.tune.measurement import Measurement, failed
from stax.tune.record import KIND, variant_of
from stax.tune.subject import Subject
from stax.tune.tune import Bench, Tuned, tune
from stax.tune.work import Work
from tests.kernels import KernelCase, add_transposed, embedding, outer_sum, softmax
from tests.tune.doubles import ScriptedMeasurer, by_programs

TARGET = Target("cuda", "sm_90")
Script = Callable[[Job], BuildResult]


def builds(job: Job) -> BuildResult:
    meta = (("num_warps", job.config.get("num_warps", 4)), ("spills", 0))
    return Built(job.key.digest, repr(job.config).encode(), meta, 0.1)


@dataclass
class ScriptedBuilder:
    script: Script = builds
    batches: list[list[Config]] = field(default_factory=list[list[Config]])

    def build(self, jobs: Sequence[Job]) -> Iterator[BuildResult]:
        self.batches.append([job.config for job in jobs])
        for job in reversed(jobs):  # in any order
            yield self.script(job)

    def close(self) -> None:
        pass


def subject(case: KernelCase, strategy: str = "default") -> Subject:
    elements = tuple(case.elements[p.name] for p in case.kernel.pointers)
    return Subject(case.kernel, emit(case.kernel, TARGET), elements, TARGET, strategy)


class Shop:
    """A bench, what happened on it, and a store that outlives it."""

    def __init__(
        self,
        records: Records | None = None,
        measurer: ScriptedMeasurer | None = None,
        script: Script = builds,
    ) -> None:
        self.events: list[Event] = []
        self.errors: list[StoreError] = []
        self.records = records or Records(MemoryStore(), "dev")
        self.measurer = measurer
        self.builder = ScriptedBuilder(script)

    def tune(self, *subjects: Subject) -> Tuned:
        bench = Bench(
            records=self.records, builder=self.builder, toolchain=Toolchain(triton="3.6.0"),
            measurer=self.measurer, observer=self.events.append,
            on_store_error=self.errors.append, timeout_s=60.0,
        )  # fmt: skip
        return tune(subjects, bench)

    def count(self, name: str) -> int:
        return sum(e.name == name for e in self.events)


TRANSPOSED = add_transposed()


def test_the_fastest_candidate_is_chosen_and_recorded() -> None:
    shop, one = Shop(measurer=ScriptedMeasurer()), subject(TRANSPOSED)
    tuned = shop.tune(one)
    works = {c: one.work(c, b"", (("num_warps", c["num_warps"]),)) for c in one.source.space}
    assert tuned.configs == (min(one.source.space, key=lambda c: by_programs(works[c]).time_us),)
    assert shop.count("tune.measure") == len(one.source.space) == shop.count("tune.done") * 6
    assert shop.builder.batches == [list(one.source.space)]
    assert [b.data for b in tuned.built.values()] == [repr(tuned.configs[0]).encode()]


def test_all_kernels_are_built_in_one_batch() -> None:
    shop = Shop(measurer=ScriptedMeasurer())
    subjects = [subject(c) for c in (TRANSPOSED, softmax(512, 1024), outer_sum(4096, 512))]
    tuned = shop.tune(*subjects)
    (batch,) = shop.builder.batches
    assert len(batch) == sum(len(s.source.space) for s in subjects)
    assert all(c in s.source.space for s, c in zip(subjects, tuned.configs))
    assert shop.measurer is not None and shop.measurer.opened == 1


@pytest.mark.parametrize("strategy", ["default", "max"])
def test_claim_6_5_a_second_machine_measures_nothing_and_chooses_the_same(strategy: str) -> None:
    first = Shop(measurer=ScriptedMeasurer())
    chosen = first.tune(subject(TRANSPOSED, strategy), subject(softmax(512, 1024), strategy))
    for measurer in (ScriptedMeasurer(), None):
        second = Shop(first.records, measurer)
        again = second.tune(subject(TRANSPOSED, strategy), subject(softmax(512, 1024), strategy))
        assert again.configs == chosen.configs and not again.built
        assert (second.count("tune.hit"), second.count("tune.measure")) == (2, 0)
        assert second.builder.batches == [] and (measurer is None or measurer.opened == 0)


def test_another_device_measures_for_itself() -> None:
    first = Shop(measurer=ScriptedMeasurer())
    first.tune(subject(TRANSPOSED))
    slow = ScriptedMeasurer(lambda w: Measurement(by_programs(w).time_us ** -1.0), "Other GPU")
    second = Shop(first.records, slow)
    assert second.tune(subject(TRANSPOSED)).configs != first.tune(subject(TRANSPOSED)).configs
    assert second.count("tune.measure") == 6
    nobody = Shop(first.records)
    assert nobody.tune(subject(TRANSPOSED)).configs == second.tune(subject(TRANSPOSED)).configs


def test_claim_6_4_one_configuration_is_neither_built_nor_measured() -> None:
    case = softmax()
    source = emit_cpp(case.kernel, Target("cpu", "x86-64-v3"))
    for strategy in ("default", "max"):
        shop = Shop()
        tuned = shop.tune(
            Subject(case.kernel, source, (1, 1), Target("cpu", "x86-64-v3"), strategy)
        )
        assert tuned.configs == (source.default,) and not shop.events and not shop.builder.batches


def test_without_a_gpu_and_without_records_the_error_says_what_to_do() -> None:
    with pytest.raises(OptionError, match="a GPU of sm_90 here, or a store with tuning") as raised:
        Shop().tune(subject(TRANSPOSED))
    assert "triton_poi_fused" in raised.value.found and "tune='off'" in raised.value.hint


def test_claims_6_2_and_6_3_what_fails_or_spills_is_infinite() -> None:
    one = subject(TRANSPOSED)
    fails, spills, refused = one.source.space[1:4]

    def script(job: Job) -> BuildResult:
        if job.config == fails:
            return Failed(job.key.digest, "compiler", "out of resources", "", job.text)
        built = builds(job)
        assert isinstance(built, Built)
        meta = (("num_warps", 4), ("spills", 8 if job.config == spills else 0))
        return replace(built, meta=meta)

    def times(work: Work) -> Measurement:
        if work.binary == repr(refused).encode():
            return failed("refused", "too many resources requested")
        return Measurement(1.0 + len(work.binary) + work.grid[0] / 100, 0.01)

    shop = Shop(measurer=ScriptedMeasurer(times), script=script)
    (config,) = shop.tune(one).configs
    assert config not in (fails, spills, refused)
    (record,) = shop.records.find(KIND, one.key.digest)
    kept = {Config(tuple(map(tuple, m[0]))): m[3] for m in record.body["measurements"]}  # type: ignore[union-attr, misc]
    assert (kept[fails], kept[spills], kept[refused]) == ("build", "spills", "refused")


def test_when_nothing_runs_the_default_is_taken_and_nothing_recorded() -> None:
    one = subject(TRANSPOSED)
    shop = Shop(measurer=ScriptedMeasurer(lambda work: failed("timeout", "no answer within 20 s")))
    assert shop.tune(one).configs == (one.source.default,)
    assert shop.records.find(KIND, one.key.digest) == []
    (event,) = [e for e in shop.events if e.name == "tune.failed"]
    assert "timeout: no answer" in str(event.fields["reason"])


def test_a_damaged_record_is_a_miss_with_a_reason_and_is_measured_again() -> None:
    shop, one = Shop(measurer=ScriptedMeasurer()), subject(TRANSPOSED)
    bad = Record(KIND, one.key.digest, variant_of("Scripted GPU"), {"config": "fast"})
    shop.records.publish(bad)
    shop.tune(one)
    assert shop.count("tune.measure") == 6
    reasons = [str(e.fields["reason"]) for e in shop.events if e.name == "miss"]
    assert reasons and all("bad tuning record" in r for r in reasons)
    second = Shop(shop.records)
    second.tune(one)
    assert second.count("tune.hit") == 1


def test_what_another_process_measured_while_we_waited_is_taken() -> None:
    one, records = subject(TRANSPOSED), Records(MemoryStore(), "dev")

    class Slow(ScriptedMeasurer):
        def alone(self):  # type: ignore[no-untyped-def]
            Shop(records, ScriptedMeasurer()).tune(one)
            return super().alone()

    shop = Shop(records, Slow())
    shop.tune(one)
    assert (shop.count("tune.hit"), shop.count("tune.measure")) == (1, 0)


def test_equal_binaries_are_measured_once() -> None:
    def script(job: Job) -> BuildResult:
        return Built(job.key.digest, b"the same", (("num_warps", 4), ("spills", 0)), 0.1)

    shop, one = Shop(measurer=ScriptedMeasurer(), script=script), subject(softmax(512, 1024))
    shop.tune(one)
    grids = {one.work(c, b"", ()).grid for c in one.source.space}
    assert shop.count("tune.measure") == len(grids) < len(one.source.space)


def test_trouble_with_the_store_is_told_and_costs_only_the_record() -> None:
    class Broken(Records):
        def find(self, kind: str, key: str) -> list[Record]:
            raise Transient("no store today")

        def publish(self, *args: object, **kwargs: object) -> bool:
            raise Transient("no store today")

    shop = Shop(Broken(MemoryStore(), "dev"), ScriptedMeasurer())
    assert shop.tune(subject(TRANSPOSED)).configs[0] in subject(TRANSPOSED).source.space
    assert len(shop.errors) == 3  # before and after waiting for the device, and the record


def test_max_asks_beyond_the_candidates_and_finds_something_at_least_as_fast() -> None:
    default, most = Shop(measurer=ScriptedMeasurer()), Shop(measurer=ScriptedMeasurer())
    one, other = subject(TRANSPOSED), subject(TRANSPOSED, "max")
    least = {}
    for shop, s in ((default, one), (most, other)):
        (config,) = shop.tune(s).configs
        least[s.strategy] = by_programs(s.work(config, b"", (("num_warps", config["num_warps"]),)))
    assert least["max"].time_us <= least["default"].time_us
    assert any(c not in other.source.space for batch in most.builder.batches for c in batch)
    assert len(most.builder.batches) < 20


def test_the_work_speaks_of_pointers_in_the_order_of_the_parameters() -> None:
    case = embedding()
    one = subject(case)
    work = one.work(one.source.default, b"", ())
    pointers = [p for p in one.source.params if p.kind in ("in", "out")]
    assert [m.dtype for m in work.memory] == [p.dtype for p in pointers]
    assert [m.elements for m in work.memory] == [case.elements[p.name] for p in pointers]
    assert len(work.sizes) == sum(p.kind == "size" for p in one.source.params)
    assert work.grid[1:] == (1, 1) and work.grid[0] > 0
    assert by_programs(replace(work, meta=(("num_warps", 4),))).time_us < inf
