"""How we write, as far as a machine can tell: sizes, names, and what no file of Stax may do."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("stax", "farm", "cache_server")
ALL = (*PRODUCT, "deploy", "tests")

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
# "path:function": why it is better whole.
LONG_FUNCTIONS: dict[str, str] = {}
BANNED_NAMES = {
    "utils",
    "util",
    "common",
    "helpers",
    "helper",
    "manager",
    "handler",
    "context",
    "misc",
}
# Absolute paths of somebody's machine, in any text file of the project.
SOMEBODYS_PATH = re.compile(r"(?<![\w.$}/-])/(?:root|home|work|Users)/\w")


@dataclass(frozen=True)
class Source:
    """One Python file: its path from the root, its text, its tree, and its comments by line."""

    path: str

    @cached_property
    def text(self) -> str:
        return (ROOT / self.path).read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def comments(self) -> dict[int, str]:
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return {t.start[0]: t.string for t in tokens if t.type == tokenize.COMMENT}

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node

    def explained(self, line: int) -> bool:
        """A comment on the line, or close above or right below it."""
        return any(n in self.comments for n in range(line - 2, line + 2))


parsed = cache(Source)  # each file is read once


@cache
def sources(*folders: str) -> list[Source]:
    """The Python files below these folders, golden texts aside."""
    found = (p.relative_to(ROOT) for f in folders for p in (ROOT / f).rglob("*.py"))
    return [parsed(p.as_posix()) for p in sorted(found) if "golden" not in p.parts]


def texts() -> list[Path]:
    """Every text file of the project."""
    kinds = {".py", ".sh", ".md", ".toml", ".yaml", ".yml", ".h", ".cpp", ".txt", ".html", ".json"}
    found = [p for f in ALL for p in (ROOT / f).rglob("*") if p.suffix in kinds]
    return sorted([*found, ROOT / "README.md", ROOT / "pyproject.toml", ROOT / ".ci" / "run"])


def expect_none(found: list[str], rule: str) -> None:
    assert not found, f"{rule}:\n  " + "\n  ".join(found)


def test_files_are_one_idea() -> None:
    lines = {s.path: s.text.count("\n") for s in sources(*ALL)}
    long = [f"{path} ({count})" for path, count in lines.items() if count >= MAX_FILE_LINES]
    expect_none(long, f"files of {MAX_FILE_LINES} lines or more")


def test_functions_fit_a_screen() -> None:
    found: list[str] = []
    for source in sources(*ALL):
        for function in source.functions():
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            name = f"{source.path}:{function.name}"
            if lines > MAX_FUNCTION_LINES and name not in LONG_FUNCTIONS:
                found.append(f"{name} ({lines})")
    expect_none(found, f"functions of more than {MAX_FUNCTION_LINES} lines")


def test_the_list_of_long_functions_is_not_stale() -> None:
    known = {f"{s.path}:{f.name}" for s in sources(*ALL) for f in s.functions()}
    expect_none(sorted(set(LONG_FUNCTIONS) - known), "in LONG_FUNCTIONS, but gone")


def test_modules_are_named_by_what_they_are() -> None:
    stems = [(s.path, part) for s in sources(*ALL) for part in Path(s.path).with_suffix("").parts]
    expect_none([path for path, part in stems if part in BANNED_NAMES], "names that say nothing")


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Catches everything and keeps it: a handler that ends by raising again only cleans up."""
    everything = ("Exception", "BaseException")
    catches_all = isinstance(handler.type, ast.Name) and handler.type.id in everything
    last = handler.body[-1]
    return catches_all and not (isinstance(last, ast.Raise) and last.exc is None)


def test_exceptions_are_caught_narrowly() -> None:
    """A bare except never; Exception or BaseException only with a comment that says why."""
    found = [
        f"{source.path}:{node.lineno}"
        for source in sources(*PRODUCT)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (is_broad(node) and not source.explained(node.lineno)))
    ]
    expect_none(found, "too broad, or broad without a comment")


def test_the_environment_is_read_in_one_place() -> None:
    allowed = re.compile(r"(^stax/base/options|/settings)\.py$")
    found = [
        f"{source.path}:{node.lineno}"
        for source in sources(*PRODUCT, "deploy")
        if not allowed.search(source.path)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ("environ", "getenv")
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    ]
    expect_none(found, "os.environ outside options.py and settings.py")


def test_only_the_cli_prints() -> None:
    allowed = re.compile(r"^stax/cli/|__main__\.py$")
    found = [
        f"{source.path}:{node.lineno}"
        for source in sources(*PRODUCT)
        if not allowed.search(source.path)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    expect_none(found, "print outside the command lines")


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every module that is imported below ``tree``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module


@pytest.mark.parametrize("banned", ["pickle", "cloudpickle", "dill", "marshal", "shelve"])
def test_nothing_is_pickled(banned: str) -> None:
    found = [
        f"{source.path}:{line}"
        for source in sources(*PRODUCT)
        for line, module in imported(source.tree)
        if module.partition(".")[0] == banned
    ]
    expect_none(found, f"imports {banned}")


def test_imports_in_functions_say_what_they_save() -> None:
    found = {
        f"{source.path}:{line} {module}"
        for source in sources(*PRODUCT)
        for function in source.functions()
        for line, module in imported(function)
        if not source.explained(line)
    }
    expect_none(sorted(found), "an import inside a function without a comment beside it")


def test_no_notes_are_left_over() -> None:
    note = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    found = [
        f"{source.path}:{line}"
        for source in sources(*ALL)
        for line, comment in source.comments.items()
        if note.search(comment)
    ]
    expect_none(found, "left-over notes")


def test_no_file_names_somebodys_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if SOMEBODYS_PATH.search(line)
    ]
    expect_none(found, "absolute paths of one machine")


def test_python_modules_say_what_they_are() -> None:
    bare = [s.path for s in sources(*PRODUCT) if not ast.get_docstring(s.tree)]
    expect_none(bare, "modules without a docstring")
