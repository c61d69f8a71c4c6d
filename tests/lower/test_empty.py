"""Reads of tensors without elements are refused; what merely passes by an empty part is not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lowering import check, lowered

from stax.base.errors import CaptureError


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_interpolation_of_nothing(mode: str, dynamic: bool) -> None:
    with pytest.raises((CaptureError, RuntimeError)):
        lowered(
            lambda x: F.interpolate(x, size=(4, 4), mode=mode), [torch.zeros(1, 1, 0, 3)], dynamic
        )


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_empty_part_is_passed_by(dynamic: bool) -> None:
    parts = [torch.randn(3, 4), torch.zeros(3, 0), torch.randn(3, 2)]
    check(lambda a, b, c: torch.cat((a, b, c), 1) * 2, parts, dynamic)
    check(lambda a: a.sum(0), [torch.zeros(0, 4)], dynamic)
    check(lambda a: F.pad(a, (1, 2)), [torch.zeros(3, 0)], dynamic)
