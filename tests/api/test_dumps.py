"""The debug ladder: each level writes what it promises, as numbered files, and changes no result and no key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import stax
from stax.api.compiled import Compiled
from stax.api.session import Session
from stax.base.options import Environment

PROMISED = {
    2: set[str](),
    3: {
        "trace.graph",
        "lower.program",
        "schedule.kernels",
        "schedule.memory",
        "schedule.decisions",
        "trace.guards",
    },
    4: {"emit.cpp_per_fused_add_sum"},
    5: {"load.host"},
}


def compiled(fn: Callable[..., Any], folder: Path, level: int, dumps: str) -> Compiled:
    environment = Environment(cache_dir=folder / "cache", debug=level, dump_dir=dumps)
    return Compiled(
        fn, dynamic=False, fullgraph=True, options=stax.Options(), target=None,
        session=Session(environment=environment),
    )  # fmt: skip


@pytest.mark.parametrize("level", PROMISED)
def test_a_level_shows_what_it_promises(level: int, tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    f = compiled(lambda x: (x + 1).sum(-1), tmp_path, level, str(folder))
    x = torch.randn(4, 8)
    torch.testing.assert_close(f(x), (x + 1).sum(-1))
    f.session.close()
    found = [p.name.split(".", 1) for p in sorted(folder.glob("*"))] if folder.exists() else []
    assert [number for number, _ in found] == [f"{k:03d}" for k in range(len(found))]
    names = {name.removesuffix(".txt") for _, name in found}
    for reached in range(2, level + 1):
        assert names >= PROMISED[reached]
    for above in range(level + 1, 6):
        assert not names & PROMISED[above]


def test_a_folder_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(stax.StaxError, match="STAX_DUMP_DIR"):
        compiled(torch.sin, tmp_path, 3, str(tmp_path / "file" / "below"))
