"""The text of a host function in the making: its lines, the objects they name, and the local variables of what they speak of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Text:
    """``locals``: the variable of each live tensor. ``addresses``: that of the address of each, once asked for; a tensor
    that lies in the memory of another has nothing else. ``symbols``: that of each size symbol. ``fresh``: tensors that the
    artifact allocates, whose addresses are multiples of 16. ``operators``: some line runs torch operators."""

    def __init__(self, inputs: Sequence[str], symbols: Sequence[str]) -> None:
        self.lines: list[str] = []
        self.objects: dict[str, Any] = {}
        self.locals = {name: f"x{i}" for i, name in enumerate(inputs)}
        self.addresses: dict[str, str] = {}
        self.symbols: Mapping[str, str] = {name: f"s{i}" for i, name in enumerate(symbols)}
        self.fresh: set[str] = set()
        self.operators = False
        self._count = 0

    def line(self, text: str) -> None:
        self.lines.append(text)

    def hold(self, value: object) -> str:
        """A name for an object."""
        name = f"o{len(self.objects)}"
        self.objects[name] = value
        return name

    def name(self, letter: str) -> str:
        """A new variable."""
        self._count += 1
        return f"{letter}{self._count - 1}"

    def define(self, tensor: str) -> str:
        """A variable for a new tensor."""
        self.locals[tensor] = self.name("t")
        return self.locals[tensor]

    def address(self, tensor: str) -> str:
        """The variable with its address, read when first asked for: it stays the same as long as the tensor lives."""
        if tensor not in self.addresses:
            self.addresses[tensor] = self.name("q")
            self.line(f"{self.addresses[tensor]} = {self.locals[tensor]}.data_ptr()")
        return self.addresses[tensor]
