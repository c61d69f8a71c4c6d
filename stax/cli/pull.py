"""``stax pull``: fetch what a tag names into the local tier, or into a folder of its own."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from stax.base.options import Environment
from stax.cli.standing import bytes_text

if TYPE_CHECKING:
    from stax.api import PullReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a tag, or the digest of a bundle")
    parser.add_argument("--target", metavar="TARGET", help="only this target's part")
    parser.add_argument("--store", metavar="URL", help="where from (STAX_STORE)")
    parser.add_argument(
        "--to", metavar="DIR", help="a folder, which is then a file:// store itself"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    environment = Environment.read()
    # Imports torch, seconds that a mistyped command does not pay.
    from stax.api import pull

    report = pull(
        arguments.name,
        target=arguments.target,
        store=arguments.store,
        to=arguments.to,
        environment=environment,
    )
    print(json.dumps(asdict(report), indent=2) if arguments.json else report_text(report))
    return 0


def report_text(report: PullReport) -> str:
    """What came, in two lines."""
    return (
        f"{report.artifacts} artifacts for {' '.join(report.targets)}, {report.blobs} blobs, "
        f"{bytes_text(report.bytes)} in {report.seconds:.2f} s\nbundle {report.bundle}"
    )
