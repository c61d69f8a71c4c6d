"""The public names: sorted, importable, and at home in one module each."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import stax


def test_all_is_sorted_and_unique() -> None:
    assert stax.__all__ == sorted(set(stax.__all__))


@pytest.mark.parametrize("name", stax.__all__)
def test_public_name_is_importable(name: str) -> None:
    value = getattr(stax, name)
    assert value is getattr(stax, name)
    if name != "__version__":
        assert value.__doc__


def test_names_are_what_they_were_once_their_modules_are_imported() -> None:
    """A module and what it defines may share a name; the public one is never the module."""
    folder = Path(stax.__file__).parent / "api"
    modules = sorted(f"stax.api.{path.stem}" for path in folder.glob("[a-z]*.py"))
    names = [name for name in stax.__all__ if name != "__version__"]
    code = f"import stax, {', '.join(modules)}\nassert all(callable(getattr(stax, n)) for n in {names})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'complie'"):
        stax.complie  # noqa: B018


def test_dir_lists_the_public_names() -> None:
    assert set(stax.__all__) <= set(dir(stax))


@pytest.mark.parametrize("package", ["stax.store", "stax.artifact", "farm"])
def test_doors_of_packages_name_what_they_have(package: str) -> None:
    module = importlib.import_module(package)
    names: list[str] = getattr(module, "__all__", [])
    assert len(names) == len(set(names))
    assert all(hasattr(module, name) for name in names)
