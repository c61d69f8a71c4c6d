"""A stream of msgpack items that is read one at a time, so that a length that lies, a bomb or deep nesting costs nothing."""

from __future__ import annotations

from typing import Any, NoReturn, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]

from stax.base.errors import SchemaError
from stax.ir.expr import Expr

_Unpacker = cast(Any, msgpack.Unpacker)  # pyright: ignore[reportUnknownMemberType]
_STREAM_ERRORS = (ValueError, TypeError, OverflowError, msgpack.exceptions.UnpackException)


class Reader:
    """A stream of msgpack items with the depth reached so far. ``exprs`` remembers the expressions already read."""

    def __init__(self, data: bytes) -> None:
        self.depth = 0
        self.exprs: dict[int | str, Expr] = {}
        self._data_bytes = len(data)
        self._stream = _Unpacker(
            raw=False,
            use_list=False,
            unicode_errors="surrogatepass",
            max_buffer_size=len(data) or 1,
            max_str_len=len(data),
            max_bin_len=0,
            max_array_len=0,
            max_map_len=0,
            max_ext_len=0,
        )
        self._stream.feed(data)

    def scalar(self) -> Any:
        """The next item, which is no container."""
        try:
            return self._stream.unpack()
        except _STREAM_ERRORS as error:
            fault("a scalar", type(error).__name__)

    def header(self, least: int, most: int) -> int:
        """The length of the array that begins here."""
        try:
            length = self._stream.read_array_header()
        except _STREAM_ERRORS as error:
            fault("an array", type(error).__name__)
        if not least <= length <= most:
            fault(f"{least} items" if least == most else f"{least} to {most} items", str(length))
        return length

    def finish(self) -> None:
        """Raises SchemaError unless every byte was read."""
        if self._stream.tell() != self._data_bytes:
            fault("the end", f"{self._data_bytes - self._stream.tell()} more bytes")


def fault(expected: str, found: object) -> NoReturn:
    raise SchemaError("bad artifact data", expected=expected, found=str(found)[:120]) from None


def within(error: SchemaError, step: str) -> SchemaError:
    """The same error, one level further from the root."""
    joint = "." if error.where and not error.where.startswith("[") else ""
    return SchemaError(
        error.what, expected=error.expected, found=error.found, where=step + joint + error.where
    )
