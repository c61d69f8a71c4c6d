"""Options change what is generated and are hashed whole; Debug and Environment never are.

This is the only module of ``stax`` that reads ``os.environ``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from stax.base.errors import OptionError

NUMERICS = ("eager", "fast")
TUNE = ("off", "default", "max")
RANDOM = ("eager", "philox")


def _option(default: object, help: str) -> object:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Options:
    """Everything that may change generated code. Every field enters the request and program keys."""

    numerics: str = _option(
        "eager",
        "eager: round to the storage dtype after each op; fast: keep float32 from one joined op to the next",
    )  # type: ignore[assignment]
    random: str = _option(
        "eager",
        "eager: torch draws random numbers; philox: kernels do, from a seed that torch's generator gives each call",
    )  # type: ignore[assignment]
    fusion: bool = _option(
        True, "fuse computations into kernels; False gives one kernel a computation"
    )  # type: ignore[assignment]
    tune: str = _option(
        "off",
        "launch configurations: off takes the likeliest; default measures the one to six candidates of a kernel; max searches around them too. What was measured is kept in the store",
    )  # type: ignore[assignment]
    strict_native: bool = _option(
        False, "an operator without a lowering rule is an error instead of a call to torch"
    )  # type: ignore[assignment]
    max_specializations: int = _option(
        8, "artifacts kept per request key before new ones run without being kept"
    )  # type: ignore[assignment]
    max_compilations: int = _option(
        256, "compilations of one compiled object before it stops compiling"
    )  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name, allowed in (("numerics", NUMERICS), ("random", RANDOM), ("tune", TUNE)):
            if getattr(self, name) not in allowed:
                raise OptionError(
                    f"bad option {name}",
                    expected=" | ".join(allowed),
                    found=repr(getattr(self, name)),
                )
        for name in ("max_specializations", "max_compilations"):
            if getattr(self, name) < 1:
                raise OptionError(
                    f"bad option {name}",
                    expected="an integer >= 1",
                    found=repr(getattr(self, name)),
                )

    def with_(self, **changes: object) -> Options:
        """A copy with some fields changed. Raises OptionError for a name that is not an option."""
        known = {f.name for f in fields(self)}
        for name in changes:
            if name not in known:
                raise OptionError(
                    "unknown option", expected=", ".join(sorted(known)), found=repr(name)
                )
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Setting:
    """One row of the environment table."""

    name: str
    default: str
    help: str


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "STAX_STORE",
        "",
        "store URL: file:///path, s3://bucket/prefix or memory:; empty means the local tier alone",
    ),
    Setting(
        "STAX_S3_ENDPOINT",
        "",
        "endpoint URL of an S3 server other than AWS, for example http://127.0.0.1:20003",
    ),
    Setting(
        "STAX_FARM", "", "Ray address (host:port, auto or local); empty means a local process pool"
    ),
    Setting("STAX_CACHE_DIR", "~/.cache/stax", "folder of the local tier"),
    Setting("STAX_TIER", "dev", "trust tier that records and tags are written to and read from"),
    Setting("STAX_MODE", "auto", "auto | require-hit | offline"),
    Setting("STAX_JOBS", "0", "processes of the local builder; 0 means one a core"),
    Setting("STAX_BUILD_TIMEOUT_S", "300", "seconds one kernel may take to build"),
    Setting("STAX_CXX", "g++", "C++ compiler of the CPU target"),
    Setting(
        "STAX_DEBUG", "0", "1 stages and times, 2 decisions, 3 IR text, 4 sources, 5 host functions"
    ),
    Setting("STAX_DUMP_DIR", "", "folder that receives the numbered dumps of STAX_DEBUG >= 3"),
)


@dataclass(frozen=True)
class Environment:
    """The settings, read once. Nothing here enters a key."""

    store: str = ""
    s3_endpoint: str = ""
    farm: str = ""
    cache_dir: Path = Path("~/.cache/stax")
    tier: str = "dev"
    mode: str = "auto"
    jobs: int = 0
    build_timeout_s: float = 300.0
    cxx: str = "g++"
    debug: int = 0
    dump_dir: str = ""

    @staticmethod
    def read(environ: Mapping[str, str] | None = None) -> Environment:
        """Parse the STAX_* variables. Raises OptionError naming the variable for a value that does not parse."""
        source = os.environ if environ is None else environ
        raw = {s.name: source.get(s.name, s.default) for s in SETTINGS}
        return Environment(
            store=raw["STAX_STORE"],
            s3_endpoint=raw["STAX_S3_ENDPOINT"],
            farm=raw["STAX_FARM"],
            cache_dir=_folder("STAX_CACHE_DIR", raw["STAX_CACHE_DIR"]),
            tier=checked_tier("STAX_TIER", raw["STAX_TIER"]),
            mode=_choice("STAX_MODE", raw["STAX_MODE"], ("auto", "require-hit", "offline")),
            jobs=_int("STAX_JOBS", raw["STAX_JOBS"], 0),
            build_timeout_s=float(_int("STAX_BUILD_TIMEOUT_S", raw["STAX_BUILD_TIMEOUT_S"], 1)),
            cxx=raw["STAX_CXX"],
            debug=_int("STAX_DEBUG", raw["STAX_DEBUG"], 0),
            dump_dir=raw["STAX_DUMP_DIR"],
        )


def _int(name: str, text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise OptionError(
            "bad environment value", expected=f"an integer >= {least}", found=repr(text), where=name
        )
    return value


def _folder(name: str, text: str) -> Path:
    """Absolute, so that a later chdir does not move it. Empty is as good as unset."""
    default = next(s.default for s in SETTINGS if s.name == name)
    try:
        return Path(text or default).expanduser().absolute()
    except RuntimeError as error:  # neither HOME nor the user database says where home is
        raise OptionError(
            "bad environment value",
            expected="a folder",
            found=repr(text or default),
            where=name,
            hint=f"{error} Set HOME or {name}",
        ) from error


def _choice(name: str, text: str, allowed: tuple[str, ...]) -> str:
    if text not in allowed:
        raise OptionError(
            "bad environment value", expected=" | ".join(allowed), found=repr(text), where=name
        )
    return text


def checked_tier(name: str, text: str) -> str:
    """The tier itself. Raises OptionError, naming where it came from, for a text that names no tier."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", text):
        raise OptionError(
            "bad trust tier", expected="1 to 128 of A-Z a-z 0-9 - _", found=repr(text), where=name
        )
    return text
