"""Text becomes machine code on a machine without a GPU, and the same machine code everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stax.base.errors import BuildTimeout, CompilerFailed
from stax.base.target import Target, Toolchain
from stax.build.job import Job
from stax.build.triton import POINTEES, compile_triton
from stax.build.wire import pack_job
from stax.codegen.triton.emit import emit
from stax.ir.dtypes import DTYPES
from stax.ir.kernel import Kernel
from stax.ir.source import Config
from tests.kernels import KernelCase, add_transposed, cases, dynamic, softmax

ROOT = Path(__file__).parents[3]
HOPPER = Target("cuda", "sm_90")


def job_of(kernel: Kernel, target: Target = HOPPER, config: Config | None = None) -> Job:
    source = emit(kernel, target)
    return Job(
        language="triton",
        entry=source.entry,
        text=source.text,
        params=source.params,
        config=config or source.default,
        target=target,
        toolchain=Toolchain(),
    )


@pytest.mark.parametrize("case", cases(), ids=lambda c: c.name)
def test_every_kernel_compiles_without_a_gpu(case: KernelCase) -> None:
    job = job_of(case.kernel)
    cubin, meta = compile_triton(job)
    assert cubin.startswith(b"\x7fELF")
    assert meta["symbol"] == job.entry
    assert meta["spills"] == 0
    assert 0 < int(meta["registers"]) <= 255
    codes = {"int32": "i", "int64": "q"}
    expected = "".join(
        codes.get(p.dtype, "Q") if p.kind == "size" else "Q"
        for p in job.params
        if p.kind != "block"
    )
    assert meta["abi"] == expected + "Q" * int(meta["scratch_params"])


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_100"])
@pytest.mark.parametrize("case", [softmax(), add_transposed(), dynamic()], ids=lambda c: c.name)
def test_other_architectures(case: KernelCase, arch: str) -> None:
    cubin, meta = compile_triton(job_of(case.kernel, Target("cuda", arch)))
    assert cubin.startswith(b"\x7fELF")
    assert str(meta["arch"]).rstrip("a") == arch


@pytest.mark.parametrize("case", [softmax(), add_transposed(), dynamic()], ids=lambda c: c.name)
def test_code_runs_on_later_devices_of_the_same_major(case: KernelCase) -> None:
    assert compile_triton(job_of(case.kernel))[1]["arch"] == "sm_90"


@pytest.mark.parametrize(
    "case", [softmax(), softmax(8, 5000), add_transposed(), dynamic()], ids=lambda c: c.name
)
def test_every_candidate_compiles_without_spills(case: KernelCase) -> None:
    space = emit(case.kernel, HOPPER).space
    assert 1 <= len(space) <= 6
    for config in space:
        _, meta = compile_triton(job_of(case.kernel, config=config))
        assert meta["spills"] == 0, config
        assert meta["num_warps"] == config["num_warps"]


def test_a_refused_text_says_why() -> None:
    job = job_of(softmax().kernel)
    broken = replace(job, text=job.text.replace("tl.div_rn", "tl.no_such_function"))
    with pytest.raises(CompilerFailed) as caught:
        compile_triton(broken)
    assert "no_such_function" in caught.value.found


def test_the_time_limit_is_kept() -> None:
    with pytest.raises(BuildTimeout):
        compile_triton(replace(job_of(softmax().kernel), timeout_s=1e-4))


def test_every_dtype_but_complex_has_a_pointer_type() -> None:
    assert set(POINTEES) == {name for name, d in DTYPES.items() if d.kind != "complex"}


PROGRAM = """
import hashlib, json, sys
from stax.build.triton import POINTEES, compile_triton
from stax.build.wire import pack_job
from stax.build.wire import unpack_job
found = []
for path in sys.argv[1:]:
    cubin, meta = compile_triton(unpack_job(open(path, "rb").read()))
    found.append((hashlib.sha256(cubin).hexdigest(), meta))
print(json.dumps(found))
"""


def test_same_bytes_whoever_builds_wherever(tmp_path: Path) -> None:
    jobs = [tmp_path / f"{k}.job" for k in range(3)]
    for path, case in zip(jobs, (softmax(), add_transposed(), dynamic())):
        path.write_bytes(pack_job(job_of(case.kernel)))
    one = _built_elsewhere(tmp_path / "one", jobs, {"PYTHONHASHSEED": "1"})
    hostile = {
        "PYTHONHASHSEED": "2",
        "TRITON_DISABLE_LINE_INFO": "0",
        "TRITON_DEFAULT_FP_FUSION": "1",
        "TRITON_PTXAS_PATH": "/no/such/ptxas",
        "TRITON_LIBDEVICE_PATH": "/no/such/libdevice.bc",
        "TRITON_OVERRIDE_ARCH": "sm80",
        "PTXAS_OPTIONS": "-O0",
        "DISABLE_PTXAS_OPT": "1",
    }
    assert one == _built_elsewhere(tmp_path / "another" / "place", jobs, hostile)


def _built_elsewhere(folder: Path, jobs: list[Path], changes: dict[str, str]) -> object:
    """Digests and facts from a process with another home, folder and environment; nothing may be left behind."""
    home = folder / "home"
    home.mkdir(parents=True)
    environ = {
        **os.environ,
        **changes,
        "HOME": str(home),
        "TMPDIR": str(folder),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, jobs)],
        cwd=folder, env=environ, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in folder.iterdir()) == ["home"]
    assert not list(home.iterdir())
    return json.loads(done.stdout)
