"""A download of one file from a hub: attempts, resumption, checks, the disk, and being offline."""

import hashlib
import os
import random
import re
import shutil
import socket

import pytest
from downloading import download
from hub_server import PAGE, Rule

from bitnet.base import settings
from bitnet.base.errors import (
    HashMismatch,
    InvalidFormat,
    NetworkError,
    NoSpace,
    Offline,
    PermissionDenied,
    RateLimited,
    UpstreamChanged,
    UsageError,
    VocabMismatch,
)
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.patience import Patience
from bitnet.hub.repository import file_url, head
from bitnet.hub.session import HubSession

CONTENT = random.Random(7).randbytes(3_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def fetch(session, path, **wanted):
    """Download the file of the hub to *path*; ``options`` of *wanted* are those of the session."""
    options = wanted.pop("options", {})
    with session(**options) as hub_session:
        url = file_url("org/model", "main", "model.gguf", hub_session.options)
        return download(url, path, session=hub_session, progress="none", **wanted)


@pytest.fixture
def target(hub, tmp_path):
    """Path to which the file is downloaded; the hub has it."""
    hub.add("org/model", "model.gguf", CONTENT)
    return tmp_path / "models" / "model.gguf"


def names(path):
    """Names in the folder of *path*."""
    return sorted(entry.name for entry in path.parent.iterdir())


def left():
    """Names of the partial files in the store and of their sidecars."""
    return sorted(path.name for path in (settings.cache_dir() / "store/partial").glob("*/*"))


def partial():
    """The partial file that a stopped run has left."""
    (path,) = (settings.cache_dir() / "store/partial").glob("*/*.partial")
    return path


def test_a_file_is_fetched_and_verified_and_nothing_is_left_beside_it(hub, session, target):
    done = fetch(session, target)
    assert target.read_bytes() == CONTENT
    assert (done.sha256, done.size, done.cached) == (DIGEST, len(CONTENT), False)
    assert done.revision == DIGEST  # the hub's ETag of a large file is its SHA-256
    assert done.commit == hub.repos["org/model"].revisions["main"]
    assert (names(target), left()) == (["model.gguf"], [])


def test_a_file_that_is_already_there_needs_no_network(session, hub, target):
    target.parent.mkdir()
    target.write_bytes(CONTENT)
    done = fetch(session, target, sha256=DIGEST)
    assert done.cached
    assert fetch(session, target).cached
    assert hub.requests() == []


def test_force_fetches_again(session, hub, target):
    fetch(session, target)
    assert not fetch(session, target, force=True).cached
    assert hub.sent("cdn") == 2 * len(CONTENT)


def test_a_file_that_is_not_the_pinned_one_is_replaced(session, target):
    target.parent.mkdir()
    target.write_bytes(b"something else")
    assert not fetch(session, target, sha256=DIGEST).cached
    assert target.read_bytes() == CONTENT


def test_small_files_come_from_the_hub_itself(session, hub, tmp_path):
    hub.add("org/model", "model.gguf", b"small")
    fetch(session, tmp_path / "small")
    assert (tmp_path / "small").read_bytes() == b"small"
    assert hub.requests("cdn") == []


@pytest.mark.parametrize(
    "break_off",  # in the middle, before the last byte, and after the first
    [{"reset_at": 1_000_000}, {"truncate_at": 2_999_999}, {"reset_at": 1}],
)
def test_a_broken_transfer_is_continued_where_it_broke(session, hub, target, break_off):
    hub.rules.append(Rule(where="cdn", times=1, **break_off))
    fetch(session, target, sha256=DIGEST)
    assert target.read_bytes() == CONTENT
    at = next(iter(break_off.values()))
    continued = hub.requests("cdn", "GET")[1]
    start = int(continued.headers["Range"].removeprefix("bytes=").rstrip("-"))
    assert 0 < start <= at  # a reset may discard bytes that were sent
    assert "If-Range" not in continued.headers  # the digest decides, not a replica's ETag
    assert continued.sent == len(CONTENT) - start


def test_three_attempts_wait_200_and_400_milliseconds(session, hub, target, clock, caplog):
    hub.rules.append(Rule(where="cdn", status=503))
    with pytest.raises(NetworkError, match=r"HTTP error 503: .*\(3 attempts\)") as caught:
        fetch(session, target, options={"retries": 3})
    assert clock.waits == [0.2, 0.4]  # seconds; each wait is twice the one before
    assert "attempt 1 of 3 failed" in caplog.text
    assert "attempt 3 failed" in caplog.text
    assert "doctor network" in caught.value.hint
    assert caught.value.exit_code == 14


def test_a_hub_that_restarts_is_waited_for(session, hub, target, clock, caplog):
    hub.rules.append(Rule(where="hub", times=5, status=503))
    fetch(session, target)
    assert clock.waits == [0.2, 0.4, 0.8, 1.6, 3.2]
    assert target.read_bytes() == CONTENT
    assert "attempt 5 failed: HTTP error 503; next attempt in 3.2 s" in caplog.text


def test_a_hub_that_stays_away_is_waited_for_until_the_deadline(session, hub, target, clock):
    hub.rules.append(Rule(where="hub", status=503))
    # The deadline is 300 s (BITNET_DOWNLOAD_TIMEOUT), and the longest wait 20 s.
    with pytest.raises(NetworkError, match=r"\(\d+ attempts, no progress for 3\d\d s\)"):
        fetch(session, target)
    assert clock.waits[:3] == [0.2, 0.4, 0.8]
    assert max(clock.waits) == 20.0
    assert 300 <= sum(clock.waits) <= 330


def test_progress_makes_the_waits_between_attempts_start_again(session, hub, target, clock):
    hub.rules.append(Rule(where="cdn", times=2, truncate_at=1_200_000))
    hub.rules.append(Rule(where="cdn", times=1, status=500))
    fetch(session, target)
    assert target.read_bytes() == CONTENT
    # After 1.2 MB the second break counts as a first failure again; the status 500 follows it.
    assert clock.waits == [0.2, 0.2, 0.4]


def test_retry_after_is_waited_for(session, hub, target, clock):
    date = "Mon, 12 Jan 1970 13:47:10 GMT"  # 30 s after the time of day of *session*
    hub.rules.append(Rule(where="hub", times=1, status=429, headers={"Retry-After": "7"}))
    hub.rules.append(Rule(where="hub", times=1, status=503, headers={"Retry-After": date}))
    fetch(session, target)
    assert clock.waits == [7.0, 30.0]


def test_a_wait_longer_than_allowed_ends_the_download_at_once(session, hub, target, clock):
    hub.rules.append(Rule(where="hub", status=429, headers={"Retry-After": "4000"}))
    # At most 3600 s are allowed (BITNET_RETRY_AFTER_MAX).
    with pytest.raises(RateLimited, match="4000 s") as caught:
        fetch(session, target)
    assert clock.waits == []
    assert caught.value.exit_code == 12


def test_waits_that_a_server_asks_for_again_and_again_end_at_the_allowed_sum(
    session, hub, target, clock
):
    hub.rules.append(Rule(where="hub", status=503, headers={"Retry-After": "60"}))
    with pytest.raises(NetworkError, match=r"asks to wait 60 s, 36\d\d s with"):
        fetch(session, target)
    assert sum(clock.waits) <= 3600


def test_too_many_requests_ends_as_rate_limited(session, hub, target):
    hub.rules.append(Rule(where="hub", status=429))
    with pytest.raises(RateLimited, match="HTTP error 429"):
        fetch(session, target)


def test_a_stalled_connection_is_replaced(session, hub, target):
    hub.rules.append(Rule(where="cdn", times=1, stall_at=1_500_000))
    fetch(session, target, options={"stall_timeout": 0.5, "retries": 20})
    assert target.read_bytes() == CONTENT
    assert hub.requests("cdn", "GET")[-1].status == 206  # the rest of the file


def test_no_progress_until_the_deadline_ends_the_download(hub, target):
    clock = iter(range(0, 100_000, 400))  # seconds; each step is longer than the deadline
    options = FetchOptions(base_url=hub.url, retries=50)
    hub.rules.append(Rule(where="cdn", status=503))
    with HubSession(options, clock=lambda: next(clock), sleep=lambda s: None) as hub_session:
        url = file_url("org/model", "main", "model.gguf", options)
        with pytest.raises(NetworkError, match="no progress for"):
            download(url, target, session=hub_session, progress="none")


@pytest.mark.parametrize("rule", [{"ignore_range": True}, {"shift_range": 10}, {"status": 416}])
def test_resume_starts_over_when_the_server_cannot_continue(session, hub, target, rule):
    hub.rules.append(Rule(where="cdn", times=1, reset_at=1_000_000))
    hub.rules.append(Rule(where="cdn", times=1, **rule))
    fetch(session, target)
    assert target.read_bytes() == CONTENT


def test_a_transfer_is_continued_although_the_etag_changes_if_the_digest_is_known(
    session, hub, target
):
    hub.rules.append(Rule(where="cdn", times=1, reset_at=1_000_000, headers={"ETag": '"one"'}))
    hub.rules.append(Rule(where="cdn", headers={"ETag": '"another"'}))
    fetch(session, target, sha256=DIGEST)
    assert target.read_bytes() == CONTENT
    assert [seen.status for seen in hub.requests("cdn", "GET")] == [200, 206]


def test_a_push_during_the_transfer_does_not_mix_versions(session, hub, target):
    newer = CONTENT[::-1]
    hub.rules.append(Rule(where="cdn", times=1, reset_at=1_000_000))
    with session() as hub_session:
        sleep = hub_session.sleep

        def push(seconds):
            hub.add("org/model", "model.gguf", newer)
            sleep(seconds)

        hub_session.sleep = push
        url = file_url("org/model", "main", "model.gguf", hub_session.options)
        download(url, target, session=hub_session, progress="none")
    assert target.read_bytes() == CONTENT


def test_a_wrong_byte_is_refused_and_nothing_is_kept(session, hub, target):
    hub.rules.append(Rule(where="cdn", flip_at=2_000_000))
    with pytest.raises(HashMismatch, match=f"expected {DIGEST}") as caught:
        fetch(session, target)
    assert (target.exists(), left()) == (False, [])
    assert caught.value.exit_code == 13


def test_a_good_file_survives_a_bad_transfer(session, hub, target):
    fetch(session, target)
    hub.rules.append(Rule(where="cdn", flip_at=5))
    with pytest.raises(HashMismatch):
        fetch(session, target, force=True)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("pin", [{"sha256": "0" * 64}, {"size": 17}])
def test_another_file_than_the_pinned_one_is_refused_before_the_transfer(session, hub, target, pin):
    with pytest.raises(UpstreamChanged, match="has been replaced"):
        fetch(session, target, **pin)
    assert hub.sent("cdn") == 0


def test_a_size_that_differs_from_the_announced_one_is_refused(session, hub, target):
    hub.rules.append(Rule(where="hub", headers={"X-Linked-Size": "2999999"}))
    with pytest.raises(NetworkError, match="announces one file and sends another"):
        fetch(session, target)
    assert not target.exists()


def test_a_web_page_is_not_a_file(session, hub, target):
    page = {"status": 200, "headers": {"Content-Type": "text/html; charset=utf-8"}, "body": PAGE}
    hub.rules.append(Rule(where="cdn", **page))
    with pytest.raises(NetworkError, match="got text/html"):
        fetch(session, target)
    assert not target.exists()


def test_an_encoded_body_is_refused(session, hub, target):
    hub.rules.append(Rule(where="cdn", gzip=True))
    with pytest.raises(NetworkError, match="gzip-encoded"):
        fetch(session, target)
    assert hub.requests("cdn")[0].headers["Accept-Encoding"] == "identity"


def test_an_empty_file_is_refused(session, hub, tmp_path):
    hub.add("org/model", "model.gguf", b"")
    with pytest.raises(InvalidFormat, match=r"^Downloaded tokenizer file is empty"):
        fetch(session, tmp_path / "tokenizer.json")


def test_a_file_of_unknown_size_is_fetched_to_its_end(session, hub, target):
    size_and_digest = ("X-Linked-Size", "X-Linked-Etag")
    hub.rules.append(Rule(where="hub", drop_headers=size_and_digest))
    fetch(session, target)
    assert target.read_bytes() == CONTENT


def test_the_callers_check_reads_the_finished_file_and_can_refuse_it(session, target):
    def check(path):
        assert path.read_bytes() == CONTENT
        raise VocabMismatch("Model: 128256, Tokenizer: 50257")

    with pytest.raises(VocabMismatch):
        fetch(session, target, check=check)
    assert (target.exists(), left()) == (False, [])


# --- what a stopped run leaves -------------------------------------------------------------------


def stop_at(hub, session, target, count):
    """Run a download that ends with an error after *count* bytes, and forget its requests."""
    hub.rules.append(Rule(where="cdn", times=1, truncate_at=count))
    with pytest.raises(NetworkError):
        fetch(session, target, options={"retries": 1})
    hub.forget()


def test_the_partial_file_of_a_failed_run_is_continued(session, hub, target):
    stop_at(hub, session, target, 1_000_000)
    assert left() == ["model.gguf.partial", "model.gguf.partial.json"]
    fetch(session, target)
    assert target.read_bytes() == CONTENT
    assert hub.sent("cdn") == 2_000_000
    assert (names(target), left()) == (["model.gguf"], [])


def test_a_file_whose_partial_file_was_deleted_is_fetched_whole(session, hub, target):
    stop_at(hub, session, target, 1_000_000)
    partial().unlink()
    fetch(session, target)
    assert target.read_bytes() == CONTENT


def test_a_partial_of_another_version_is_not_continued(session, hub, target):
    stop_at(hub, session, target, 1_000_000)
    hub.add("org/model", "model.gguf", CONTENT[::-1])
    fetch(session, target)
    assert target.read_bytes() == CONTENT[::-1]
    assert hub.sent("cdn") == len(CONTENT)


def test_a_damaged_partial_is_noticed_and_fetched_again(session, hub, target, caplog):
    stop_at(hub, session, target, 1_000_000)
    with open(partial(), "r+b") as file:
        file.write(b"\0\0\0\0")
    fetch(session, target)
    assert target.read_bytes() == CONTENT
    assert "damaged" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": 1}', "\0"])
def test_a_partial_file_with_a_damaged_sidecar_is_fetched_again_from_the_start(
    session, hub, target, text
):
    stop_at(hub, session, target, 1_000_000)
    partial().with_name("model.gguf.partial.json").write_text(text)
    fetch(session, target)
    assert target.read_bytes() == CONTENT
    assert hub.sent("cdn") == len(CONTENT)


def test_ctrl_c_keeps_the_received_bytes_for_the_next_run(session, hub, target, monkeypatch):
    def interrupt(self, count):  # as after the first chunk
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Patience, "report_bytes", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch(session, target)
    kept_bytes = partial().stat().st_size
    assert partial().read_bytes() == CONTENT[:kept_bytes]
    hub.forget()
    fetch(session, target)
    assert hub.sent("cdn") == len(CONTENT) - kept_bytes


# --- the disk ------------------------------------------------------------------------------------


def test_a_full_disk_is_noticed_before_the_transfer(session, hub, target, monkeypatch):
    usage = shutil.disk_usage(target.anchor)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(NoSpace, match=r"^No space left on device \(os error 28\)") as caught:
        fetch(session, target)
    assert caught.value.exit_code == 10
    assert hub.sent("cdn") == 0


def test_a_disk_that_fills_up_keeps_the_partial(session, hub, target):
    resource = pytest.importorskip("resource")  # Windows has none
    # A file that may not grow (EFBIG) is reported like a full disk.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(NoSpace):
            fetch(session, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    hub.forget()
    fetch(session, target)
    assert target.read_bytes() == CONTENT
    assert hub.sent("cdn") == 2_000_000


def test_a_file_in_the_place_of_the_target_folder_is_a_usage_error(session, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"\(os error 17\)") as caught:
        fetch(session, tmp_path / "file" / "model.gguf")
    assert "a file is where a folder belongs" in caught.value.hint


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere"
)
def test_a_read_only_folder_is_a_permission_error(session, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionDenied, match=r"^Permission denied \(os error 13\)"):
        fetch(session, tmp_path / "model.gguf")


# --- offline -------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["BITNET_OFFLINE", "HF_HUB_OFFLINE", None])
def test_offline_creates_no_socket(session, target, monkeypatch, variable):
    def bomb(*args, **options):
        raise AssertionError("a socket was created")

    if variable is not None:
        monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(socket, "socket", bomb)
    monkeypatch.setattr(socket, "getaddrinfo", bomb)
    with pytest.raises(Offline, match=re.escape(str(target))) as caught:
        fetch(session, target, options={"offline": variable is None})
    assert caught.value.exit_code == 23
    target.parent.mkdir()
    target.write_bytes(CONTENT)
    assert fetch(session, target, sha256=DIGEST).cached


# --- the fault drill -----------------------------------------------------------------------------


def test_a_drill_breaks_requests_and_the_download_recovers(session, target, clock, monkeypatch):
    drill = "timeout:2,503,reset@1MB,429:2"  # 2 + 1 + 1 + 2 faults
    monkeypatch.setenv("BITNET_SIMULATE_NETWORK_ERROR", drill)
    fetch(session, target, options={"retries": 4})
    assert target.read_bytes() == CONTENT
    assert len(clock.waits) == 6  # one after each fault of the drill


def test_a_drill_of_1_breaks_every_request(session, hub, target, monkeypatch):
    monkeypatch.setenv("BITNET_SIMULATE_NETWORK_ERROR", "1")
    with pytest.raises(NetworkError, match=r"HTTP request failed for .*connection failed"):
        fetch(session, target)
    assert hub.requests() == []


# --- silent servers, and sizes that are not those of the file ------------------------------------


@pytest.mark.parametrize("large", [True, False])
def test_the_length_of_a_redirect_is_not_the_size_of_the_file(large, session, hub, target):
    """The redirect has a body of its own; only the last server knows how long the file is."""
    hub.rules.append(
        Rule(where="hub", drop_headers=("X-Linked-Size", *([] if large else ["X-Linked-Etag"])))
    )
    with session() as hub_session:
        facts = head(file_url("org/model", "main", "model.gguf", hub_session.options), hub_session)
    assert facts.size is None
    fetch(session, target)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("where", [("hub", "HEAD"), ("cdn", "GET")])
def test_a_server_that_sends_no_headers_has_stalled(where, session, hub, target, caplog):
    host, method = where
    hub.rules.append(Rule(where=host, method=method, times=1, when=hub.closing.wait))
    fetch(session, target, options={"stall_timeout": 0.5, "retries": 20})
    assert target.read_bytes() == CONTENT
    assert caplog.text.count("timeout; next attempt") == 1


def test_a_server_that_sends_no_first_byte_has_stalled(session, hub, target, caplog):
    hub.rules.append(Rule(where="cdn", method="GET", times=2, stall_at=0))
    fetch(session, target, options={"stall_timeout": 0.5, "retries": 20})
    assert target.read_bytes() == CONTENT
    assert caplog.text.count("timeout; next attempt") == 2


def test_a_server_that_never_sends_a_byte_is_given_up(session, hub, target):
    hub.rules.append(Rule(where="cdn", method="GET", stall_at=0))
    with pytest.raises(NetworkError, match=r"timeout \(3 attempts\)"):
        fetch(session, target, options={"stall_timeout": 0.5, "retries": 3})
