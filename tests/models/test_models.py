"""GPT-2 and Llama as Hugging Face has them: right to within twice eager's own error, natively, at every length."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from families import gpt2, llama, relative_error, tokens

import stax
from stax.artifact.artifact import Call
from stax.build.local import LocalBuilder

ALLOWED = {"aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.baddbmm.default"}
MODELS = {"gpt2": gpt2, "llama": llama}


@pytest.fixture(scope="module")
def builder() -> Iterator[LocalBuilder]:
    made = LocalBuilder()
    yield made
    made.close()


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest) -> tuple[torch.nn.Module, torch.nn.Module]:
    model = MODELS[request.param]()
    return model, copy.deepcopy(model).double()


def check(
    model: torch.nn.Module, exact: torch.nn.Module, compiled: object, ids: torch.Tensor
) -> None:
    found = compiled(ids, use_cache=False)  # type: ignore[operator]
    reference = exact(ids, use_cache=False).logits
    eager = relative_error(model(ids, use_cache=False).logits, reference)
    assert type(found) is type(model(ids, use_cache=False))
    assert relative_error(found.logits, reference) <= 2 * eager


@torch.no_grad()
def test_static(pair: tuple[torch.nn.Module, torch.nn.Module], builder: LocalBuilder) -> None:
    model, exact = pair
    compiled = stax.compile(
        model, strict_native=True, fullgraph=True, store="memory:", builder=builder
    )
    for _ in range(2):
        check(model, exact, compiled, tokens(model, 2, 33))
    assert compiled.stats().captures == 1
    targets = {s.target for e in entries(compiled) for s in e.forward if isinstance(s, Call)}
    assert targets <= ALLOWED


@torch.no_grad()
def test_one_dynamic_artifact_serves_lengths_2_to_128(
    pair: tuple[torch.nn.Module, torch.nn.Module], builder: LocalBuilder
) -> None:
    model, exact = pair
    compiled = stax.compile(
        model, dynamic=True, strict_native=True, fullgraph=True, store="memory:", builder=builder
    )
    for length in (17, 2, 3, 31, 64, 65, 127, 128):
        check(model, exact, compiled, tokens(model, 3, length))
    assert compiled.stats().artifacts == 1


def entries(compiled: stax.Compiled) -> list[object]:
    return [e.executable.artifact for e in compiled._states.current().dispatcher.entries]
