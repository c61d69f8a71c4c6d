"""``stax warm`` of the small model as a process of its own, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent


def start(
    folder: Path, store: str, *more: str, environ: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """``stax warm`` of the small model in a folder of its own, with a HOME and cache of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    env = {
        **os.environ,
        "HOME": str(folder),
        "STAX_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
        **(environ or {}),
    }
    command = [
        sys.executable, "-m", "stax", "warm", "warm_model:model", "--inputs", "warm_model:inputs",
        "--target", "cpu:x86-64-v3", "--target", "cuda:sm_90", "--store", store, "--tag", "small",
        "--json", str(folder / "report.json"), *more,
    ]  # fmt: skip
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=env, stdout=pipe, stderr=pipe, text=True)


def finished(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    out, err = process.communicate(timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def warm(
    folder: Path, store: str, *more: str, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return finished(start(folder, store, *more, environ=environ))


def report(folder: Path) -> dict[str, Any]:
    (one,) = json.loads((folder / "report.json").read_text())
    return one
