"""The inside of a child process (see :mod:`stax.build.child`): reads a request a frame, writes an answer a frame.

Started as the leader of its own process group. When the parent goes, however it goes, the pipe ends and the child
ends its whole group, so that nothing it started outlives its asker.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue

from stax.build.wire import pack, read_frame, write_frame

Answer = Callable[[bytes], bytes]


def serve(scratch: str, prepare: Callable[[], Answer]) -> None:
    """Call ``prepare``, say that we are ready, and answer until the pipe ends; then remove ``scratch``, where TMPDIR
    points."""
    requests, answers = _claim_pipes()
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(requests, inbox, scratch), daemon=True).start()
    answer = prepare()
    write_frame(answers, pack("ready"))
    while True:
        write_frame(answers, answer(inbox.get()))


def _claim_pipes() -> tuple[int, int]:
    """Move the pipes off 0 and 1, so that neither a stray print nor a compiler touches or keeps them."""
    requests, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return requests, answers


def _listen(requests: int, inbox: SimpleQueue[bytes], scratch: str) -> None:
    while (body := read_frame(requests)) is not None:
        inbox.put(body)
    shutil.rmtree(scratch, ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)  # NOTE: not the leader, so started by hand: the group is somebody's shell
