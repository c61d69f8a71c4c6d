"""One Ray cluster for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from farm_cluster import running_cluster


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """host:port of a real cluster with two CPUs."""
    with running_cluster(cpus=2) as address:
        yield address
