"""``stax explain``: the kernels that a callable compiles to, what each moves, and what that should cost."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from stax.base.target import Target
from stax.cli.resolve import check_call, example_calls, options_of, resolve
from stax.cli.standing import bytes_text
from stax.cli.warm import check_output, write_output

if TYPE_CHECKING:
    from stax.api.reports import ExplainReport, KernelReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("callable", metavar="MODULE:CALLABLE", help="a function or an nn.Module")
    parser.add_argument(
        "--inputs",
        metavar="MODULE:FUNCTION",
        help="returns (args, kwargs), or a list of such pairs",
    )
    parser.add_argument(
        "--target", metavar="TARGET", required=True, help="cpu:x86-64-v3, cuda:sm_90, …"
    )
    parser.add_argument("--device", metavar="NAME", default="", help="the GPU whose facts are used")
    parser.add_argument(
        "--measure", action="store_true", help="time every kernel on a GPU of this machine"
    )
    parser.add_argument("--store", metavar="URL", help="whose tuning records to read (STAX_STORE)")
    parser.add_argument("--dynamic", action="store_true", help="kernels for all sizes")
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
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="why things were fused, or were not"
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write the report as JSON; - is standard output"
    )


def run(arguments: argparse.Namespace) -> int:
    target = Target.parse(arguments.target)
    options = options_of(arguments.option)
    check_output(arguments.json)
    function = resolve(arguments.callable, "callable")
    calls = example_calls(arguments.inputs)
    for call in calls:
        check_call(function, call, arguments.inputs)
    # Imports torch, seconds that a mistyped command does not pay.
    from stax.api.explain import explain

    reports = [
        explain(
            function,
            call.args,
            call.kwargs,
            target=target,
            dynamic=arguments.dynamic,
            strict_native=arguments.strict_native,
            options=options,
            device=arguments.device,
            measure=arguments.measure,
            store=arguments.store,
        )
        for call in calls
    ]
    write_output(arguments.json, json.dumps([asdict(r) for r in reports], indent=2))
    if arguments.json != "-":
        print("\n\n".join(report_text(r, arguments.verbose) for r in reports))
    return 0


def report_text(report: ExplainReport, verbose: bool = False) -> str:
    """A table of the kernels, the calls to torch, and a line of totals."""
    rate = report.floor_bytes_s
    known = f", {report.device}: floors at {rate / 1e12:.2f} TB/s" if rate else ""
    lines = [f"{report.target}{known}"]
    if report.kernels:
        lines += _aligned([_HEAD, *(_row(k) for k in report.kernels)])
    lines += [f"{c.calls} × {c.target}, left to torch" for c in report.calls]
    lines.append(_total(report))
    if verbose:
        lines += [
            f"{'yes' if done else 'no ':3} {what}: {why}" for what, done, why in report.decisions
        ]
    return "\n".join(lines)


_HEAD = ("form", "runs", "grid", "config", "read", "written", "again", "floor", "predicted", "measured", "kernel")  # fmt: skip


def _row(k: KernelReport) -> tuple[str, ...]:
    config = " ".join(f"{name}={value}" for name, value in k.config.items())
    moved = (bytes_text(n) for n in (k.read_bytes, k.written_bytes, k.reread_bytes))
    times = (time_text(s) for s in (k.floor_s, k.predicted_s, k.measured_s))
    grid = "×".join(str(n) for n in k.grid)
    return (k.form, str(k.launches), grid or "-", config or "-", *moved, *times, k.name)


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    for row in rows:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)).rstrip()


def _total(report: ExplainReport) -> str:
    launches = sum(k.launches for k in report.kernels)
    calls = sum(c.calls for c in report.calls)
    read, written, again = (
        bytes_text(sum(getattr(k, name) * k.launches for k in report.kernels))
        for name in ("read_bytes", "written_bytes", "reread_bytes")
    )
    times = ", ".join(
        f"{word} {time_text(_sum(report, f'{word}_s'))}"
        for word in ("floor", "predicted", "measured")
    )
    return (
        f"total: {len(report.kernels)} kernels in {launches} launches, {calls} calls to torch; kernels: "
        f"{read} read, {written} written, {again} again, {times}"
    )


def _sum(report: ExplainReport, name: str) -> float | None:
    """Seconds over all launches; None unless every kernel has them."""
    found: list[float | None] = [getattr(k, name) for k in report.kernels]
    known = [s * k.launches for s, k in zip(found, report.kernels) if s is not None]
    return sum(known) if known and len(known) == len(found) else None


def time_text(seconds: float | None) -> str:
    """ "-", "12.3 µs", "4.56 ms"."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
