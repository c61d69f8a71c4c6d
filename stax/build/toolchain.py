"""The compilers of this machine, as a Toolchain. Reads versions without importing torch or triton.

Costs one run of the C++ compiler and one of ptxas (20 ms together): call it once at the rim and pass the value along.
"""

from __future__ import annotations

import re
import subprocess
from importlib import metadata, util
from pathlib import Path

from stax.base.target import Toolchain
from stax.base.version import VERSION

_PROBE_LIMIT_S = 20.0


def local_toolchain(cxx: str = "g++") -> Toolchain:
    """What this machine builds with; a field is "" where the tool is absent."""
    return Toolchain(
        stax=VERSION,
        torch=_package_version("torch"),
        triton=_package_version("triton"),
        ptxas=_ptxas_version(),
        cxx=_cxx_version(cxx),
    )


def _package_version(name: str) -> str:
    """The public part of an installed version: the local suffix ("+cpu") names a build of the same sources."""
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""


def _ptxas_version() -> str:
    """The version of the ptxas that triton bundles, found by its place in the package."""
    spec = util.find_spec("triton")
    if spec is None or not spec.submodule_search_locations:
        return ""
    ptxas = Path(spec.submodule_search_locations[0]) / "backends" / "nvidia" / "bin" / "ptxas"
    found = re.search(r"\bV(\d+(?:\.\d+)+)", _output_of([str(ptxas), "--version"]))
    return found.group(1) if found else ""


def _cxx_version(cxx: str) -> str:
    """ "g++ 12.2.0": the compiler's own name, without its folder or a version suffix, and its full version."""
    # NOTE: clang refuses -dumpfullversion, and old g++ answers only the major number to -dumpversion alone.
    for flags in (["-dumpfullversion", "-dumpversion"], ["-dumpversion"]):
        version = _output_of([cxx, *flags]).strip()
        if re.fullmatch(r"\d+(\.\d+)*", version):
            return f"{re.sub(r'-[0-9.]+$', '', Path(cxx).name)} {version}"
    return ""


def _output_of(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_PROBE_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
