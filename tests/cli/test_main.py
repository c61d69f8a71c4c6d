"""The command as a person meets it: exit codes, one line of error, no torch where none is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stax
from stax.base.errors import CompilerFailed
from stax.cli.main import VERBS, Verb, one_line

ROOT = Path(__file__).parents[2]


def run(*arguments: str, cwd: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    """``python -m stax`` in a fresh process."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    command = [sys.executable, "-m", "stax", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"stax {stax.__version__}\n")


def test_no_verb_prints_the_verbs() -> None:
    done = run()
    assert done.returncode == 2
    assert all(f"    {verb.name} " in done.stderr for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS, ids=lambda v: v.name)
def test_each_verb_has_help(verb: Verb) -> None:
    done = run(verb.name, "--help")
    assert done.returncode == 0 and "usage: stax" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["wram"], "invalid choice: 'wram'"),
        (
            ["warm", "nothing", "--target", "cpu:x86-64"],
            "expected module:callable; found 'nothing'",
        ),
        (["warm", "no_such:f", "--target", "cpu:x86-64"], "no module named 'no_such'"),
        (["warm", "math:sin", "--target", "gpu:1"], "unknown target kind"),
        (["warm", "math:sni", "--target", "cpu:x86-64"], "did you mean 'sin'?"),
        (["warm", "math:pi", "--target", "cpu:x86-64"], "expected a callable"),
        (["warm", "math:sin"], "--target"),
        (["ls", "--store", "ftp://x"], "bad store URL"),
    ],
)
def test_misuse_is_one_line_and_exit_2(arguments: list[str], expected: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert done.stderr.startswith("usage: ") or done.stderr.count("\n") == 1
    assert not done.stdout


def test_bad_setting_names_the_variable() -> None:
    done = run("ls", STAX_JOBS="many")
    assert done.returncode == 2
    assert done.stderr == (
        "stax: bad environment value; expected an integer >= 0; found 'many' (STAX_JOBS)\n"
    )


def test_debug_shows_the_trace() -> None:
    done = run("ls", "--store", "ftp://x", STAX_DEBUG="1")
    assert done.returncode == 2 and "Traceback" in done.stderr


def test_module_is_seen_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def broken():\n    raise ValueError('no weights')\n")
    done = run(
        *("warm", "mine:broken", "--inputs", "mine:broken", "--target", "cpu:x86-64"), cwd=tmp_path
    )
    assert done.returncode == 2
    assert "mine:broken failed; found ValueError: no weights" in done.stderr
    assert "mine.py:2" in done.stderr


def test_reader_that_leaves_is_no_crash(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "STAX_CACHE_DIR": str(tmp_path)}
    command = f"set -o pipefail; {sys.executable} -m stax doctor --json | true"
    done = subprocess.run(
        ["bash", "-c", command], env=env, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_long_errors_are_cut_at_the_log() -> None:
    error = CompilerFailed("kernel did not build", found="g++: error\nline 2\nline 3")
    assert one_line(error) == (
        "kernel did not build; found g++: error … (STAX_DEBUG=1 shows the rest)"
    )
