"""What a missing server does to a test that needs it: a skip at home, a failure where it is promised."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
PROGRAM = """
import pytest

@pytest.mark.{marker}
def test_it():
    assert True
"""


def run(folder: Path, marker: str, **environ: str) -> str:
    """Output of pytest over one marked test, on a path where neither weed nor ray is found."""
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "test_it.py").write_text(PROGRAM.format(marker=marker))
    (folder / "pytest.ini").write_text(f"[pytest]\nmarkers = {marker}: x\n")
    bare = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG")}
    hide = (
        "import sys, importlib.util as u; u.find_spec = lambda *a: None; sys.executable = '/python'"
    )
    code = (
        f"{hide}; import pytest; raise SystemExit(pytest.main(['-rs', '-p', 'no:cacheprovider']))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=folder, env={**bare, **environ}, capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("marker", ["s3", "ray"])
def test_absent_server_skips_at_home(marker: str, tmp_path: Path) -> None:
    output = run(tmp_path, marker)
    assert "1 skipped" in output and f"no {marker} here" in output


@pytest.mark.parametrize("marker", ["s3", "ray"])
@pytest.mark.parametrize("promise", [{"CI": "true"}, {"STAX_TEST_REQUIRE": "s3, ray"}])
def test_absent_server_fails_where_promised(
    marker: str, promise: dict[str, str], tmp_path: Path
) -> None:
    output = run(tmp_path, marker, **promise)
    assert "1 error" in output and f"{marker} is promised and absent" in output


def test_unknown_promise_is_refused(tmp_path: Path) -> None:
    assert "STAX_TEST_REQUIRE" in run(tmp_path, "s3", STAX_TEST_REQUIRE="s4")
