"""``stax ls``: the tags of a store, and what the bundle behind each holds."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass

from stax.base.errors import Corrupt, Missing, SchemaError
from stax.base.options import Environment, checked_tier
from stax.cli.standing import bytes_text
from stax.store import Records, open_store


@dataclass(frozen=True)
class Row:
    """A tag. ``bundle`` is "" and ``trouble`` says why when what it names can not be read."""

    tag: str
    bundle: str
    targets: tuple[str, ...] = ()
    artifacts: int = 0
    blobs: int = 0
    size_bytes: int = 0
    trouble: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="URL", help="which store (STAX_STORE)")
    parser.add_argument("--tier", metavar="NAME", help="which trust tier (STAX_TIER)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    environment = Environment.read()
    url = environment.store if arguments.store is None else arguments.store
    tier = environment.tier if arguments.tier is None else checked_tier("--tier", arguments.tier)
    # Without the local tier in front of it, whose old tags would stand for those of a store that is down.
    cache_dir = None if url else environment.cache_dir
    opened = open_store(url, cache_dir=cache_dir, s3_endpoint=environment.s3_endpoint)
    with closing(opened):
        records = Records(opened, tier)
        rows = [_row(records, tier, name) for name in records.list_tags(tier)]
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        print(table(rows, tier, opened.url))
    return 0


def table(rows: Sequence[Row], tier: str, url: str) -> str:
    """A line a tag."""
    if not rows:
        return f"no tags in tier {tier} of {url}"
    width = max(len(row.tag) for row in rows)
    return "\n".join(_line(row, width) for row in rows)


def _line(row: Row, width: int) -> str:
    if row.trouble:
        return f"{row.tag:{width}}  broken: {row.trouble}"
    what = f"{row.artifacts} artifacts, {row.blobs} blobs, {bytes_text(row.size_bytes)}"
    return f"{row.tag:{width}}  {row.bundle[:12]}  {what}  {' '.join(row.targets)}"


def _row(records: Records, tier: str, name: str) -> Row:
    try:
        digest = records.get_tag(tier, name)
        bundle = records.get_bundle(digest)
    except (Missing, Corrupt, SchemaError) as error:
        return Row(name, "", trouble=str(error))
    size = sum(size_bytes for _, size_bytes in bundle.blobs)
    return Row(name, digest, bundle.targets, len(bundle.records), len(bundle.blobs), size)
