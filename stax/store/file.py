"""A store in a folder: one file a name, at the name's own path below the root.

A put writes ``tmp/<random>``, then hard-links it to its name: the link is what creates once, even
between machines on one NFS folder. Listings never look into ``tmp``. Nothing is fsynced but tags: a
file that lost its bytes in a power cut fails its digest, is a miss, and heals.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from stax.base.digest import sha256
from stax.base.errors import Missing, OptionError, Refused, StoreError, Transient
from stax.store import layout
from stax.store.base import Store

_STALE_TEMP_S = 86_400.0

# NOTE: what an operating system says when a folder can not hold hard links (FAT, some FUSE mounts).
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})

_REFUSED = {
    errno.EACCES: "give this user the right to read and write the folder",
    errno.EPERM: "give this user the right to read and write the folder",
    errno.EROFS: "the file system is read-only: mount it writable or choose another folder",
    errno.EFBIG: "the file size limit of this process is too small (ulimit -f)",
    errno.ENAMETOOLONG: "choose a folder with a shorter path",
    errno.ENOTDIR: "a file stands where the store needs a folder",
    errno.EEXIST: "a file stands where the store needs a folder",
    errno.EISDIR: "a folder stands where the store needs a file",
    errno.ELOOP: "a symbolic link of the folder points to itself",
}
_TRANSIENT = {
    errno.ENOENT: "a folder is not there and was not made: check the URL of the store, or try again",
    errno.ENOSPC: "the disk is full (bytes or inodes): free some space",
    errno.EDQUOT: "the disk quota is used up (bytes or inodes): free some space",
    errno.EMFILE: "this process has too many open files (ulimit -n)",
}


class FileStore:
    """See Store. ``root`` is created at the first write; ``lock_s`` bounds the wait for another swap."""

    def __init__(self, root: Path, lock_s: float = 10.0) -> None:
        self._root = root
        self._lock_s = lock_s
        self._temp = root / "tmp"
        self._swept = False

    @property
    def url(self) -> str:
        return self._root.as_uri()

    @property
    def shared(self) -> Store:
        return self

    def get(self, name: str) -> bytes:
        return self._read(name, layout.object_family(name).stored_limit_bytes)

    def put(self, name: str, data: bytes) -> bool:
        family = layout.object_family(name)
        layout.check_written(len(data), family.stored_limit_bytes, self._where(name))
        with self._faults("put", name):
            if _exists(self._root / name):
                return False
            with self._written(data) as temp:
                return self._create(temp, name, family.addressed)

    def missing(self, names: Iterable[str]) -> set[str]:
        absent: set[str] = set()
        for name in names:
            path = self._root / layout.checked(name)
            with self._faults("missing", name):
                if not _exists(path):
                    absent.add(name)
        return absent

    def list(self, prefix: str) -> Iterator[str]:
        layout.check_prefix(prefix)
        folder = prefix.rpartition("/")[0]
        if not folder:
            return self._list_families(prefix)
        return self._walk(folder, prefix)

    def delete(self, name: str) -> None:
        path = self._root / layout.checked(name)
        with self._faults("delete", name):
            path.unlink(missing_ok=True)

    def heal(self, name: str, data: bytes) -> None:
        limit_bytes = layout.object_family(name).stored_limit_bytes
        layout.check_written(len(data), limit_bytes, self._where(name))
        with self._faults("heal", name), self._written(data) as temp:
            self._replace(temp, name)

    def swap(self, name: str, data: bytes, expect: str | None) -> str:
        limit_bytes = layout.tag_family(name).stored_limit_bytes
        layout.check_written(len(data), limit_bytes, self._where(name))
        with self._faults("swap", name), self._tags_locked(name):
            found = self._etag(name, limit_bytes)
            if found != expect:
                raise Refused(
                    "the tag changed meanwhile",
                    expected=f"etag {expect}",
                    found=f"etag {found}",
                    where=self._where(name),
                    hint="read the tag again",
                )
            with self._written(data, sync=True) as temp:
                self._replace(temp, name)
        return sha256(data)

    def get_tag(self, name: str) -> tuple[bytes, str]:
        data = self._read(name, layout.tag_family(name).stored_limit_bytes)
        return data, sha256(data)

    def close(self) -> None:
        return None

    def _read(self, name: str, limit_bytes: int) -> bytes:
        with self._faults("get", name), open(self._root / name, "rb") as file:
            layout.check_read(os.fstat(file.fileno()).st_size, limit_bytes, self._where(name))
            return file.read(limit_bytes + 1)

    def _etag(self, name: str, limit_bytes: int) -> str | None:
        try:
            return sha256(self._read(name, limit_bytes))
        except Missing:
            return None

    @contextmanager
    def _written(self, data: bytes, sync: bool = False) -> Generator[Path, None, None]:
        """A temporary file that holds the bytes; it is gone afterwards, whatever happened."""
        self._temp.mkdir(parents=True, exist_ok=True)
        self._sweep()
        temp = self._temp / secrets.token_hex(16)
        try:
            # Not tempfile: its mode 0600 would hide a shared folder from the other users.
            fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            with open(fd, "wb") as file:
                file.write(data)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            yield temp
        finally:
            _forget(temp)

    def _create(self, temp: Path, name: str, addressed: bool) -> bool:
        final = self._root / name
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(temp, final)
        except FileExistsError:
            # Two links: the link was made and only its answer was lost (NFS).
            return os.stat(temp).st_nlink == 2
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._create_without_links(temp, name, addressed, error)
        return True

    def _create_without_links(self, temp: Path, name: str, addressed: bool, error: OSError) -> bool:
        if not addressed:
            raise Refused(
                "the folder's file system has no hard links, so records can not be created once",
                found=str(error),
                where=self._where(name),
                hint="choose a folder on a local disk or on NFS",
            ) from error
        self._replace(temp, name)  # equal names hold equal bytes: nothing can be lost
        return True

    def _replace(self, temp: Path, name: str) -> None:
        final = self._root / name
        final.parent.mkdir(parents=True, exist_ok=True)
        os.replace(temp, final)

    @contextmanager
    def _tags_locked(self, name: str) -> Generator[None, None, None]:
        """The kernel frees the lock of a process that dies; one that hangs costs a bounded wait."""
        self._temp.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._temp / "tags.lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            limit_s = time.monotonic() + self._lock_s
            while not _try_lock(fd):
                if time.monotonic() > limit_s:
                    raise Transient(
                        "another process holds the lock of the tags",
                        expected=f"the lock within {self._lock_s:.1f} s",
                        where=self._where(name),
                    )
                time.sleep(0.005)
            yield
        finally:
            os.close(fd)

    def _list_families(self, prefix: str) -> Iterator[str]:
        for family in sorted(layout.FAMILIES):
            if family.startswith(prefix):
                yield from self._walk(family, prefix)

    def _walk(self, folder: str, prefix: str) -> Iterator[str]:
        """Names below ``folder``. A folder sorts as its name with "/": the order of whole names."""
        for name, is_folder in sorted(self._entries(folder)):
            if not name.startswith(prefix):
                continue
            if is_folder:
                yield from self._walk(name.removesuffix("/"), prefix)
            elif layout.is_name(name):
                yield name

    def _entries(self, folder: str) -> Sequence[tuple[str, bool]]:
        with self._faults("list", folder):
            try:
                with os.scandir(self._root / folder) as entries:
                    return [_entry(folder, entry) for entry in entries]
            except FileNotFoundError:
                return ()
            except NotADirectoryError:
                if self._root.is_dir():
                    return ()  # a foreign file, which is no name
                raise

    def _sweep(self) -> None:
        """Once a store: remove the temporary files of writers that died more than a day ago."""
        if self._swept:
            return
        self._swept = True
        oldest_s = time.time() - _STALE_TEMP_S
        for temp in self._temp.iterdir():
            if temp.name != "tags.lock" and _written_before(temp, oldest_s):
                _forget(temp)

    @contextmanager
    def _faults(self, verb: str, name: str) -> Generator[None, None, None]:
        try:
            yield
        except OSError as error:
            raise _translate(error, verb, self._where(name)) from error

    def _where(self, name: str) -> str:
        return f"{self.url}/{name}"


def _translate(error: OSError, verb: str, where: str) -> StoreError:
    number = error.errno or 0
    if number == errno.ENOENT and verb == "get":
        return Missing("no such object", where=where)
    what = f"{verb} failed"
    if number in _REFUSED:
        return Refused(what, found=str(error), where=where, hint=_REFUSED[number])
    return Transient(what, found=str(error), where=where, hint=_TRANSIENT.get(number, "try again"))


def _entry(folder: str, entry: os.DirEntry[str]) -> tuple[str, bool]:
    is_folder = entry.is_dir(follow_symlinks=False)
    return f"{folder}/{entry.name}{'/' if is_folder else ''}", is_folder


def _exists(path: Path) -> bool:
    """Unlike Path.exists, an answer that is neither yes nor no is raised."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _written_before(path: Path, time_s: float) -> bool:
    try:
        return path.stat().st_mtime < time_s
    except OSError:
        return False  # its writer has just finished with it


def _forget(temp: Path) -> None:
    """A clean-up that fails (EBUSY, ESTALE on NFS) must not fail the put that succeeded."""
    try:
        temp.unlink()
    except OSError:
        return


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_file(url: str, endpoint: str) -> FileStore:
    """The store of ``file:///absolute/path``. Raises OptionError for another form."""
    parts = urlsplit(url)
    path = Path(os.fsdecode(unquote_to_bytes(parts.path)))
    local = parts.netloc in ("", "localhost") and not parts.query and not parts.fragment
    if not local or not path.is_absolute() or path == Path("/") or endpoint:
        raise OptionError("bad store URL", expected="file:///absolute/folder", found=repr(url))
    return FileStore(path)
