"""An S3 client against servers that misbehave on purpose. Each is a few lines on a real socket."""

from __future__ import annotations

import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from suites.store_doubles import Seen, blob, make_record

from stax.base.errors import Refused, StoreError, Transient
from stax.store import Breaker, Records, Retrying, Tiered, Verified, layout, open_store
from stax.store.file import FileStore
from stax.store.s3 import S3Store

ROOT = Path(__file__).parents[2]
Behaviour = Callable[[socket.socket], None]
ETAG = b'ETag: "0123"\r\n'


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@contextmanager
def serving(behave: Behaviour) -> Iterator[str]:
    """The endpoint of a server that treats every connection by ``behave`` on a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    open_now: list[socket.socket] = []

    def one(peer: socket.socket) -> None:
        try:
            behave(peer)
        except OSError:
            return
        finally:
            peer.close()

    def accept() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            open_now.append(peer)
            threading.Thread(target=one, args=(peer,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        for peer in open_now:
            peer.close()


def request(peer: socket.socket) -> bytes:
    """The head of the next request; its body is read and dropped."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _more(peer)
    head, _, body = data.partition(b"\r\n\r\n")
    if b"100-continue" in head:
        peer.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")),
        0,
    )  # fmt: skip
    while len(body) < length:
        body += _more(peer)
    return head


def _more(peer: socket.socket) -> bytes:
    chunk = peer.recv(65536)
    if not chunk:
        raise ConnectionResetError
    return chunk


def answer(peer: socket.socket, status: bytes, body: bytes = b"", headers: bytes = b"") -> None:
    length = b"Content-Length: %d\r\n" % len(body)
    peer.sendall(b"HTTP/1.1 " + status + b"\r\n" + length + headers + b"\r\n" + body)


