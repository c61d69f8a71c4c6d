"""The child process that interprets Triton text, one for each module that uses it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.triton_interpret import Interpreter


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    with Interpreter() as running:
        yield running
