"""Host functions on a real device: numbers out of shared memory, its peak, both launchers, threads and streams."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import stax
from stax.api.compiled import Compiled
from stax.artifact.artifact import Arena, Launch, Place
from stax.runtime import launcher
from stax.runtime.load import Executable

pytestmark = pytest.mark.gpu


def softmaxes(x: torch.Tensor) -> torch.Tensor:
    for k in range(8):
        x = torch.softmax(x * 3, k % 2)
    return x


def norms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Kernels around a product: temps of kernels alone, and temps that torch reads."""
    h = F.layer_norm(x, x.shape[-1:]).t().contiguous()
    h = torch.softmax(torch.softmax(h, 0), 1) @ w
    return torch.softmax(torch.softmax(h, 1), 0).t().contiguous() + h.sum(0)[:, None]


def executable(compiled: Compiled) -> Executable:
    (entry,) = compiled._states.current().dispatcher.entries
    return entry.executable


def count(compiled: Compiled, kind: type) -> int:
    return sum(isinstance(s, kind) for s in executable(compiled).artifact.forward)


def error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got.double() - exact).abs().max())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("n", [64, 257, 1000])
def test_numbers_out_of_shared_memory(n: int, dynamic: bool) -> None:
    """Many calls in flight, fresh inputs: a temp that another one overwrites too soon shows."""
    compiled = stax.compile(softmaxes, store="memory:", fullgraph=True, dynamic=dynamic)
    inputs = [torch.randn(n, n + 3, device="cuda") for _ in range(20)]
    with torch.no_grad():
        outs = [compiled(x) for x in inputs]
        assert count(compiled, Launch) >= 8 and count(compiled, Place) >= 7
        for x, out in zip(inputs, outs):
            exact = softmaxes(x.double())
            assert error(out, exact) <= 2 * error(softmaxes(x), exact) + 1e-9


@pytest.mark.parametrize("dynamic", [False, True])
def test_temps_that_torch_reads_keep_memory_of_their_own(dynamic: bool) -> None:
    compiled = stax.compile(norms, store="memory:", fullgraph=True, dynamic=dynamic)
    with torch.no_grad():
        for _ in range(5):
            x, w = torch.randn(200, 300, device="cuda"), torch.randn(200, 500, device="cuda")
            exact = norms(x.double(), w.double())
            assert error(compiled(x, w), exact) <= 2 * error(norms(x, w), exact) + 1e-7


def peak_bytes(fn: Callable[[], object]) -> int:
    fn()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fn()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def test_the_peak_is_that_of_freeing_each_temp_after_its_use() -> None:
    """Claim 7.5: eight temps of 64 MiB in turns need two at once, as in eager execution, not eight."""
    x = torch.randn(4096, 4096, device="cuda")
    compiled = stax.compile(softmaxes, store="memory:", fullgraph=True)
    with torch.no_grad():
        found = peak_bytes(lambda: compiled(x))
    assert found <= 2 * x.nbytes + (1 << 20), found / x.nbytes


def test_both_launchers_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(300, 300, device="cuda")
    with torch.no_grad():
        first = stax.compile(softmaxes, store="memory:", fullgraph=True)
        expected = first(x)
        monkeypatch.setattr(launcher, "torch_launcher", lambda: None)
        second = stax.compile(softmaxes, store="memory:", fullgraph=True)
        assert torch.equal(second(x), expected)


def test_torchs_launcher_is_found_where_it_exists() -> None:
    if not hasattr(torch._C, "_StaticCudaLauncher"):
        pytest.skip("this torch has no compiled launcher")
    assert launcher.torch_launcher() is not None


def test_threads_and_streams_at_once() -> None:
    compiled = stax.compile(softmaxes, store="memory:", fullgraph=True)
    inputs = [torch.randn(128, 128, device="cuda") for _ in range(4)]
    with torch.no_grad():
        expected = [compiled(x).clone() for x in inputs]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(i: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            outs = [compiled(inputs[i]) for _ in range(50)]
            torch.cuda.current_stream().synchronize()
            if not all(torch.equal(out, expected[i]) for out in outs):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_a_second_device_has_memory_and_kernels_of_its_own() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    compiled = stax.compile(softmaxes, store="memory:", fullgraph=True)
    x = torch.randn(128, 128)
    with torch.no_grad():
        outs = [compiled(x.to(f"cuda:{d}")) for d in (0, 1, 0)]
    assert [out.get_device() for out in outs] == [0, 1, 0] and torch.cuda.current_device() == 0
    assert torch.equal(outs[0].cpu(), outs[1].cpu()) and count(compiled, Arena) == 1
