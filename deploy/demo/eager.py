"""What eager PyTorch makes of the demo's models: weights, inputs, outputs and times, written for the cold process.

    python eager.py FOLDER MODEL...

A process of its own, because transformers imports everything that the cold process is to do without.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

LENGTHS = (64, 7, 128)


def main(folder: Path, names: list[str]) -> None:
    for name in names:
        demo = import_module(name)
        (args, kwargs), *others = [demo.inputs(length) for length in LENGTHS]
        begun = time.perf_counter()
        first = demo.model(*args, **kwargs)[0]
        first_call_s = time.perf_counter() - begun
        calls = [(args, kwargs), *others]
        outputs = [first, *(demo.model(*a, **k)[0] for a, k in others)]
        exact = demo.make().double()
        exacts = [exact(*a, **k)[0] for a, k in calls]
        torch.save(
            {
                "state": held(demo.model),
                "calls": [{"ids": a[0], "keywords": k} for a, k in calls],
                "outputs": outputs,
                "exact": exacts,
            },
            folder / f"{name}.pt",
        )
        (folder / f"{name}.eager.json").write_text(json.dumps({"first_call_s": first_call_s}))


def held(model: torch.nn.Module) -> dict[str, Any]:
    """Every parameter and buffer by name; a state_dict leaves some buffers out."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
