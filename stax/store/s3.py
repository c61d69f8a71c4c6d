"""A store in a bucket of S3 or of a server that speaks it, through boto3.

Creating once and swapping rest on conditional writes (If-None-Match, If-Match). Some servers accept
the headers and ignore them. Content-addressed objects lose nothing by that; the first write of a
record or tag by a store object is therefore sent twice, and must be turned down the second time.
"""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import boto3  # pyright: ignore[reportMissingTypeStubs]
from botocore.config import Config  # pyright: ignore[reportMissingTypeStubs]
from botocore.exceptions import BotoCoreError, ClientError  # pyright: ignore[reportMissingTypeStubs]
from urllib3.exceptions import HTTPError

from stax.base.errors import OptionError, Refused, StoreError, Transient
from stax.store import layout
from stax.store.base import Store
from stax.store.bounded import within
from stax.store.s3_errors import is_conflict, is_lost_condition, is_missing, translate

# boto3 has no types: its client and answers are Any inside this module and leave it as plain values.
Client = Any
Answer = Any
T = TypeVar("T")

_CONNECT_S = 3.0
_READ_S = 20.0
_CONNECTIONS = 16
_CHUNK_BYTES = 1 << 16
_ANSWER_BYTES = 1 << 12  # a small answer; a full page of names is larger, but comes at once
_LEAST_BYTES_PER_S = 1 << 14


