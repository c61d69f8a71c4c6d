"""What this machine can run, and libraries from memory."""

from __future__ import annotations

import ctypes
import os
import threading
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stax.artifact.artifact import Constraints
from stax.base.digest import sha256
from stax.base.errors import Corrupt, Incompatible, LoadError
from stax.base.target import CPU_LEVEL_FLAGS, CPU_LEVELS, Target
from stax.pipeline.assemble import constraints_of
from stax.runtime.constraints import Facts, best_cpu_target, check, cpu_levels, machine_facts
from stax.runtime.cpu import Libraries, open_library
from tests.artifacts import binary, library

ALL_FLAGS = frozenset().union(*CPU_LEVEL_FLAGS.values())
FACTS = Facts("x86_64", ALL_FLAGS - CPU_LEVEL_FLAGS["x86-64-v4"], "2.31", "2.11.0", ((9, 0),))


@pytest.mark.parametrize(
    ("constraints", "refused"),
    [
        (Constraints(), ""),
        (Constraints(cpu_level="x86-64-v3", glibc="2.4", torch_min="2.11", cuda_arch="sm_90"), ""),
        (Constraints(cpu_level="x86-64-v4"), "CPU level"),
        (Constraints(cpu_level="x86-64-v9"), "CPU level"),
        (Constraints(glibc="2.32"), "glibc"),
        (Constraints(torch_min="2.11.1"), "torch"),
        (Constraints(cuda_arch="sm_80"), "CUDA architecture"),
        (Constraints(cuda_arch="sm_100"), "CUDA architecture"),
        (Constraints(cuda_arch="sm_"), "CUDA architecture"),
        (Constraints(cuda_arch="sm_90a"), ""),
        (Constraints(cuda_arch="sm_90b"), "CUDA architecture"),
        (Constraints(cuda_arch="sm_90aa"), "CUDA architecture"),
    ],
)
def test_constraints(constraints: Constraints, refused: str) -> None:
    if not refused:
        check(constraints, FACTS)
        return
    with pytest.raises(Incompatible, match=refused):
        check(constraints, FACTS)


def test_a_cubin_runs_on_a_later_minor_of_its_major() -> None:
    check(Constraints(cuda_arch="sm_80"), replace(FACTS, cuda=((8, 9),)))
    with pytest.raises(Incompatible, match="sm_86"):
        check(Constraints(cuda_arch="sm_89"), replace(FACTS, cuda=((8, 6),)))
    with pytest.raises(Incompatible, match="no CUDA device"):
        check(Constraints(cuda_arch="sm_89"), replace(FACTS, cuda=()))


def test_code_for_an_exact_device_runs_on_no_other() -> None:
    later = replace(FACTS, cuda=((10, 3),))
    check(Constraints(cuda_arch="sm_100"), later)
    with pytest.raises(Incompatible, match=r"sm_100a, which is 10\.0 alone; found sm_103"):
        check(Constraints(cuda_arch="sm_100a"), later)
    check(Constraints(cuda_arch="sm_100a"), replace(FACTS, cuda=((10, 3), (10, 0))))


def test_one_binary_for_an_exact_device_binds_the_artifact_to_it() -> None:
    target = Target("cuda", "sm_100")
    plain = replace(binary("add_one"), meta=(("arch", "sm_100"),))
    exact = replace(plain, meta=(("arch", "sm_100a"),))
    assert constraints_of(target, [plain, plain]).cuda_arch == "sm_100"
    assert constraints_of(target, [plain, exact, plain]).cuda_arch == "sm_100a"
    assert constraints_of(target, []).cuda_arch == "sm_100"


def test_levels_build_on_each_other() -> None:
    assert best_cpu_target(FACTS) == Target("cpu", "x86-64-v3")
    assert cpu_levels(replace(FACTS, cpu_flags=CPU_LEVEL_FLAGS["x86-64-v3"])) == ("x86-64",)
    with pytest.raises(Incompatible):
        best_cpu_target(replace(FACTS, machine="aarch64"))


def test_a_core_that_lacks_a_flag_counts(tmp_path: Path) -> None:
    weak = tmp_path / "cpuinfo"
    weak.write_text(f"flags\t\t: {' '.join(ALL_FLAGS)}\n\nflags\t\t: avx\n")
    assert machine_facts(weak).cpu_flags == {"avx"}
    assert machine_facts(tmp_path / "absent").cpu_flags == frozenset()


def test_what_is_built_for_this_host_loads_on_it() -> None:
    facts = machine_facts()
    for level in cpu_levels(facts):
        check(Constraints(cpu_level=level, glibc=facts.glibc, torch_min=facts.torch), facts)
    assert best_cpu_target(facts).arch in CPU_LEVELS


def call(entry: object, data: torch.Tensor, out: torch.Tensor, stride: int) -> int:
    pointers = array("q", [data.data_ptr(), out.data_ptr()])
    sizes = array("q", [out.numel(), stride])
    return entry(pointers.buffer_info()[0], sizes.buffer_info()[0])  # type: ignore[operator]


def test_libraries_load_from_memory_once_and_stay_apart() -> None:
    libraries = Libraries()
    entries = []
    for name in ("add_one", "row_sum", "add_one"):
        data = library(name)
        entries.append(libraries.entry(sha256(data), data, name))
    x, out = torch.arange(6.0), torch.empty(6)
    assert call(entries[0], x, out, 1) == 0 and out.tolist() == [1, 2, 3, 4, 5, 6]
    assert call(entries[2], x, out[:3], 2) == 0 and out[:3].tolist() == [1, 3, 5]
    sums = torch.empty(2)
    assert call(entries[1], x, sums, 3) == 0 and sums.tolist() == [3, 12]
    address = [ctypes.cast(e, ctypes.c_void_p).value for e in entries]
    assert address[0] == address[2] != address[1]


def test_many_threads_load_the_same_library() -> None:
    libraries = Libraries()
    data = library("add_one")
    found: list[object] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(libraries.entry(sha256(data), data, "add_one"))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({ctypes.cast(e, ctypes.c_void_p).value for e in found}) == 1  # type: ignore[call-overload]


def test_a_private_file_serves_where_memory_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> int:
        raise OSError("not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    data = library("add_one")
    function = open_library(sha256(data), data)["add_one"]
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    x, out = torch.arange(3.0), torch.empty(3)
    assert call(function, x, out, 1) == 0 and out.tolist() == [1, 2, 3]
    assert not list(tmp_path.iterdir())


def test_what_is_no_library() -> None:
    data = library("add_one")
    with pytest.raises(Corrupt):
        Libraries().entry(sha256(b""), data, "add_one")
    with pytest.raises(LoadError, match="not in its library"):
        Libraries().entry(sha256(data), data, "nothing")
    for broken in (b"", b"\x7fELF", data[:2000]):
        with pytest.raises(LoadError, match="no whole library"):
            Libraries().entry(sha256(broken), broken, "add_one")
