"""transformers' GPT-2 and Llama as they are, small, static and dynamic, for both targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from capturing import CPU, CUDA, capture, operators, reason, run

from stax.capture.decompose import decompositions

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    yield


def gpt2() -> torch.nn.Module:
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=99, n_positions=160)
    return transformers.GPT2LMHeadModel(config).eval()


def llama() -> torch.nn.Module:
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=32, intermediate_size=48, vocab_size=99,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=160,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


MODELS = {"gpt2": gpt2, "llama": llama}
TABLES = {"plain": {}, "lowering": decompositions()}


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 99, (batch, length))


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_fixed_size(name: str, table: str) -> None:
    model = MODELS[name]()
    captured = capture(model, tokens(2, 8), decompositions=TABLES[table], use_cache=False)
    x = tokens(2, 8)
    with torch.no_grad():
        close(run(captured, model, x, use_cache=False), model(x, use_cache=False))
    names = [i.name for i in captured.signature.inputs]
    assert len(names) == len(set(names)) and not captured.constants
    assert not [o for o in operators(captured) if "attention" in o]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", MODELS)
def test_one_program_for_all_batches_and_lengths(name: str, table: str) -> None:
    model = MODELS[name]()
    captured = capture(
        model, tokens(2, 8), dynamic=True, decompositions=TABLES[table], use_cache=False
    )
    assert [s.name for s in captured.symbols] == ["s0", "s1"]
    for batch, length in ((2, 2), (3, 128), (5, 17), (16, 16), (2, 3), (9, 64)):
        x = tokens(batch, length)
        assert not reason(captured, model, x, use_cache=False), (batch, length)
    for batch, length in ((3, 21), (2, 128), (4, 4)):
        x = tokens(batch, length)
        with torch.no_grad():
            close(run(captured, model, x, use_cache=False), model(x, use_cache=False))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_the_cache_comes_out(name: str, dynamic: bool) -> None:
    model = MODELS[name]()
    captured = capture(model, tokens(2, 8), dynamic=dynamic, use_cache=True)
    x = tokens(3, 12) if dynamic else tokens(2, 8)
    with torch.no_grad():
        found, expected = run(captured, model, x, use_cache=True), model(x, use_cache=True)
    close(found, expected)
    assert type(found) is type(expected)
    for mine, theirs in zip(found.past_key_values.layers, expected.past_key_values.layers):
        torch.testing.assert_close(mine.keys, theirs.keys)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_both_targets_give_one_graph(name: str, dynamic: bool) -> None:
    model = MODELS[name]()
    cpu, cuda = (
        capture(model, tokens(2, 8), dynamic=dynamic, target=t, use_cache=False)
        for t in (CPU, CUDA)
    )
    assert operators(cpu) == operators(cuda)
    assert {
        n.meta["stax"].device for n in cuda.graph.nodes if hasattr(n.meta["stax"], "device")
    } == {"cuda"}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_padding_mask(name: str, dynamic: bool) -> None:
    model = MODELS[name]()
    mask = torch.ones(2, 8, dtype=torch.int64)
    mask[0, :3] = 0
    call = {"attention_mask": mask, "use_cache": False}
    captured = capture(model, tokens(2, 8), dynamic=dynamic, **call)
    x = tokens(2, 8)
    with torch.no_grad():
        found, expected = run(captured, model, x, **call), model(x, **call)
    torch.testing.assert_close(found.logits[1], expected.logits[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.logits[0, 3:], expected.logits[0, 3:], rtol=1e-4, atol=1e-4)
