"""Drills: the faults of the network that BITNET_SIMULATE_NETWORK_ERROR asks for."""

import pytest
import requests
import urllib3

from bitnet.base.errors import UsageError
from bitnet.base.setting_values import NetworkFault
from bitnet.base.settings import simulate_network_error
from bitnet.hub.transport import FaultyTransport

NAME = "BITNET_SIMULATE_NETWORK_ERROR"


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("503", [NetworkFault("503")]),
        ("timeout:2", [NetworkFault("timeout"), NetworkFault("timeout")]),
        ("reset@1MB, 429:1", [NetworkFault("reset", 1_000_000), NetworkFault("429")]),
        ("timeout@20k", [NetworkFault("timeout", 20_000)]),
        ("RESET@7b,html", [NetworkFault("reset", 7), NetworkFault("html")]),
    ],
)
def test_a_drill_is_a_list_of_faults(monkeypatch, text, faults):
    monkeypatch.setenv(NAME, text)
    assert simulate_network_error() == (faults, False)  # later requests work


def test_a_drill_of_1_breaks_every_request_and_0_or_nothing_breaks_none(monkeypatch):
    monkeypatch.setenv(NAME, "1")
    assert simulate_network_error() == ([NetworkFault("reset")], True)
    for text in ("0", ""):
        monkeypatch.setenv(NAME, text)
        assert simulate_network_error() is None


@pytest.mark.parametrize(
    "text", ["2", "299", "slow", "reset@", "503@1MB", "timeout:", "503,,", "x:1"]
)
def test_a_drill_that_cannot_be_read_is_refused(monkeypatch, text):
    monkeypatch.setenv(NAME, text)
    with pytest.raises(UsageError, match=NAME):
        simulate_network_error()


@pytest.mark.parametrize("for_ever", [False, True])
def test_a_fault_within_a_body_waits_for_a_reply_that_has_a_body(hub, for_ever):
    hub.add("org/model", "config.json", b"0123456789")
    faults = [NetworkFault("reset", 4), NetworkFault("503")]
    transport = FaultyTransport(faults, for_ever)
    url = f"{hub.url}/org/model/resolve/main/config.json"
    with requests.Session() as session:
        session.mount("http://", transport)
        for _ in range(3):  # replies to HEAD have no body to break
            assert session.head(url).status_code == 200
        assert list(transport._faults) == faults
        reply = session.get(url, stream=True)
        assert reply.raw.read1(10, decode_content=False) == b"0123"
        with pytest.raises(urllib3.exceptions.ProtocolError):
            reply.raw.read1(10, decode_content=False)
        assert list(transport._faults) == (faults if for_ever else faults[1:])
