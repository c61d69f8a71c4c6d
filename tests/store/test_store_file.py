"""The store suite on a folder, and what can be wrong with a folder: rights, space, links, NFS."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from suites.record_suite import ProcessSuite, RecordSuite
from suites.store_doubles import Place, blob
from suites.store_suite import StoreSuite

from stax.base.errors import Corrupt, Missing, Refused, Transient
from stax.store import Counters, Records, Store, Tiered, layout, open_store
from stax.store.file import FileStore

ROOT = Path(__file__).parents[2]


@dataclass
class FilePlace:
    folder: Path

    @property
    def raw(self) -> FileStore:
        return FileStore(self.folder)

    def open(self) -> Store:
        return open_store(self.folder.as_uri())


class TestFile(StoreSuite, RecordSuite, ProcessSuite):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return FilePlace(tmp_path / "a store")


def in_child(
    script: str, *arguments: object, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run a Python text in another process."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        **options,  # type: ignore[call-overload]
    )


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


# ── the folder's layout ──────────────────────────────────────────────────────────────────────────


def test_layout_is_the_name(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    name, data = blob(b"data")
    store.put(name, data)
    assert files_below(tmp_path) == [tmp_path / name]


def test_files_are_readable_by_others(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    name, data = blob(b"data")
    store.put(name, data)
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o666 & ~umask


def test_foreign_and_temporary_files_are_not_listed(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    name, data = blob(b"data")
    store.put(name, data)
    for foreign in (
        "cas/.nfs0001",
        "cas/README",
        f"{name}.tmp",
        "tmp/0123",
        "act/dev/x",
        "other/y",
    ):
        (tmp_path / foreign).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / foreign).write_bytes(b"foreign")
    assert list(store.list("")) == [name]


def test_temporary_files_of_dead_writers_are_swept_after_a_day(tmp_path: Path) -> None:
    old, new = tmp_path / "tmp" / "old", tmp_path / "tmp" / "new"
    old.parent.mkdir()
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 100_000,) * 2)
    open_store(tmp_path.as_uri()).put(*blob(b"data"))
    assert not old.exists() and new.exists()


def test_zero_length_file_after_a_power_cut_heals(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    name, data = blob(b"data")
    store.put(name, data)
    os.truncate(tmp_path / name, 0)
    with pytest.raises(Corrupt):
        store.get(name)
    store.put(name, data)
    assert store.get(name) == data


def test_huge_file_is_corrupt_and_not_read(tmp_path: Path) -> None:
    name = layout.act("dev", "kernel", "k", "v")
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, 1 << 40)
    with pytest.raises(Corrupt, match="larger"):
        open_store(tmp_path.as_uri()).get(name)


def test_killed_writers_leave_nothing_half(tmp_path: Path) -> None:
    """Ten writers of large blobs are killed at some moment: every listed name reads back whole."""
    script = """
        import random, sys
        from stax.store import open_store
        from stax.base.digest import sha256
        store = open_store(sys.argv[1])
        for seed in range(10_000):
            data = random.Random(f"{sys.argv[2]}{seed}").randbytes(1 << 20)
            store.put("cas/" + sha256(data), data)
            print("one", flush=True)
    """
    for index in range(5):
        command = [sys.executable, "-c", textwrap.dedent(script), tmp_path.as_uri(), str(index)]
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        assert child.stdout and child.stdout.readline() == b"one\n"
        time.sleep(0.003 * index)
        child.kill()
        child.wait()
        child.stdout.close()
    store = open_store(tmp_path.as_uri())
    names = list(store.list(""))
    assert len(names) >= 5
    for name in names:
        store.get(name)


# ── what the operating system refuses ────────────────────────────────────────────────────────────


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB and some 60 inodes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = "size=1m,nr_inodes=60"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_full_disk_is_transient_and_leaves_nothing(small_disk: Path) -> None:
    store = open_store(small_disk.as_uri())
    small, large = blob(b"small"), blob(os.urandom(2 << 20))
    assert store.put(*small)
    with pytest.raises(Transient, match="disk is full") as caught:
        store.put(*large)
    assert large[0] in caught.value.where
    assert list(store.list("")) == [small[0]]
    assert [path.name for path in files_below(small_disk / "tmp")] == []
    assert store.get(small[0]) == small[1]


def test_no_inodes_left_is_transient(small_disk: Path) -> None:
    store = open_store(small_disk.as_uri())
    with pytest.raises(Transient, match="inodes"):
        for index in range(100):
            store.put(*blob(b"%d" % index))
    for name in store.list(""):
        store.get(name)


def test_full_disk_of_the_local_tier_fails_nobody(small_disk: Path, tmp_path: Path) -> None:
    counters = Counters()
    remote = open_store((tmp_path / "remote").as_uri())
    store = Tiered(open_store(small_disk.as_uri()), remote, counters)
    name, data = blob(os.urandom(2 << 20))
    assert store.put(name, data) is True
    assert store.get(name) == data
    assert counters.read()["degraded.local"] == 2


def test_read_only_file_system_is_refused(small_disk: Path) -> None:
    store = open_store(small_disk.as_uri())
    held = blob(b"held")
    store.put(*held)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for write in (store.put, store.heal):
        with pytest.raises(Refused, match="read-only"):
            write(*blob(b"new"))
    with pytest.raises(Refused, match="read-only"):
        store.swap(layout.tag("dev", "t"), b"x", None)
    with pytest.raises(Refused, match="read-only"):
        store.delete(held[0])
    assert store.get(held[0]) == held[1]
    assert store.put(*held) is False
    assert store.missing([blob(b"new")[0]])


AS_NOBODY = """
    import os, sys
    from stax.base.errors import Refused
    from stax.base.digest import sha256
    from stax.store import open_store
    store = open_store(sys.argv[1])
    if os.geteuid() == 0:  # root may do everything
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    for call in (lambda: store.put("cas/" + sha256(b"x"), b"x"), lambda: store.get(sys.argv[2]),
                 lambda: store.missing([sys.argv[2]]), lambda: list(store.list("cas/"))):
        try:
            call()
        except Refused as error:
            assert "right" in error.hint, error
            print("refused")
