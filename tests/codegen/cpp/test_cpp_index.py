"""Every operation of an index expression is C++ that builds and means what it means in Python, negative operands too."""

from __future__ import annotations

from cpp_harness import build, run
from kernel_making import KS0, X0, KernelCase, make, st

from stax.ir.expr import Expr, const, floordiv, maximum, minimum, mod
from stax.ir.kernel import Size
from stax.ir.value import index

SIZE = 13
# Values over x0 in 0..12 and ks0 = 13; where an operand may be negative the plain C++ operators round another way.
EXPRESSIONS: tuple[Expr, ...] = (
    floordiv(X0 - 7, KS0),
    mod(X0 - 7, KS0),
    floordiv(X0 + 3, KS0),
    mod(X0 + 3, KS0),
    mod(KS0 * -1, const(4)) + mod(X0 - 5, const(4)),
    floordiv(X0 - 5, const(4)),
    maximum(X0 - 3, const(4)),
    minimum(X0 * 2, KS0 - 3),
)


def test_index_expressions() -> None:
    outs = [f"out_ptr{i}" for i in range(len(EXPRESSIONS))]
    kernel = make(
        [st(f"v{i}", index(e), (outs[i], X0)) for i, e in enumerate(EXPRESSIONS)],
        x=[KS0],
        pointers=[f"{name}:int64" for name in outs],
        sizes=[Size("ks0", 1, None, SIZE)],
        index_dtype="int64",
    )
    case = KernelCase("index", kernel, dict.fromkeys(outs, SIZE), None, {"ks0": SIZE})
    code, found = run(build(kernel), case, case.inputs())
    assert code == 0
    for name, e in zip(outs, EXPRESSIONS):
        assert found[name].tolist() == [e.evaluate({"x0": x, "ks0": SIZE}) for x in range(SIZE)], (
            e.text
        )
