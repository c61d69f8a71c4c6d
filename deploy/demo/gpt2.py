"""Hugging Face's own GPT-2 class, small, with random weights of a fixed seed."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

CONFIG = GPT2Config(
    n_layer=4,
    n_embd=256,
    n_head=8,
    n_positions=256,
    vocab_size=2048,
    bos_token_id=0,
    eos_token_id=0,
)


def make() -> GPT2LMHeadModel:
    torch.manual_seed(2)
    return GPT2LMHeadModel(CONFIG).eval().requires_grad_(False)


def inputs(length: int = 64) -> tuple[tuple[torch.Tensor], dict[str, bool]]:
    """One batch of token ids; keywords that make the model return plain tensors."""
    ids = torch.arange(2 * length).reshape(2, length) * 31 % CONFIG.vocab_size
    return (ids,), {"use_cache": False, "return_dict": False}


model = make()
