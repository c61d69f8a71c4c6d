"""Addresses where no Ray cluster is: an error soon, whatever listens there."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from farm import cluster
from stax.base.errors import FarmError

pytestmark = pytest.mark.ray


@contextmanager
def server(says: bytes) -> Iterator[str]:
    """host:port of a server that says this to everybody, and then nothing."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                held.append(peer)
                peer.sendall(says)

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    for peer in held:
        peer.close()


@pytest.mark.parametrize("says", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_another_server(says: bytes, scheme: str) -> None:
    with server(says) as place:
        start_s = time.monotonic()
        with pytest.raises(FarmError, match=place):
            cluster.connect(f"{scheme}{place}")
        assert time.monotonic() - start_s < 10


@pytest.mark.parametrize(
    "address", ["127.0.0.1:9", "127.0.0.1:99999", "nonsense", "no.such.host.invalid:6379"]
)
def test_no_server(address: str) -> None:
    start_s = time.monotonic()
    with pytest.raises(FarmError, match="no Ray cluster"):
        cluster.connect(address)
    assert time.monotonic() - start_s < 20
