"""What ``stax doctor`` finds out: each check looks at one thing and says what to do about it."""

from __future__ import annotations

import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import cast

from stax.artifact.artifact import Constraints
from stax.base.digest import sha256
from stax.base.errors import Incompatible, StaxError
from stax.base.options import Environment
from stax.base.target import CPU_LEVELS, CUDA_ARCHS, Target, Toolchain
from stax.store import Store, layout, open_store

LEAST_PYTHON = (3, 11)
OPENMP = re.compile(r"lib(gomp|omp|iomp5)\b[^/]*$")
OK, ABSENT, BROKEN = "ok", "absent", "broken"


@dataclass(frozen=True)
class Finding:
    """``state``: ok, absent (nobody asked for it) or broken (something that was asked for does not work)."""

    name: str
    state: str
    found: str
    next_step: str = ""


@dataclass(frozen=True)
class Package:
    """``extra`` is the part of the distribution that brings it; "" for what every node needs."""

    name: str
    extra: str = ""


PACKAGES = (
    Package("torch"),
    Package("numpy"),
    Package("msgpack"),
    Package("zstandard"),
    Package("boto3"),
    Package("sympy", "compile"),
    Package("rich", "compile"),
    Package("triton", "triton"),
    Package("ray", "farm"),
)


def python() -> Finding:
    """The interpreter."""
    found = sys.version.split()[0]
    if sys.version_info >= LEAST_PYTHON:
        return Finding("python", OK, found)
    return Finding("python", BROKEN, found, "use Python 3.11 or later")


def package(wanted: Package) -> Finding:
    """Version of an installed package; without importing it."""
    try:
        return Finding(wanted.name, OK, metadata.version(wanted.name))
    except metadata.PackageNotFoundError:
        extra = f"[{wanted.extra}]" if wanted.extra else ""
        state = ABSENT if wanted.extra else BROKEN
        return Finding(wanted.name, state, "not installed", f"pip install 'stax{extra}'")


def tools(toolchain: Toolchain, cxx: str) -> Iterator[Finding]:
    """The compilers that are no Python packages."""
    if toolchain.ptxas:
        yield Finding("ptxas", OK, toolchain.ptxas)
    else:
        yield Finding("ptxas", ABSENT, "not found", "comes with triton: pip install 'stax[triton]'")
    if toolchain.cxx:
        yield Finding("c++", OK, f"{toolchain.cxx} ({shutil.which(cxx)})")
    else:
        yield Finding("c++", ABSENT, f"no {cxx}", "install g++, or name a compiler in STAX_CXX")


def openmp() -> Finding:
    """The library that CPU kernels share their work with: the one that torch has loaded."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    loaded = sorted({line.split()[-1] for line in maps.splitlines() if OPENMP.search(line)})
    if loaded:
        return Finding("openmp", OK, " ".join(Path(path).name for path in loaded))
    return Finding(
        "openmp", BROKEN, "torch loads none", "install a torch that is built with OpenMP"
    )


def cache_folder(environment: Environment) -> Finding:
    """The local tier takes a blob, gives it back, and lets go of it."""
    folder = environment.cache_dir
    return _round_trip(
        "cache folder", folder.as_uri(), environment, "choose another folder with STAX_CACHE_DIR"
    )


def store(url: str, environment: Environment) -> Finding:
    """The same for the store."""
    if not url:
        return Finding("store", ABSENT, "none named", "set STAX_STORE, or give --store URL")
    return _round_trip("store", url, environment, "check the URL, STAX_S3_ENDPOINT and credentials")


def farm(address: str) -> Finding:
    """Connect to the Ray cluster and ask what it has."""
    if not address:
        return Finding("farm", ABSENT, "none named", "set STAX_FARM, or give --ray ADDRESS")
    try:
        # By name: stax never depends on the farm.
        cluster = import_module("farm.cluster")
    except ModuleNotFoundError as error:
        return Finding("farm", BROKEN, str(error), "pip install 'stax[farm]'")
    if address == "local":
        return Finding("farm", OK, "local: started when it is needed")
    connect = cast("Callable[[str], bool]", cluster.connect)
    resources = cast("Callable[[], str]", cluster.resources)
    disconnect = cast("Callable[[], None]", cluster.disconnect)
    try:
        ours = connect(address)
        found = resources()
    except StaxError as error:
        return _broken("farm", error, "start a cluster, or correct the address")
    if ours:
        disconnect()
    return Finding("farm", OK, f"{address}; {found}")


def runnable() -> list[Target]:
    """Targets whose kernels load on this machine, by the very check that loading makes."""
    try:
        # Imports torch, which is what knows the devices.
        from stax.runtime.constraints import check, machine_facts
    except ModuleNotFoundError:
        return []  # without torch nothing runs, and the line of torch says so
    facts = machine_facts()
    found: list[Target] = []
    for target in known_targets():
        arch = {"cpu_level" if target.kind == "cpu" else "cuda_arch": target.arch}
        try:
            check(Constraints(**arch), facts)
        except Incompatible:
            continue
        found.append(target)
    return found


def known_targets() -> list[Target]:
    """Every target there is a name for."""
    return [
        *(Target("cpu", level) for level in CPU_LEVELS),
        *(Target("cuda", arch) for arch in CUDA_ARCHS),
    ]


def _broken(name: str, error: StaxError, next_step: str) -> Finding:
    """The error's own hint is the next step, where it has one."""
    told = StaxError(error.what, expected=error.expected, found=error.found, where=error.where)
    return Finding(name, BROKEN, str(told), error.hint or next_step)


def _round_trip(name: str, url: str, environment: Environment, next_step: str) -> Finding:
    raw = secrets.token_bytes(32)
    blob = layout.cas(sha256(raw))
    try:
        opened = open_store(url, s3_endpoint=environment.s3_endpoint)
        try:
            _write_read_delete(opened, blob, raw)
        finally:
            opened.close()
    except StaxError as error:
        return _broken(name, error, next_step)
    return Finding(name, OK, f"{url}: wrote, read and deleted a blob")


def _write_read_delete(opened: Store, blob: str, raw: bytes) -> None:
    opened.put(blob, raw)
    try:
        opened.get(blob)
    finally:
        opened.delete(blob)
