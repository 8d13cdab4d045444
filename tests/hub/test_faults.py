import pytest

from bitnet.base.errors import UsageError
from bitnet.hub.http import NetworkFault, parse_faults


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", []),
        ("0", []),
        ("503", [NetworkFault("503")]),
        ("timeout:2", [NetworkFault("timeout"), NetworkFault("timeout")]),
        ("reset@1MB, 429:1", [NetworkFault("reset", 1_000_000), NetworkFault("429")]),
        ("timeout@20k", [NetworkFault("timeout", 20_000)]),
        ("RESET@7b,html", [NetworkFault("reset", 7), NetworkFault("html")]),
    ],
)
def test_a_drill_is_a_list_of_faults(text, faults):
    assert parse_faults(text) == (faults, False)


def test_1_breaks_for_ever():
    assert parse_faults("1") == ([NetworkFault("reset")], True)


@pytest.mark.parametrize(
    "text", ["2", "299", "slow", "reset@", "503@1MB", "timeout:", "503,,", "x:1"]
)
def test_a_drill_that_cannot_be_read_is_refused(text):
    with pytest.raises(UsageError, match="BITNET_SIMULATE_NETWORK_ERROR"):
        parse_faults(text)
