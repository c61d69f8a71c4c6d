"""The shortest way that this process has to queue a kernel: torch's compiled launcher, or else ctypes.

Either is called with the same nine arguments, so that the text of a host function does not depend on which it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from stax.base.errors import LaunchError
from stax.runtime.alloc import Allocate, allocator

# (handle, x, y, z of the grid, warps, bytes of shared memory, types, arguments, stream)
Launch = Callable[[Any, int, int, int, int, int, str, tuple[int, ...], int], None]
# torch's launcher multiplies the grid out in 32 bits, and starts nothing where the product is not positive.
MAX_BLOCKS = 1 << 31
# A letter of a cubin's ABI → torch's letter for it: a pointer, an int32, an int64.
_TYPES = str.maketrans("Qiq", "Oil")


@dataclass(frozen=True)
class Host:
    """What a host function asks of torch and the driver. ``devices``: how many there are; ``handle``: what ``launch``
    takes for a loaded kernel."""

    devices: int
    empty: Allocate
    current_device: Callable[[], int]
    exchange: Callable[[int], int]
    raw_stream: Callable[[int], int]
    launch: Launch
    handle: Callable[[Any], Any]


def cuda_host() -> Host:
    """The host side of this process."""
    native = torch_launcher()
    return Host(
        torch.cuda.device_count(),
        allocator("cuda"),
        torch.cuda.current_device,
        torch.cuda._exchange_device,
        torch._C._cuda_getCurrentRawStream,
        native or by_driver,
        _function if native else _itself,
    )


def types_of(abi: str) -> str:
    """The types of a kernel's arguments as ``launch`` takes them."""
    return abi.translate(_TYPES)


@cache
def torch_launcher() -> Launch | None:
    """torch's own compiled launcher, half the cost of ctypes; None when this torch has none that is called like this."""
    launch = getattr(getattr(torch._C, "_StaticCudaLauncher", None), "_launch_kernel", None)
    return launch if launch is not None and _accepts(launch) else None


def _accepts(launch: Launch) -> bool:
    """It takes the nine arguments. An empty grid queues nothing and reads no handle."""
    try:
        launch(0, 0, 1, 1, 1, 0, "Oil", (0, 0, 0), 0)
    except (TypeError, RuntimeError):
        return False
    return True


def by_driver(
    kernel: Any,
    x: int,
    y: int,
    z: int,
    warps: int,
    shared: int,
    types: str,
    args: tuple[int, ...],
    stream: int,
) -> None:
    """The same through ctypes. The kernel knows its warps, shared memory and types."""
    kernel.queue(x, y, z, args, stream)


def _function(kernel: Any) -> int:
    return kernel.function


def _itself(kernel: Any) -> Any:
    return kernel


class Handles(dict[int, tuple[Any, ...]]):
    """What ``launch`` takes for each kernel of an artifact, by device; they are loaded when first asked for."""

    def __init__(self, kernels: Callable[[int], Any], handle: Callable[[Any], Any]) -> None:
        super().__init__()
        self._kernels = kernels
        self._handle = handle

    def __missing__(self, device: int) -> tuple[Any, ...]:
        found = self[device] = tuple(map(self._handle, self._kernels(device)))
        return found


def refuser(symbol: str) -> Callable[..., LaunchError]:
    """A function (error, x, y, z) → the error to raise for a kernel that did not start."""
    return partial(_refused, symbol)


def _refused(symbol: str, error: RuntimeError, x: int, y: int, z: int) -> LaunchError:
    return LaunchError(
        "a kernel did not start",
        found=str(error).partition("\n")[0],
        where=f"{symbol}, grid {(x, y, z)}",
        hint="CUDA_LAUNCH_BLOCKING=1 names the kernel that fails first",
    )
