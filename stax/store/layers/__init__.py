"""Layers: stores made of another store, with the same protocol. Each does one thing."""

from stax.store.layers.metered import Counters, Metered
from stax.store.layers.retrying import Breaker, Retrying
from stax.store.layers.tiered import Tiered
from stax.store.layers.verified import Verified

__all__ = ["Breaker", "Counters", "Metered", "Retrying", "Tiered", "Verified"]
