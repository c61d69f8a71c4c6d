"""The public names: sorted, importable, and at home in one module each."""

from __future__ import annotations

import importlib

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