def reset(peer: socket.socket) -> None:
    """Close with RST instead of FIN."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def never_answers(peer: socket.socket) -> None:
    request(peer)
    time.sleep(60)


def reads_nothing(peer: socket.socket) -> None:
    time.sleep(60)


def resets_at_once(peer: socket.socket) -> None:
    reset(peer)


def resets_mid_upload(peer: socket.socket) -> None:
    peer.recv(1000)
    reset(peer)


def resets_mid_answer(peer: socket.socket) -> None:
    request(peer)
    peer.sendall(b"HTTP/1.1 200 OK\r\n" + ETAG + b"Content-Length: 1000\r\n\r\nonly this")
    reset(peer)


def ends_early(peer: socket.socket) -> None:
    request(peer)
    peer.sendall(b"HTTP/1.1 200 OK\r\n" + ETAG + b"Content-Length: 1000\r\n\r\nonly this")


def dribbles(peer: socket.socket) -> None:
    request(peer)
    peer.sendall(b"HTTP/1.1 200 OK\r\n" + ETAG + b"Content-Length: 1000\r\n\r\n")
    for _ in range(1000):
        peer.sendall(b"x")
        time.sleep(0.1)


def unavailable(peer: socket.socket) -> None:
    while request(peer):
        answer(peer, b"503 Slow Down", b"<Error><Code>SlowDown</Code></Error>")


def not_s3(peer: socket.socket) -> None:
    while request(peer):
        answer(peer, b"200 OK", b"<html>It works!</html>")


def not_http(peer: socket.socket) -> None:
    request(peer)
    peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")


def ignores_conditions(peer: socket.socket) -> None:
    """An S3 server of the kind that accepts If-None-Match and If-Match, and overwrites."""
    while head := request(peer):
        if head.startswith(b"HEAD"):
            answer(peer, b"404 Not Found")
        else:
            answer(peer, b"200 OK", headers=ETAG)


def quick(endpoint: str) -> S3Store:
    return S3Store("bucket", "x", endpoint, connect_s=0.3, read_s=0.3)


SILENT = (never_answers, reads_nothing)
BROKEN = (resets_at_once, resets_mid_upload, resets_mid_answer, ends_early, dribbles, not_http)


@pytest.mark.parametrize("behave", [*SILENT, *BROKEN, unavailable])
def test_every_verb_ends_in_time_with_a_typed_error(behave: Behaviour) -> None:
    name, data = blob(b"x" * 10_000)
    tag = layout.tag("dev", "t")
    with serving(behave) as endpoint:
        store = quick(endpoint)
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.get(name),
            lambda: store.get_tag(tag),
            lambda: store.swap(tag, b"x", None),
            lambda: store.put(name, data),
            lambda: store.heal(name, data),
            lambda: store.missing([name, blob(b"y")[0]]),
            lambda: list(store.list("cas/")),
        )
        for call in calls:
            start_s = time.monotonic()
            try:
                call()
            except StoreError as error:
                assert isinstance(error, Transient)
                assert endpoint in error.where and "bucket" in error.where
            assert time.monotonic() - start_s < 3


@pytest.mark.parametrize("behave", [*SILENT, *BROKEN, unavailable])
def test_get_fails_whatever_the_server_does(behave: Behaviour) -> None:
    with serving(behave) as endpoint, pytest.raises(Transient):
        quick(endpoint).get(blob(b"x")[0])


def test_slow_body_that_makes_progress_is_no_error() -> None:
    body = bytes(200_000)

    def throttled(peer: socket.socket) -> None:
        request(peer)
        peer.sendall(b"HTTP/1.1 200 OK\r\n" + ETAG + b"Content-Length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), 10_000):
            peer.sendall(body[start : start + 10_000])
            time.sleep(0.05)

    with serving(throttled) as endpoint:
        assert quick(endpoint).get(blob(b"x")[0]) == body


def test_refused_connection_is_transient_with_a_hint() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(Transient, match="server runs"):
        quick(endpoint).get(blob(b"x")[0])


def test_a_web_server_that_is_not_s3_gives_typed_errors() -> None:
    with serving(not_s3) as endpoint:
        store = Verified(quick(endpoint))
        for call in (
            lambda: store.get(blob(b"x")[0]),
            lambda: store.put(*blob(b"x")),
            lambda: list(store.list("")),
        ):
            with pytest.raises(StoreError):
                call()


def test_a_server_that_ignores_conditions_is_refused_with_the_reason() -> None:
    with serving(ignores_conditions) as endpoint:
        store = quick(endpoint)
        assert store.put(*blob(b"x")) is True  # overwritten by its equal at worst
        with pytest.raises(Refused, match="ignores IfNoneMatch"):
            store.put(layout.act("dev", "kernel", "k", "v"), b"x")
        with pytest.raises(Refused, match="ignores IfNoneMatch"):
            store.swap(layout.tag("dev", "t"), b"x", None)
        with pytest.raises(Refused, match="ignores IfMatch"):
            store.swap(layout.tag("dev", "t"), b"x", '"other"')


def test_conflicts_are_repeated() -> None:
    """409: another conditional write of the name was under way. The repetition finds the outcome."""
    puts: list[bytes] = []

    def conflicted(peer: socket.socket) -> None:
        while head := request(peer):
            if head.startswith(b"HEAD"):
                answer(peer, b"404 Not Found")
                continue
            puts.append(head)
            code = b"ConditionalRequestConflict" if len(puts) == 1 else b"PreconditionFailed"
            status = b"409 Conflict" if len(puts) == 1 else b"412 Precondition Failed"
            answer(peer, status, b"<Error><Code>" + code + b"</Code></Error>")

    with serving(conflicted) as endpoint:
        store = Retrying(quick(endpoint), random.Random(0), base_s=0.01)
        assert store.put(*blob(b"x")) is False
    assert len(puts) == 2 and all(b"if-none-match: *" in head.lower() for head in puts)


def test_black_hole_costs_a_compile_little(tmp_path: Path) -> None:
    """A hundred look-ups against a server that never answers: two time-outs, then none."""
    seen = Seen()
    with serving(never_answers) as endpoint:
        remote = Breaker(
            Retrying(quick(endpoint), random.Random(0), attempts=2, base_s=0.01), observer=seen
        )
        store = Tiered(Verified(FileStore(tmp_path)), Verified(remote), seen)
        start_s = time.monotonic()
        for index in range(100):
            assert Records(store, "dev").find("kernel", f"{index}") == []
        with pytest.raises(Transient):
            Records(store, "dev").publish(*make_record())
        assert time.monotonic() - start_s < 4
    assert len(seen.named("store.outage")) == 1
    assert len(seen.named("store.degraded")) == 100


def test_peer_reset_mid_put_does_not_kill_the_process() -> None:
    """SIGPIPE at its default action, as in a program that has reset it: the put is an error, not a death."""
    script = """
import signal, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
from stax.base.errors import Transient
from stax.store.s3 import S3Store
store = S3Store("bucket", "x", sys.argv[1], connect_s=0.3, read_s=0.3)
for _ in range(3):
    try:
        store.heal("act/dev/k/k/v", bytes(4_000_000))
    except Transient:
        print("transient")
"""
    with serving(resets_mid_upload) as endpoint:
        done = subprocess.run(
            [sys.executable, "-c", script, endpoint], cwd=ROOT, capture_output=True, text=True, timeout=60
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "transient\n" * 3), done.stderr


def test_open_does_not_touch_the_network() -> None:
    start_s = time.monotonic()
    open_store("s3://bucket/x?endpoint=http://127.0.0.1:1")
    assert time.monotonic() - start_s < 2


def test_file_users_do_not_import_boto3(tmp_path: Path) -> None:
    script = (
        "import sys; from stax.store import open_store; open_store(sys.argv[1]);"
        "print(sorted({'boto3', 'botocore', 'torch', 'sympy', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path.as_uri()], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == "[]\n", done.stderr
