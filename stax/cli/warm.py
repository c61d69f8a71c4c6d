"""``stax warm``: compile a callable for some targets, on a farm or here, and publish what comes out."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stax.base.errors import OptionError
from stax.base.options import Environment
from stax.base.target import Target
from stax.cli.progress import watching
from stax.cli.resolve import ExampleCall, check_call, example_calls, options_of, resolve
from stax.cli.standing import bytes_text
from stax.store import Bundle, layout

if TYPE_CHECKING:
    from stax.api.session import Session
    from stax.api.warm import WarmReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("callable", metavar="MODULE:CALLABLE", help="a function or an nn.Module")
    parser.add_argument(
        "--inputs",
        metavar="MODULE:FUNCTION",
        help="returns (args, kwargs), or a list of such pairs",
    )
    parser.add_argument(
        "--target", metavar="TARGET", action="append", required=True, dest="targets",
        help="cpu:x86-64-v3, cuda:sm_90, …; may be repeated",
    )  # fmt: skip
    parser.add_argument("--dynamic", action="store_true", help="one artifact for all sizes")
    parser.add_argument(
        "--strict-native", action="store_true", help="an operator without a rule is an error"
    )
    parser.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a field of stax.Options",
    )
    parser.add_argument("--store", metavar="URL", help="where to publish (STAX_STORE)")
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="build on this Ray cluster, or local (STAX_FARM)"
    )
    parser.add_argument("--tag", metavar="NAME", help="point this tag at what was published")
    parser.add_argument(
        "--json", metavar="FILE", help="write the report as JSON; - is standard output"
    )


def run(arguments: argparse.Namespace) -> int:
    environment = Environment.read()
    if arguments.ray is not None:
        environment = replace(environment, farm=arguments.ray)
    targets = [Target.parse(text) for text in arguments.targets]
    check_output(arguments.json)
    if arguments.tag is not None:
        layout.check_tag(environment.tier, arguments.tag)
    function = resolve(arguments.callable, "callable")
    calls = example_calls(arguments.inputs)
    for call in calls:
        check_call(function, call, arguments.inputs)
    # Imports torch, seconds that a mistyped command does not pay.
    from stax.api.session import Session

    with watching(f"warm {arguments.callable}") as observer:
        session = Session(
            store=arguments.store, observer=observer, environment=environment, farm_only=True
        )
        with closing(session):
            reports = _warm_all(function, calls, targets, arguments, session)
    _report(reports, arguments)
    return 0


def _warm_all(
    function: object,
    calls: Sequence[ExampleCall],
    targets: Sequence[Target],
    arguments: argparse.Namespace,
    session: Session,
) -> list[WarmReport]:
    """One warm a call, all with one store and one builder, and one tag for all."""
    from stax.api.warm import warm  # as in run

    reports = [
        warm(
            function,
            call.args,
            call.kwargs,
            targets=targets,
            dynamic=arguments.dynamic,
            strict_native=arguments.strict_native,
            options=options_of(arguments.option),
            store=session.records.store,
            builder=session.builder,
            tag=arguments.tag if len(calls) == 1 else None,
            observer=session.observer,
            environment=session.environment,
        )
        for call in calls
    ]
    if len(calls) == 1 or not arguments.tag:
        return reports
    records = session.records
    whole = records.put_bundle(merged([records.get_bundle(r.bundle) for r in reports]))
    records.set_tag(session.environment.tier, arguments.tag, whole)
    return [replace(report, bundle=whole, tag=arguments.tag) for report in reports]


def merged(bundles: Sequence[Bundle]) -> Bundle:
    """One bundle that holds what several hold."""
    records = {(r.kind, r.key, r.variant): r for bundle in bundles for r in bundle.records}
    return Bundle(
        targets=tuple(sorted({target for bundle in bundles for target in bundle.targets})),
        records=tuple(records.values()),
        blobs=tuple(sorted({blob for bundle in bundles for blob in bundle.blobs})),
        body=bundles[0].body,
    )


def _report(reports: Sequence[WarmReport], arguments: argparse.Namespace) -> None:
    write_output(arguments.json, json.dumps([asdict(report) for report in reports], indent=2))
    if arguments.json != "-":
        for report in reports:
            print(report_text(report))


def write_output(path: str | None, told: str) -> None:
    """A report to where --json says: a file, standard output, or nowhere. Raises OptionError."""
    if path == "-":
        print(told)
    elif path:
        try:
            Path(path).write_text(f"{told}\n", encoding="utf-8")
        except OSError as error:
            raise _unwritable(path, str(error)) from error


def check_output(path: str | None) -> None:
    """Before hours of work: ``path`` can be written afterwards, as far as can be told. Raises OptionError."""
    if path is None or path == "-":
        return
    file = Path(path)
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise _unwritable(
            path, "a folder" if file.is_dir() else "no such folder, or no right to write"
        )


def _unwritable(path: str, found: str) -> OptionError:
    return OptionError(
        "--json can not be written", expected="a file to write, or -", found=found, where=path
    )


def report_text(report: WarmReport) -> str:
    """What a person wants to know of a warm."""
    stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.seconds.items())
    lines = [
        *(f"{target:16} request {key[:12]}" for target, key in report.keys.items()),
        f"{report.artifacts} artifacts ({report.artifacts_hit} hits), {report.kernels_total} kernels "
        f"({report.kernels_built} built, {report.kernels_hit} hits), "
        f"{bytes_text(report.bytes_published)} published",
        stages,
        f"bundle {report.bundle}",
    ]
    return "\n".join([*lines, f"tag {report.tag}"] if report.tag else lines)
