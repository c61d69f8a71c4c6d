"""GPT-2 and Llama as transformers writes them: natively but for products, equal to eager, lowered in bounded time."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from lowering import TARGET, call_torch, externs, to_numpy

from stax.base.options import Options
from stax.capture.captured import Captured
from stax.capture.decompose import decompositions
from stax.capture.trace import trace
from stax.ir.interp import run
from stax.ir.program import Program
from stax.ir.verify import verify_program
from stax.lower.lower import lower

transformers = pytest.importorskip("transformers")


def gpt2(layers: int = 2) -> torch.nn.Module:
    config = transformers.GPT2Config(
        n_layer=layers,
        n_head=4,
        n_embd=32,
        vocab_size=101,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=1,
    )
    return _random(transformers.GPT2LMHeadModel(config))


def llama(layers: int = 2, heads: int = 2) -> torch.nn.Module:
    config = transformers.LlamaConfig(
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=heads,
        hidden_size=32,
        intermediate_size=56,
        vocab_size=101,
    )
    return _random(transformers.LlamaForCausalLM(config))


def _random(model: torch.nn.Module) -> torch.nn.Module:
    """Weights so large that every part of the model shows in the result."""
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator) * 0.3
    return model.eval()


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 101, (batch, length), generator=torch.Generator().manual_seed(length))


def captured(model: torch.nn.Module, ids: torch.Tensor, dynamic: bool) -> Captured:
    def logits(ids: torch.Tensor) -> torch.Tensor:
        return model(ids, use_cache=False).logits

    return trace(
        logits, (ids,), {}, dynamic=dynamic, target=TARGET, decompositions=decompositions()
    )


def results(program: Program, found: Captured, model: torch.nn.Module, ids: torch.Tensor) -> Any:
    state = {
        **dict(model.named_parameters()),
        **dict(model.named_buffers()),
        **dict(found.constants),
    }
    inputs = [ids if i.source == "arg" else _state(state, i.name) for i in found.signature.inputs]
    sizes: dict[str, int] = {}
    for name, value in zip(program.inputs, inputs):
        for size, n in zip(program.buffer(name).shape, value.shape):
            if len(size.symbols) == 1 and str(size) in size.symbols:
                sizes[str(size)] = n
    return run(program, [to_numpy(i) for i in inputs], sizes, call_torch)[0]


def _state(state: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """By its own name, or by what follows the name of the module."""
    return state[name] if name in state else next(v for k, v in state.items() if name.endswith(k))


MODELS = {"gpt2": gpt2, "llama": llama, "llama_one_head": lambda: llama(heads=1)}
PRODUCTS = {"aten.mm.default", "aten.addmm.default", "aten.bmm.default"}


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str) -> None:
    """Every operator but the products has a loop of its own."""
    model, ids = MODELS[name](), tokens(2, 9)
    found = captured(model, ids, dynamic=False)
    program = lower(found, options=Options(strict_native=True))
    verify_program(program)
    assert set(externs(program)) <= PRODUCTS
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
    torch.testing.assert_close(
        torch.from_numpy(results(program, found, model, ids)), expected, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", MODELS)
def test_model_dynamic(name: str) -> None:
    """One program for every batch and length that its guards admit."""
    model = MODELS[name]()
    found = captured(model, tokens(3, 9), dynamic=True)
    program = lower(found, options=Options(strict_native=True))
    verify_program(program)
    assert set(externs(program)) <= PRODUCTS
    for batch, length in ((3, 9), (2, 17), (5, 6)):
        ids = tokens(batch, length)
        with torch.no_grad():
            expected = model(ids, use_cache=False).logits
        ours = torch.from_numpy(results(program, found, model, ids))
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_heads_are_index_maps() -> None:
    """Dynamic GPT-2 splits and joins its heads without a division in any loop."""
    found = captured(gpt2(1), tokens(3, 9), dynamic=True)
    program = lower(found, options=Options(strict_native=True))
    bodies = [n.body.text for n in program.nodes if hasattr(n, "body")]
    assert not [b for b in bodies if "//" in b or "%" in b]


def test_lowering_twelve_layers_takes_seconds() -> None:
    """About 0.6 s on a free core; the bound is wide because machines that run tests are not free."""
    found = captured(gpt2(12), tokens(2, 9), dynamic=False)
    start = time.perf_counter()
    lower(found, options=Options(strict_native=True))
    assert time.perf_counter() - start < 6
