"""Host time of one call of regions of 1, 3, 8 and 32 kernels: Stax, torch.compile and eager in one process.

    python tests/bench/host.py [--kernels 1,3,8,32] [--sides eager,inductor,stax] [--launcher torch|ctypes] [--json FILE]

``host_us`` is the time to issue a call: bursts short enough for the device's queue, nothing waited for inside, the least of
many. ``wall_us`` is the same with the wait for the device after each burst. Lines of JSON, then ratios to torch.compile.
Without a GPU the same regions run on the CPU, where ``host_us`` holds the kernels too, and torch.compile is left out unless
named.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import stax
from stax.api.compiled import Compiled
from stax.artifact.artifact import Alloc, Arena, Launch, Place
from stax.runtime import launcher

SIZE = 64
BURST = 16
ROUNDS = 200
Row = dict[str, float | int | str]


def region(kernels: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Each softmax runs along the other dimension than the one before, so none can be fused with it."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        for k in range(kernels):
            x = torch.softmax(x, k % 2)
        return x

    return fn


def times_us(fn: Callable[[torch.Tensor], object], x: torch.Tensor) -> tuple[float, float]:
    """(host, wall) of one call."""
    sync = torch.cuda.synchronize if x.is_cuda else lambda: None
    host: list[float] = []
    wall: list[float] = []
    for _ in range(3):
        fn(x)
    for _ in range(ROUNDS):
        sync()
        begun = time.perf_counter()
        for _ in range(BURST):
            fn(x)
        host.append(time.perf_counter() - begun)
        sync()
        wall.append(time.perf_counter() - begun)
    return min(host) / BURST * 1e6, min(wall) / BURST * 1e6


def steps_of(compiled: Compiled, kind: type) -> int:
    """How many steps of a kind the one artifact has."""
    (entry,) = compiled._states.current().dispatcher.entries
    return sum(isinstance(step, kind) for step in entry.executable.artifact.forward)


def side(name: str, fn: Callable[..., object]) -> Callable[..., object]:
    if name == "eager":
        return fn
    if name == "inductor":
        torch._dynamo.reset()
        return torch.compile(fn, fullgraph=True)
    return stax.compile(fn, store="memory:", fullgraph=True)


def measured(name: str, kernels: int, x: torch.Tensor) -> Row:
    fn = region(kernels)
    made = side(name, fn)
    torch.testing.assert_close(made(x), fn(x))
    host, wall = times_us(made, x)  # type: ignore[arg-type]
    row: Row = {"side": name, "device": x.device.type, "region": kernels}
    row |= {"host_us": round(host, 2), "wall_us": round(wall, 2)}
    if isinstance(made, Compiled):
        allocated = steps_of(made, Alloc) + steps_of(made, Arena)
        row |= {"launches": steps_of(made, Launch), "allocations": allocated, "placed": steps_of(made, Place)}  # fmt: skip
        if x.is_cuda:
            row["launcher"] = "torch" if launcher.torch_launcher() else "ctypes"
    return row


def ratios(rows: list[Row]) -> None:
    table = {(r["region"], r["side"]): float(r["host_us"]) for r in rows}
    for kernels in dict.fromkeys(r["region"] for r in rows):
        ours, theirs = table.get((kernels, "stax")), table.get((kernels, "inductor"))
        if ours and theirs:
            print(
                f"{kernels:>3} kernels: stax {ours:8.2f} us, {ours / theirs:5.2f} of torch.compile"
            )


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description="Host time of a call.")
    parser.add_argument("--kernels", default="1,3,8,32")
    parser.add_argument("--sides", default="eager,inductor,stax" if on_gpu else "eager,stax")
    parser.add_argument("--launcher", choices=("torch", "ctypes"), default="torch")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.launcher == "ctypes":
        launcher.torch_launcher = lambda: None  # type: ignore[assignment]
    if not on_gpu:
        print("no GPU here: launches are not measured, the regions run on the CPU")
    x = torch.randn(SIZE, SIZE, device="cuda" if on_gpu else "cpu")
    rows: list[Row] = []
    with torch.no_grad():
        for kernels in map(int, args.kernels.split(",")):
            for name in args.sides.split(","):
                rows.append(measured(name, kernels, x))
                print(json.dumps(rows[-1]), flush=True)
    ratios(rows)
    if args.json:
        args.json.write_text("".join(f"{json.dumps(r)}\n" for r in rows))


if __name__ == "__main__":
    main()
