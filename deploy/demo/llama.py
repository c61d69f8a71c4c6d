"""Hugging Face's own Llama class, small, with grouped-query attention and random weights of a fixed seed."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = LlamaConfig(
    num_hidden_layers=2,
    hidden_size=256,
    intermediate_size=704,
    num_attention_heads=8,
    num_key_value_heads=2,
    max_position_embeddings=256,
    vocab_size=2048,
    bos_token_id=0,
    eos_token_id=0,
)


def make() -> LlamaForCausalLM:
    torch.manual_seed(3)
    return LlamaForCausalLM(CONFIG).eval().requires_grad_(False)


def inputs(length: int = 64) -> tuple[tuple[torch.Tensor], dict[str, bool]]:
    """One batch of token ids; keywords that make the model return plain tensors."""
    ids = torch.arange(2 * length).reshape(2, length) * 31 % CONFIG.vocab_size
    return (ids,), {"use_cache": False, "return_dict": False}


model = make()
