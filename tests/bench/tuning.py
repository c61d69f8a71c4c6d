"""What tuning costs: seconds of the first call of each memory-bound case, Stax beside max-autotune Inductor, nothing cached.

    python tests/bench/tuning.py [--cases NAME,...] [--sides stax_default,stax_max,inductor_max] [--json FILE]

Every side starts with an empty cache. Stax's cases share one builder and one measuring process, as Inductor's share its
pool. The last lines give the totals, and what each side measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

from gpu_cases import Case, own_cases, peer_cases

import stax
from stax.base.observe import Event
from stax.base.options import Options
from stax.build.local import LocalBuilder
from stax.store import MemoryStore
from stax.tune.isolate import open_measurer

SIDES = ("stax_off", "stax_default", "stax_max", "inductor_max")
Make = Callable[[Case], Callable[..., object]]


class Stax:
    """Compiles with one store, builder and measurer, and counts what happens."""

    def __init__(self, tune: str, folder: str) -> None:
        major, minor = torch.cuda.get_device_capability()
        self.options = Options(tune=tune)
        self.counts: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.store, self.builder = MemoryStore(), LocalBuilder()
        self.measurer = open_measurer(f"sm_{major}{minor}", Path(folder), self.observe)

    def observe(self, event: Event) -> None:
        self.counts[event.name] += 1
        if event.name.startswith("stage."):
            self.seconds[event.name] += float(str(event.fields["seconds"]))

    def __call__(self, case: Case) -> Callable[..., object]:
        return stax.compile(
            case.fn, fullgraph=True, options=self.options, store=self.store, builder=self.builder,
            measurer=self.measurer, observer=self.observe,
        )  # fmt: skip

    def close(self) -> str:
        self.builder.close()
        if self.measurer is not None:
            self.measurer.close()
        stages = ", ".join(f"{n} {s:.1f} s" for n, s in sorted(self.seconds.items()))
        kernels = self.counts["tune.done"] + self.counts["tune.failed"]
        return f"{self.counts['tune.measure']} measurements of {kernels} kernels; {stages}"


def inductor(case: Case) -> Callable[..., object]:
    torch._dynamo.reset()
    return torch.compile(case.fn, mode="max-autotune-no-cudagraphs")


def first_call_s(make: Make, case: Case) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    make(case)(*case.args)
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def run(side: str, cases: Callable[[], Iterator[Case]], folder: str) -> dict[str, float]:
    made = Stax(side.removeprefix("stax_"), folder) if side.startswith("stax") else None
    found: dict[str, float] = {}
    for case in cases():
        try:
            found[case.name] = first_call_s(made or inductor, case)
        except Exception as error:  # whatever one side raises, the rest is still measured
            print(f"{side} {case.name}: {error!r}"[:300])
    if made is not None:
        print(f"{side}: {made.close()}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", default="")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("tuning: no CUDA device, nothing to measure")
        return
    wanted = set(args.cases.split(",")) if args.cases else None

    def cases() -> Iterator[Case]:
        for case in chain(peer_cases(), own_cases()):
            if not wanted or case.name in wanted:
                yield case

    with tempfile.TemporaryDirectory() as folder:
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            os.environ[name] = str(Path(folder) / name.lower())
        found = {side: run(side, cases, folder) for side in args.sides.split(",")}
    both = sorted(set.intersection(*(set(f) for f in found.values())))
    print(f"{'seconds of the first call':28} " + " ".join(f"{s:>13}" for s in found))
    for name in both:
        print(f"{name:28} " + " ".join(f"{f[name]:13.2f}" for f in found.values()))
    totals = {side: sum(f[name] for name in both) for side, f in found.items()}
    print(f"{'total':28} " + " ".join(f"{t:13.2f}" for t in totals.values()))
    if peer := totals.get("inductor_max"):
        ratios = " ".join(f"{t / peer:13.2f}" for t in totals.values())
        print(f"{'over inductor_max':28} {ratios}")
    if args.json:
        Path(args.json).write_text(json.dumps({"cores": os.cpu_count(), "first_call_s": found}))


if __name__ == "__main__":
    main()
