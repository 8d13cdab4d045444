"""Locks of files between processes, also where the kernel's locks have no effect."""

import errno
import os
import socket
import subprocess
import sys

import pytest

from bitnet.base import locks
from bitnet.base.errors import BitnetError, CacheBusy, PermissionDenied
from bitnet.base.locks import hold, holder_of, is_held

# Holds the lock in its argument until its standard input ends.
HOLDER = """
import sys
from pathlib import Path
from bitnet.base.locks import hold
with hold(Path(sys.argv[1]), timeout_s=5) as lock:
    lock.report("12 MB of 98 MB")
    print("held", flush=True)
    sys.stdin.read()
"""


class Clock:
    """Time that passes only by ``sleep``, five seconds for each call."""

    seconds = 0.0

    def __call__(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += 5.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokenizer.json.lock"


@pytest.fixture
def holder(path):
    """Another process that holds the lock until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.stdin.close()
    process.stdout.close()
    process.wait()


def test_waiting_names_the_owner_every_ten_seconds_and_ends(path, holder, caplog):
    clock = Clock()
    with (
        pytest.raises(CacheBusy) as caught,
        hold(path, timeout_s=32, what="llama3-128k", clock=clock, sleep=clock.sleep),
    ):
        raise AssertionError("held by two")
    owner = f"process {holder.pid} on {socket.gethostname()} since "
    assert owner in caught.value.message
    assert "12 MB of 98 MB" in caught.value.message
    assert "BITNET_LOCK_TIMEOUT" in caught.value.hint
    assert caught.value.exit_code == 21
    lines = [record.getMessage() for record in caplog.records]
    assert [line.rpartition("; ")[2] for line in lines] == [
        "10 s so far",
        "20 s so far",
        "30 s so far",
    ]
    assert all(line.startswith("waiting for llama3-128k: held by ") for line in lines)


def test_a_killed_owner_holds_nothing(path, holder):
    assert is_held(path)
    holder.kill()
    holder.wait()
    assert not is_held(path)
    with hold(path, timeout_s=0):
        assert holder_of(path).startswith(f"process {os.getpid()} on ")


def test_with_leave_false_only_the_holder_deletes_the_lock_file_at_the_end(path, holder):
    with pytest.raises(CacheBusy), hold(path, timeout_s=0, leave=False):
        raise AssertionError("held by two")
    assert path.exists()  # only the holder deletes it
    holder.kill()
    holder.wait()
    assert path.exists()
    with hold(path, timeout_s=0, leave=False):
        assert is_held(path)
    assert not path.exists()


def test_a_lock_file_deleted_after_it_was_opened_is_opened_again(path, monkeypatch):
    opened = locks.Lock._open
    seen_inodes = []

    def open_and_delete(self):
        fd = opened(self)
        if not seen_inodes:
            path.unlink()  # as a holder does just before it releases the lock
        seen_inodes.append(os.fstat(fd).st_ino)
        return fd

    monkeypatch.setattr(locks.Lock, "_open", open_and_delete)
    with hold(path, timeout_s=0):
        assert len(seen_inodes) == 2
        assert path.stat().st_nlink == 1
        assert is_held(path)


def test_a_lock_file_of_another_process_in_the_place_of_ours_is_not_deleted(path):
    with hold(path, timeout_s=0, leave=False):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


def test_a_lock_file_stays_after_its_lock_and_shows_the_report_of_the_next_holder(path):
    with hold(path, timeout_s=0):
        pass
    assert path.exists()
    with hold(path, timeout_s=0) as lock:
        lock.report("half")
        assert holder_of(path).endswith(", half")
        lock.report("")
        assert "half" not in holder_of(path)


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"", "another process"), (b"a\x1b[2Jb\n", "a\\x1b[2Jb"), (b"\xff", "\ufffd")],
)
def test_control_characters_in_a_lock_file_are_escaped(path, content, text):
    path.write_bytes(content)
    assert holder_of(path) == text


# --- where the kernel's locks do not work ---------------------------------------------------------


@pytest.fixture
def flock(monkeypatch):
    """Function that makes ``flock`` fail with an error number, or with 0 succeed without a lock."""
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(locks, "_locks_work_on", {})

    def answer(number):
        def fake(fd, how):
            if number:
                raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", fake)

    return answer


def test_locks_that_need_a_descriptor_for_writing_work(path, monkeypatch):
    """As on NFS, where Linux makes them locks of byte ranges."""
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(locks, "_locks_work_on", {})
    flock = fcntl.flock

    def on_nfs(fd, how):
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        if how & fcntl.LOCK_EX and not flags & os.O_RDWR:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", on_nfs)
    with hold(path, timeout_s=0) as lock:
        assert lock.is_kernel
        with pytest.raises(CacheBusy), hold(path, timeout_s=0):
            pass


@pytest.mark.parametrize("name", ["ENOSYS", "ENOLCK", "EOPNOTSUPP", "EINVAL", None])
def test_a_lock_without_effect_is_held_by_several_and_says_that_it_is_not_the_kernels(
    path, flock, name
):
    flock(getattr(errno, name) if name else 0)
    with hold(path, timeout_s=0) as lock:
        assert not lock.is_kernel
        lock.report("half")
        assert holder_of(path).endswith(", half")
        with hold(path, timeout_s=0), hold(path, timeout_s=0, shared=True):
            pass


def test_a_shared_lock_excludes_only_the_exclusive_one(path):
    with hold(path, timeout_s=0, shared=True), hold(path, timeout_s=0, shared=True):
        assert is_held(path)
        with pytest.raises(CacheBusy), hold(path, timeout_s=0):
            raise AssertionError("held by two")
    with hold(path, timeout_s=0), pytest.raises(CacheBusy), hold(path, timeout_s=0, shared=True):
        raise AssertionError("held by two")


def test_a_lock_that_another_process_takes_only_to_examine_it_is_waited_for(path, monkeypatch):
    # To examine a lock is to take it for a moment; here until the other side first waits.
    looker = locks.Lock(path)
    monkeypatch.setattr(locks.time, "sleep", lambda _seconds: looker.release())
    for shared in (False, True):
        assert looker.acquire()
        with hold(path, timeout_s=0, shared=shared):
            pass
    assert looker.acquire()
    assert not is_held(path)


def test_another_error_of_flock_is_raised(path, flock):
    flock(errno.EIO)
    with pytest.raises(BitnetError, match=r"os error 5"), hold(path, timeout_s=0):
        raise AssertionError("held")


def test_a_lock_that_may_not_be_created_is_a_matter_of_permissions(tmp_path, monkeypatch):
    real_open = os.open

    def open_existing(path, flags, *mode, **options):
        if flags & os.O_CREAT and str(path).startswith(str(tmp_path)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real_open(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", open_existing)
    monkeypatch.setattr(locks, "_locks_work", lambda _folder: True)
    with pytest.raises(PermissionDenied), hold(tmp_path / "a.lock", timeout_s=0):
        pass
