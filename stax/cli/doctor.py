"""``stax doctor``: what is installed, reachable and writable, and which targets this machine builds and runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from stax.base.options import Environment
from stax.base.target import Target, Toolchain
from stax.build.job import BuildResult, Built, Failed, Job
from stax.cli import checks
from stax.cli.checks import BROKEN, OK, Finding
from stax.ir.source import Config

CANARIES = {
    "cpu": ("cpp", 'extern "C" void canary(float *x) { x[0] += 1.0f; }\n'),
    "cuda": (
        "triton",
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef canary():\n    pass\n",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="URL", help="store that must answer (STAX_STORE)")
    parser.add_argument("--ray", metavar="ADDRESS", help="cluster that must answer (STAX_FARM)")
    parser.add_argument(
        "--build", metavar="TARGET", action="append", default=[], help="must be buildable here"
    )
    parser.add_argument(
        "--run", metavar="TARGET", action="append", default=[], dest="runs", help="must run here"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    environment = Environment.read()
    builds = [Target.parse(text) for text in arguments.build]
    runs = [Target.parse(text) for text in arguments.runs]
    findings = examine(
        environment,
        environment.store if arguments.store is None else arguments.store,
        environment.farm if arguments.ray is None else arguments.ray,
        builds,
        runs,
    )
    print(
        json.dumps([asdict(f) for f in findings], indent=2) if arguments.json else table(findings)
    )
    return 1 if any(f.state == BROKEN for f in findings) else 0


def examine(
    environment: Environment,
    store_url: str,
    farm_address: str,
    builds: Sequence[Target],
    runs: Sequence[Target],
) -> list[Finding]:
    """All checks, in the order in which things are needed."""
    # Runs g++ and ptxas; the other verbs never need it.
    from stax.build.toolchain import local_toolchain

    toolchain = local_toolchain(environment.cxx)
    return [
        checks.python(),
        *(checks.package(p) for p in checks.PACKAGES),
        *checks.tools(toolchain, environment.cxx),
        checks.cache_folder(environment),
        checks.store(store_url, environment),
        checks.farm(farm_address),
        *_builds(toolchain, environment.cxx, builds),
        *_runs(runs),
        checks.openmp(),
    ]


def table(findings: Sequence[Finding]) -> str:
    """A line each: state, name, what was found, and the next step where there is one."""
    width = max(len(f.name) for f in findings)
    lines: list[str] = []
    for f in findings:
        step = f" → {f.next_step}" if f.next_step and f.state != OK else ""
        lines.append(f"{f.state:6}  {f.name:{width}}  {f.found}{step}")
    return "\n".join(lines)


def _builds(toolchain: Toolchain, cxx: str, asked: Sequence[Target]) -> list[Finding]:
    """One line a kind for what nobody asked about, one a target for what somebody did."""
    findings: list[Finding] = []
    for kind in CANARIES:
        targets = [t for t in checks.known_targets() if t.kind == kind]
        results = {t: _build(t, toolchain, cxx) for t in targets}
        built = [t.arch for t, result in results.items() if isinstance(result, Built)]
        if built:
            findings.append(Finding(f"builds {kind}", OK, " ".join(built)))
        else:
            why = _why(results[targets[0]])
            findings.append(
                Finding(f"builds {kind}", checks.ABSENT, why, _remedy(results[targets[0]]))
            )
        findings += [
            Finding(f"build {t}", OK, "builds")
            if t.arch in built
            else Finding(f"build {t}", BROKEN, _why(results[t]), _remedy(results[t]))
            for t in asked
            if t.kind == kind
        ]
    return findings


def _build(target: Target, toolchain: Toolchain, cxx: str) -> BuildResult:
    """A real build of a kernel that does nothing."""
    # Imports the compiler of the kind, for triton a second.
    from stax.build.compile import compile_job

    language, text = CANARIES[target.kind]
    job = Job(language, "canary", text, (), Config(()), target, toolchain.for_kernel(target.kind))
    return compile_job(job, cxx=cxx, toolchain=toolchain)


def _why(result: BuildResult) -> str:
    return "builds" if isinstance(result, Built) else result.message.splitlines()[0]


def _remedy(result: BuildResult) -> str:
    if isinstance(result, Failed) and result.kind == "toolchain":
        return "install g++ for cpu, 'stax[triton]' for cuda"
    return "the installed compiler does not know this target: a newer one may"


def _runs(asked: Sequence[Target]) -> list[Finding]:
    runnable = checks.runnable()
    findings: list[Finding] = []
    for kind in CANARIES:
        archs = [target.arch for target in runnable if target.kind == kind]
        if archs:
            findings.append(Finding(f"runs {kind}", OK, " ".join(archs)))
        else:
            findings.append(
                Finding(f"runs {kind}", checks.ABSENT, "nothing here runs it", _machine(kind))
            )
    for target in asked:
        name = f"run {target}"
        if target in runnable:
            findings.append(Finding(name, OK, "runs"))
        else:
            findings.append(Finding(name, BROKEN, "nothing here runs it", _machine(target.kind)))
    return findings


def _machine(kind: str) -> str:
    if kind == "cuda":
        return "use a machine with such a device, and a torch that sees it"
    return "use a machine with such a CPU"
