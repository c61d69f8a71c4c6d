"""What goes wrong in a trace: torch's refusals become CaptureErrors at the user's line; the user's own errors stay."""

from __future__ import annotations

from torch._dynamo.exc import TorchDynamoException
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import (
    ConstraintViolationError,
    GuardOnDataDependentSymNode,
)

from stax.base.errors import CaptureError, DataDependent
from stax.capture.where import Places

REFUSALS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    GuardOnDataDependentSymNode,
    ConstraintViolationError,
    TorchDynamoException,
)
_VALUES = frozenset({"_local_scalar_dense", "is_nonzero", "equal", "allclose", "item"})


def explain(error: Exception, places: Places) -> CaptureError:
    """The CaptureError of one of torch's REFUSALS."""
    where = places.of(error)
    func = getattr(error, "func", None)
    name = str(func) if func is not None else ""
    if isinstance(error, DataDependentOutputException) or _is_value(name):
        return DataDependent(
            f"the program takes a Python value out of a tensor ({name})",
            where=where,
            hint="branch with torch.where, or pass the number as an argument",
        )
    if isinstance(error, DynamicOutputShapeException):
        return DataDependent(
            f"the size of the result of {name} depends on data",
            where=where,
            hint="use a form of fixed size, such as torch.where or a mask",
        )
    if isinstance(error, GuardOnDataDependentSymNode):
        return DataDependent(
            "a condition depends on data", found=str(error).split("\n")[0], where=where
        )
    if isinstance(error, TorchDynamoException):
        return CaptureError(
            "the program compiles a part of itself (torch.compile, torch.cond)",
            found=str(error).split("\n")[0],
            where=where,
            hint="call the function that is not compiled",
        )
    return CaptureError(
        f"the program can not be traced{f' past {name}' if name else ''}",
        found=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
        where=where,
    )


def _is_value(name: str) -> bool:
    parts = name.split(".")
    return len(parts) > 1 and parts[1] in _VALUES
