"""README says what the code says: its tables are made from the code and compared (--update-golden writes them)."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from stax.base import errors
from stax.base.options import SETTINGS, Environment, Options
from stax.base.target import CPU_LEVELS, CUDA_ARCHS
from stax.cli import VERBS
from stax.store import SCHEMES

README = Path(__file__).parents[2] / "README.md"


def rows(head: tuple[str, ...], body: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *body]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def settings() -> str:
    body = [(f"`{s.name}`", f"`{s.default}`" if s.default else "", s.help) for s in SETTINGS]
    return rows(("variable", "default", "meaning"), body)


def options() -> str:
    body = [(f"`{f.name}`", f"`{f.default!r}`", str(f.metadata["help"])) for f in fields(Options)]
    return rows(("option", "default", "meaning"), body)


def error_tree(root: type[errors.StaxError], depth: int = 0) -> Iterator[tuple[str, str]]:
    """Every error below ``root``, parents first, with the first line of its docstring."""
    first = (root.__doc__ or "").strip().splitlines()[0]
    yield "&emsp;" * depth + f"`{root.__name__}`", first
    own = [k for k in root.__subclasses__() if k.__module__ == errors.__name__]
    for kind in own:
        yield from error_tree(kind, depth + 1)


def error_table() -> str:
    return rows(("error", "when"), list(error_tree(errors.StaxError)))


def verbs() -> str:
    return rows(("verb", "what it does"), [(f"`stax {v.name}`", v.help) for v in VERBS])


def arguments() -> str:
    """Every argument of every verb, as argparse has it."""
    body: list[tuple[str, ...]] = []
    for verb in VERBS:
        parser = argparse.ArgumentParser(add_help=False)
        import_module(verb.module).add_arguments(parser)
        for action in parser._actions:
            value = action.metavar if action.nargs != 0 else None
            name = " ".join(filter(None, [*action.option_strings[:1], str(value or "")])).strip()
            body.append((f"`{verb.name}`", f"`{name}`", action.help or ""))
    return rows(("verb", "argument", "meaning"), body)


def targets() -> str:
    body = [("`cpu`", " ".join(f"`{level}`" for level in CPU_LEVELS))]
    body += [("`cuda`", " ".join(f"`{arch}`" for arch in CUDA_ARCHS))]
    return rows(("kind", "arch"), body)


def stores() -> str:
    return rows(("scheme", "form"), [(f"`{n}`", f"`{s.form}`") for n, s in SCHEMES.items()])


TABLES: dict[str, Callable[[], str]] = {
    "verbs": verbs,
    "arguments": arguments,
    "settings": settings,
    "options": options,
    "targets": targets,
    "stores": stores,
    "errors": error_table,
}


@pytest.mark.parametrize("name", TABLES)
def test_table_is_that_of_the_code(name: str, request: pytest.FixtureRequest) -> None:
    text = README.read_text(encoding="utf-8")
    found = re.search(rf"(?<=<!-- {name} -->\n).*?(?=\n<!-- /{name} -->)", text, re.DOTALL)
    assert found, f"README has no table between <!-- {name} --> and <!-- /{name} -->"
    expected = TABLES[name]()
    if request.config.getoption("--update-golden"):
        README.write_text(text[: found.start()] + expected + text[found.end() :], encoding="utf-8")
        return
    assert found.group() == expected


def test_every_error_has_its_place_in_the_tree_at_the_top() -> None:
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    kinds = [v for v in vars(errors).values() if isinstance(v, type) and v is not errors.StaxError]
    assert sorted(drawn) == sorted(k.__name__ for k in kinds if issubclass(k, errors.StaxError))


def test_every_option_says_what_it_does() -> None:
    assert all(str(f.metadata.get("help", "")).strip() for f in fields(Options))


def test_every_file_the_readme_names_exists() -> None:
    text = README.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:stax|farm|tests|deploy|\.ci)/[\w./-]+)`", text))
    assert not sorted(path for path in named if not (README.parent / path).exists())


def test_the_two_commands_come_first() -> None:
    head = README.read_text(encoding="utf-8")[:2500]
    assert "bash deploy/try.sh" in head and "bash tests/run.sh" in head


def code_outside(*own: str) -> str:
    """All code of Stax and the farm but these files."""
    paths = [
        p for folder in ("stax", "farm") for p in sorted((README.parent / folder).rglob("*.py"))
    ]
    kept = [p for p in paths if p.relative_to(README.parent).as_posix() not in own]
    return "\n".join(p.read_text(encoding="utf-8") for p in kept)


@pytest.mark.parametrize("name", [f.name for f in (*fields(Environment), *fields(Options))])
def test_what_is_documented_is_read_somewhere(name: str) -> None:
    assert re.search(rf"\.{name}\b", code_outside("stax/base/options.py")), f"nothing reads {name}"


def test_every_error_is_raised_somewhere() -> None:
    code = code_outside("stax/base/errors.py")
    leaves = [name for name, kind in vars(errors).items() if isinstance(kind, type)]
    parents = {k.__mro__[1].__name__ for k in vars(errors).values() if isinstance(k, type)}
    unused = [n for n in leaves if n not in parents and not re.search(rf"\b{n}\b", code)]
    assert not unused
