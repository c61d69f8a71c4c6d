"""What this machine can run: facts read once, an artifact's constraints against them, the best CPU target they allow."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from stax.artifact.artifact import Constraints
from stax.base.errors import Incompatible
from stax.base.target import CPU_LEVELS, Target, cpu_levels_of


@dataclass(frozen=True)
class Facts:
    """``machine``: "x86_64"; ``cpu_flags``: as /proc/cpuinfo names them, of every core; ``glibc`` and ``torch``: versions;
    ``cuda``: compute capability (9, 0) of each device, empty without CUDA."""

    machine: str
    cpu_flags: frozenset[str]
    glibc: str
    torch: str
    cuda: tuple[tuple[int, int], ...] = ()


def machine_facts(cpuinfo: Path = Path("/proc/cpuinfo")) -> Facts:
    """The facts of the machine that runs this."""
    libc, version = platform.libc_ver()
    return Facts(
        machine=platform.machine(),
        cpu_flags=_common_flags(cpuinfo),
        glibc=version if libc == "glibc" else "",
        torch=torch.__version__.partition("+")[0],
        cuda=_capabilities(),
    )


def _common_flags(cpuinfo: Path) -> frozenset[str]:
    try:
        text = cpuinfo.read_text()
    except OSError:
        return frozenset()
    found = [frozenset(line.split()) for line in re.findall(r"^flags\s*:(.*)$", text, re.MULTILINE)]
    return frozenset.intersection(*found) if found else frozenset()


def _capabilities() -> tuple[tuple[int, int], ...]:
    if not torch.cuda.is_available():
        return ()
    return tuple(torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count()))


def cpu_levels(facts: Facts) -> tuple[str, ...]:
    """psABI levels that this machine runs, weakest first; none on another architecture."""
    return cpu_levels_of(facts.cpu_flags) if facts.machine in ("x86_64", "AMD64") else ()


def best_cpu_target(facts: Facts) -> Target:
    """The strongest CPU target that loads here. Raises Incompatible on an architecture without one."""
    levels = cpu_levels(facts)
    if not levels:
        raise Incompatible("no CPU target for this machine", expected="x86_64", found=facts.machine)
    return Target("cpu", levels[-1])


def check(constraints: Constraints, facts: Facts) -> None:
    """Raises Incompatible, which says what is wanted and what is here, unless every constraint holds."""
    held = cpu_levels(facts)
    if constraints.cpu_level and constraints.cpu_level not in held:
        lacking = "" if constraints.cpu_level in CPU_LEVELS else ", an unknown level"
        _refuse("CPU level", constraints.cpu_level + lacking, held[-1] if held else facts.machine)
    if constraints.glibc and _version(facts.glibc) < _version(constraints.glibc):
        _refuse("glibc", f">= {constraints.glibc}", facts.glibc or "another C library")
    if constraints.torch_min and _version(facts.torch) < _version(constraints.torch_min):
        _refuse("torch", f">= {constraints.torch_min}", facts.torch)
    if constraints.cuda_arch:
        _check_cuda(constraints.cuda_arch, facts)


def _check_cuda(arch: str, facts: Facts) -> None:
    """A cubin runs on its own major capability from its minor upwards, one of sm_90a on 9.0 alone; some device must take
    it."""
    found = re.fullmatch(r"sm_([0-9]{2,3})(a?)", arch, re.ASCII)
    if not found:
        _refuse("CUDA architecture", "sm_<digits>, or that and an a", arch)
    (major, minor), exact = divmod(int(found[1]), 10), bool(found[2])
    fitting = [
        c for c in facts.cuda if c[0] == major and (c[1] == minor if exact else c[1] >= minor)
    ]
    if not fitting:
        here = ", ".join(f"sm_{a}{b}" for a, b in facts.cuda)
        wanted = (
            f"{arch}, which is {major}.{minor} alone"
            if exact
            else f"{arch} or a later one of {major}.x"
        )
        _refuse("CUDA architecture", wanted, here or "no CUDA device")


def _version(text: str) -> tuple[int, ...]:
    """Leading numbers: "2.11.0a0" → (2, 11, 0)."""
    numbers = re.match(r"[0-9]+(\.[0-9]+)*", text, re.ASCII)
    return tuple(int(n) for n in numbers.group().split(".")) if numbers else ()


def _refuse(what: str, expected: str, found: str) -> NoReturn:
    raise Incompatible(
        f"the artifact's {what} does not fit this machine",
        expected=expected,
        found=found,
        hint="compile for this machine's target: stax doctor names it",
    )
