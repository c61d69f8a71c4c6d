"""The content-addressed store: blobs, records, bundles and tags behind one protocol.

The door is :func:`open_store` for bytes and :class:`Records` for what they mean. Imports no torch, and
boto3 only when an s3:// URL is opened. What the observer is told:

    store.call            every call: tier, verb, name, outcome, bytes, us
    store.retry           a call that will be repeated: verb, name, attempt, wait_s, reason
    store.outage          a store that is not asked for a while: url, reason
    store.degraded        a tier did without the other: tier, verb, name, reason
    store.corrupt         damaged bytes were read: name, url, reason
    store.heal            damaged bytes were overwritten: name, url
    store.skip            a record that does not count: name, reason
    store.replace         a record that did not count was overwritten: name, reason
    store.nondeterminism  two builds of one key differ, the first is kept: name, kept
"""

from stax.store.base import Store
from stax.store.forms import Bundle, Record
from stax.store.layers import Breaker, Counters, Metered, Retrying, Tiered, Verified
from stax.store.memory import MemoryStore
from stax.store.open import SCHEMES, open_store
from stax.store.records import Records

__all__ = [
    "SCHEMES",
    "Breaker",
    "Bundle",
    "Counters",
    "MemoryStore",
    "Metered",
    "Record",
    "Records",
    "Retrying",
    "Store",
    "Tiered",
    "Verified",
    "open_store",
]
