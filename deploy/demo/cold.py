"""A node that can not compile: pulls the demo's models by tag, runs them, and compares with eager.

    python cold.py STORE FOLDER TARGET MODEL...

Fails when a result is off, a compiler was reachable, something was traced or built, or one of the compilers' packages
was imported.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
BEGUN = time.perf_counter()
SPAWNED: list[str] = []
COMPILERS = ("g++", "gcc", "c++", "cc", "clang++", "ptxas", "nvcc")
FORBIDDEN = (
    "triton",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "stax.capture",
    "stax.build.local",
)


def watch_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: whatever starts a process is noted."""
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"):
        SPAWNED.append(f"{event} {arguments[:1]}")


def timed(run: Callable[[], T]) -> tuple[T, float]:
    begun = time.perf_counter()
    result = run()
    return result, time.perf_counter() - begun


def error(found: Any, exact: Any) -> float:
    """Largest difference from the float64 result, relative to its largest value."""
    return float((found.double() - exact).abs().max() / exact.abs().max())


def run_model(name: str, store: str, folder: Path, target: str) -> dict[str, object]:
    """Pull, load, call; the figures of one model."""
    import torch

    import stax
    from stax.store import Counters

    known = torch.load(folder / f"{name}.pt", weights_only=True)
    calls = [((call["ids"],), call["keywords"]) for call in known["calls"]]
    counters = Counters()
    tag = f"demo-{name}"
    report, pull_s = timed(lambda: stax.pull(tag, target=target, store=store, observer=counters))
    model, load_s = timed(
        lambda: stax.load(
            tag, target=target, store=store, state_dict=known["state"], observer=counters
        )
    )
    (args, kwargs), *others = calls
    first, first_call_s = timed(lambda: model(*args, **kwargs)[0])
    _, second_call_s = timed(lambda: model(*args, **kwargs))
    found = [first, *(model(*a, **k)[0] for a, k in others)]
    eager = json.loads((folder / f"{name}.eager.json").read_text())
    warmed = json.loads((folder / f"{name}.warm.json").read_text())[0]
    read = counters.read()
    return {
        "pull": f"{pull_s * 1e3:.0f} ms",
        "load": f"{load_s * 1e3:.0f} ms",
        "first call": f"{first_call_s * 1e3:.1f} ms",
        "second call": f"{second_call_s * 1e3:.1f} ms",
        "eager, first call": f"{eager['first_call_s'] * 1e3:.1f} ms",
        "pull to first output / eager's first call": f"{(pull_s + load_s + first_call_s) / eager['first_call_s']:.2f}",
        "kernels warmed, all targets": f"{warmed['kernels_total']} ({warmed['kernels_built']} built now)",
        "kernels here": sum(len(a.binaries) for a in model.artifacts),
        "bytes pulled": report.bytes,
        "objects read, local tier": read.get("local.get.ok", 0),
        "objects read, remote tier": read.get("remote.get.ok", 0),
        "sequence lengths": ", ".join(str(call["ids"].shape[1]) for call in known["calls"]),
        "largest error": f"{max(map(error, found, known['exact'])):.1e}",
        "eager's own error": f"{max(map(error, known['outputs'], known['exact'])):.1e}",
    }


def table(columns: dict[str, dict[str, object]]) -> str:
    rows = list(next(iter(columns.values())))
    width = max(map(len, rows))
    lines = [" " * width + "".join(f"{name:>18}" for name in columns)]
    lines += [
        f"{row:{width}}" + "".join(f"{c[row]!s:>18}" for c in columns.values()) for row in rows
    ]
    return "\n".join(lines)


def complaints(columns: dict[str, dict[str, object]]) -> list[str]:
    """What is off; empty when all is well."""
    found = [f"{name} was imported" for name in FORBIDDEN if name in sys.modules]
    found += [f"{name} is on the path" for name in COMPILERS if shutil.which(name)]
    found += [f"a process was started: {what}" for what in SPAWNED]
    for name, column in columns.items():
        allowed = 2 * float(str(column["eager's own error"]))
        if not float(str(column["largest error"])) <= allowed:
            found.append(f"{name}: the error is more than twice eager's own")
    return found


def main(store: str, folder: Path, target: str, names: list[str]) -> int:
    sys.addaudithook(watch_processes)
    _, torch_s = timed(lambda: __import__("torch"))
    _, stax_s = timed(lambda: __import__("stax.api"))
    columns = {name: run_model(name, store, folder, target) for name in names}
    print(f"import torch {torch_s:.2f} s, import stax.api {stax_s:.2f} s\n")
    print(table(columns))
    found = complaints(columns)
    for what in found:
        print(f"FAILED: {what}", file=sys.stderr)
    absent = ", ".join(FORBIDDEN[:4])
    if not found:
        print(f"\nno compiler on the path, no process started, none imported of {absent}")
    print(f"the whole process: {time.perf_counter() - BEGUN:.2f} s")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:]))
