"""The device side of measuring: allocate, launch, time. Runs in the child process alone, for a kernel may hang or fault."""

# pyright: standard
# torch's types are loose.

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch

from stax.runtime.cuda import CudaKernel, current_stream, load_cubin
from stax.tune.work import Memory, Work

WARM_UP = 3
# Launches that tell how many more there is time for, and whether it is worth it.
TRIAL = 3
GIVE_UP = 1.5
MOST_REPEATS = 200
LEAST_REPEATS = 5
# Launches queued before the host waits: the driver holds some thousand commands.
QUEUED = 50
# Times the L2 cache that a flush writes.
FLUSHED = 2
LEAST_FLUSH_BYTES = 1 << 26


class Gpu:
    """One device. What ``hold`` allocates is kept for the next configuration of the same kernel."""

    def __init__(self, ordinal: str) -> None:
        self._ordinal = int(ordinal)
        torch.cuda.set_device(self._ordinal)
        cache_bytes = torch.cuda.get_device_properties(self._ordinal).L2_cache_size
        count = max(FLUSHED * cache_bytes, LEAST_FLUSH_BYTES) // 4
        self._flush = torch.empty(count, dtype=torch.int32, device="cuda")
        self._held: tuple[tuple[Memory, ...], list[torch.Tensor]] = ((), [])
        self._random = torch.Generator("cuda").manual_seed(0)
        # What a repeat costs besides the launch: writing the cache is most of it.
        self._flush_us = self._time_of_a_flush()

    def times_us(self, work: Work, budget_us: float, best_us: float) -> list[float]:
        """Device times of single launches, each with a cold L2 cache. Raises what loading and launching raise."""
        pointers = [t.data_ptr() for t in self._hold(work.memory)]
        kernel = load_cubin(work.binary, work.entry, dict(work.meta), self._ordinal)
        stream = current_stream(self._ordinal)
        launch = _launcher(kernel, work, pointers, stream)
        for _ in range(WARM_UP):
            launch()
        torch.cuda.synchronize()
        first = self._timed(launch, TRIAL)
        # A faulty kernel has raised by now, and its context is lost: then there is nothing to unload.
        times = first
        if not min(first) > GIVE_UP * best_us > 0:
            each_us = median(first) + self._flush_us
            count = min(max(int(budget_us / each_us), LEAST_REPEATS), MOST_REPEATS)
            times = self._timed(launch, count)
        kernel.unload()
        return times

    def forget(self) -> None:
        """Give the memory back."""
        self._held = ((), [])
        torch.cuda.empty_cache()

    def check(self) -> None:
        """Raises RuntimeError when an earlier fault has made the context useless."""
        torch.cuda.synchronize()

    def _time_of_a_flush(self) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for event in (begin, end):  # the first one warms up
            self._flush.zero_()
            event.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1000

    def _hold(self, memory: tuple[Memory, ...]) -> list[torch.Tensor]:
        if self._held[0] != memory:
            self.forget()
            self._held = (memory, [self._filled(m) for m in memory])
        return self._held[1]

    def _filled(self, memory: Memory) -> torch.Tensor:
        dtype = getattr(torch, memory.dtype)
        out = torch.empty(memory.elements, dtype=dtype, device="cuda")
        if memory.fill == "zero":
            out.zero_()
        elif memory.fill == "normal" and dtype.itemsize == 1:
            # No generator knows the eight-bit floats.
            out.copy_(torch.randn(memory.elements, device="cuda", generator=self._random))
        elif memory.fill == "normal":
            out.normal_(generator=self._random)
        elif memory.fill == "below":
            # Not in place: of unsigned integers that is only there for bytes.
            size = (memory.elements,)
            out.copy_(torch.randint(0, memory.below, size, device="cuda", generator=self._random))
        return out

    def _timed(self, launch: Callable[[], object], count: int) -> list[float]:
        """The flush is longer than queueing what follows it, so that the host is never what is timed."""
        times: list[float] = []
        while len(times) < count:
            pairs = []
            for _ in range(min(QUEUED, count - len(times))):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                self._flush.zero_()
                begin.record()
                launch()
                end.record()
                pairs.append((begin, end))
            torch.cuda.synchronize()
            times += [begin.elapsed_time(end) * 1000 for begin, end in pairs]
        return times


def _launcher(
    kernel: CudaKernel, work: Work, pointers: list[int], stream: int
) -> Callable[[], None]:
    return lambda: kernel.launch(work.grid, pointers, work.sizes, stream)
