"""Memory-bound kernels on a GPU: Stax beside eager, torch.compile and its max-autotune mode, in one run.

    python tests/bench/gpu_kernels.py [--cases NAME,...] [--sides stax,...] [--tune off|default|max] [--json FILE]

``gbs`` is the fewest bytes that the job must move over the median device time of a call; ``copy`` is the rate of a plain copy
measured first. The table ends with the geometric mean of Stax over max-autotune on the peer's cases.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

from gpu_cases import F32, Case, own_cases, peer_cases

import stax
from stax.base.options import Options

SIDES = ("eager", "inductor", "inductor_max", "stax")
Row = dict[str, float | str]


def median_us(work: Callable[[], object]) -> float:
    """Device time of one call, the L2 cache flushed in between."""
    from triton.testing import do_bench

    return float(do_bench(work, warmup=50, rep=200, return_mode="median")) * 1e3


def copy_gbs() -> float:
    x = torch.randn(1 << 30, device="cuda", dtype=F32)
    y = torch.empty_like(x)
    return 2 * x.numel() * 4 / median_us(lambda: y.copy_(x)) / 1e3


def side(name: str, case: Case, tune: str) -> Callable[..., object]:
    if name == "eager":
        return case.fn
    torch._dynamo.reset()
    if name == "inductor":
        return torch.compile(case.fn)
    if name == "inductor_max":
        return torch.compile(case.fn, mode="max-autotune-no-cudagraphs")
    return stax.compile(case.fn, fullgraph=True, options=Options().with_(**tuned(tune)))


def tuned(tune: str) -> dict[str, object]:
    return {} if tune == "off" else {"tune": tune}


def measure(case: Case, sides: list[str], tune: str) -> Row:
    row: Row = {"case": case.name, "bytes": case.least_bytes}
    for name in sides:
        try:
            fn = side(name, case, tune)
            begun = time.perf_counter()
            fn(*case.args)
            torch.cuda.synchronize()
            row[f"{name}_first_s"] = round(time.perf_counter() - begun, 2)
            us = median_us(lambda fn=fn: fn(*case.args))
        except Exception as error:  # whatever one side raises, the others are still measured
            row[f"{name}_error"] = repr(error)[:500]
            continue
        row[f"{name}_us"] = round(us, 1)
        row[f"{name}_gbs"] = round(case.least_bytes / us / 1e3)
    return row


def ratio(row: Row, over: str) -> float | None:
    mine, other = row.get("stax_us"), row.get(f"{over}_us")
    return float(other) / float(mine) if mine and other else None


def show(row: Row, case: Case, copy: float) -> str:
    words = [f"{case.name:26}"]
    words += [f"{row.get(f'{s}_gbs', row.get(f'{s}_error', '-'))!s:>7.7}" for s in SIDES]
    words += [f"{r:6.2f}" if (r := ratio(row, s)) else "     -" for s in SIDES[:3]]
    share = float(row.get("stax_gbs", 0)) / copy
    verdict = (
        ("" if share >= case.share else f"  below {case.share:.2f}") if "stax_gbs" in row else ""
    )
    return " ".join([*words, f"{share:6.3f}{verdict}"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", default="")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--tune", default="off")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_kernels: no CUDA device, nothing to measure")
        return
    wanted = set(args.cases.split(",")) if args.cases else None
    copy = copy_gbs()
    rows: list[Row] = [{"case": "copy", "gbs": round(copy)}]
    print(f"copy {copy:.0f} GB/s")
    print(f"{'GB/s':26} " + " ".join(f"{s[-7:]:>7}" for s in SIDES) + "  stax over each, of copy")
    peers: list[float] = []
    for cases in (peer_cases(), own_cases()):
        for case in cases:
            if wanted is None or case.name in wanted:
                row = measure(case, args.sides.split(","), args.tune)
                rows.append(row)
                print(show(row, case, copy), flush=True)
                if case.peer and (r := ratio(row, "inductor_max")):
                    peers.append(r)
    if peers:
        mean = math.exp(sum(map(math.log, peers)) / len(peers))
        print(f"geometric mean over max-autotune, {len(peers)} cases of the peer: {mean:.3f}")
    if args.json:
        Path(args.json).write_text("".join(json.dumps(r) + "\n" for r in rows))


if __name__ == "__main__":
    main()
