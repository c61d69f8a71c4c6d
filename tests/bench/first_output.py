"""From ``import stax`` done to the first output of GPT-2 (12 layers, 768) on a cold node, over eager's own first call.

    python tests/bench/first_output.py [ROUNDS]

One line a round, then the median ratio. Each side runs in fresh processes, in turn, so that noise meets both; the cold
process has an empty path and an empty cache. The bar is 3.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
BAR = 3.0
MODEL = """
import torch
from families import gpt2
model = gpt2().requires_grad_(False)
ids = torch.arange(64).reshape(1, 64) * 31
keywords = {"use_cache": False, "return_dict": False}
"""
PREPARE = """
import stax
folder, store = sys.argv[1:]
stax.warm(model, (ids,), keywords, targets=[str(best_cpu_target(machine_facts()))], store=store, tag="gpt2")
torch.save({**dict(model.named_parameters()), **dict(model.named_buffers())}, folder + "/state.pt")
"""
EAGER = """
begun = time.perf_counter()
model(ids, **keywords)
print(time.perf_counter() - begun)
"""
COLD = """
import sys, time
import torch
import stax.api
folder, store = sys.argv[1:]
state = torch.load(folder + "/state.pt", weights_only=True)
ids = torch.arange(64).reshape(1, 64) * 31
begun = time.perf_counter()
model = stax.load("gpt2", store=store, state_dict=state)
model(ids, use_cache=False, return_dict=False)
print(time.perf_counter() - begun)
"""


def run(code: str, *arguments: str, environ: dict[str, str]) -> str:
    """The last line that a fresh process prints."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return (done.stdout.splitlines() or [""])[-1]


def main(rounds: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        store = (Path(folder) / "store").as_uri()
        bare = {
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'models'}",
            "HOME": folder,
            "STAX_CACHE_DIR": f"{folder}/cache",
        }
        imports = (
            "import sys\nfrom stax.runtime.constraints import best_cpu_target, machine_facts\n"
        )
        run(imports + MODEL + PREPARE, folder, store, environ={**os.environ, **bare})
        ratios: list[float] = []
        for _ in range(rounds):
            eager_s = float(run("import time\n" + MODEL + EAGER, environ={**os.environ, **bare}))
            cold_s = float(run(COLD, folder, store, environ={**bare, "PATH": ""}))
            ratios.append(cold_s / eager_s)
            print(f"cold {cold_s:.3f} s, eager {eager_s:.3f} s, ratio {ratios[-1]:.2f}", flush=True)
    median = statistics.median(ratios)
    print(f"first_output: median ratio {median:.2f} of {rounds} rounds, bar {BAR:g}")
    return 0 if median <= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
