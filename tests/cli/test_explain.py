"""``stax explain`` as a command: a table, JSON, and the reasons of the scheduler."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from stax.api.reports import CallReport, ExplainReport, KernelReport
from stax.cli.explain import report_text, time_text
from tests.cli.test_warm import PROGRAM, command, environ


def explain(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.py").write_text(PROGRAM)
    return subprocess.run(
        command("explain", "mine:f", "--inputs", "mine:two", *arguments),
        cwd=folder, env=environ(folder), capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_a_call_after_the_other_and_as_json(tmp_path: Path) -> None:
    done = explain(tmp_path, "--target", "cuda:sm_90", "--device", "NVIDIA H200", "--json", "out.json", "-v")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cuda:sm_90, NVIDIA H200: floors at 4.26 TB/s") == 2
    assert "yes inline" in done.stdout and "total: 1 kernels in 1 launches" in done.stdout
    first, second = json.loads((tmp_path / "out.json").read_text())
    assert (first["kernels"][0]["read_bytes"], second["kernels"][0]["read_bytes"]) == (
        2 * 64 * 64 * 4,
        2 * 3 * 5 * 4,
    )


def test_json_alone_on_standard_output(tmp_path: Path) -> None:
    done = explain(tmp_path, "--target", "cpu:x86-64-v3", "--json", "-")
    assert [len(r["kernels"]) for r in json.loads(done.stdout)] == [1, 1]


def test_an_unknown_device_is_misuse(tmp_path: Path) -> None:
    done = explain(tmp_path, "--target", "cuda:sm_90", "--device", "GeForce 256")
    assert done.returncode == 2 and "unknown device" in done.stderr and "NVIDIA H200" in done.stderr


def test_the_table() -> None:
    kernel = KernelReport(
        "triton_red_fused_sum", "red", 3, (64, 2), {"XBLOCK": 1}, 4_000_000, 256, 0, 1e-6, 3e-6, None, ""
    )  # fmt: skip
    report = ExplainReport(
        "cuda:sm_90", "NVIDIA H200", 4.257e12, (kernel,), (CallReport("aten.mm.default", 2),),
        (("fuse a with b", False, "devices differ"),),
    )  # fmt: skip
    assert report_text(report, verbose=True).splitlines() == [
        "cuda:sm_90, NVIDIA H200: floors at 4.26 TB/s",
        "form  runs  grid  config    read    written  again  floor   predicted  measured  kernel",
        "red   3     64×2  XBLOCK=1  4.0 MB  256 B    0 B    1.0 µs  3.0 µs     -         triton_red_fused_sum",
        "2 × aten.mm.default, left to torch",
        "total: 1 kernels in 3 launches, 2 calls to torch; kernels: 12.0 MB read, 768 B written, 0 B again, "
        "floor 3.0 µs, predicted 9.0 µs, measured -",
        "no  fuse a with b: devices differ",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (1.23e-5, "12.3 µs"), (4.556e-3, "4.56 ms")]
)
def test_times_in_words(seconds: float | None, text: str) -> None:
    assert time_text(seconds) == text
