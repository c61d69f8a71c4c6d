"""What the launcher hands to the driver, seen by a driver that only writes it down."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from typing import Any

import pytest

from stax.base.errors import Incompatible, LaunchError, LoadError
from stax.runtime.cuda import CudaKernel, load_cubin

META: dict[str, int | str] = {
    "symbol": "kernel", "num_warps": 4, "shared_bytes": 1024, "abi": "QQiqQQ", "scratch_params": 2,
    "registers": 30, "spills": 0, "arch": "sm_90a",
}  # fmt: skip
NAMES = {
    1: b"CUDA_ERROR_INVALID_VALUE",
    201: b"CUDA_ERROR_INVALID_CONTEXT",
    209: b"CUDA_ERROR_NO_BINARY_FOR_GPU",
}


@dataclass
class WritingDriver:
    """A libcuda that accepts everything; ``answers`` gives results to hand out, by function, first ones first."""

    answers: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    calls: list[str] = field(default_factory=list[str])
    launches: list[tuple[tuple[int, ...], bytes]] = field(
        default_factory=list[tuple[tuple[int, ...], bytes]]
    )
    attributes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    shared_limit: int = 232_448

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> int:
            self.calls.append(name)
            queued = self.answers.get(name)
            result = queued.pop(0) if queued else 0
            if result == 0 and f"_{name}" in WritingDriver.__dict__:
                WritingDriver.__dict__[f"_{name}"](self, *args)
            return result

        return call

    def _cuGetErrorName(self, result: int, out: Any) -> None:
        out._obj.value = NAMES[result]

    def _cuModuleGetFunction(self, out: Any, module: Any, name: bytes) -> None:
        assert name == b"kernel"
        out._obj.value = 0xF00D

    def _cuDeviceGetAttribute(self, out: Any, attribute: int, device: Any) -> None:
        out._obj.value = self.shared_limit

    def _cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> None:
        self.attributes.append((attribute, value))

    def _cuLaunchKernelEx(self, config: Any, function: Any, params: Any, extra: Any) -> None:
        assert function == 0xF00D
        assert params is None
        words = struct.unpack("@7I4xQQI4x", ctypes.string_at(config, 56))
        marks = struct.unpack("@5Q", ctypes.string_at(extra, 40))
        assert (marks[0], marks[2], marks[4]) == (1, 2, 0)
        size = ctypes.c_size_t.from_address(marks[3]).value
        self.launches.append((words, ctypes.string_at(marks[1], size)))


def loaded(driver: WritingDriver, **changes: int | str) -> CudaKernel:
    return load_cubin(b"\x7fELF", "kernel", {**META, **changes}, device=0, library=driver)


def test_a_launch_is_packed_as_the_kernel_expects() -> None:
    driver = WritingDriver()
    loaded(driver).launch((7, 2, 1), (0x1000, 0x2000), (33, 1 << 40), 0xABC)
    words, arguments = driver.launches[0]
    assert words == (7, 2, 1, 128, 1, 1, 1024, 0xABC, 0, 0)
    assert struct.unpack("@QQiqQQ", arguments) == (0x1000, 0x2000, 33, 1 << 40, 0, 0)


def test_an_empty_grid_launches_nothing() -> None:
    driver = WritingDriver()
    kernel = loaded(driver)
    kernel.launch((0, 1, 1), (1, 2), (0, 0), 0)
    kernel.launch((5, 0, 1), (1, 2), (0, 0), 0)
    assert driver.launches == []


def test_buffers_are_used_again() -> None:
    driver = WritingDriver()
    kernel = loaded(driver)
    for k in range(3):
        kernel.launch((1, 1, 1), (k, k), (k, k), 0)
    assert [struct.unpack("@QQiqQQ", a)[0] for _, a in driver.launches] == [0, 1, 2]
    assert len(kernel._idle) == 1


def test_a_fresh_thread_gets_the_context() -> None:
    driver = WritingDriver(answers={"cuLaunchKernelEx": [201]})
    loaded(driver).launch((1, 1, 1), (1, 2), (3, 4), 0)
    assert driver.calls[-3:] == ["cuLaunchKernelEx", "cuCtxSetCurrent", "cuLaunchKernelEx"]
    assert len(driver.launches) == 1


def test_a_failed_launch_names_the_drivers_error() -> None:
    kernel = loaded(WritingDriver(answers={"cuLaunchKernelEx": [1]}))
    with pytest.raises(LaunchError, match="CUDA_ERROR_INVALID_VALUE") as caught:
        kernel.launch((1, 1, 1), (1, 2), (3, 4), 0)
    assert caught.value.where.endswith("grid (1, 1, 1)") and kernel._idle
    with pytest.raises(LaunchError):
        loaded(WritingDriver(answers={"cuLaunchKernelEx": [201], "cuCtxSetCurrent": [1]})).launch(
            (1, 1, 1), (1, 2), (3, 4), 0
        )


def test_a_cubin_for_another_device_is_incompatible() -> None:
    driver = WritingDriver(answers={"cuModuleLoadData": [209]})
    with pytest.raises(Incompatible, match="NO_BINARY_FOR_GPU"):
        loaded(driver)
    assert (
        driver.calls[-2:] == ["cuCtxPopCurrent_v2", "cuGetErrorName"]
        or "cuCtxPopCurrent_v2" in driver.calls
    )


def test_much_shared_memory_is_asked_for() -> None:
    driver = WritingDriver()
    loaded(driver, shared_bytes=100_000)
    assert driver.attributes == [(8, 100_000)]
    with pytest.raises(Incompatible, match="too much shared memory"):
        loaded(WritingDriver(shared_limit=99_000), shared_bytes=100_000)


@pytest.mark.parametrize(
    "changes",
    [{"abi": "QQ%n"}, {"abi": ""}, {"num_warps": 0}, {"num_warps": "4"}, {"shared_bytes": -1}, {"scratch_params": 6}, {"symbol": "a b"}],
    ids=str,
)  # fmt: skip
def test_impossible_facts_are_refused(changes: dict[str, int | str]) -> None:
    with pytest.raises(LoadError, match="bad facts"):
        loaded(WritingDriver(), **changes)


def test_the_entry_must_be_the_symbol() -> None:
    with pytest.raises(LoadError, match="another kernel"):
        load_cubin(b"", "other", META, device=0, library=WritingDriver())
