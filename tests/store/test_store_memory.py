"""The store suite on memory, and on a tiered store both of whose tiers are memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from suites.record_suite import RecordSuite
from suites.store_doubles import Place
from suites.store_suite import StoreSuite

from stax.store import MemoryStore, Store, Tiered, Verified


@dataclass
class MemoryPlace:
    raw: MemoryStore = field(default_factory=MemoryStore)

    def open(self) -> Store:
        return Verified(self.raw)


@dataclass
class TieredPlace:
    """``raw`` changes both tiers at once: what is damaged there is damaged everywhere."""

    local: MemoryStore = field(default_factory=MemoryStore)
    remote: MemoryStore = field(default_factory=MemoryStore)

    @property
    def raw(self) -> Store:
        return Tiered(self.local, self.remote)

    def open(self) -> Store:
        return Tiered(Verified(self.local), Verified(self.remote))


class TestMemory(StoreSuite, RecordSuite):
    @pytest.fixture
    def place(self) -> Place:
        return MemoryPlace()


class TestTiered(StoreSuite, RecordSuite):
    @pytest.fixture
    def place(self) -> Place:
        return TieredPlace()
