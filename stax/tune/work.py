"""What is handed to the process that measures: a binary with everything a launch of it needs, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from stax.base.errors import SchemaError
from stax.build.wire import pack, unpack

FILLS = ("none", "zero", "normal", "below")


@dataclass(frozen=True)
class Memory:
    """What one pointer leads to: ``elements`` of ``dtype``. ``fill``: "none" for what is only written; "zero"; "normal"
    for random floats; "below" for random integers or bools in 0 .. ``below`` - 1."""

    dtype: str
    elements: int
    fill: str
    below: int = 0


@dataclass(frozen=True)
class Work:
    """One configuration of one kernel, built. ``memory`` in pointer order, ``sizes`` the values of the size parameters."""

    entry: str
    binary: bytes
    meta: tuple[tuple[str, int | str], ...]
    memory: tuple[Memory, ...]
    grid: tuple[int, int, int]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """Time ``work`` for about ``budget_us``, with little patience for what is far slower than ``best_us``; without work,
    forget what is held on the device."""

    work: Work | None
    budget_us: float = 0.0
    best_us: float = 0.0


@dataclass(frozen=True)
class Reply:
    """``times_us`` of single launches where ``status`` is "ok", else why there are none. ``spent``: this process can not
    be used any more."""

    status: str
    times_us: tuple[float, ...] = ()
    detail: str = ""
    spent: bool = False


def pack_request(request: Request) -> bytes:
    work = request.work
    return pack(
        {
            "budget_us": request.budget_us,
            "best_us": request.best_us,
            "work": None
            if work is None
            else {
                "entry": work.entry,
                "binary": work.binary,
                "meta": work.meta,
                "memory": [(m.dtype, m.elements, m.fill, m.below) for m in work.memory],
                "grid": work.grid,
                "sizes": work.sizes,
            },
        }
    )


def unpack_request(body: bytes) -> Request:
    """Raises SchemaError."""
    data = _mapping(body)
    try:
        work = data["work"]
        if work is not None:
            work = Work(
                entry=work["entry"],
                binary=work["binary"],
                meta=tuple((str(n), v) for n, v in work["meta"]),
                memory=tuple(Memory(*m) for m in work["memory"]),
                grid=work["grid"],
                sizes=work["sizes"],
            )
        return Request(work, data["budget_us"], data["best_us"])
    except (KeyError, TypeError, ValueError) as error:
        raise SchemaError("bad measuring request", found=repr(error)) from error


def pack_reply(reply: Reply) -> bytes:
    return pack(
        {
            "status": reply.status,
            "times_us": reply.times_us,
            "detail": reply.detail,
            "spent": reply.spent,
        }
    )


def unpack_reply(body: bytes) -> Reply:
    """Raises SchemaError, also for a good reply without times."""
    data = _mapping(body)
    try:
        times_us = tuple(float(t) for t in data["times_us"])
        reply = Reply(str(data["status"]), times_us, str(data["detail"]), bool(data["spent"]))
    except (KeyError, TypeError, ValueError) as error:
        raise SchemaError("bad measuring reply", found=repr(error)) from error
    if reply.status == "ok" and not all(t > 0 for t in reply.times_us or (0.0,)):
        raise SchemaError(
            "bad measuring reply", expected="times above 0", found=repr(times_us)[:80]
        )
    return reply


def _mapping(body: bytes) -> Mapping[str, Any]:
    data = unpack(body)
    if not isinstance(data, dict):
        raise SchemaError("bad measuring message", expected="a mapping", found=type(data).__name__)
    return cast("Mapping[str, Any]", data)
