"""Tuning records in a store: what was measured for a kernel, and the configuration that was chosen.

    act/<tier>/tuning/<key>/<digest of the device's name>  →  body: device, config, measurements, tools, load

The key says what was searched, the variant on which device. A record is read as if a stranger had written it: what does
not fit the source at hand is a miss with a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import NoReturn, cast

from stax.artifact.keys import Key
from stax.base.digest import digest
from stax.base.errors import SchemaError
from stax.base.target import Target, Toolchain
from stax.ir.source import Config, Source
from stax.store import layout
from stax.store.forms import Record
from stax.store.records import Records
from stax.tune.measurement import STATUSES, Measurement, failed
from stax.tune.space import Space, power_above

KIND = "tuning"
MOST_MEASUREMENTS = 4096
_MOST_PARAMETERS = 16
_MOST_TEXT = 200
_MOST_US = 1e9
_FIELDS = {"device", "config", "measurements", "tools", "busy_percent"}


@dataclass(frozen=True)
class Finding:
    """``config`` is the choice among what was measured on ``device``; ``tools`` and ``busy_percent`` are for the reader."""

    device: str
    config: Config
    measurements: tuple[tuple[Config, Measurement], ...]
    tools: Toolchain
    busy_percent: int | None = None


def key_of(source: Source, strategy: str, sizes: Sequence[int], target: Target) -> Key:
    """The tuning key. Sizes count by the power of two above them: text with fixed sizes differs anyway."""
    return Key.of(
        KIND,
        {
            "source": (source.language, source.entry, source.text, source.params),
            "candidates": source.space,
            "strategy": strategy,
            "sizes": tuple(power_above(n) for n in sizes),
            "target": target,
        },
    )


def variant_of(device: str) -> str:
    """The variant of a device's records."""
    return digest(device, "tuning/device")


def record_of(key: Key, finding: Finding) -> Record:
    """The record of a finding."""
    body: dict[str, object] = {
        "device": finding.device,
        "config": _values(finding.config),
        "measurements": [
            [_values(c), m.time_us if m.is_finite else None, m.noise, m.status, m.repeats]
            for c, m in finding.measurements
        ],
        "tools": asdict(finding.tools),
        "busy_percent": finding.busy_percent,
    }
    return Record(KIND, key.digest, variant_of(finding.device), body)


def publish(records: Records, key: Key, finding: Finding, space: Space, source: Source) -> None:
    """Store a finding; one that stands there and can be read stays. Raises StoreError."""
    record = record_of(key, finding)
    if records.publish(record):
        return
    for held in records.find(KIND, key.digest):
        if held.variant != record.variant:
            continue
        try:
            read(held, space, source)
            return
        except SchemaError:
            break
    # What stands there is whole, but no finding: it would be a miss for ever.
    name = layout.act(records.tier, KIND, record.key, record.variant)
    records.store.heal(name, record.encode())


def read(record: Record, space: Space, source: Source) -> Finding:
    """The finding of a record. Raises SchemaError when it is not one about this source."""
    body, where = record.body, f"tuning record {record.key[:12]}"
    if set(body) != _FIELDS:
        _bad(where, ", ".join(sorted(_FIELDS)), sorted(body))
    device, busy = body["device"], body["busy_percent"]
    if not isinstance(device, str) or variant_of(device) != record.variant:
        _bad(where, "the device of its variant", device)
    if busy is not None and (type(busy) is not int or not 0 <= busy <= 100):
        _bad(where, "a load in percent", busy)
    items = _items(body["measurements"])
    if not 0 < len(items) <= MOST_MEASUREMENTS:
        _bad(where, f"1 to {MOST_MEASUREMENTS} measurements", body["measurements"])
    measured = tuple(_measured(item, where) for item in items)
    config = _config(body["config"], where)
    if config not in source.space and config not in space:
        _bad(where, "a configuration of this kernel", config.values)
    if not any(c == config and m.is_finite for c, m in measured):
        _bad(where, "the choice among what was measured", config.values)
    return Finding(device, config, measured, _tools(body["tools"], where), busy)


def _values(config: Config) -> list[list[object]]:
    return [[name, value] for name, value in config.values]


def _config(value: object, where: str) -> Config:
    pairs = _items(value)
    if not 0 < len(pairs) <= _MOST_PARAMETERS:
        _bad(where, f"1 to {_MOST_PARAMETERS} parameters", value)
    found: list[tuple[str, int]] = []
    for pair in pairs:
        match pair:
            case [str(name), int(number)] if type(number) is int and 0 < number < 1 << 31:
                found.append((name[:_MOST_TEXT], number))
            case _:
                _bad(where, "a name and a number above 0", pair)
    config = Config(tuple(found))
    if found != sorted(dict(found).items()):
        _bad(where, "sorted names, each once", config.values)
    return config


def _measured(value: object, where: str) -> tuple[Config, Measurement]:
    items = _items(value)
    match items[1:]:
        case [float(time_us), float(noise), "ok", int(repeats)] if (
            isfinite(noise) and 0 < time_us < _MOST_US and noise >= 0 and repeats >= 0
        ):
            return _config(items[0], where), Measurement(time_us, noise, "ok", repeats)
        case [None, float(noise), str(status), int()] if status in STATUSES and status != "ok":
            return _config(items[0], where), failed(status)
        case _:
            _bad(where, "[config, time or None, noise, status, repeats]", value)


def _tools(value: object, where: str) -> Toolchain:
    data: dict[str, object] = {}
    if isinstance(value, dict):
        data = cast("dict[str, object]", value)
    texts = {n: t for n, t in data.items() if isinstance(t, str) and len(t) <= _MOST_TEXT}
    if set(texts) != set(asdict(Toolchain())) or len(texts) != len(data):
        _bad(where, "versions of tools", data)
    return Toolchain(**texts)


def _items(value: object) -> list[object]:
    """Nothing for what is no list."""
    return cast("list[object]", value) if isinstance(value, list) else []


def _bad(where: str, expected: str, found: object) -> NoReturn:
    told = repr(found)[:_MOST_TEXT]
    raise SchemaError("bad tuning record", expected=expected, found=told, where=where)
