"""Limits that all transfers of a command share."""

import threading

import pytest
from downloading import download
from hub_server import Rule

from bitnet.base import settings
from bitnet.base.errors import UsageError
from bitnet.base.setting_values import parse_rate
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.http import Limits, Stopped
from bitnet.hub.repository import file_url

CONTENT = bytes(range(256)) * 24_000


def test_bytes_never_exceed_the_rate_times_the_elapsed_seconds(clock):
    limits = Limits(rate=1000.0, clock=clock, sleep=clock.sleep)
    start_s = clock()
    paid = 0
    for count in (100, 125, 1, 125, 60):
        limits.pay(count)
        paid += count
        assert paid <= 1000.0 * (clock() - start_s) + 1e-6  # rounding
    assert clock() - start_s == pytest.approx(paid / 1000.0)


def test_a_pause_gives_no_credit_for_later_bytes(clock):
    limits = Limits(rate=1000.0, clock=clock, sleep=clock.sleep)
    limits.pay(500)
    clock.sleep(100.0)
    start_s = clock()
    limits.pay(500)
    assert clock() - start_s == pytest.approx(0.5)


@pytest.mark.parametrize("connections", [1, 4])
def test_all_connections_of_a_download_share_the_rate(hub, session, clock, tmp_path, connections):
    hub.add("org/model", "model.gguf", CONTENT)
    start_s = clock()
    with session(connections=connections, limit_rate="1M") as hub_session:
        url = file_url("org/model", "main", "model.gguf", hub_session.options)
        download(url, tmp_path / "model.gguf", session=hub_session, progress="none")
    assert (tmp_path / "model.gguf").read_bytes() == CONTENT
    assert len(CONTENT) / 1e6 <= clock() - start_s + 1e-6  # seconds at 1 MB/s


def test_a_limit_is_not_a_stall(hub, session, clock, tmp_path):
    """At ten bytes a second, 2000 bytes take 200 s, and 30 s without a byte would be a stall."""
    hub.add("org/model", "model.gguf", CONTENT[:2000])
    with session(limit_rate="10", stall_timeout=30.0) as hub_session:
        url = file_url("org/model", "main", "model.gguf", hub_session.options)
        download(url, tmp_path / "model.gguf", session=hub_session, progress="none")
    assert (tmp_path / "model.gguf").read_bytes() == CONTENT[:2000]
    assert len(hub.requests("cdn", "GET")) == 1


def test_as_many_connections_are_open_as_allowed_and_no_more(monkeypatch):
    monkeypatch.setenv("BITNET_CONNECTIONS", "2")
    limits = Limits()
    both = threading.Barrier(2, timeout=600)  # passes only if two connections are open at once
    most = [0]
    now = [0]  # open connections
    lock = threading.Lock()

    def use():
        with limits.connection():
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            both.wait()
            with lock:
                now[0] -= 1

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most[0] == 2


def test_waiting_for_a_connection_and_sleeping_end_when_the_transfer_is_stopped(monkeypatch):
    monkeypatch.setenv("BITNET_CONNECTIONS", "1")
    limits = Limits()
    with limits.connection():
        limits.stop()
        with pytest.raises(Stopped), limits.connection():
            pass
    with pytest.raises(Stopped):
        limits.sleep(1000.0)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("500", 500), ("500k", 5e5), ("10M", 1e7), ("1.5MB", 1.5e6), ("2g/s", 2e9), ("0", 0)],
)
def test_a_rate_is_read_as_people_write_it(text, rate, monkeypatch):
    assert parse_rate(text) == rate
    assert FetchOptions(limit_rate=text).rate == rate
    monkeypatch.setenv("BITNET_LIMIT_RATE", text)
    assert FetchOptions().rate == settings.limit_rate() == rate


@pytest.mark.parametrize("text", ["fast", "-1", "1e3", "10 M", "1T", "k", "9" * 400, "٣"])
def test_what_is_not_a_rate_is_refused(text):
    with pytest.raises(UsageError, match="limit-rate"):
        FetchOptions(limit_rate=text)


def test_the_limit_holds_for_a_retry_too(hub, session, clock, tmp_path):
    hub.add("org/model", "model.gguf", CONTENT)
    hub.rules.append(Rule(where="cdn", method="GET", times=1, truncate_at=1_000_000))
    start_s = clock()
    with session(limit_rate="1M") as hub_session:
        url = file_url("org/model", "main", "model.gguf", hub_session.options)
        download(url, tmp_path / "model.gguf", session=hub_session, progress="none")
    assert clock() - start_s >= len(CONTENT) / 1e6
