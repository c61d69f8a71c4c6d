"""Tuning records: what is kept, and what is not believed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from stax.base.errors import SchemaError
from stax.base.target import Target, Toolchain
from stax.codegen.triton.emit import emit
from stax.ir.source import Config
from stax.store import MemoryStore
from stax.store.forms import Record
from stax.store.records import Records
from stax.tune.measurement import Measurement, failed
from stax.tune.record import KIND, Finding, key_of, publish, read, record_of, variant_of
from stax.tune.space import space_of
from tests.kernels import add_transposed

KERNEL = add_transposed().kernel
TARGET = Target("cuda", "sm_90")
SOURCE = emit(KERNEL, TARGET)
SPACE = space_of(SOURCE, KERNEL.hints)
KEY = key_of(SOURCE, "candidates", (256, 512), TARGET)
TOOLS = Toolchain(triton="3.6.0", ptxas="12.8")
FINDING = Finding(
    "NVIDIA H200",
    SOURCE.space[1],
    ((SOURCE.space[0], Measurement(20.0, 0.01, "ok", 60)), (SOURCE.space[1], Measurement(12.5, 0.002, "ok", 90)), (SOURCE.space[2], failed("spills"))),
    TOOLS,
    4,
)  # fmt: skip


def stored() -> Records:
    return Records(MemoryStore(), "dev")


def test_a_finding_survives_the_store() -> None:
    records = stored()
    publish(records, KEY, FINDING, SPACE, SOURCE)
    (record,) = records.find(KIND, KEY.digest)
    assert record.variant == variant_of("NVIDIA H200")
    assert read(record, SPACE, SOURCE) == FINDING


def test_the_first_finding_of_a_device_stays_and_other_devices_have_their_own() -> None:
    records = stored()
    publish(records, KEY, FINDING, SPACE, SOURCE)
    publish(records, KEY, replace(FINDING, config=SOURCE.space[0]), SPACE, SOURCE)
    publish(records, KEY, replace(FINDING, device="NVIDIA H100"), SPACE, SOURCE)
    found = [read(r, SPACE, SOURCE) for r in records.find(KIND, KEY.digest)]
    assert {(f.device, f.config) for f in found} == {
        ("NVIDIA H200", SOURCE.space[1]),
        ("NVIDIA H100", SOURCE.space[1]),
    }


def test_what_can_not_be_read_is_replaced() -> None:
    records = stored()
    good = record_of(KEY, FINDING)
    records.publish(Record(KIND, good.key, good.variant, {"device": "NVIDIA H200"}))
    publish(records, KEY, FINDING, SPACE, SOURCE)
    (record,) = records.find(KIND, KEY.digest)
    assert read(record, SPACE, SOURCE) == FINDING


@pytest.mark.parametrize(
    "changed",
    [
        key_of(replace(SOURCE, text=SOURCE.text + "\n"), "candidates", (256, 512), TARGET),
        key_of(replace(SOURCE, space=SOURCE.space[:2]), "candidates", (256, 512), TARGET),
        key_of(SOURCE, "thorough", (256, 512), TARGET),
        key_of(SOURCE, "candidates", (257, 512), TARGET),
        key_of(SOURCE, "candidates", (256, 512), Target("cuda", "sm_100")),
    ],
)
def test_claim_6_5_the_key_is_the_source_the_candidates_and_the_bucket(changed: Any) -> None:
    assert changed.digest != KEY.digest
    assert key_of(SOURCE, "candidates", (200, 300), TARGET).digest == KEY.digest


def put(*path: int | str, value: object) -> Callable[[dict[str, Any]], object]:
    """Change one place of a body."""

    def change(body: dict[str, Any]) -> None:
        at: Any = body
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value

    return change


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "field missing": lambda b: b.pop("tools"),
    "field too many": lambda b: b.update(more=1),
    "another device": put("device", value="NVIDIA B200"),
    "device no text": put("device", value=7),
    "load": put("busy_percent", value=101),
    "load bool": put("busy_percent", value=True),
    "no config": put("config", value=[]),
    "config no list": put("config", value="XBLOCK"),
    "config outside": put("config", value=[["XBLOCK", 3], ["YBLOCK", 32], ["num_stages", 1], ["num_warps", 4]]),
    "config huge": put("config", 0, value=["XBLOCK", 1 << 40]),
    "config negative": put("config", 0, value=["XBLOCK", -32]),
    "config bool": put("config", 0, value=["XBLOCK", True]),
    "config unsorted": lambda b: b["config"].reverse(),
    "config twice": lambda b: b["config"].append(b["config"][-1]),
    "parameter unknown": put("config", 0, value=["maxnreg", 8]),
    "many parameters": put("config", value=[[f"p{k}", 1] for k in range(1000)]),
    "no measurements": put("measurements", value=[]),
    "too many": lambda b: b.update(measurements=b["measurements"] * 2000),
    "measurements no list": put("measurements", value={"a": 1}),
    "choice not measured": lambda b: b["measurements"].pop(1),
    "choice infinite": lambda b: b.update(config=b["measurements"][2][0]),
    "time negative": put("measurements", 1, 1, value=-1.0),
    "time zero": put("measurements", 1, 1, value=0.0),
    "time nan": put("measurements", 1, 1, value=nan),
    "time infinite": put("measurements", 1, 1, value=inf),
    "time text": put("measurements", 1, 1, value="fast"),
    "time of what failed": put("measurements", 2, 1, value=1.0),
    "noise nan": put("measurements", 1, 2, value=nan),
    "noise negative": put("measurements", 1, 2, value=-0.1),
    "status unknown": put("measurements", 2, 3, value="fine"),
    "repeats negative": put("measurements", 1, 4, value=-1),
    "measurement short": lambda b: b["measurements"][0].pop(),
    "measurement no list": put("measurements", 0, value=None),
    "tools no map": put("tools", value=[]),
    "tools short": lambda b: b["tools"].pop("cxx"),
    "tools long": put("tools", "cxx", value="x" * 10_000),
    "tools number": put("tools", "cxx", value=1),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_doubt_is_a_miss_with_a_reason(name: str) -> None:
    good = record_of(KEY, FINDING)
    whole = f"act/dev/{KIND}/{good.key}/{good.variant}"
    body: dict[str, Any] = dict(Record.decode(good.encode(), whole).body)
    assert read(replace(good, body=body), SPACE, SOURCE) == FINDING
    HOSTILE[name](body)
    with pytest.raises(SchemaError, match="bad tuning record"):
        read(replace(good, body=body), SPACE, SOURCE)


def test_a_choice_of_the_lattice_is_believed() -> None:
    config = next(c for c in SPACE.members if c not in SOURCE.space)
    finding = replace(
        FINDING, config=config, measurements=((config, Measurement(1.0, 0.0, "ok", 9)),)
    )
    assert read(record_of(KEY, finding), SPACE, SOURCE).config == config
    assert config != Config.of(XBLOCK=1)
