"""A small model for warms from the command line, and its inputs."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return torch.softmax(x + h, -1).cumsum(-1)


model = Block().eval()


def inputs() -> tuple[tuple[torch.Tensor, ...], dict[str, object]]:
    return (torch.ones(5, 48),), {}
