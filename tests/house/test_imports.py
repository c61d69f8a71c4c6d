"""What an import costs, counted in modules, and what the running side can never reach."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILING = ("triton", "sympy", "torch._dynamo", "torch._inductor")
FLOORS = ("stax.base", "stax.store", "stax.ir")
RUNNING = (*FLOORS, "stax.artifact", "stax.runtime")


def modules_after(code: str) -> set[str]:
    """Names in sys.modules of a fresh process that ran ``code``."""
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def import_all(package: str) -> str:
    """A program that imports every module of a package."""
    folder = ROOT / package.replace(".", "/")
    names = sorted(p.relative_to(ROOT).with_suffix("") for p in folder.rglob("*.py"))
    dotted = [".".join(n.parts).removesuffix(".__init__") for n in names]
    return "\n".join(f"import {name}" for name in dotted)


def test_import_stax_is_cheap() -> None:
    """The door alone: names are looked up when they are first used."""
    added = modules_after("import stax") - modules_after("pass")
    assert "torch" not in added
    assert len(added) < 40, sorted(added)


def test_version_is_known_without_torch() -> None:
    loaded = modules_after(
        "from stax.cli import main\ntry: main(['--version'])\nexcept SystemExit: pass"
    )
    assert not {"torch", "rich", "boto3"} & loaded


def test_options_and_errors_need_no_torch() -> None:
    loaded = modules_after("import stax\nstax.Options(); stax.StaxError; stax.Target")
    assert "torch" not in loaded
    assert len(loaded) < 120, sorted(loaded)


@pytest.mark.parametrize("package", FLOORS)
def test_ground_floors_run_without_torch(package: str) -> None:
    assert "torch" not in modules_after(import_all(package))


@pytest.mark.parametrize("package", RUNNING)
def test_running_side_has_no_compiler(package: str) -> None:
    assert not set(COMPILING) & modules_after(import_all(package))


@pytest.mark.parametrize("package", RUNNING)
def test_running_side_never_asks_for_torch_internals(package: str) -> None:
    """The linter can not see below torch: what is imported late, inside a function, is found here."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / package.replace(".", "/")).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        and any(name.startswith(COMPILING) for name in imported_names(node))
    ]
    assert not found


def imported_names(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]


def test_a_cold_node_installs_little() -> None:
    needed = importlib.metadata.requires("stax") or []
    base = {re.split(r"[^\w.-]", r, maxsplit=1)[0] for r in needed if "extra ==" not in r}
    assert base == {"torch", "numpy", "msgpack", "boto3", "zstandard"}
