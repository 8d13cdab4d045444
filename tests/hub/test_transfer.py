"""Transfers with several connections, in processes that are killed, and in several processes."""

import hashlib
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from downloading import download
from hub_server import Rule
from waiting import PATIENCE_S, until

from bitnet.base import settings
from bitnet.base.errors import NetworkError
from bitnet.hub import transfer
from bitnet.hub.repository import file_url

CONTENT = random.Random(8).randbytes(24_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()

FETCH = f"""
import logging, os, sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
from pathlib import Path
from downloading import download
from bitnet.hub.fetch_options import FetchOptions
logging.basicConfig(level=logging.INFO)
if "no-locks" in sys.argv:
    import fcntl
    fcntl.flock = lambda *args: None  # what some shared file systems do
os.environ["BITNET_CONNECTIONS"] = "4" if "parallel" in sys.argv else "1"
options = FetchOptions(base_url=sys.argv[1])
url = sys.argv[1] + "/org/model/resolve/main/model.gguf"
done = download(url, Path(sys.argv[2]), options=options, progress="none")
print(done.sha256, done.cached)
"""


@pytest.fixture
def target(hub, tmp_path):
    hub.add("org/model", "model.gguf", CONTENT)
    return tmp_path / "model.gguf"


def fetch(session, path, **options):
    """Download the file of the hub to *path* in a session with *options*."""
    with session(**options) as hub_session:
        url = file_url("org/model", "main", "model.gguf", hub_session.options)
        return download(url, path, session=hub_session, progress="none")


def start(hub, target, *words):
    """Another process that downloads the file to *target*; *words*: ``parallel``, ``no-locks``."""
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, hub.url, str(target), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left_behind(target):
    """Partial files of *target* in the store, without their sidecars."""
    paths = (settings.cache_dir() / "store/partial").glob(f"*/{target.name}.partial*")
    return [path for path in paths if not path.name.endswith((".json", ".new"))]


def recorded(target):
    """Number of bytes in the partial file of *target*, as its sidecar records them."""
    (partial,) = left_behind(target)
    sidecar = json.loads(Path(f"{partial}.json").read_text())
    return sum(stop - start for start, stop in sidecar["done"])


# --- several connections -------------------------------------------------------------------------


def test_four_connections_fetch_every_byte_once(hub, session, target):
    done = fetch(session, target, connections=4)
    assert target.read_bytes() == CONTENT
    assert done.sha256 == DIGEST
    assert hub.sent("cdn") == len(CONTENT)
    parts = hub.requests("cdn", "GET")
    assert len(parts) > 4  # more pieces than connections
    assert {part.status for part in parts} == {206}
    # The hub states the digest, which decides in the end, not an ETag of the storage.
    assert not any("If-Range" in part.headers for part in parts)


def test_a_broken_part_is_continued_and_no_byte_is_sent_twice(hub, session, target):
    hub.rules.append(Rule(where="cdn", method="GET", times=2, truncate_at=300_000))
    fetch(session, target, connections=4)
    assert target.read_bytes() == CONTENT
    assert hub.sent("cdn") == len(CONTENT)


def test_a_server_without_ranges_gets_one_connection(hub, session, target):
    hub.rules.append(Rule(where="cdn", ignore_range=True))
    fetch(session, target, connections=4)
    assert target.read_bytes() == CONTENT
    assert hub.sent("cdn") == len(CONTENT)


def test_ranges_that_stop_working_midway_fall_back_to_one_connection(hub, session, target):
    hub.rules.append(Rule(where="cdn", method="GET", times=1))  # the first request succeeds
    hub.rules.append(Rule(where="cdn", ignore_range=True))
    fetch(session, target, connections=4)
    assert target.read_bytes() == CONTENT


def test_a_small_file_gets_one_connection(hub, session, tmp_path):
    hub.add("org/model", "model.gguf", CONTENT[:2_000_000])
    fetch(session, tmp_path / "small", connections=4)
    assert len(hub.requests("cdn", "GET")) == 1


def test_without_a_setting_more_connections_are_used_only_if_one_is_slow(
    hub, session, target, clock, monkeypatch
):
    monkeypatch.setattr(transfer, "PARALLEL_FROM_BYTES", 20_000_000)
    fetch(session, target)  # no time passes on this clock: as fast as can be
    assert len(hub.requests("cdn", "GET")) == 2  # the probe, and the rest
    hub.forget()
    target.unlink()
    shutil.rmtree(settings.cache_dir())
    monkeypatch.setattr(transfer, "FAST_BYTES_PER_S", float("inf"))
    fetch(session, target)
    assert len(hub.requests("cdn", "GET")) > 4
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("connections", [4, 1])
def test_a_partial_file_of_parallel_connections_is_continued_with_four_or_one(
    hub, session, target, connections
):
    hub.rules.append(Rule(where="cdn", method="GET", times=6))  # six requests succeed
    hub.rules.append(Rule(where="cdn", method="GET", truncate_at=100_000))
    with pytest.raises(NetworkError, match="truncated"):
        fetch(session, target, connections=4, retries=2)
    hub.rules.clear()
    hub.forget()
    kept_bytes = recorded(target)
    assert kept_bytes > transfer.PROBE_BYTES
    fetch(session, target, connections=connections)
    assert target.read_bytes() == CONTENT
    assert hub.sent("cdn") == len(CONTENT) - kept_bytes


# --- killed --------------------------------------------------------------------------------------


# Bytes before the kill, from the first one to all but one.
@pytest.mark.parametrize("point", [1, 65_536, 1_000_001, 9_000_000, 23_999_999])
def test_after_a_kill_every_byte_that_was_written_is_kept_and_not_fetched_again(
    hub, session, target, point
):
    hub.rules.append(Rule(where="cdn", method="GET", stall_at=point, times=1))
    kill_when(start(hub, target), lambda: written(target) >= point)
    assert not target.exists()
    (partial,) = left_behind(target)
    assert partial.read_bytes() == CONTENT[:point]
    hub.forget()
    done = fetch(session, target, connections=1)
    assert done.sha256 == DIGEST
    assert hub.sent("cdn") == len(CONTENT) - point
    assert left_behind(target) == []


def test_a_killed_parallel_transfer_keeps_all_but_the_bytes_since_its_last_record(
    hub, session, target
):
    hub.rules.append(Rule(where="cdn", method="GET", times=9))  # nine requests succeed
    hub.rules.append(Rule(where="cdn", method="GET", stall_at=10_000, times=4))
    kill_when(start(hub, target, "parallel"), lambda: hub.stalled == 4)
    kept_bytes = hub.sent("cdn") - transfer.NOTE_BYTES
    assert kept_bytes > transfer.PROBE_BYTES
    hub.forget()
    fetch(session, target, connections=4)
    assert target.read_bytes() == CONTENT
    # The bytes that the killed process had not read yet from its four connections are sent again.
    assert hub.sent("cdn") <= len(CONTENT) - kept_bytes + 4 * 64_000
    assert left_behind(target) == []


def written(target):
    """Bytes in the largest partial file of *target*."""
    return max((path.stat().st_size for path in left_behind(target)), default=0)


def kill_when(process, condition):
    """Let *process* run until *condition* holds, then kill it."""
    try:
        until(condition, process)
    finally:
        process.kill()
        process.communicate()


def test_a_transfer_that_is_killed_four_times_is_completed_without_a_byte_sent_twice(
    hub, session, target
):
    for part in range(1, 5):
        hub.rules[:] = [Rule(where="cdn", method="GET", stall_at=4_000_000, times=1)]
        kill_when(start(hub, target), lambda part=part: written(target) >= part * 4_000_000)
    hub.requests()  # waits for those of the killed process
    hub.rules.clear()
    fetch(session, target)
    assert target.read_bytes() == CONTENT
    assert hub.sent("cdn") == len(CONTENT)
    assert left_behind(target) == []


# --- several processes ---------------------------------------------------------------------------


def test_eight_processes_make_one_transfer(hub, target):
    processes = [start(hub, target) for _ in range(8)]
    outputs = [process.communicate(timeout=PATIENCE_S) for process in processes]
    # Each prints the digest, and whether the file was there already.
    assert sorted(out.split()[1] for out, _ in outputs) == ["False"] + ["True"] * 7
    assert hub.sent("cdn") == len(CONTENT)
    assert {out.split()[0] for out, _ in outputs} == {DIGEST}


def test_eight_processes_without_working_locks_end_in_the_right_bytes(hub, target):
    hub.rules.append(Rule(where="cdn", times=5, truncate_at=9_000_000))
    processes = [start(hub, target, "no-locks") for _ in range(8)]
    outputs = [process.communicate(timeout=PATIENCE_S) for process in processes]
    assert {out.split()[0] for out, _ in outputs} == {DIGEST}, outputs
    assert target.read_bytes() == CONTENT
    assert left_behind(target) == []
