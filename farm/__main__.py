"""python -m farm: look at the farm of a Ray cluster, start its coordinator, ask about a kernel, end it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ray.exceptions import RayError

from farm import cluster
from farm.session import reach
from stax.base.errors import FarmError

_LIMIT_S = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 1 when there is no farm to speak with."""
    parser = argparse.ArgumentParser(prog="python -m farm", description=__doc__)
    parser.add_argument("--address", default="auto", help="Ray address: auto or host:port")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("status", help="workers, queue and counts")
    verbs.add_parser("up", help="start the coordinator if there is none")
    verbs.add_parser("down", help="end the coordinator and its workers")
    why = verbs.add_parser("why", help="what happened to the jobs whose kernel key begins so")
    why.add_argument("key")
    asked = parser.parse_args(arguments)
    try:
        cluster.connect(asked.address)
        lines = _run(asked)
    except (FarmError, RayError) as error:
        print(f"farm: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


def _run(asked: argparse.Namespace) -> list[str]:
    if asked.verb == "up":
        return _status(cluster.ask(reach().status.remote(), _LIMIT_S))
    actor = cluster.find_coordinator()
    if actor is None:
        return [f"no coordinator on this cluster; {cluster.resources()}"]
    if asked.verb == "down":
        cluster.kill(actor)
        return ["ended"]
    if asked.verb == "why":
        return _why(cluster.ask(actor.stories.remote(asked.key), _LIMIT_S), asked.key)
    return _status(cluster.ask(actor.status.remote(), _LIMIT_S))


def _status(status: Mapping[str, Any]) -> list[str]:
    counts = ", ".join(f"{name} {count}" for name, count in sorted(status["counts"].items()))
    lines = [
        f"stax {status['stax']}, wire {status['wire']}, coordinator pid {status['pid']}; {cluster.resources()}",
        f"{status['queued']} queued, {status['running']} running, {status['workers']} workers ready",
        f"counts: {counts or 'none'}",
    ]
    lines += [f"client {name}: waits for {count}" for name, count in status["clients"].items()]
    for name, worker in status["each_worker"].items():
        state = "ready" if worker["ready"] else "starting"
        running = ", ".join(job[:16] for job in worker["running"]) or "nothing"
        lines.append(f"worker {name} on {worker['place'] or '?'}: {state}, runs {running}")
    if status["last_bad_start"]:
        lines.append(f"last worker that did not start: {status['last_bad_start']}")
    return lines


def _why(stories: Mapping[str, Sequence[tuple[float, str]]], key: str) -> list[str]:
    lines: list[str] = []
    for name, story in stories.items():
        lines += [name, *(f"  {at_s:10.2f} s  {what}" for at_s, what in story)]
    return lines or [f"nothing is known of {key}: it never came here, or ended long ago"]


if __name__ == "__main__":
    sys.exit(main())
