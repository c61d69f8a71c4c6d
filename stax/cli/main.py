"""Arguments to a verb, and whatever happens to an exit code: 0 done, 1 failed, 2 misused, 130 interrupted."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import FrameType
from typing import cast

from stax import __version__
from stax.base.errors import OptionError, StaxError, UserError
from stax.base.options import Environment

FAILED, MISUSED, INTERRUPTED, TERMINATED = 1, 2, 130, 143


@dataclass(frozen=True)
class Verb:
    """``module`` has ``add_arguments(parser)`` and ``run(arguments) -> exit code``."""

    name: str
    help: str
    module: str


VERBS: tuple[Verb, ...] = (
    Verb("warm", "compile a callable for some targets and publish what comes out", "stax.cli.warm"),
    Verb("pull", "fetch everything that a tag names into the local tier", "stax.cli.pull"),
    Verb("ls", "list the tags of a store and what they hold", "stax.cli.ls"),
    Verb("doctor", "say what is installed, reachable and writable here", "stax.cli.doctor"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Errors of Stax become one line on standard error."""
    signal.signal(signal.SIGTERM, _on_terminate)
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        print("stax: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output went away. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except StaxError as error:
        if _debugging():
            traceback.print_exc()
        else:
            print(f"stax: {one_line(error)}", file=sys.stderr)
        return MISUSED if isinstance(error, UserError) else FAILED


def one_line(error: StaxError) -> str:
    """The message, cut where the log of a compiler or a server begins."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0] if len(lines) == 1 else f"{lines[0]} … (STAX_DEBUG=1 shows the rest)"


def _run(arguments: list[str]) -> int:
    name = next((a for a in arguments if not a.startswith("-")), "")
    verb = next((v for v in VERBS if v.name == name), None)
    parsed = _parser(verb).parse_args(arguments)
    run = cast("Callable[[argparse.Namespace], int] | None", getattr(parsed, "run", None))
    if run is None:
        _parser(None).print_help(sys.stderr)
        return MISUSED
    return run(parsed)


def _parser(chosen: Verb | None) -> argparse.ArgumentParser:
    """All verbs are named; only the chosen one's module is imported for its arguments."""
    parser = argparse.ArgumentParser(
        prog="stax",
        description="Compile PyTorch programs once, and let every machine fetch the result.",
    )
    parser.add_argument("--version", action="version", version=f"stax {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    for verb in VERBS:
        sub = verbs.add_parser(verb.name, help=verb.help, description=f"{verb.help}.")
        if verb is chosen:
            module = import_module(verb.module)
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    return parser


def _debugging() -> bool:
    try:
        return Environment.read().debug > 0
    except OptionError:
        return False


def _on_terminate(signum: int, frame: FrameType | None) -> None:
    """As an exception, so that everything that was opened is closed."""
    raise SystemExit(TERMINATED)
