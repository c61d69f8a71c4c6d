"""The child process of a LocalBuilder: reads a job a frame, compiles it, writes a result a frame.

Started as the leader of its own process group. When the parent goes, however it goes, the pipe ends and the child
ends its whole group, so that no compiler outlives its asker.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import shutil
import signal
import sys
import threading
from queue import SimpleQueue

from stax.build.compile import compile_job
from stax.build.toolchain import local_toolchain
from stax.build.wire import pack, pack_result, read_frame, unpack_job, write_frame


def main(scratch: str, cxx: str) -> None:
    """Serve until the pipe ends, then remove ``scratch``, where TMPDIR points."""
    jobs, results = _claim_pipes()
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    toolchain = local_toolchain(cxx)
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(jobs, inbox, scratch), daemon=True).start()
    write_frame(results, pack("ready"))
    while True:
        job = unpack_job(inbox.get())
        write_frame(results, pack_result(compile_job(job, cxx=cxx, toolchain=toolchain)))


def _claim_pipes() -> tuple[int, int]:
    """Move the pipes off 0 and 1, so that neither a stray print nor a compiler touches or keeps them."""
    jobs, results = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return jobs, results


def _listen(jobs: int, inbox: SimpleQueue[bytes], scratch: str) -> None:
    while (body := read_frame(jobs)) is not None:
        inbox.put(body)
    shutil.rmtree(scratch, ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)  # NOTE: not the leader, so started by hand: the group is somebody's shell


if __name__ == "__main__":
    main(*sys.argv[1:])
