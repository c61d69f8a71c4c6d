"""One client's conversation with the coordinator: join, submit, poll, leave; Ray's errors become two of ours."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from ray.exceptions import RayActorError, RayError

from farm import cluster
from farm.driver import Coordinator
from farm.jobs import WIRE_VERSION, FarmJob, Outcome, pack_jobs, unpack_outcomes
from stax.base.errors import FarmError
from stax.base.observe import Event, Observer

_POLL_S = 2.0
_ANSWER_LIMIT_S = 30.0
_LEAVE_LIMIT_S = 5.0
_RETRY_S = 0.5
_HEAD_LIMIT_S = 15.0  # Ray gives its own processes sixty seconds


class CoordinatorGone(FarmError):
    """It died, or was started anew and does not know us: join again and send all that is not answered."""


class Session:
    """See :func:`open_session`. Every method raises CoordinatorGone or FarmError."""

    def __init__(self, actor: cluster.Actor, client: str) -> None:
        self._actor = actor
        self._client = client

    def submit(self, jobs: list[FarmJob]) -> None:
        """Hand in a batch; equal names, also of other clients, are merged."""
        if not _ask(self._actor.submit.remote(self._client, pack_jobs(jobs)), _ANSWER_LIMIT_S):
            raise CoordinatorGone("it was started anew")

    def poll(self, observe: Observer) -> list[tuple[str, Outcome]]:
        """Wait a little for outcomes; tells ``observe`` how the farm stands."""
        answer = _ask(self._actor.poll.remote(self._client, _POLL_S), _ANSWER_LIMIT_S)
        if not answer["known"]:
            raise CoordinatorGone("it was started anew, or this process was silent for too long")
        if answer["refused"]:
            raise FarmError(
                "the farm can not take the work",
                expected="a build worker",
                found=f"{answer['refused']}; {cluster.resources()}",
                hint="add CPUs to the cluster, wait longer (patience_s), or give a fallback builder",
            )
        standing = {name: answer[name] for name in ("queued", "running", "workers")}
        observe(Event("farm.progress", standing))
        return unpack_outcomes(answer["outcomes"])

    def leave(self) -> None:
        """Drop what has not begun. Never raises: a coordinator that does not hear it finds out by itself."""
        with contextlib.suppress(FarmError):
            _ask(self._actor.leave.remote(self._client), _LEAVE_LIMIT_S)


@contextmanager
def open_session(max_workers: int, patience_s: float) -> Generator[Session]:
    """Find or start the coordinator of the cluster this process is connected to, and join it."""
    client = uuid.uuid4().hex[:12]
    actor = reach()
    session = Session(actor, client)
    _ask(actor.join.remote(client, max_workers, patience_s), _ANSWER_LIMIT_S)
    try:
        yield session
    finally:
        session.leave()


def reach(limit_s: float = 60.0) -> cluster.Actor:
    """The coordinator of the cluster this process is connected to, started if need be.

    Where it died, it is Ray that starts it again: at once when its process went, but only after some 15 s when its
    node did. Raises FarmError past the limit.
    """
    cluster.await_head(_HEAD_LIMIT_S)
    environment = cluster.environment_for_workers()
    until_s = time.monotonic() + limit_s
    while True:
        actor = cluster.start_coordinator(Coordinator, environment)
        try:
            hello = _ask(actor.hello.remote(), limit_s)
        except CoordinatorGone:
            if time.monotonic() > until_s:
                raise
            time.sleep(_RETRY_S)
            cluster.await_head(_HEAD_LIMIT_S)
            continue
        _check_version(hello)
        return actor


def _check_version(hello: Mapping[str, object]) -> None:
    if hello["wire"] != WIRE_VERSION:
        raise FarmError(
            "the coordinator of this cluster speaks another version",
            expected=f"{WIRE_VERSION}",
            found=f"{hello['wire']} (stax {hello['stax']})",
            hint="end it with: python -m farm down",
        )


def _ask(call: Any, limit_s: float) -> Any:
    try:
        return cluster.ask(call, limit_s)
    except RayActorError as error:
        raise CoordinatorGone(str(error)) from error
    except RayError as error:
        raise FarmError(
            "the farm failed", found=str(error), hint="is the same Stax installed on every node?"
        ) from error
