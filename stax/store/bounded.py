"""A bound on the time of a call that can not be interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def within(limit_s: float, run: Callable[[], T]) -> T:
    """The result of ``run()``, or TimeoutError once ``limit_s`` seconds have passed.

    ``run`` is then abandoned on its thread, a daemon, and may still take effect. A new thread costs
    0.05 ms; a socket's own time-out costs nothing but starts again with every byte.
    """
    future: Future[T] = Future()
    threading.Thread(target=_settle, args=(future, run), daemon=True).start()
    try:
        return future.result(limit_s)
    except TimeoutError as error:
        raise TimeoutError(f"no end after {limit_s:.1f} s") from error


def _settle(future: Future[T], run: Callable[[], T]) -> None:
    try:
        result = run()
    except BaseException as error:  # handed to the caller, who raises it
        future.set_exception(error)
    else:
        future.set_result(result)
