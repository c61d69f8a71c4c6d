"""Arguments to a verb, and whatever happens to an exit code: 0 done, 1 failed, 2 misused, 130 interrupted, 143 terminated."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import FrameType
from typing import TextIO, cast

from stax import __version__
from stax.base.errors import OptionError, StaxError, UserError
from stax.base.options import Environment
from stax.cli.resolve import kind_and_message, place_of

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
    Verb(
        "explain", "say what a callable compiles to and what each kernel costs", "stax.cli.explain"
    ),
    Verb("doctor", "say what is installed, reachable and writable here", "stax.cli.doctor"),
)


class Terminated(KeyboardInterrupt):
    """SIGTERM, as an exception that ends everything an interrupt ends."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Errors become one line on standard error."""
    signal.signal(signal.SIGTERM, _on_terminate)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _accept_any_text(sys.stdout)
    try:
        return _flushed(_run(sys.argv[1:] if arguments is None else list(arguments)))
    except Terminated:
        return _ended("terminated", TERMINATED)
    except KeyboardInterrupt:
        return _ended("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _drop_output()  # its reader went away
        return FAILED
    except StaxError as error:
        _explain(one_line(error))
        return MISUSED if isinstance(error, UserError) else FAILED
    except Exception as error:
        # Broad because a user's callable raises anything while it is traced, and so does a bug of ours.
        told = f"{kind_and_message(error)} ({place_of(error)})"
        _explain(f"{told}. hint: STAX_DEBUG=1 shows the trace")
        return FAILED


def _accept_any_text(stream: TextIO | None) -> None:
    """What the encoding lacks ("→") is written as an escape; standard error does so by itself."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def _flushed(code: int) -> int:
    """Here, because at exit nobody could tell of a full disk."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        raise StaxError("the output can not be written", found=str(error)) from error
    return code


def _drop_output() -> None:
    """Python flushes standard output once more at exit, and would complain of what is already known."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain(line: str) -> None:
    """The error being handled: a line, or the trace for who debugs."""
    if _debugging():
        traceback.print_exc()
    else:
        _complain(line)


def _ended(line: str, code: int) -> int:
    """Whoever sends it once more can only disturb the last steps of the interpreter."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _complain(line)
    return code


def _complain(line: str) -> None:
    if sys.stderr is not None:
        print(f"stax: {line}", file=sys.stderr)


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
        epilog="Exit codes: 0 done, 1 failed, 2 misused, 130 interrupted, 143 terminated.",
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
    raise Terminated
