"""What LocalBuilder is made of: tools by name, one compile, the wire, and kernels in a store."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from suites.builder_suite import cpp_job, small_text, triton_job

from stax.base.digest import sha256
from stax.base.errors import SchemaError
from stax.base.target import Toolchain
from stax.build.compile import compile_job
from stax.build.job import Built, Failed
from stax.build.kernels import find_kernel, publish_kernel
from stax.build.toolchain import local_toolchain
from stax.build.wire import frame_length, pack_job, pack_result, unpack_job, unpack_result
from stax.store import Record, Records, layout, open_store


def script(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_tools_of_this_machine_have_versions():
    tools = local_toolchain()
    assert re.fullmatch(r"g\+\+ \d+\.\d+\.\d+", tools.cxx)
    assert re.fullmatch(r"\d+\.\d+\.\d+\w*", tools.torch), "the public part, without +cpu"


def test_a_tool_that_is_not_there_is_an_empty_field():
    assert local_toolchain("no-such-compiler").cxx == ""


@pytest.mark.parametrize("name", ["g++", "g++-14", "g++-14.2"])
def test_a_compiler_is_named_without_its_folder_and_suffix(tmp_path: Path, name: str):
    assert local_toolchain(script(tmp_path, name, "echo 14.2.0")).cxx == "g++ 14.2.0"


def test_a_compiler_that_knows_one_flag_only_is_asked_twice(tmp_path: Path):
    clang = script(tmp_path, "clang++", 'test "$1" = -dumpversion && echo 19.1.7')
    assert local_toolchain(clang).cxx == "clang++ 19.1.7"


def test_a_language_without_a_compiler_is_refused():
    failed = compile_job(replace(cpp_job("x"), language="rust"), cxx="g++")
    assert isinstance(failed, Failed) and failed.kind == "toolchain" and "'rust'" in failed.message


def test_other_tools_are_named_with_both_versions():
    job = replace(cpp_job("x"), toolchain=Toolchain(cxx="g++ 99.1"))
    failed = compile_job(job, cxx="g++", toolchain=Toolchain(cxx="g++ 12.2.0", triton="3.6.0"))
    assert isinstance(failed, Failed)
    assert failed.message.endswith("cxx: expected g++ 99.1, found g++ 12.2.0")


def test_a_compiler_that_was_killed_is_not_the_fault_of_the_text(tmp_path: Path):
    says = "g++: fatal error: Killed signal terminated program cc1plus"
    for text in (f"echo '{says}' >&2; exit 1", "kill -9 $$"):
        compiler = script(tmp_path, "g++", text)
        tools = local_toolchain().for_kernel("cpu")
        failed = compile_job(cpp_job("x"), cxx=compiler, toolchain=tools)
        assert isinstance(failed, Failed) and failed.kind == "worker-lost", failed


def test_jobs_survive_the_wire():
    for job in (cpp_job(small_text("wire"), timeout_s=7.5), triton_job()):
        again = unpack_job(pack_job(job))
        assert again == job and again.key == job.key


def test_results_survive_the_wire():
    job = cpp_job("the text")
    built = Built(job.key.digest, b"\x00\xff", (("entry", "f"), ("shared_bytes", 64)), 0.25)
    failed = Failed(job.key.digest, "compiler", "no", "line 1", "the text")
    for result in (built, failed):
        assert unpack_result(pack_result(result), job) == result


@given(st.binary(max_size=200))
def test_other_bytes_on_the_wire_are_a_schema_error(blob: bytes):
    for read in (unpack_job, lambda b: unpack_result(b, cpp_job("x"))):
        with pytest.raises(SchemaError):
            read(blob)


def test_a_frame_that_would_fill_the_memory_is_refused():
    with pytest.raises(SchemaError, match="frame too long"):
        frame_length(b"\xff" * 8)


KEY = sha256(b"a kernel key")
BUILT = Built(KEY, b"binary", (("entry", "f"), ("num_warps", 4)), 0.1)


def test_a_published_kernel_is_found():
    records = Records(open_store("memory:"), "dev")
    assert find_kernel(records, KEY) is None
    kernel = publish_kernel(records, BUILT)
    assert find_kernel(records, KEY) == kernel
    assert (kernel.digest, kernel.size_bytes, kernel.meta) == (sha256(b"binary"), 6, BUILT.meta)
    assert records.get_blob(kernel.digest) == b"binary"


def test_the_first_of_two_builds_stays():
    records = Records(open_store("memory:"), "dev")
    first = publish_kernel(records, BUILT)
    assert publish_kernel(records, replace(BUILT, data=b"other", seconds=9.0)) == first


def test_a_kernel_whose_binary_is_gone_is_not_found_and_heals():
    store = open_store("memory:")
    records = Records(store, "dev")
    kernel = publish_kernel(records, BUILT)
    store.delete(layout.cas(kernel.digest))
    assert find_kernel(records, KEY) is None
    assert publish_kernel(records, BUILT) == kernel
    assert find_kernel(records, KEY) == kernel


@pytest.mark.parametrize(
    "body", [{}, {"meta": 3, "size_bytes": 1}, {"meta": {"a": [1]}, "size_bytes": 1}]
)
def test_a_record_of_another_shape_is_a_miss_and_heals(body: dict[str, object]):
    records = Records(open_store("memory:"), "dev")
    digest = sha256(b"binary")
    records.publish(Record("kernel", KEY, "built", body, (digest,)), {digest: b"binary"})
    assert find_kernel(records, KEY) is None
    kernel = publish_kernel(records, BUILT)
    assert find_kernel(records, KEY) == kernel
