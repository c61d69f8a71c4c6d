"""Every kind of object in a store, damaged in every way: auto heals, everything else refuses and names the object."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import stax
from stax.base.errors import LoadError, StaxError, StoreError
from stax.base.options import Environment
from stax.pipeline.kept import read
from stax.runtime.constraints import best_cpu_target, machine_facts
from stax.store import Records, open_store


def f(a: Tensor, b: Tensor) -> Tensor:
    return (torch.relu(a + b) * 2).sum(-1) + torch.tensor([3.0, 1.0, 2.0, 5.0])


def g(a: Tensor, b: Tensor) -> Tensor:
    return (torch.relu(a - b) * 3).sum(-1) + torch.tensor([3.0, 1.0, 2.0, 4.0])


def plain(a: Tensor, b: Tensor) -> Tensor:
    return torch.relu(a - b).sum(0)


ARGS = (torch.arange(32.0).reshape(4, 8), torch.ones(4, 8))
KINDS = ("tag", "bundle", "request", "artifact", "kernel blob", "kernel", "constant")


def names(url: str, tag: str) -> dict[str, str]:
    """The name of one object of each kind that a tag leads to."""
    records = Records(open_store(url), "dev")
    digest = records.get_tag("dev", tag)
    (record,) = records.get_bundle(digest).records
    artifact = read(records, record).artifact
    return {
        "tag": f"tag/dev/{tag}",
        "bundle": f"bundle/{digest}",
        "request": f"act/dev/request/{record.key}/{record.variant}",
        "artifact": f"cas/{record.body['artifact']}",
        "kernel blob": f"cas/{artifact.binaries[0].digest}",
        "kernel": f"act/dev/kernel/{artifact.binaries[0].key}/built",
        "constant": f"cas/{artifact.constants[0].digest}",
    }


def warm(url: str) -> None:
    for tag, fn in (("f", f), ("g", g)):
        stax.warm(fn, ARGS, targets=[best_cpu_target(machine_facts())], store=url, tag=tag)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that holds f and g."""
    root = tmp_path_factory.mktemp("whole") / "store"
    warm(root.as_uri())
    return root


def flip(path: Path, other: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)


def shorten(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def exchange(path: Path, other: Path) -> None:
    """What stands there is a good object of the same kind, but g's."""
    path.write_bytes(other.read_bytes())


def remove(path: Path, other: Path) -> None:
    path.unlink()


DAMAGES = (flip, shorten, exchange, remove)


@pytest.fixture(
    params=[(k, d) for k in KINDS for d in DAMAGES], ids=lambda p: f"{p[0]}-{p[1].__name__}"
)
def damaged(request: pytest.FixtureRequest, whole: Path, tmp_path: Path) -> tuple[str, str, str]:
    """URL of a store with one damaged object, the kind and the name of it."""
    kind, damage = request.param
    root = tmp_path / "store"
    shutil.copytree(whole, root)
    name, other = names(whole.as_uri(), "f")[kind], names(whole.as_uri(), "g")[kind]
    damage(root / name, root / other)
    return root.as_uri(), kind, name


def part(name: str) -> str:
    """What a message must hold to name the object: its tag, digest, or the first part of a record's key."""
    segments = name.split("/")
    return segments[3][:12] if segments[0] == "act" else segments[-1]


def refusal(run: Callable[[], object]) -> str:
    """The message of the error that ``run`` raises, "" when it raises none."""
    try:
        run()
    except StaxError as error:
        return str(error)
    return ""


def test_compile_is_right_and_heals(damaged: tuple[str, str, str]) -> None:
    url, kind, name = damaged
    expected = f(*ARGS)
    hit_only = refusal(lambda: stax.compile(f, store=url, mode="require-hit")(*ARGS))
    compiled = stax.compile(f, store=url)
    torch.testing.assert_close(compiled(*ARGS), expected)
    if kind not in (
        "tag",
        "bundle",
        "kernel",
    ):  # which compile does not ask for when the rest is whole
        assert part(name) in hit_only
        assert any(part(name) in reason for reason in compiled.stats().misses)
    healed = stax.compile(f, store=url, mode="require-hit")
    torch.testing.assert_close(healed(*ARGS), expected)


def test_load_and_pull_refuse_and_a_warm_heals(
    damaged: tuple[str, str, str], tmp_path: Path
) -> None:
    url, kind, name = damaged
    loading = refusal(lambda: stax.load("f", store=url))
    pulling = refusal(lambda: stax.pull("f", store=url, to=tmp_path / "pulled"))
    if kind in (
        "request",
        "kernel",
    ):  # the bundle holds the record; the kernel's is for builds alone
        assert not loading and not pulling
    else:
        assert part(name) in loading and part(name) in pulling
    warm(url)
    torch.testing.assert_close(stax.load("f", store=url)(*ARGS), f(*ARGS))


@pytest.mark.parametrize("kind", ["bundle", "request", "artifact", "kernel blob", "constant"])
def test_damaged_local_copies_are_pulled_again(kind: str, whole: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    stax.pull("f", store=whole.as_uri(), to=copy)
    flip(copy / names(whole.as_uri(), "f")[kind], copy)
    stax.pull("f", store=whole.as_uri(), to=copy)
    torch.testing.assert_close(stax.load("f", store=copy.as_uri())(*ARGS), f(*ARGS))


def test_what_was_pulled_serves_offline(whole: Path, tmp_path: Path) -> None:
    """By tag and by request, from a file:// store too, and when only one target's part was pulled."""
    target = str(best_cpu_target(machine_facts()))
    both = tmp_path / "both"
    shutil.copytree(whole, both)
    stax.warm(plain, ARGS, targets=[target, "cuda:sm_90"], store=both.as_uri(), tag="both")
    environment = Environment.read()
    stax.pull("both", target=target, store=both.as_uri(), environment=environment)
    shutil.rmtree(both)
    offline = replace(environment, mode="offline")
    torch.testing.assert_close(stax.load("both", environment=offline)(*ARGS), plain(*ARGS))
    torch.testing.assert_close(stax.compile(plain, mode="offline")(*ARGS), plain(*ARGS))


def test_a_function_with_constants_is_warmed_once(whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(whole, root)
    target = best_cpu_target(machine_facts())
    report = stax.warm(f, ARGS, targets=[target], store=root.as_uri())
    assert (report.artifacts_hit, report.kernels_built) == (1, 0)


def test_other_targets_need_not_be_there(whole: Path, tmp_path: Path) -> None:
    """A bundle of which only this machine's part is in reach still loads; a target it names then says what is missing."""
    root = tmp_path / "store"
    url = root.as_uri()
    shutil.copytree(whole, root)
    target = best_cpu_target(machine_facts())
    report = stax.warm(plain, ARGS, targets=[target, "cuda:sm_90"], store=url, tag="both")
    records = Records(open_store(url), "dev")
    for record in records.get_bundle(report.bundle).records:
        if record.body["target"] == "cuda:sm_90":
            (root / f"cas/{record.body['artifact']}").unlink()
    torch.testing.assert_close(stax.load("both", store=url)(*ARGS), plain(*ARGS))
    with pytest.raises((LoadError, StoreError), match="CUDA"):
        stax.load("both", target="cuda:sm_90", store=url)


def test_a_pull_that_can_not_write_says_so(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="a file stands where"):
        stax.pull("f", store=whole.as_uri(), to=tmp_path / "file")
