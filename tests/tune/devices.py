"""Devices for the child process: what the work's entry says, happens."""

from __future__ import annotations

import ctypes
import os
import sys
import time

from stax.base.errors import LaunchError
from stax.tune.work import Work


class Played:
    """``entry`` of the work: steady, process (its number as the time), hang, crash, fault (the context is lost), refuse, memory, none (no times)."""

    def __init__(self, ordinal: str) -> None:
        self._lost = False
        sys.stderr.write(f"device {ordinal} of process {os.getpid()}\n")

    def times_us(self, work: Work, budget_us: float, best_us: float) -> list[float]:
        match work.entry:
            case "hang":
                time.sleep(3600)
            case "crash":
                sys.stderr.write("last words\n")
                sys.stderr.flush()
                ctypes.string_at(0)
            case "fault":
                self._lost = True
                raise RuntimeError("an illegal memory access was encountered")
            case "refuse":
                raise LaunchError("a kernel did not start")
            case "memory":
                raise RuntimeError("CUDA out of memory")
            case "none":
                return []
            case "process":
                return [float(os.getpid())]
            case _:
                pass
        self.check()
        return [float(work.sizes[0]) + k % 3 for k in range(31)]

    def forget(self) -> None:
        pass

    def check(self) -> None:
        if self._lost:
            raise RuntimeError("an illegal memory access was encountered")


class NeverStarts:
    """What a torch without CUDA does."""

    def __init__(self, ordinal: str) -> None:
        raise RuntimeError("no CUDA in this torch")
