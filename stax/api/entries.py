"""When a kept artifact may serve: its code is still what was traced, and its guards hold for the call at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from stax.artifact.artifact import TracedSource
from stax.artifact.sources import holds
from stax.runtime.dispatch import Dispatcher, Hit
from stax.runtime.load import Executable


def admit(
    dispatcher: Dispatcher,
    module: nn.Module | None,
    executable: Executable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Hit | tuple[str, ...]:
    """The hit of an executable that serves this call, which is then kept; else why it does not."""
    trial = Dispatcher(module)
    try:
        trial.add(executable, args, kwargs)
    except ValueError as error:
        return (str(error),)
    found = trial.lookup(args, kwargs)
    if not isinstance(found, Hit):
        return tuple(str(r) for r in found.reasons)
    dispatcher.add(executable, args, kwargs)
    return found


def changed_sources(sources: Sequence[TracedSource]) -> tuple[str, ...]:
    """Functions that ran during capture and are another, or not to be found, in this process: any doubt is a reason.

    Functions defined inside others have no name to be found by; the request key's fingerprint covers them."""
    reasons: list[str] = []
    for source in sources:
        if "<locals>" in source.qualname or "<lambda>" in source.qualname:
            continue
        same = holds(source)
        if same is None:
            reasons.append(f"{source.module}:{source.qualname} is not loaded here")
        elif not same:
            reasons.append(f"{source.module}:{source.qualname} has changed")
    return tuple(reasons)
