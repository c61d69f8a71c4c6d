"""One job in this process: check the tools, call the compiler of its language, type the result."""

from __future__ import annotations

import importlib
import re
import time
import traceback
from dataclasses import dataclass, fields

from stax.base.errors import BuildTimeout, CompilerFailed
from stax.base.target import Toolchain
from stax.build.job import BuildResult, Built, Failed, Job
from stax.build.toolchain import local_toolchain


@dataclass(frozen=True)
class Compiler:
    """One row: a function ``job -> (binary, meta)`` as "module:name", imported when first needed."""

    language: str
    function: str
    takes_cxx: bool = False


COMPILERS = (
    Compiler("cpp", "stax.build.cpp:compile_cpp", takes_cxx=True),
    Compiler("triton", "stax.build.triton:compile_triton"),
)

# What g++ says of its cc1plus, and what our callers of g++ and ptxas say of these.
_KILLED = re.compile(r"Killed signal terminated program|(exit status|answered) -9$", re.MULTILINE)


def compile_job(job: Job, *, cxx: str, toolchain: Toolchain | None = None) -> BuildResult:
    """Compile here and now, without a time-out; never raises for a failing job.

    ``toolchain`` is this machine's (:func:`local_toolchain` when not handed in).
    """
    key = job.key.digest
    mine = (toolchain or local_toolchain(cxx)).for_kernel(job.target.kind)
    compiler = next((c for c in COMPILERS if c.language == job.language), None)
    if compiler is None:
        return Failed(key, "toolchain", f"no compiler for language {job.language!r}", "", job.text)
    if mine != job.toolchain:
        return Failed(key, "toolchain", toolchain_mismatch(job.toolchain, mine), "", job.text)
    begun = time.perf_counter()
    try:
        data, meta = _call(compiler, job, cxx)
    except CompilerFailed as error:
        kind = "worker-lost" if _was_killed(error) else "compiler"
        return Failed(key, kind, error.what, error.found, job.text)
    except BuildTimeout as error:
        return Failed(key, "timeout", error.what, error.found, job.text)
    except ModuleNotFoundError as error:
        message = f"the {job.language} compiler is not installed here: {error}"
        return Failed(key, "toolchain", message, "", job.text)
    except Exception as error:
        # Broad because compilers raise anything: one refused text must not end the worker that serves the others.
        message = f"the {job.language} compiler raised {type(error).__name__}: {error}"
        return Failed(key, "compiler", message, traceback.format_exc(), job.text)
    return Built(key, data, tuple(sorted(meta.items())), time.perf_counter() - begun)


def _was_killed(error: CompilerFailed) -> bool:
    """Whether the compiler was ended with kill -9, as when memory runs out: that says nothing about the text."""
    return _KILLED.search(f"{error.what}\n{error.found}") is not None


def toolchain_mismatch(expected: Toolchain, found: Toolchain) -> str:
    """One line that names the tools that differ."""
    pairs = [(f.name, getattr(expected, f.name), getattr(found, f.name)) for f in fields(Toolchain)]
    told = [
        f"{name}: expected {want or 'none'}, found {have or 'none'}"
        for name, want, have in pairs
        if want != have
    ]
    return "this machine builds with other tools; " + "; ".join(told)


def _call(compiler: Compiler, job: Job, cxx: str) -> tuple[bytes, dict[str, int | str]]:
    # Imported here because triton costs a second that a worker for C++ never needs.
    module, _, name = compiler.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    return function(job, cxx=cxx) if compiler.takes_cxx else function(job)
