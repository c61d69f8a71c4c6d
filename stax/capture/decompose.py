"""Which ATen operators tracing replaces by others before lowering sees them, and why."""

from __future__ import annotations


def decompositions() -> dict:
    return {}
