"""Element types by their torch names, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from stax.base.errors import SchemaError


@dataclass(frozen=True)
class DType:
    """``kind``: bool, uint, int, float or complex. ``itemsize`` in bytes."""

    name: str
    kind: str
    itemsize: int

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integral(self) -> bool:
        return self.kind in ("int", "uint")


_ROWS = (
    ("bool", "bool", 1),
    ("uint8", "uint", 1),
    ("uint16", "uint", 2),
    ("uint32", "uint", 4),
    ("uint64", "uint", 8),
    ("int8", "int", 1),
    ("int16", "int", 2),
    ("int32", "int", 4),
    ("int64", "int", 8),
    ("float8_e4m3fn", "float", 1),
    ("float8_e5m2", "float", 1),
    ("float16", "float", 2),
    ("bfloat16", "float", 2),
    ("float32", "float", 4),
    ("float64", "float", 8),
    ("complex64", "complex", 8),
    ("complex128", "complex", 16),
)
DTYPES = {name: DType(name, kind, size) for name, kind, size in _ROWS}


def dtype(name: str) -> DType:
    """Look up by torch name. Raises SchemaError for an unknown one."""
    found = DTYPES.get(name)
    if found is None:
        raise SchemaError("unknown dtype", expected=", ".join(DTYPES), found=repr(name))
    return found


def accumulator(name: str) -> str:
    """The dtype in which a value of dtype ``name`` is computed and accumulated: half types in float32."""
    return "float32" if DTYPES[name].is_float and DTYPES[name].itemsize < 4 else name
