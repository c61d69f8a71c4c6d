"""The doctor tells what is there, what is not, and what to do; it fails only where something was asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stax.base.options import Environment
from stax.cli import checks
from stax.cli.checks import ABSENT, BROKEN, OK, Finding
from stax.cli.doctor import table

ROOT = Path(__file__).parents[2]


def doctor(*arguments: str, path: str | None = None) -> tuple[int, dict[str, Finding], str]:
    """Exit code, findings by name, and what went to standard error."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    if path is not None:
        env["PATH"] = path
    command = [sys.executable, "-m", "stax", "doctor", "--json", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    found = [Finding(**entry) for entry in json.loads(done.stdout or "[]")]
    return done.returncode, {f.name: f for f in found}, done.stderr


def test_this_machine_builds_and_runs_its_own_cpu(tmp_path: Path) -> None:
    code, found, _ = doctor(
        *("--build", "cpu:x86-64", "--run", "cpu:x86-64"), *("--store", tmp_path.as_uri())
    )
    assert code == 0
    wanted = (
        "python",
        "torch",
        "c++",
        "cache folder",
        "store",
        "build cpu:x86-64",
        "run cpu:x86-64",
    )
    assert {name: found[name].state for name in wanted} == dict.fromkeys(wanted, OK)
    assert not list(tmp_path.rglob("cas/*/*")), "the blob is taken away again"


def test_without_a_compiler_it_says_so_and_fails_only_when_asked() -> None:
    code, found, _ = doctor(path="")
    assert code == 0
    assert found["c++"].state == ABSENT and "install g++" in found["c++"].next_step
    assert found["builds cpu"].state == ABSENT
    assert found["runs cpu"].state == OK
    code, found, _ = doctor("--build", "cpu:x86-64", path="")
    assert code == 1
    assert found["build cpu:x86-64"].state == BROKEN


def test_a_store_that_can_not_be_written_is_broken(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    code, found, _ = doctor("--store", blocked.as_uri())
    assert code == 1
    assert found["store"].state == BROKEN and found["store"].next_step


def test_a_farm_that_is_not_there_is_broken() -> None:
    code, found, _ = doctor("--ray", "127.0.0.1:1")
    assert code == 1
    assert found["farm"].state == BROKEN


def test_an_unknown_target_is_misuse() -> None:
    code, _, errors = doctor("--build", "tpu:v9")
    assert code == 2 and "unknown target kind" in errors


@pytest.mark.parametrize(
    ("package", "state"),
    [
        (checks.Package("no-such-package"), BROKEN),
        (checks.Package("no-such-package", "farm"), ABSENT),
        (checks.Package("pytest"), OK),
    ],
)
def test_a_missing_package_matters_when_every_node_needs_it(
    package: checks.Package, state: str
) -> None:
    finding = checks.package(package)
    assert finding.state == state
    assert (finding.state == OK) == (not finding.next_step)


def test_cache_folder_is_made_when_absent(tmp_path: Path) -> None:
    environment = Environment(cache_dir=tmp_path / "new" / "folder")
    assert checks.cache_folder(environment).state == OK


def test_table_says_the_next_step_of_what_is_not_ok() -> None:
    text = table([Finding("a", OK, "1.0", "unsaid"), Finding("bc", BROKEN, "gone", "mend it")])
    assert text == "ok      a   1.0\nbroken  bc  gone → mend it"
