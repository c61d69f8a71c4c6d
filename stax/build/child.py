"""One worker process seen from its parent: start it, ask it with a time limit, end it with all its children."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from stax.build.wire import FRAME_HEAD_BYTES, frame, frame_length

START_LIMIT_S = 120.0
_LOG_TAIL_BYTES = 16_384
_PREFIX = "stax-build-"
_WORDS = "stderr"
_SETTLED_S = 60.0  # younger than this, a folder may belong to a child that is not quite there yet
_START = (
    "import sys; root, module, scratch, argument = sys.argv[1:]; "
    "root in sys.path or sys.path.insert(0, root); "
    "from importlib import import_module; import_module(module).main(scratch, argument)"
)


class ChildLost(Exception):
    """The process ended before it answered. Its last words are the argument."""


class ChildHung(Exception):
    """The process did not answer in time. Its last words are the argument."""


def remove_left_over(folder: str) -> int:
    """Remove the folders in ``folder`` of children that ended together with their parents; returns how many.

    A folder whose file somebody still holds the lock of is in use, on whatever side of a container's wall.
    """
    removed = 0
    for scratch in Path(folder).glob(f"{_PREFIX}*"):
        with contextlib.suppress(
            OSError
        ):  # BlockingIOError: in use; else it has gone, or is not ours
            if time.time() - scratch.stat().st_mtime < _SETTLED_S:
                continue
            words = os.open(scratch / _WORDS, os.O_RDWR)
            try:
                fcntl.flock(words, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(scratch)
                removed += 1
            finally:
                os.close(words)
    return removed


class Child:
    """A warm worker process, the leader of its own process group: ``main(scratch folder, argument)`` of a module, which
    answers frames (see :mod:`stax.build.serve`).

    Used by one thread at a time; ``kill`` may be called from any thread, any number of times, and makes a running
    ``ask`` raise ChildLost. Making one raises OSError when the machine has no process or file left to give.
    """

    def __init__(self, module: str, argument: str) -> None:
        self._scratch = tempfile.mkdtemp(prefix=_PREFIX)
        words = os.path.join(self._scratch, _WORDS)
        self._words = os.open(words, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        # Held through this open file by us, the child and every compiler below it: see remove_left_over.
        fcntl.flock(self._words, fcntl.LOCK_EX)
        self._greeted = False
        self._ending = threading.Lock()
        self._ended = self._released = False
        root = str(Path(__file__).resolve().parents[2])
        # env, because it sets TMPDIR for the compilers too; it becomes the Python it starts, under the same pid.
        command = [
            "env",
            f"TMPDIR={self._scratch}",
            sys.executable,
            "-P",
            "-c",
            _START,
            root,
            module,
            self._scratch,
            argument,
        ]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                bufsize=0,
                start_new_session=True,
            )
        except OSError:
            os.close(self._words)
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise
        assert self._process.stdin is not None and self._process.stdout is not None
        self._jobs = self._process.stdin.fileno()
        self._results = self._process.stdout.fileno()
        os.set_blocking(self._jobs, False)
        os.set_blocking(self._results, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        """Whether the process still runs; does not reap it, so that its group id stays ours."""
        if self._ended:
            return False
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, flags) is None

    def ask(self, body: bytes, limit_s: float) -> bytes:
        """Send one job, return its result. The start of the process is not counted in ``limit_s``.

        Raises ChildLost or ChildHung; then only ``kill`` and ``release`` are left to call.
        """
        if not self._greeted:
            self._read_frame(time.monotonic() + START_LIMIT_S)
            self._greeted = True
        until = time.monotonic() + limit_s
        os.ftruncate(self._words, 0)
        view = memoryview(frame(body))
        while view:
            self._wait(self._jobs, select.POLLOUT, until)
            try:
                view = view[os.write(self._jobs, view) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise ChildLost(self.last_words()) from error
        return self._read_frame(until)

    def kill(self) -> None:
        """End the process and everything it started, and remove its files."""
        with self._ending:
            if self._ended:
                return
            # NOTE: before wait(): until it is reaped, the pid, and so the group id, can not be another's.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._ended = True
        shutil.rmtree(self._scratch, ignore_errors=True)

    def release(self) -> None:
        """``kill`` and close the pipes; for the using thread alone, when it is done with this child. Idempotent."""
        self.kill()
        if self._released:
            return
        self._released = True
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        os.close(self._words)

    def last_words(self) -> str:
        """The end of what the process wrote to its standard error."""
        size = os.fstat(self._words).st_size
        tail = os.pread(self._words, _LOG_TAIL_BYTES, max(0, size - _LOG_TAIL_BYTES))
        return tail.decode(errors="replace")

    def _read_frame(self, until: float) -> bytes:
        return self._read(frame_length(self._read(FRAME_HEAD_BYTES, until)), until)

    def _read(self, count: int, until: float) -> bytes:
        parts: list[bytes] = []
        while count:
            self._wait(self._results, select.POLLIN, until)
            try:
                part = os.read(self._results, min(count, 1 << 20))
            except BlockingIOError:
                continue
            if not part:
                raise ChildLost(self.last_words())
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _wait(self, fd: int, events: int, until: float) -> None:
        poll = select.poll()
        poll.register(fd, events)
        left_ms = (until - time.monotonic()) * 1000
        if left_ms <= 0 or not poll.poll(left_ms):
            raise ChildHung(self.last_words())
