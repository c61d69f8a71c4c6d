"""The text that the C++ emitter prints: golden texts, names, signature, refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from conftest import Golden

from stax.base.errors import VerifyError
from stax.base.target import Target
from stax.codegen.cpp.emit import emit, entry_name
from stax.ir.expr import sym
from stax.ir.source import Config, Param
from stax.ir.value import scalar
from tests import kernels
from tests.kernels import X0, KernelCase, at, make, st

CPU = Target("cpu", "x86-64-v3")

GOLDEN: dict[str, Callable[[], KernelCase]] = {
    "add_relu_sum": kernels.add_relu_sum,
    "add_broadcast": kernels.add_broadcast,
    "softmax": kernels.softmax,
    "layer_norm": kernels.layer_norm,
    "embedding": kernels.embedding,
    "scatter_add": kernels.scatter_add,
    "padded": kernels.padded,
    "dynamic": kernels.dynamic,
    "halves": kernels.halves,
    "outer_sum": kernels.outer_sum,
    "full_sum": lambda: kernels.full_sum(1 << 20),
    "argmax": kernels.arg_extremes,
    "permuted_large": lambda: kernels.add_transposed(1024, 2048),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_text(name: str, golden: Golden) -> None:
    golden.check(f"{name}.cpp", emit(GOLDEN[name]().kernel, CPU).text)


def test_the_same_kernel_gives_the_same_text_for_every_target() -> None:
    for case in kernels.cases():
        texts = {emit(case.kernel, Target("cpu", a)).text for a in ("x86-64", "x86-64-v4")}
        assert texts == {emit(case.kernel, CPU).text}


def test_signature() -> None:
    source = emit(kernels.dynamic().kernel, CPU)
    assert source.language == "cpp"
    assert source.form == "red"
    assert source.params == (
        Param("in", "in_ptr0", "float32"),
        Param("out", "out_ptr0", "float32"),
        Param("out", "out_ptr1", "float32"),
        Param("size", "ks0", "int64"),
        Param("size", "ks1", "int64"),
    )
    assert source.sizes == (sym("ks0"), sym("ks1"))
    assert source.grid == ()
    assert source.space == (Config(),)
    assert source.default == Config()
    assert f'extern "C" int64_t {source.entry}(' in source.text


def test_inout_counts_as_out() -> None:
    assert emit(kernels.in_place().kernel, CPU).params == (Param("out", "inout_ptr0", "float32"),)


def test_entry_name_is_cut_at_an_operator() -> None:
    kernel = kernels.add_broadcast().kernel
    assert entry_name(kernel) == "cpp_poi_fused_add"
    assert entry_name(replace(kernel, fused=("_softmax", "add.Tensor"))) == (
        "cpp_poi_fused_softmax_add_Tensor"
    )
    long = entry_name(replace(kernel, fused=tuple(f"operator_{i}" for i in range(30))))
    assert len(long) <= 80
    assert long.endswith("operator_5")


def test_only_what_a_kernel_uses_stands_in_its_prelude() -> None:
    text = emit(kernels.add_broadcast().kernel, CPU).text
    assert "stax_" not in text
    assert text.startswith("#include <stdint.h>\n")
    assert text.count("#include") == 1


def test_refusals() -> None:
    with pytest.raises(VerifyError, match="C\\+\\+ is emitted for the CPU only"):
        emit(kernels.add_broadcast().kernel, Target("cuda", "sm_90"))
    body = scalar("add", at("in_ptr0", X0, "complex64"), at("in_ptr0", X0, "complex64"))
    complex_ = make(
        [st("v0", body, ("out_ptr0", X0))],
        x=[4],
        pointers=["in_ptr0:complex64", "out_ptr0:complex64"],
    )
    with pytest.raises(VerifyError, match=r"no C\+\+ type|complex values"):
        emit(complex_, CPU)
