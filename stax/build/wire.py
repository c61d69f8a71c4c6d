"""Jobs and results as msgpack of plain data, and length-prefixed frames on a pipe. No pickle.

Between a builder and its workers only; both sides run the same Stax.
"""

from __future__ import annotations

import os
import struct
from typing import Any, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]

from stax.base.errors import SchemaError
from stax.base.target import Target, Toolchain
from stax.build.job import BuildResult, Built, Failed, Job
from stax.ir.source import Config, Param

_codec: Any = msgpack  # it has no types
_LENGTH = struct.Struct("<Q")
MAX_FRAME_BYTES = 1 << 30


def pack(data: object) -> bytes:
    """msgpack bytes of plain data."""
    return cast("bytes", _codec.packb(data, use_bin_type=True))


def unpack(blob: bytes) -> object:
    """The plain data of :func:`pack`; sequences come back as tuples. Raises SchemaError for other bytes."""
    try:
        return cast("object", _codec.unpackb(blob, raw=False, use_list=False, strict_map_key=True))
    except (ValueError, msgpack.UnpackException) as error:
        raise SchemaError("not a build message", expected="msgpack", found=str(error)) from error


def pack_job(job: Job) -> bytes:
    """The bytes of a job; equal jobs give equal bytes."""
    return pack(
        {
            "language": job.language,
            "entry": job.entry,
            "text": job.text,
            "params": [(p.kind, p.name, p.dtype, p.divisible16) for p in job.params],
            "config": job.config.values,
            "target": (job.target.kind, job.target.arch, job.target.features),
            "toolchain": (
                job.toolchain.stax,
                job.toolchain.torch,
                job.toolchain.triton,
                job.toolchain.ptxas,
                job.toolchain.cxx,
            ),
            "timeout_s": float(job.timeout_s),
        }
    )


def unpack_job(blob: bytes) -> Job:
    """The job of :func:`pack_job`. Raises SchemaError."""
    data = _mapping(blob)
    try:
        return Job(
            language=data["language"],
            entry=data["entry"],
            text=data["text"],
            params=tuple(Param(*p) for p in data["params"]),
            config=Config(data["config"]),
            target=Target(*data["target"]),
            toolchain=Toolchain(*data["toolchain"]),
            timeout_s=data["timeout_s"],
        )
    except (KeyError, TypeError) as error:
        raise SchemaError("bad job message", found=repr(error)) from error


def pack_result(result: BuildResult) -> bytes:
    """The bytes of a result, without ``Failed.text``: the asker holds the job."""
    if isinstance(result, Built):
        return pack(
            {"key": result.key, "data": result.data, "meta": result.meta, "seconds": result.seconds}
        )
    return pack(
        {"key": result.key, "kind": result.kind, "message": result.message, "log": result.log}
    )


def unpack_result(blob: bytes, job: Job) -> BuildResult:
    """The result of :func:`pack_result`, with the source text of ``job`` put back. Raises SchemaError."""
    data = _mapping(blob)
    try:
        if "data" in data:
            return Built(data["key"], data["data"], tuple(data["meta"]), data["seconds"])
        return Failed(data["key"], data["kind"], data["message"], data["log"], job.text)
    except (KeyError, TypeError) as error:
        raise SchemaError("bad result message", found=repr(error)) from error


def _mapping(blob: bytes) -> dict[str, Any]:
    data = unpack(blob)
    if not isinstance(data, dict):
        raise SchemaError("bad build message", expected="a mapping", found=type(data).__name__)
    return cast("dict[str, Any]", data)


def frame(body: bytes) -> bytes:
    """``body`` behind its length."""
    return _LENGTH.pack(len(body)) + body


def frame_length(head: bytes) -> int:
    """The length that eight bytes announce. Raises SchemaError past the bound: something else wrote to the pipe."""
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise SchemaError(
            "frame too long", expected=f"<= {MAX_FRAME_BYTES} bytes", found=str(length)
        )
    return length


FRAME_HEAD_BYTES = _LENGTH.size


def read_frame(fd: int) -> bytes | None:
    """The next frame of a blocking pipe, or None at its end."""
    head = _read_exactly(fd, FRAME_HEAD_BYTES)
    return None if head is None else _read_exactly(fd, frame_length(head))


def write_frame(fd: int, body: bytes) -> None:
    """Write one frame to a blocking pipe."""
    view = memoryview(frame(body))
    while view:
        view = view[os.write(fd, view) :]


def _read_exactly(fd: int, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = os.read(fd, min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
