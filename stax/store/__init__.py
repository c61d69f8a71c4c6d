"""The content-addressed store: blobs, records, bundles and tags behind one protocol.

The door is :func:`open_store` for bytes and :class:`Records` for what they mean. Imports no torch, and
boto3 only when an s3:// URL is opened.
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
