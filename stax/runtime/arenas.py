"""How a host function says shared memory: one allocation for all slots of an arena, and addresses in it, which cost an
addition where a tensor of its own costs an allocation and a question for its address.

On the CPU as well: torch asks the system for every piece of memory there, and pages that were touched in this call are
warmer than fresh ones.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from stax.artifact.artifact import Arena, Place
from stax.ir.extent import ALIGNMENT
from stax.runtime.spell import spell
from stax.runtime.text import Text


def _refuse_sizes() -> NoReturn:
    raise RuntimeError("a temporary of this call would have less than 0 bytes")


class Arenas:
    """Where each slot begins: a number as long as only constant ones come before it, then a variable."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._begins: dict[str, list[str]] = {}
        text.objects |= {"uint8": torch.uint8, "refuse_sizes": _refuse_sizes}

    def arena(self, step: Arena) -> None:
        """Its slots in their order."""
        text = self._text
        fixed, name, begins = 0, "", list[str]()
        for slot in step.slots:
            begins.append(f"{name} + {fixed}" if name else str(fixed))
            if slot.is_const:
                fixed += _rounded(slot.value)
                continue
            size, end = text.name("n"), text.name("f")
            text.line(f"{size} = {spell(slot, text.symbols)}")
            text.line(f"if {size} < 0: refuse_sizes()")
            text.line(f"{end} = {begins[-1]} + ({size} + {ALIGNMENT - 1} & {-ALIGNMENT})")
            fixed, name = 0, end
        total = f"{name} + {fixed}" if name else str(fixed)
        text.line(f"{text.define(step.name)} = empty(({total}, ), (1, ), uint8)")
        self._begins[step.name] = begins

    def place(self, step: Place) -> None:
        """Its address is all that a kernel asks for."""
        text = self._text
        base, begin = text.address(step.home), self._begins.get(step.home, ["0"])[step.slot]
        pieces = [base, *(p for p in (*begin.split(" + "), str(step.offset)) if p != "0")]
        text.fresh.add(step.name)
        if len(pieces) == 1:
            text.addresses[step.name] = base
            return
        text.addresses[step.name] = text.name("q")
        text.line(f"{text.addresses[step.name]} = {' + '.join(pieces)}")


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
