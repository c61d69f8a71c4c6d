"""Every claim of the specification's chapter on GPU code (9.1 to 9.7) is a test that bears its number: test_claim_5_3_…"""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]

# The claims, by number, in a few words. The first number counts the sections 9.1 to 9.7.
CLAIMS: dict[str, str] = {
    "1.1": "bytes in flight for a saturated memory",
    "1.2": "products go to templates, everything else becomes a Triton kernel",
    "1.3": "a grid of programs, masked accesses touch nothing",
    "1.4": "block sizes are constexpr powers of two, left open",
    "1.5": "an index vector a dimension, a block operation an operator",
    "1.6": "neighbouring lanes access neighbouring addresses",
    "2.1": "Example 1.1 is one persistent kernel",
    "2.2": "parameters in order",
    "2.3": "static numels are literals, dynamic ones parameters",
    "2.4": "index vectors of a two-dimensional block",
    "2.5": "a full block has a constant mask",
    "2.6": "loads with mask, other and eviction policy",
    "2.7": "relu hands a NaN on",
    "2.8": "literals are full tensors",
    "2.9": "masked lanes are the identity of the sum",
    "2.10": "one loop IR for CPU and GPU",
    "3.1": "x.t() + y has two dimensions",
    "3.2": "its grid is two-dimensional",
    "3.3": "the split that coalesces most bytes",
    "3.4": "one direction, one dimension",
    "3.5": "GELU backward",
    "4.1": "which reductions are persistent",
    "4.2": "R0_BLOCK is the least power of two that holds a row",
    "4.3": "the looped form",
    "4.4": "Example 6.2 is split into two kernels",
    "4.5": "its outer dimensions merge",
    "4.6": "one load in the loop body",
    "4.7": "a partial buffer of 512 bytes",
    "5.1": "softmax is one persistent kernel",
    "5.2": "masked lanes are the identity of each reduction",
    "5.3": "2N bytes fused, 8N in five kernels",
    "5.4": "maxima and sums of exponentials merge in any order",
    "5.5": "rows beyond the persistent limit",
    "5.6": "prefixes of names",
    "6.1": "programs of a grid",
    "6.2": "what can not run costs infinity",
    "6.3": "spilled registers cost infinity",
    "6.4": "one candidate is not measured",
    "6.5": "measured once, then recorded",
    "6.6": "the step and the threshold of coordinate descent",
    "6.7": "bounds of coordinate descent",
    "6.8": "acceptances under noise",
    "6.9": "draws of random search",
    "6.10": "successive halving and a cost model",
    "7.1": "kernels are built together, before the first call",
    "7.2": "inputs are checked for size and stride",
    "7.3": "one device, one stream, buffers allocated, launches in order",
    "7.4": "buffers are freed after their last use",
    "7.5": "no synchronisation between dependent kernels",
}


def claimed() -> set[str]:
    """Numbers of the claims that some test of the project names."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = node.name if isinstance(node, ast.FunctionDef) else ""
            if number := re.match(r"test_claim_(\d+)_(\d+)_", name):
                found.add(".".join(number.groups()))
    return found


def test_every_claim_has_a_test_and_every_such_test_a_claim() -> None:
    assert claimed() == set(CLAIMS)
