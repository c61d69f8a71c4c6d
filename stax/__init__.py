"""Stax: compile a PyTorch program once, on a farm, and let every machine fetch the result.

The public names are looked up when first used: ``import stax`` imports neither torch nor boto3.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stax.api import Compiled as Compiled
    from stax.api import ExplainReport as ExplainReport
    from stax.api import PullReport as PullReport
    from stax.api import Stats as Stats
    from stax.api import WarmReport as WarmReport
    from stax.api import compile as compile
    from stax.api import load as load
    from stax.api import pull as pull
    from stax.api.explain import explain as explain
    from stax.api.warm import warm as warm
    from stax.base.errors import StaxError as StaxError
    from stax.base.options import Options as Options
    from stax.base.target import Target as Target

from stax.base.version import VERSION as __version__

_HOMES = {
    "Compiled": "stax.api",
    "ExplainReport": "stax.api",
    "Options": "stax.base.options",
    "PullReport": "stax.api",
    "Stats": "stax.api",
    "StaxError": "stax.base.errors",
    "Target": "stax.base.target",
    "WarmReport": "stax.api",
    "compile": "stax.api",
    "explain": "stax.api.explain",  # not its door: only who compiles imports the compiler
    "load": "stax.api",
    "pull": "stax.api",
    "warm": "stax.api.warm",  # likewise
}

__all__ = [
    "Compiled",
    "ExplainReport",
    "Options",
    "PullReport",
    "Stats",
    "StaxError",
    "Target",
    "WarmReport",
    "__version__",
    "compile",
    "explain",
    "load",
    "pull",
    "warm",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'stax' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value  # so that this runs once a name
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