"""


def test_no_rights_is_refused() -> None:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "s"
        name, data = blob(b"held")
        open_store(folder.as_uri()).put(name, data)
        folder.chmod(0o000)
        Path(parent).chmod(0o755)
        done = in_child(AS_NOBODY, folder.as_uri(), name)
        folder.chmod(0o755)
    assert done.stdout.split() == ["refused"] * 4, done.stderr


def test_file_size_limit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    script = """
        import resource, sys, os
        from stax.base.errors import Refused
        from stax.base.digest import sha256
        from stax.store import open_store
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        data = os.urandom(1 << 20)
        try:
            open_store(sys.argv[1]).put("cas/" + sha256(data), data)
        except Refused as error:
            assert "ulimit" in error.hint
            print("refused")
    """
    done = in_child(script, tmp_path.as_uri())
    assert done.stdout == "refused\n", done.stderr
    assert files_below(tmp_path) == []


def test_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cas").write_bytes(b"a file")
    store = open_store(tmp_path.as_uri())
    name, data = blob(b"x")
    with pytest.raises(Refused, match="file stands"):
        store.put(name, data)
    with pytest.raises((Refused, Missing)):
        store.get(name)
    assert store.missing([name]) == {name}
    assert list(store.list("")) == []


def test_hung_holder_of_the_tag_lock_costs_a_bounded_wait(tmp_path: Path) -> None:
    store = FileStore(tmp_path, lock_s=0.3)
    tag = layout.tag("dev", "t")
    store.swap(tag, b"one", None)
    script = """
        import fcntl, sys, time
        file = open(sys.argv[1], "r+")
        fcntl.flock(file, fcntl.LOCK_EX)
        print("locked", flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), tmp_path / "tmp" / "tags.lock"]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert holder.stdout and holder.stdout.readline() == b"locked\n"
    with pytest.raises(Transient, match="lock"):
        store.swap(tag, b"two", None)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert store.swap(tag, b"two", store.get_tag(tag)[1])


# ── file systems that are not quite like the local one ───────────────────────────────────────────

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
static int fault(const char *call, const char *path) {
    const char *wanted = getenv("FAULT_CALL"), *number = getenv("FAULT_ERRNO");
    if (!wanted || strcmp(wanted, call) || !strstr(path, "/tmp/")) return 0;
    errno = atoi(number);
    return 1;
}
int unlink(const char *path) {
    int (*real)(const char *) = dlsym(RTLD_NEXT, "unlink");
    return fault("unlink", path) ? -1 : real(path);
}
int link(const char *from, const char *to) {
    int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "link");
    if (!fault("lost", from)) return fault("link", from) ? -1 : real(from, to);
    int done = real(from, to);
    errno = EEXIST;
    return done ? done : -1;
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that makes system calls fail, for a child process."""
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    built = subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", folder / "shim.so", folder / "shim.c", "-ldl"]
    )
    if built.returncode:
        pytest.skip("needs gcc")
    return folder / "shim.so"


FAULTED = """
    import sys
    from stax.base.errors import StoreError
    from stax.base.digest import sha256
    from stax.store import open_store
    store = open_store(sys.argv[1])
    for name in ("cas/" + sha256(b"x"), "act/dev/kernel/k/v"):
        for _ in range(2):
            try:
                print(store.put(name, b"x"))
            except StoreError as error:
                print(type(error).__name__, "hard links" in str(error))
"""


@pytest.mark.parametrize(
    "call, number, expected",
    [
        ("unlink", 16, "True False True False"),  # EBUSY while cleaning up
        ("unlink", 116, "True False True False"),  # ESTALE while cleaning up
        ("lost", 0, "True False True False"),  # NFS: the link was made, its answer was lost
        ("link", 1, "True False Refused True Refused True"),  # EPERM: FAT has no hard links
        ("link", 95, "True False Refused True Refused True"),  # EOPNOTSUPP: some FUSE
        ("link", 116, "Transient False " * 4),  # ESTALE: the server lost the folder
    ],
)
def test_odd_file_systems(
    shim: Path, tmp_path: Path, call: str, number: int, expected: str
) -> None:
    environ = {
        **os.environ,
        "LD_PRELOAD": str(shim),
        "FAULT_CALL": call,
        "FAULT_ERRNO": str(number),
    }
    done = in_child(FAULTED, (tmp_path / "s").as_uri(), env=environ)
    assert done.stdout.split() == expected.split(), done.stderr


# ── many processes ───────────────────────────────────────────────────────────────────────────────

PUBLISHER = """
    import random, sys
    from stax.base.digest import sha256
    from stax.store import Record, Records, open_store
    records = Records(open_store(sys.argv[1]), "dev")
    for index in range(100):
        data = random.Random(index).randbytes(3000)
        record = Record("kernel", f"{index}", "v", {"n": index}, (sha256(data),))
        records.publish(record, {sha256(data): data})
        assert records.find("kernel", record.key) == [record]
"""


def test_32_processes_100_keys_no_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PUBLISHER), tmp_path.as_uri()]
    children = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) for _ in range(32)]
    errors = [child.communicate(timeout=100)[1].decode() for child in children]
    assert [child.returncode for child in children] == [0] * 32, max(errors)
    records = Records(open_store(tmp_path.as_uri()), "dev")
    assert len(list(records.store.list("act/"))) == 100
