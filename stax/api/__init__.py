"""What users call: compile, warm, pull, load."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stax.api.compiled import Compiled
from stax.api.loading import Loaded, load, pull
from stax.api.reports import ExplainReport, PullReport, Stats, WarmReport
from stax.api.session import Session
from stax.base.observe import Observer
from stax.base.options import Options
from stax.base.target import Target
from stax.build.job import Builder
from stax.store.base import Store

if TYPE_CHECKING:
    from stax.tune.isolate import Measurer

__all__ = [
    "Compiled",
    "ExplainReport",
    "Loaded",
    "PullReport",
    "Stats",
    "WarmReport",
    "compile",
    "load",
    "pull",
    "warm",
]


def compile(
    fn: Callable[..., Any] | None = None,
    *,
    dynamic: bool = False,
    fullgraph: bool = False,
    strict_native: bool = False,
    target: str | Target | None = None,
    options: Options | None = None,
    store: str | Store | None = None,
    builder: Builder | None = None,
    mode: str | None = None,
    observer: Observer | None = None,
    measurer: Measurer | None = None,
) -> Any:
    """Compile a function or nn.Module on its first call; every later call of the same class runs the artifact.

    ``dynamic``: one artifact for many sizes. ``fullgraph``: an error instead of running eagerly what can not be captured.
    ``strict_native``: an error instead of calling torch for an operator without a lowering rule. ``target``: default is the
    best of this machine for the tensors' device. ``store``, ``builder``, ``mode``: default from STAX_STORE, STAX_FARM and
    STAX_MODE; mode "auto" pulls or builds, "require-hit" only pulls (RequireHitMiss otherwise), "offline" only asks the
    local tier. ``measurer``: what times launch configurations when ``options.tune`` asks for it; default is a child process
    on one of this machine's GPUs. Without ``fn`` it is a decorator. Returns a Compiled.
    """

    def make(f: Callable[..., Any]) -> Compiled:
        chosen = options or Options()
        if strict_native:
            chosen = chosen.with_(strict_native=True)
        parsed = Target.parse(target) if isinstance(target, str) else target
        session = Session(
            store=store, builder=builder, mode=mode, observer=observer, measurer=measurer
        )
        return Compiled(
            f, dynamic=dynamic, fullgraph=fullgraph, options=chosen, target=parsed, session=session
        )

    return make if fn is None else make(fn)


def warm(*args: Any, **kwargs: Any) -> Any:
    """See :func:`stax.api.warm.warm`."""
    # NOTE: on use: it imports the compiler (sympy, tracing), which a node that only pulls must not.
    from stax.api.warm import warm as run

    return run(*args, **kwargs)
