"""What ``pip install .`` brings: every module, the marker of types, the command, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("stax", "farm")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built of a copy, so that the project's folder stays as it is."""
    copy = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    code = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(copy / done.stdout.splitlines()[-1])


def test_every_module_is_in_it(wheel: zipfile.ZipFile) -> None:
    expected = {
        p.relative_to(ROOT).as_posix()
        for name in PACKAGES
        for p in (ROOT / name).rglob("*")
        if p.suffix in (".py", ".typed", ".h", ".cpp")
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == expected


def test_types_licence_and_command(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "stax/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    points = next(name for name in names if name.endswith("entry_points.txt"))
    assert "stax = stax.cli:main" in wheel.read(points).decode()
