"""One Ray cluster for all tests of this folder, to which this process is connected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from farm_cluster import running_cluster

from farm import cluster


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """host:port of a real cluster with two CPUs."""
    with running_cluster(cpus=2) as address:
        cluster.connect(address)
        yield address
        cluster.disconnect()
