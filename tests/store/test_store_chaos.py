"""Random walks over a tiered store whose tiers are damaged, emptied and cut off: never a wrong byte, and it recovers."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from suites.store_doubles import Faulty, empty, flip, make_record, truncate

from stax.base.errors import Corrupt, Missing, Refused, StoreError, Transient
from stax.store import MemoryStore, Record, Records, Tiered, Verified


@dataclass
class Trouble:
    """Faults of one tier: with probability ``rate`` a call raises ``error``."""

    rng: random.Random
    rate: float = 0.0
    error: StoreError = field(default_factory=lambda: Transient("cut off"))

    def __call__(self, verb: str, name: str) -> None:
        if self.rng.random() < self.rate:
            raise self.error


@dataclass
class World:
    rng: random.Random
    made: list[tuple[Record, dict[str, bytes]]]
    local: MemoryStore
    remote: MemoryStore
    local_trouble: Trouble
    remote_trouble: Trouble

    def records(self) -> Records:
        """As another process sees them: nothing is remembered of damage."""
        local = Verified(Faulty(self.local, self.local_trouble))
        remote = Verified(Faulty(self.remote, self.remote_trouble))
        return Records(Tiered(local, remote), "dev", workers=2)

    def hurt(self) -> None:
        """Something happens to a stored object of either tier."""
        tier = self.rng.choice([self.local, self.remote])
        names = list(tier.list(""))
        if not names:
            return
        name = self.rng.choice(names)
        change = self.rng.choice([flip, truncate, empty, None])
        if change is None:
            tier.delete(name)
        else:
            tier.heal(name, change(tier.get(name)))

    def disturb(self) -> None:
        for trouble in (self.local_trouble, self.remote_trouble):
            trouble.rate = self.rng.choice([0.0, 0.0, 0.2, 1.0])
            trouble.error = self.rng.choice([Transient("cut off"), Refused("forbidden")])


def make_world(seed: int) -> World:
    rng = random.Random(seed)
    made = [make_record(key=f"{i}", seed=i, count=2) for i in range(4)]
    troubles = Trouble(rng), Trouble(rng)
    return World(rng, made, MemoryStore(), MemoryStore(), *troubles)


def step(world: World, records: Records) -> None:
    record, blobs = world.rng.choice(world.made)
    match world.rng.randrange(6):
        case 0:
            world.hurt()
        case 1:
            world.disturb()
        case 2 | 3:
            records.publish(record, blobs, rewrite=world.rng.random() < 0.1)
        case _:
            for found in records.find("kernel", record.key):
                assert found == record
                assert records.fetch(found.blobs) == blobs


@pytest.mark.parametrize("seed", range(30))
def test_never_a_wrong_byte_and_it_recovers(seed: int) -> None:
    world = make_world(seed)
    records = world.records()
    for index in range(200):
        if index % 20 == 0:
            records = world.records()
        try:
            step(world, records)
        except StoreError:
            continue
    world.local_trouble.rate = world.remote_trouble.rate = 0.0
    records = world.records()
    for record, blobs in world.made:
        # At worst the record is gone and is published over a blob that nobody knows to be damaged;
        # reading it tells, and the second publish heals it.
        for _ in range(2):
            read_or_rebuild(records, record, blobs)
        assert records.find("kernel", record.key) == [record]
        assert records.fetch(record.blobs) == blobs


def read_or_rebuild(records: Records, record: Record, blobs: dict[str, bytes]) -> None:
    """What a caller does: use what is found, and publish again when anything is wrong with it."""
    found = records.find("kernel", record.key)
    try:
        for one in found:
            records.fetch(one.blobs)
    except (Missing, Corrupt):
        found = []
    if not found:
        records.publish(record, blobs)
