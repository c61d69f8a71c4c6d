"""Claims 6.x: the launch configuration (spec 9.6). Those of the search itself are in tests/tune."""

from __future__ import annotations

import pytest

from tests.claims.examples import grid, made, random, relu_sum


@pytest.mark.parametrize("rows", [1, 7, 8, 64, 65, 1000])
def test_claim_6_1_programs_of_a_grid(rows: int) -> None:
    """ceil(xnumel / XBLOCK): 8 for Example 1.1 at XBLOCK 8."""
    source = made(relu_sum, random((rows, 128), (rows, 128))).source
    for block in (1, 8, 64):
        assert grid(source, XBLOCK=block) == (-(-rows // block),)
    if rows == 64:
        assert grid(source, XBLOCK=8) == (8,)
