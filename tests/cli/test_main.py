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
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "b",
    "AWS_EC2_METADATA_DISABLED": "true",
}
THEIRS = """
import sys

class Odd:
    @property
    def x(self):
        raise RuntimeError("theirs")

prop = Odd()

def fine():
    return 1

def none():
    return (), {}

def raises():
    raise ValueError("theirs\\nsecond line")

def exits():
    sys.exit(3)
"""


def run(*arguments: str, cwd: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    """``python -m stax`` in a fresh process."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    command = [sys.executable, "-m", "stax", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def run_in_shell(arguments: str) -> subprocess.CompletedProcess[str]:
    """The same, as a line of bash with its redirections."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = f"{sys.executable} -m stax {arguments}"
    return subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120
    )


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
        (["warm", "math:sin", "--target", "cpu:x86-64", "--tag", "a/b"], "bad tag; expected 1 to"),
        (["warm", "math:sin", "--target", "cpu:x86-64", "--tag", "é"], "bad tag"),
        (["warm", "math:sin", "--target", "cpu:x86-64", "--tag", "0" * 64], "are no digest"),
        (["warm", "math:sin", "--target", "cpu:x86-64", "--json", "/"], "found a folder (/)"),
        (["warm", "math:sin", "--target", "cpu:x86-64", "--json", "/x/y"], "no such folder"),
        (["ls", "--store", "ftp://x"], "bad store URL"),
        (["ls", "--tier", "a/b"], "bad trust tier"),
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


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"STAX_TIER": "é"}, "bad trust tier"),
        ({"STAX_CACHE_DIR": "~nobody-here/x"}, "expected a folder; found '~nobody-here/x'"),
    ],
)
def test_bad_settings_are_misuse(setting: dict[str, str], expected: str) -> None:
    done = run("ls", **setting)
    assert done.returncode == 2 and expected in done.stderr and done.stderr.count("\n") == 1


def test_relative_and_empty_cache_folders(tmp_path: Path) -> None:
    for folder, expected in (("rel", "rel"), ("", ".cache/stax")):
        done = run("ls", cwd=tmp_path, HOME=str(tmp_path), STAX_CACHE_DIR=folder)
        assert done.stdout == f"no tags in tier dev of {(tmp_path / expected).as_uri()}\n"


def test_a_store_that_is_down_or_no_folder_is_no_empty_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    down = run("ls", "--store", "s3://b/p?endpoint=http://127.0.0.1:9", **CREDENTIALS)
    file = run("ls", "--store", (tmp_path / "file").as_uri())
    for done, expected in ((down, "the server does not answer"), (file, "a file stands where")):
        assert done.returncode == 1 and expected in done.stderr and not done.stdout


@pytest.mark.parametrize(
    ("called", "inputs"),
    [("raises", "none"), ("prop.x", "none"), ("fine", "raises"), ("fine", "exits")],
)
def test_whatever_the_users_code_raises_is_one_line(
    called: str, inputs: str, tmp_path: Path
) -> None:
    (tmp_path / "theirs.py").write_text(THEIRS)
    done = run(
        *("warm", f"theirs:{called}", "--inputs", f"theirs:{inputs}", "--target", "cpu:x86-64"),
        cwd=tmp_path,
    )
    assert done.returncode in (1, 2) and "theirs.py:" in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_output_that_can_not_be_written(tmp_path: Path) -> None:
    for target, code, expected in ((">/dev/full", 1, "No space left"), (">&-", 0, "")):
        done = run_in_shell(f"ls --store {tmp_path.as_uri()} {target}")
        assert done.returncode == code and expected in done.stderr
        assert done.stderr.count("\n") == (1 if code else 0)
    ascii_only = run("doctor", PYTHONIOENCODING="ascii")
    assert "\\u2192" in ascii_only.stdout and "Traceback" not in ascii_only.stderr


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
