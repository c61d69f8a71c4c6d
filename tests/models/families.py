"""Hugging Face's own classes with random weights from a fixed seed, and inputs for them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

Call = tuple[torch.nn.Module, tuple[torch.Tensor, ...], dict[str, Any]]


def gpt2(
    layers: int = 12, width: int = 768, heads: int = 12, vocab: int = 50257
) -> torch.nn.Module:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocab)
    return GPT2LMHeadModel(config).eval()


def llama(
    layers: int = 4, width: int = 512, heads: int = 8, kv_heads: int = 2, vocab: int = 8000
) -> torch.nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=layers, hidden_size=width, intermediate_size=width * 11 // 4,
        num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=vocab,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def tokens(model: torch.nn.Module, batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, model.config.vocab_size, (batch, length))


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """‖found − exact‖ / ‖exact‖ in float64."""
    return float((found.double() - exact).norm() / exact.norm())
