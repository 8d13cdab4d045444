"""The waits between the attempts of a transfer, and where they end."""

import pytest
from downloading import fetch_file
from hub_server import Rule

from bitnet.base.errors import NetworkError
from bitnet.hub.http import Transient
from bitnet.hub.patience import Patience


def test_a_wait_before_the_next_attempt_ends_when_the_transfer_is_stopped(session, clock):
    broken = Transient(NetworkError("busy"), retry_after_s=3000.0)
    with session() as hub_session:
        Patience(hub_session).report_failure(
            "model.gguf", broken, stopped=lambda: len(clock.waits) == 3
        )
    assert clock.seconds < 1  # three short waits of the 3000 s that the server asked for


@pytest.mark.parametrize("asked_s", [None, 0.0])
@pytest.mark.parametrize("limit_s", ["0", "1", "15"])
def test_the_limit_for_waits_that_a_server_asks_for_does_not_limit_the_waits_of_retries(
    session, clock, monkeypatch, limit_s, asked_s
):
    monkeypatch.setenv("BITNET_RETRY_AFTER_MAX", limit_s)
    broken = Transient(NetworkError("the connection broke"), retry_after_s=asked_s)
    with session(retries=9) as hub_session:
        patience = Patience(hub_session)
        for _ in range(8):
            patience.report_failure("model.gguf", broken)
        with pytest.raises(NetworkError, match="9 attempts"):
            patience.report_failure("model.gguf", broken)
    assert clock.waits == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 20.0]  # seconds, at most 20


def test_a_wait_that_a_server_asks_for_counts_with_the_time_since_the_last_byte(
    session, clock, monkeypatch
):
    monkeypatch.setenv("BITNET_RETRY_AFTER_MAX", "15")
    broken = Transient(NetworkError("the connection broke"))
    busy = Transient(NetworkError("busy"), retry_after_s=1.0)
    with session(retries=10) as hub_session:
        patience = Patience(hub_session)
        for _ in range(7):
            patience.report_failure("model.gguf", broken)
        patience.report_bytes(1)  # too few for the failures to be forgotten
        patience.report_failure("model.gguf", busy)
        assert clock.waits[-1] == 20.0
        with pytest.raises(NetworkError, match="asks to wait 1 s, 21 s with the time since"):
            patience.report_failure("model.gguf", busy)


def test_a_server_that_asks_for_a_wait_ends_the_attempts_where_none_is_allowed(
    session, clock, monkeypatch
):
    monkeypatch.setenv("BITNET_RETRY_AFTER_MAX", "0")
    busy = Transient(NetworkError("busy"), retry_after_s=1.0)
    with session() as hub_session, pytest.raises(NetworkError, match="asks to wait 1 s"):
        Patience(hub_session).report_failure("model.gguf", busy)
    assert clock.waits == []


@pytest.mark.parametrize(
    ("headers", "waited"),  # r: requests left, t: seconds; without a wait in them the usual 0.2 s
    [
        ({"RateLimit": '"api";r=0;t=55'}, 55.0),
        ({"ratelimit": '"resolvers";r=0; t=7', "Retry-After": ""}, 7.0),
        ({"RateLimit": '"api";r=0;t=55', "Retry-After": "3"}, 3.0),
        ({"RateLimit": '"api";r=12;t=55'}, 0.2),
        ({"RateLimit": "nonsense"}, 0.2),
    ],
)
def test_the_wait_of_a_rate_limit_is_honoured(hub, session, tmp_path, clock, headers, waited):
    hub.add("org/model", "model.gguf", b"small")
    hub.rules.append(Rule(where="hub", status=429, headers=headers, times=1))
    fetch_file(session, tmp_path)
    assert clock.waits == [waited]