class S3Store:
    """See Store. Thread-safe: one boto3 client with a pool of ``connections``.

    ``connect_s`` and ``read_s`` bound the wait for a connection and for the next bytes. As a server
    may also send a byte now and then for ever, a request as a whole has ``connect_s`` + ``read_s`` and
    what its bytes take at 16 KiB/s. So a transfer that makes progress is never cut off, and nothing
    hangs. boto3's own retries are off: the Retrying layer is the one place that retries.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        endpoint: str = "",
        *,
        connect_s: float = _CONNECT_S,
        read_s: float = _READ_S,
        connections: int = _CONNECTIONS,
    ) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint = endpoint
        self._read_s = read_s
        self._limit_s = connect_s + read_s
        self._connections = connections
        self._lock = threading.Lock()
        self._proven: set[str] = set()
        self._client = _connect(endpoint, connect_s, read_s, connections)

    @property
    def url(self) -> str:
        query = "?" + urlencode({"endpoint": self._endpoint}) if self._endpoint else ""
        return f"s3://{self._bucket}/{quote(self._prefix.rstrip('/'))}{query}"

    @property
    def shared(self) -> Store:
        return self

    def get(self, name: str) -> bytes:
        return self._read(name, layout.object_family(name).stored_limit_bytes)[0]

    def put(self, name: str, data: bytes) -> bool:
        limit_bytes = layout.object_family(name).stored_limit_bytes
        layout.check_written(len(data), limit_bytes, self._where(name))
        # HEAD first: it costs a round trip on a new name, but saves the upload of an old one, and
        # SeaweedFS makes every client of a contended conditional write wait about a second.
        if self._exists(name):
            return False
        return self._put_if(name, data, {"IfNoneMatch": "*"}) is not None

    def missing(self, names: Iterable[str]) -> set[str]:
        wanted = sorted({layout.checked(name) for name in names})
        if len(wanted) < 2:
            return {name for name in wanted if not self._exists(name)}
        with ThreadPoolExecutor(min(self._connections, len(wanted))) as pool:
            found = pool.map(self._exists, wanted)
            return {name for name, exists in zip(wanted, found) if not exists}

    def list(self, prefix: str) -> Iterator[str]:
        layout.check_prefix(prefix)
        names = self._pages(prefix)
        # SeaweedFS orders by folder, "a/x" before "a-b/x", so only the names of one folder stream.
        return names if layout.is_one_folder(prefix) else iter(sorted(names))

    def delete(self, name: str) -> None:
        layout.checked(name)
        self._call(name, lambda: self._client.delete_object(**self._target(name)))

    def heal(self, name: str, data: bytes) -> None:
        limit_bytes = layout.object_family(name).stored_limit_bytes
        layout.check_written(len(data), limit_bytes, self._where(name))
        self._call(name, lambda: self._put(name, data, {}), len(data))

    def swap(self, name: str, data: bytes, expect: str | None) -> str:
        limit_bytes = layout.tag_family(name).stored_limit_bytes
        layout.check_written(len(data), limit_bytes, self._where(name))
        condition = {"IfNoneMatch": "*"} if expect is None else {"IfMatch": expect}
        etag = self._put_if(name, data, condition)
        if etag is None:
            raise Refused(
                "the tag changed meanwhile",
                expected=f"etag {expect}",
                where=self._where(name),
                hint="read the tag again",
            )
        return etag

    def get_tag(self, name: str) -> tuple[bytes, str]:
        return self._read(name, layout.tag_family(name).stored_limit_bytes)

    def close(self) -> None:
        self._client.close()

    def _exists(self, name: str) -> bool:
        def head() -> bool:
            try:
                self._field(self._client.head_object(**self._target(name)), "ETag", name)
            except ClientError as error:
                if is_missing(error):
                    return False
                raise
            return True

        return self._call(name, head)

    def _read(self, name: str, limit_bytes: int) -> tuple[bytes, str]:
        """Bytes and etag. The call ends with the head of the answer; its body has a bound of its own."""
        answer = self._call(name, lambda: self._client.get_object(**self._target(name)))
        try:
            with answer["Body"] as stream:
                size_bytes = int(self._field(answer, "ContentLength", name))
                layout.check_read(size_bytes, limit_bytes, self._where(name))
                return self._body(stream, size_bytes, name), self._field(answer, "ETag", name)
        except (BotoCoreError, HTTPError, OSError) as error:
            raise translate(error, self._where(name)) from error

    def _body(self, stream: Any, size_bytes: int, name: str) -> bytes:
        """The whole body, or Transient when it ends early or dribbles.

        read1 returns what has arrived. read would wait for a full chunk, and a server that sends a
        byte now and then never trips the time-out of the socket.
        """
        read = getattr(stream, "read1", stream.read)
        body = bytearray()
        start_s = time.monotonic()
        while len(body) <= size_bytes and (chunk := read(_CHUNK_BYTES)):
            body += chunk
            spent_s = time.monotonic() - start_s
            if spent_s > self._read_s + len(body) / _LEAST_BYTES_PER_S:
                raise Transient(
                    "the server sends too slowly",
                    expected=f"{_LEAST_BYTES_PER_S} bytes/s",
                    found=f"{len(body)} bytes in {spent_s:.1f} s",
                    where=self._where(name),
                )
        if len(body) != size_bytes:
            raise Transient(
                "the answer ended early",
                expected=f"{size_bytes} bytes",
                found=f"{len(body)} bytes",
                where=self._where(name),
            )
        return bytes(body)

    def _put(self, name: str, data: bytes, condition: dict[str, str]) -> Answer:
        checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
        return self._client.put_object(
            **self._target(name), Body=data, ChecksumSHA256=checksum, **condition
        )

    def _put_if(self, name: str, data: bytes, condition: dict[str, str]) -> str | None:
        """The etag, or None when the condition did not hold."""

        def put() -> str | None:
            try:
                return self._field(self._put(name, data, condition), "ETag", name)
            except ClientError as error:
                if is_lost_condition(error):
                    return None
                raise

        etag = self._call(name, put, len(data))
        header = next(iter(condition))
        if etag is None:
            self._remember(header)
        elif condition.get("IfMatch") != etag and not layout.family(name).addressed:
            self._prove(name, data, condition, header)
        return etag

    def _prove(self, name: str, data: bytes, condition: dict[str, str], header: str) -> None:
        """Raises Refused when the server ignores the condition that has just been met.

        The same bytes are sent again under the same condition, which no longer holds: a server that
        honours it answers 412, and one that does not has only written the bytes it already had.
        """
        with self._lock:
            if header in self._proven:
                return

        def honoured() -> bool:
            try:
                self._put(name, data, condition)
            except ClientError as error:
                if is_lost_condition(error) or is_conflict(error):
                    return True
                raise
            return False

        if not self._call(name, honoured, len(data)):
            raise Refused(
                f"the server ignores {header} on a put, so two writers would overwrite each other",
                expected="412 Precondition Failed",
                found="200 OK",
                where=self._where(name),
                hint="use AWS S3, SeaweedFS 4.48 or another server with conditional writes",
            )
        self._remember(header)

    def _remember(self, header: str) -> None:
        with self._lock:
            self._proven.add(header)

    def _pages(self, prefix: str) -> Iterator[str]:
        token: dict[str, str] = {}
        while True:
            page = self._page(prefix, token)
            for entry in page.get("Contents", ()):
                name = str(entry["Key"]).removeprefix(self._prefix)
                if layout.is_name(name):
                    yield name
            if self._field(page, "IsTruncated", prefix) != "True":
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def _page(self, prefix: str, token: dict[str, str]) -> Answer:
        return self._call(
            prefix,
            lambda: self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=self._prefix + prefix, **token
            ),
        )

    def _call(self, name: str, run: Callable[[], T], size_bytes: int = _ANSWER_BYTES) -> T:
        """The result of a request that moves so many bytes, in bounded time and with our own errors."""
        try:
            return within(self._limit_s + size_bytes / _LEAST_BYTES_PER_S, run)
        except StoreError:
            raise
        except (BotoCoreError, ClientError, HTTPError, OSError) as error:
            raise translate(error, self._where(name)) from error

    def _field(self, answer: Answer, field: str, name: str) -> str:
        if field in answer:
            return str(answer[field])
        raise Refused(
            "the server does not speak S3",
            expected=f"{field} in its answer",
            where=self._where(name),
            hint="check the endpoint",
        )

    def _target(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}

    def _where(self, name: str) -> str:
        server = f" at {self._endpoint}" if self._endpoint else ""
        return f"s3://{self._bucket}/{self._prefix}{name}{server}"


def _connect(endpoint: str, connect_s: float, read_s: float, connections: int) -> Client:
    session: Any = boto3.Session()
    config = Config(
        connect_timeout=connect_s,
        read_timeout=read_s,
        max_pool_connections=connections,
        retries={"total_max_attempts": 1},
        signature_version="s3v4",
        s3={"addressing_style": "path" if endpoint else "auto"},
        # Every read is checked against its digest in the Verified layer.
        response_checksum_validation="when_required",
        tcp_keepalive=True,
    )
    try:
        return session.client(
            "s3",
            endpoint_url=endpoint or None,
            region_name=session.region_name or "us-east-1",
            config=config,
        )
    except (BotoCoreError, ValueError) as error:
        raise OptionError(
            "no S3 client for this endpoint",
            expected="http://host:port or https://host",
            found=repr(endpoint),
            where=str(error),
        ) from error


def open_s3(url: str, endpoint: str) -> S3Store:
    """The store of ``s3://bucket/prefix[?endpoint=URL]``. Raises OptionError for another form."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    prefix = parts.path.strip("/")
    bad = not parts.netloc or bool(query.keys() - {"endpoint"}) or bool(parts.fragment)
    if bad or len(prefix) > 256 or "//" in prefix or ".." in prefix.split("/"):
        raise OptionError(
            "bad store URL",
            expected="s3://bucket/prefix[?endpoint=http://host:port]",
            found=repr(url),
        )
    return S3Store(parts.netloc, prefix, endpoint or query.get("endpoint", [""])[0])
