"""How many simple operations a scalar operator costs, roughly: enough to decide about threads and recomputing."""

from __future__ import annotations

from stax.ir.expr import Expr
from stax.ir.kernel import Kernel, Statement
from stax.ir.value import Value, walk

_COSTS = {
    "exp": 6, "exp2": 6, "expm1": 8, "log": 6, "log2": 6, "log10": 6, "log1p": 8, "erf": 10, "erfc": 30, "sin": 12,
    "cos": 12, "tan": 40, "asin": 30, "acos": 30, "atan": 30, "atan2": 40, "sinh": 30, "cosh": 30, "tanh": 8, "pow": 40,
    "random32": 40, "random64": 40,
    "fmod": 20, "remainder": 20, "floordiv": 20, "truediv": 2, "sqrt": 2, "rsqrt": 3, "load": 3, "bound": 2,
    "const": 0, "index": 0, "local": 0,
}  # fmt: skip
_STORE = 3


def operations(node: Value) -> int:
    """Of one node, without its arguments."""
    return _COSTS.get(node.op, 1)


def work(kernel: Kernel) -> Expr:
    """Operations of the whole kernel."""
    per_x = sum(_cost(s) for s in kernel.statements if s.space == "x")
    per_xr = sum(_cost(s) for s in kernel.statements if s.space == "xr")
    return kernel.xnumel * (kernel.rnumel * per_xr + per_x)


def _cost(s: Statement) -> int:
    return _STORE * len(s.stores) + sum(operations(v) for v in walk(s.body))
