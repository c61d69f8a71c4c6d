"""Building blocks of a wire schema: each Form says how a value becomes plain msgpack data and how it is read back.

A fault raises SchemaError whose ``where`` is the path from the root, as "forward[3].launch.sizes[0]".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

from stax.artifact.reader import Reader, fault, within
from stax.base.errors import SchemaError


@dataclasses.dataclass(frozen=True)
class Form:
    """``pack``: a value to plain data, ``read``: the next items of a stream to a value."""

    pack: Callable[[Any], Any]
    read: Callable[[Reader], Any]


def _scalar(check: Callable[[Any], Any]) -> Form:
    return Form(check, lambda reader: check(reader.scalar()))


def text(most: int) -> Form:
    """A str of at most ``most`` characters."""

    def check(value: Any) -> str:
        if type(value) is not str or len(value) > most:
            fault(f"text of at most {most} characters", brief(value))
        return value

    return _scalar(check)


def integer(least: int, most: int) -> Form:
    """An int within bounds (of 64 bits at most)."""

    def check(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            fault(f"an integer of {least} .. {most}", brief(value))
        return value

    return _scalar(check)


def _check_flag(value: Any) -> bool:
    if type(value) is not bool:
        fault("true or false", brief(value))
    return value


boolean = _scalar(_check_flag)


def brief(value: object) -> str:
    """A value from the wire, cut short for a message."""
    return (
        f"{type(value).__name__} {str(value)[:60]}"
        if isinstance(value, (str, int, float))
        else type(value).__name__
    )


def optional(item: Form) -> Form:
    """None or the scalar that ``item`` accepts."""
    return _scalar(lambda value: None if value is None else item.pack(value))


def either(first: Form, second: Form) -> Form:
    """The scalar that ``first`` (a str) or ``second`` (an int) accepts."""

    def check(value: Any) -> Any:
        return first.pack(value) if type(value) is str else second.pack(value)

    return _scalar(check)


def list_of(item: Form, most: int) -> Form:
    """A tuple of at most ``most`` items."""

    def pack(values: Any) -> list[Any]:
        given = as_tuple(values)
        if len(given) > most:
            fault(f"at most {most} items", len(given))
        return [_packed(item, value, f"[{i}]") for i, value in enumerate(given)]

    def read(reader: Reader) -> tuple[Any, ...]:
        out: list[Any] = []
        try:
            for _ in range(reader.header(0, most)):
                out.append(item.read(reader))
        except SchemaError as error:
            raise within(error, f"[{len(out)}]") from None
        return tuple(out)

    return Form(pack, read)


def as_tuple(values: object) -> tuple[Any, ...]:
    """A value that must be a tuple. Raises SchemaError."""
    if not isinstance(values, tuple):
        fault("a tuple", type(values).__name__)
    return cast(tuple[Any, ...], values)


def _packed(form: Form, value: Any, step: str) -> Any:
    try:
        return form.pack(value)
    except SchemaError as error:
        raise within(error, step) from None


def row(*items: Form) -> Form:
    """A tuple of exactly these items."""

    def pack(values: Any) -> list[Any]:
        given = as_tuple(values)
        if len(given) != len(items):
            fault(f"{len(items)} items", len(given))
        pairs = zip(items, given)
        return [_packed(form, value, f"[{i}]") for i, (form, value) in enumerate(pairs)]

    def read(reader: Reader) -> tuple[Any, ...]:
        reader.header(len(items), len(items))
        out: list[Any] = []
        try:
            for form in items:
                out.append(form.read(reader))
        except SchemaError as error:
            raise within(error, f"[{len(out)}]") from None
        return tuple(out)

    return Form(pack, read)


def record(cls: type, **fields: Form) -> Form:
    """A frozen dataclass as the array of its fields; ``fields`` must name them all, in order."""
    names = tuple(fields)
    assert names == tuple(f.name for f in dataclasses.fields(cls)), cls
    forms = tuple(fields.values())

    def pack(value: Any) -> list[Any]:
        if type(value) is not cls:
            fault(cls.__name__, value.__class__.__name__)
        return [_packed(form, getattr(value, field), field) for field, form in fields.items()]

    def read(reader: Reader) -> Any:
        reader.header(len(forms), len(forms))
        out: list[Any] = []
        try:
            for form in forms:
                out.append(form.read(reader))
        except SchemaError as error:
            raise within(error, names[len(out)]) from None
        return cls(*out)

    return Form(pack, read)


def union(cases: dict[str, tuple[type, Form]]) -> Form:
    """One of several classes, as [tag, data]."""
    tags = {cls: tag for tag, (cls, _) in cases.items()}

    def pack(value: object) -> list[Any]:
        tag = tags.get(type(value))
        if tag is None:
            fault(" | ".join(cases), type(value).__name__)
        return [tag, _packed(cases[tag][1], value, tag)]

    def read(reader: Reader) -> Any:
        reader.header(2, 2)
        tag = reader.scalar()
        if type(tag) is not str or tag not in cases:
            fault(" | ".join(cases), brief(tag))
        try:
            return cases[tag][1].read(reader)
        except SchemaError as error:
            raise within(error, tag) from None

    return Form(pack, read)


def maybe(item: Form) -> Form:
    """None or a value of ``item``, as an array of none or one."""

    def read(reader: Reader) -> Any:
        return item.read(reader) if reader.header(0, 1) else None

    return Form(lambda value: [] if value is None else [item.pack(value)], read)


def nested(form: Callable[[], Form], most: int) -> Form:
    """A form that holds itself, ``most`` levels deep at the utmost."""

    def read(reader: Reader) -> Any:
        if reader.depth >= most:
            fault(f"at most {most} levels", "more")
        reader.depth += 1
        value = form().read(reader)
        reader.depth -= 1
        return value

    return Form(lambda value: form().pack(value), read)
