"""A build job and its typed result. A job is plain data, idempotent, and carries all that a builder needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from stax.artifact.keys import Key
from stax.base.target import Target, Toolchain
from stax.ir.source import Config, Param, Source


@dataclass(frozen=True)
class Job:
    """Compile ``text`` in ``language`` ("cpp" → .so, "triton" → cubin) for ``target`` with ``config``.

    ``toolchain`` holds only the compiler of that target kind (see Toolchain.for_kernel); a builder whose own
    differs must answer Failed("toolchain").
    """

    language: str
    entry: str
    text: str
    params: tuple[Param, ...]
    config: Config
    target: Target
    toolchain: Toolchain
    timeout_s: float = 300.0

    @property
    def key(self) -> Key:
        """The kernel key: source text, parameters, config, target and toolchain, hashed whole."""
        return Key.of(
            "kernel",
            {
                "source": (self.language, self.entry, self.text, self.params),
                "config": self.config,
                "target": self.target,
                "toolchain": self.toolchain,
            },
        )


def job_of(
    source: Source, config: Config, target: Target, toolchain: Toolchain, timeout_s: float
) -> Job:
    """The build job of a source under one configuration."""
    return Job(
        language=source.language,
        entry=source.entry,
        text=source.text,
        params=source.params,
        config=config,
        target=target,
        toolchain=toolchain.for_kernel(target.kind),
        timeout_s=timeout_s,
    )


@dataclass(frozen=True)
class Built:
    """``data`` is the binary; ``meta`` what a launcher needs (plain ints and strings, e.g. shared_bytes, num_warps,
    symbol, registers, spills); ``seconds`` the compiler's own wall time."""

    key: str
    data: bytes
    meta: tuple[tuple[str, int | str], ...]
    seconds: float


@dataclass(frozen=True)
class Failed:
    """``kind``: compiler | timeout | worker-lost | toolchain | store. ``log`` is the compiler's own output, ``text``
    the source that was refused; both are kept so that a failure can be replayed anywhere."""

    key: str
    kind: str
    message: str
    log: str
    text: str


BuildResult = Built | Failed


class Builder(Protocol):
    """Turns jobs into binaries.

    ``build`` yields exactly one result a distinct key, in any order, as they finish; it raises only for misuse,
    never for a failing job. Equal keys in one call are built once. It may be called from several threads. Closing the
    iterator early cancels what has not begun. The builder retries lost workers itself; a compiler error is not retried.
    """

    def build(self, jobs: Sequence[Job]) -> Iterator[BuildResult]: ...

    def close(self) -> None: ...
