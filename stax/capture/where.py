"""Where in the user's code something happened: the innermost frame outside torch, the standard library and Stax."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType

import torch

_OWN = str(Path(__file__).parents[1]) + "/"
_TORCH = str(Path(torch.__file__).parent) + "/"
_STDLIB = tuple(
    sorted({sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib")}, key=len)
)
_SITE = tuple(sorted({sysconfig.get_path(name) + "/" for name in ("purelib", "platlib")}, key=len))
_TOOLS = tuple(site + name for site in _SITE for name in ("sympy/", "functorch/", "torchgen/"))


class Places:
    """Answers for one trace; remembers which files are the user's."""

    def __init__(self) -> None:
        self._users: dict[str, bool] = {}

    def is_user(self, code: CodeType) -> bool:
        """The code is neither torch's, the standard library's nor Stax's own."""
        name = code.co_filename
        known = self._users.get(name)
        if known is None:
            known = self._users[name] = _is_user(name)
        return known

    def frame(self) -> FrameType | None:
        """The innermost frame of the user's code, None when there is none."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not self.is_user(frame.f_code):
            frame = frame.f_back
        return frame

    def here(self) -> str:
        """ "model.py:41" of the innermost user frame, "" when there is none."""
        frame = self.frame()
        return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"

    def of(self, error: BaseException) -> str:
        """ "model.py:41" of the innermost user frame that ``error`` passed through."""
        found = ""
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if self.is_user(code):
                found = f"{Path(code.co_filename).name}:{trace.tb_lineno}"
            trace = trace.tb_next
        return found


def _is_user(name: str) -> bool:
    if name.startswith(("<frozen", "<__array_function__", "<string>")):
        return False
    if name.startswith((_OWN, _TORCH, *_TOOLS)):
        return False
    return name.startswith(_SITE) or not name.startswith(_STDLIB)
