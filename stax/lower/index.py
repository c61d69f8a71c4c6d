"""Rules of gathers and scatters."""

from __future__ import annotations

from stax.lower.build import Table

RULES: Table = {}
