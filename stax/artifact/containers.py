"""Containers of other packages that torch.utils._pytree must know before values are flattened or rebuilt."""

from __future__ import annotations

import importlib
import sys

# A module that brings containers → (module, function) of the same package that registers them; calling it again is harmless.
_REGISTRARS = {
    "transformers.cache_utils": (
        "transformers.integrations.executorch",
        "register_dynamic_cache_export_support",
    ),
}


def register_known() -> None:
    """Registers what loaded packages offer; imports nothing of a package that is not loaded. Idempotent."""
    for brings, (module, function) in _REGISTRARS.items():
        if brings in sys.modules:
            register = getattr(importlib.import_module(module), function, None)
            if register is not None:
                register()
