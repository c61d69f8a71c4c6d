"""A program that reads an element of a tensor without elements is refused: no kernel may be made of it."""

from __future__ import annotations

from stax.base.errors import CaptureError
from stax.ir.program import Computation, Program
from stax.ir.value import load_parts


def refuse_reads_of_nothing(program: Program) -> None:
    """Raises CaptureError for a loop nest with points that reads, unmasked, a buffer known to be empty: eager raises there
    too, or answers with whatever lies in memory."""
    empty = {b.name for b in program.buffers if any(n == 0 for n in b.shape)}
    if not empty:
        return
    for node in program.nodes:
        if not isinstance(node, Computation) or any(
            a.extent == 0 for a in (*node.axes, *node.reduce_axes)
        ):
            continue
        for read in node.body.loads:
            buffer, _, mask, _ = load_parts(read)
            if buffer in empty and mask is None:
                raise CaptureError(
                    f"{node.origin.op} reads an element of a tensor that has none",
                    expected="a size of at least 1",
                    found="a size of 0",
                    where=node.origin.where,
                    hint="call it on a tensor with elements",
                )
