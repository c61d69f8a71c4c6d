"""The helper functions that a kernel's text may call: only those it needs, in a fixed order."""

from __future__ import annotations

import re

from stax.codegen.cpp.floats import FLOATS
from stax.codegen.cpp.integers import INTEGERS
from stax.codegen.cpp.lanes import LANES
from stax.codegen.cpp.narrow import NARROW_FLOATS
from stax.codegen.cpp.philox import PHILOX
from stax.codegen.cpp.trigonometry import TRIGONOMETRY

_HEADER = "#include <stdint.h>\n\n"
# In this order a helper stands after all that it calls.
_BLOCKS = {**INTEGERS, **PHILOX, **FLOATS, **TRIGONOMETRY, **NARROW_FLOATS, **LANES}
_NAME = re.compile(r"\bstax_\w+")


def prelude(text: str) -> str:
    """What has to stand before ``text``."""
    needed: set[str] = set()
    found = {name for name in _NAME.findall(text) if name in _BLOCKS}
    while found:
        needed |= found
        found = {n for name in found for n in _NAME.findall(_BLOCKS[name]) if n in _BLOCKS} - needed
    return _HEADER + "".join(
        block.strip("\n") + "\n\n" for name, block in _BLOCKS.items() if name in needed
    )
