"""A real Ray cluster of one node for tests. ``python tests/farm_cluster.py FOLDER`` runs one in the foreground.

Started as ``ray start --block`` in a process group of its own, which is what ends it: ``ray stop`` would end
every cluster of the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

READY_LIMIT_S = 90.0
STOP_LIMIT_S = 5.0
ROOT = Path(__file__).parents[1]


@dataclass
class RayCluster:
    """One head node with ``cpus`` CPUs; ``port`` 0 takes a free one."""

    cpus: int = 2
    port: int = 0
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="stax-ray-")))
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns once the cluster listens. Raises RuntimeError with the end of the log if it does not."""
        self.port = self.port or _free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "start.log", "ab") as log:
            self.process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environ()},
                cwd=self.folder,
                start_new_session=True,
            )
        until = time.monotonic() + READY_LIMIT_S
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > until:
                log_end = (self.folder / "start.log").read_text(errors="replace")[-2000:]
                self.stop()
                raise RuntimeError(f"ray did not start on port {self.port}:\n{log_end}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End every process of the cluster and remove its files."""
        if self.process is not None:
            below = psutil.Process(self.process.pid).children(recursive=True)
            # Not gently: on SIGTERM the head stays for ten seconds, and nothing here is worth keeping.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
            # Ray's workers are outside the group; they end by themselves when their raylet has gone.
            _, left = psutil.wait_procs(below, timeout=STOP_LIMIT_S)
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
            *("--node-ip-address=127.0.0.1", f"--port={self.port}", f"--num-cpus={self.cpus}"),
            *("--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={self.folder}"),
            "--object-store-memory=80000000",
        ]

    def _environ(self) -> dict[str, str]:
        return {
            "PYTHONPATH": str(ROOT),
            # The machine is shared: its fullness is not this cluster's doing, so Ray is not to kill for it.
            "RAY_memory_monitor_refresh_ms": "0",
            # NOTE: else a token in the home of whoever runs this (ray.init writes one) would shut the tests out.
            "RAY_AUTH_MODE": "disabled",
        }

    def _ready(self) -> bool:
        """The head says so in its own log, after the raylet has registered."""
        log = self.folder / "start.log"
        return "Ray runtime started" in log.read_text(errors="replace")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_cluster(cpus: int = 2) -> Generator[str]:
    """The address of a cluster: that of STAX_TEST_RAY_ADDRESS where it is set, else of one that lives as long as this."""
    given = os.environ.get("STAX_TEST_RAY_ADDRESS", "")
    if given:
        yield given
        return
    cluster = RayCluster(cpus)
    try:
        cluster.start()
        yield cluster.address
    finally:
        cluster.stop()


def main(folder: str) -> None:
    """Say the address as one JSON line, then run until a signal."""
    cluster = RayCluster(folder=Path(folder).resolve())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        cluster.start()
        print(json.dumps({"address": cluster.address}), flush=True)
        assert cluster.process is not None
        cluster.process.wait()
    except KeyboardInterrupt:
        pass
    finally:
        cluster.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
