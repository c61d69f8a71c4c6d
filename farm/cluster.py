"""What the farm asks of Ray: connect, find the coordinator, start and end actors. The only module typed loosely for it."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import ray
from ray.exceptions import GetTimeoutError, RayError

from stax.base.errors import FarmError
from stax.store.bounded import within

COORDINATOR = "stax-coordinator"
NAMESPACE = "stax"
_HEAD = "node:__internal_head__"
_DIAL_LIMIT_S = 5.0
_DIAL_AGAIN_S = 0.5
_TELL_LIMIT_S = 2.0
# What a client of HTTP/2 begins with: gRPC's server answers with a SETTINGS frame, whatever else it asks for later.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_SETTINGS, _TLS_ALERT = b"\x04", b"\x15"

_CONNECT_HINT = (
    "check STAX_FARM, or start a cluster; one with token authentication needs RAY_AUTH_MODE=token and its "
    "token (RAY_AUTH_TOKEN or ~/.ray/auth_token) in this environment too"
)

# Ray's decorators and handles have no useful static types.
_ray = cast("Any", ray)
Actor = Any


class NoAnswer(FarmError):
    """The cluster is silent. NOTE: Ray ends every process whose cluster's head is gone for a minute: disconnect."""


def connect(address: str, cpus: int = 0) -> bool:
    """Join the cluster at ``address``: "auto", "host:port", or "local" for one of our own on this machine.

    True when this call connected, so that the caller is to :func:`disconnect`; False when the process already was.
    Raises FarmError.
    """
    if _ray.is_initialized():
        return False
    _dial(address)
    settings: dict[str, object] = {"address": address, "namespace": NAMESPACE}
    if address == "local":
        settings |= {"include_dashboard": False, "num_cpus": cpus or None}
    try:
        _ray.init(log_to_driver=False, logging_level="warning", **settings)
    except (ConnectionError, RayError, RuntimeError, ValueError, OSError) as error:
        raise FarmError(
            "no Ray cluster that lets us in", found=str(error), where=address, hint=_CONNECT_HINT
        ) from error
    return True


def disconnect() -> None:
    """Leave the cluster; ends a "local" one."""
    _ray.shutdown()


def await_head(limit_s: float) -> None:
    """Returns once the head of the cluster this process is connected to listens. Raises NoAnswer past the limit.

    To be asked after a loss: without a head, Ray's other questions wait until Ray ends the process.
    """
    until_s = time.monotonic() + limit_s
    while True:
        try:
            _dial(_ray.get_runtime_context().gcs_address)
            return
        except FarmError as error:
            if time.monotonic() > until_s:
                raise NoAnswer("the head of the Ray cluster is gone", found=str(error)) from error
        time.sleep(_DIAL_AGAIN_S)


def resources() -> str:
    """What the cluster has and what of it is free, for an error's text; asked briefly, for its head may be gone."""
    try:
        has, free = within(
            _TELL_LIMIT_S, lambda: (_ray.cluster_resources(), _ray.available_resources())
        )
    except (TimeoutError, RayError) as error:
        return f"cluster_resources: {error}"
    names = [n for n in sorted(has) if not n.startswith("node:") and "memory" not in n]
    told = ", ".join(f"{n} {free.get(n, 0):g} free of {has[n]:g}" for n in names)
    return f"cluster_resources: {told or 'none'}"


def cpu_count() -> int:
    """CPUs of the whole cluster, taken ones included."""
    return int(_ray.cluster_resources().get("CPU", 0))


def find_coordinator() -> Actor | None:
    """The running coordinator, if there is one."""
    try:
        return _ray.get_actor(COORDINATOR, NAMESPACE)
    except ValueError:
        return None


def start_coordinator(actor_class: Callable[..., object], environment: Mapping[str, str]) -> Actor:
    """The cluster's coordinator, started if need be; two clients that start it at once get the same one.

    It lives on the head node, whose death ends the cluster anyway.
    """
    on_head = {_HEAD: 0.001} if _HEAD in _ray.cluster_resources() else {}
    options: dict[str, object] = {
        "name": COORDINATOR,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "resources": on_head,
        "max_restarts": -1,
        "max_concurrency": 1000,
        "runtime_env": {"env_vars": dict(environment)} if environment else None,
    }
    return _ray.remote(actor_class).options(**options).remote(dict(environment))


def start_worker(
    actor_class: Callable[..., object], name: str, environment: Mapping[str, str]
) -> Actor:
    """One actor on one CPU, wherever the cluster has it; waits in the cluster's queue until it has one."""
    options: dict[str, object] = {
        "num_cpus": 1,
        "max_restarts": 0,
        "max_concurrency": 3,
        "runtime_env": {"env_vars": dict(environment)} if environment else None,
    }
    return _ray.remote(actor_class).options(**options).remote(name)


def kill(actor: Actor) -> None:
    """End an actor's process for good, whatever it is doing."""
    _ray.kill(actor, no_restart=True)


def ask(call: Any, limit_s: float) -> Any:
    """The result of a Ray call. Raises NoAnswer past the limit, and RayError when the other side fails."""
    try:
        return _ray.get(call, timeout=limit_s)
    except GetTimeoutError as error:
        raise NoAnswer(
            "the farm does not answer", expected=f"an answer in {limit_s:g} s", found=resources()
        ) from error


def environment_for_workers() -> dict[str, str]:
    """The import path of this process, when the whole cluster is on this machine; a real cluster has Stax installed."""
    here = _ray.util.get_node_ip_address()
    if any(node["Alive"] and node["NodeManagerAddress"] != here for node in _ray.nodes()):
        return {}
    folders = [os.path.abspath(path) for path in sys.path if os.path.isdir(path or ".")]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(folders))}


def _dial(address: str) -> None:
    """Fail fast where nobody listens, or nobody who speaks gRPC: ray.init would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _DIAL_LIMIT_S) as peer:
            peer.sendall(_PREFACE)
            first = peer.recv(64)
    except (OSError, OverflowError) as error:
        raise FarmError(
            "no Ray cluster", found=str(error), where=address, hint="check STAX_FARM, or start one"
        ) from error
    if first and first[3:4] != _SETTINGS and first[:1] != _TLS_ALERT:
        raise FarmError(
            "no Ray cluster, but another server", found=repr(first[:40]), where=address,
            hint="check STAX_FARM",
        )  # fmt: skip
