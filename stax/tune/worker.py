"""The child process that measures: a request in, a reply out. What can not be run is a reply, never the end."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from stax.base.errors import Incompatible, LaunchError, LoadError
from stax.build.serve import Answer, serve
from stax.tune.work import Reply, Request, Work, pack_reply, unpack_request


class Device(Protocol):
    """What times a launch: :class:`stax.tune.gpu.Gpu`, or a test's double. Used by one thread."""

    def times_us(self, work: Work, budget_us: float, best_us: float) -> list[float]: ...

    def forget(self) -> None: ...

    def check(self) -> None: ...


def main(scratch: str, argument: str) -> None:
    """Measure until the pipe ends. ``argument``: "module:class argument", what makes the Device."""

    def prepare() -> Answer:
        path, _, given = argument.partition(" ")
        module, _, name = path.partition(":")
        device = cast("Device", getattr(import_module(module), name)(given))
        return lambda body: pack_reply(reply_to(unpack_request(body), device))

    serve(scratch, prepare)


def reply_to(request: Request, device: Device) -> Reply:
    """Never raises."""
    if request.work is None:
        device.forget()
        return Reply("ok", (1.0,))
    try:
        times_us = device.times_us(request.work, request.budget_us, request.best_us)
    except (LaunchError, LoadError, Incompatible) as error:
        return Reply("refused", (), str(error), _is_spent(device))
    except RuntimeError as error:
        # What torch raises: a fault of the kernel, or no memory for its tensors.
        status = "memory" if "out of memory" in str(error) else "refused"
        return Reply(status, (), str(error), _is_spent(device))
    return Reply("ok", tuple(times_us))


def _is_spent(device: Device) -> bool:
    """After a fault the context refuses everything."""
    try:
        device.check()
    except RuntimeError:
        return True
    return False
