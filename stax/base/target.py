"""What a kernel is compiled for (Target) and with which tools (Toolchain). Both are frozen and hashed into keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stax.base.errors import OptionError

CPU_LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
CUDA_ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")

# What each psABI level promises (System V x86-64 psABI, table 3.1), in the names of /proc/cpuinfo.
CPU_LEVEL_FLAGS: Mapping[str, frozenset[str]] = {
    "x86-64": frozenset[str](),
    "x86-64-v2": frozenset("cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3".split()),
    "x86-64-v3": frozenset("avx avx2 bmi1 bmi2 f16c fma abm movbe".split()),
    "x86-64-v4": frozenset("avx512f avx512bw avx512cd avx512dq avx512vl".split()),
}


@dataclass(frozen=True, order=True)
class Target:
    """``kind`` is "cpu" or "cuda"; ``arch`` a psABI level or an sm_ name; ``features`` sorted extra ISA names."""

    kind: str
    arch: str
    features: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ":".join((self.kind, self.arch, *self.features))

    @staticmethod
    def parse(text: str) -> Target:
        """Read "cpu:x86-64-v3" or "cuda:sm_90". Raises OptionError for an unknown kind or arch."""
        kind, _, rest = text.partition(":")
        arch, *features = rest.split(":") if rest else [""]
        known = {"cpu": CPU_LEVELS, "cuda": CUDA_ARCHS}.get(kind)
        if known is None:
            raise OptionError(
                "unknown target kind",
                expected="cpu:<level> or cuda:<arch>",
                found=repr(text),
                hint="for example cpu:x86-64-v3 or cuda:sm_90",
            )
        if arch not in known:
            raise OptionError(
                f"unknown {kind} arch",
                expected=" | ".join(known),
                found=repr(arch),
                where=f"target {text!r}",
                hint=f"write {kind}:{known[-2]}",
            )
        return Target(kind, arch, tuple(sorted(features)))


def cpu_levels_of(flags: frozenset[str]) -> tuple[str, ...]:
    """The psABI levels that a CPU with these /proc/cpuinfo flags runs, weakest first."""
    held: list[str] = []
    for level in CPU_LEVELS:
        if not CPU_LEVEL_FLAGS[level] <= flags:
            break
        held.append(level)
    return tuple(held)


@dataclass(frozen=True, order=True)
class Toolchain:
    """Versions of what changes bytes; an empty field means "not involved"."""

    stax: str = ""
    torch: str = ""
    triton: str = ""
    ptxas: str = ""
    cxx: str = ""

    def for_kernel(self, kind: str) -> Toolchain:
        """The part that can change the bytes of one kernel: the compiler of its target kind alone."""
        if kind == "cuda":
            return Toolchain(triton=self.triton, ptxas=self.ptxas)
        return Toolchain(cxx=self.cxx)
