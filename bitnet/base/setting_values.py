"""Values of environment variables: functions that read their texts.

Each raises ``ValueError`` with the values that it expects.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

# An entry of `parse_drill`: ``timeout`` or ``reset``, which may have @SIZE, or ``html`` or a
# status, which may not; then :TIMES.
_FAULT = re.compile(
    r"(?P<kind>(?:timeout|reset)(?![^@:])|(?:html|[45]\d\d)(?!@))"
    r"(?:@(?P<size>\d+)(?P<unit>[kmg]?)b?)?(?::(?P<times>\d{1,4}))?",
    re.IGNORECASE,
)

MOST_SECONDS = 1e9  # decades; timers of the system have a limit

_RATE = re.compile(r"(?P<count>[0-9]{1,15}(\.[0-9]+)?)(?P<unit>[kmg]?)(b?(/s)?)", re.IGNORECASE)
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3}
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


def parse_boolean(text: str) -> bool:
    """The value of a switch such as ``on`` or ``0``; an empty text is False."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("expected 1, true, yes, on or 0, false, no, off")


def parse_seconds(text: str, *, allow_zero: bool = False) -> float:
    """Seconds in *text*: a positive number up to MOST_SECONDS, or 0 with *allow_zero*."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (0 < value <= MOST_SECONDS or (allow_zero and value == 0)):
        raise ValueError(f"expected a positive number of seconds, at most {MOST_SECONDS:,.0f}")
    return value


def parse_rate(text: str) -> float:
    """Bytes per second in *text*, such as ``500k``, ``10M`` or ``1.5MB/s``; 0: no limit."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected bytes per second, such as 500k or 10M; 0: no limit")
    return float(match["count"]) * _UNITS[match["unit"].lower()]


def parse_size(text: str) -> float:
    """Bytes in *text*, such as ``500M`` or ``8G``."""
    match = _RATE.fullmatch(text.strip())
    if match is None or "/" in text:
        raise ValueError("expected a number of bytes, such as 500M or 8G; 0: nothing is kept")
    return float(match["count"]) * _UNITS[match["unit"].lower()]


def parse_addresses(text: str) -> str:
    """Addresses separated by commas, without the blanks and the last slashes in *text*."""
    addresses = [part.strip().rstrip("/") for part in text.split(",")]
    for address in addresses:
        try:
            parts = urlsplit(address)
            is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # its text may quote a part of a password
            is_valid = False
        if not is_valid:
            raise ValueError("expected an address, such as https://hub.example.org") from None
    return ",".join(addresses)


def parse_whole_number(text: str, most: int = 0) -> int:
    """A whole number, at most *most* if that is not 0."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0 or value > most > 0:
        raise ValueError(f"expected a whole number, 0 {f'to {most}' if most else 'or more'}")
    return value


def parse_choice(text: str, *, choices: tuple[str, ...]) -> str:
    """The one of *choices* that *text* names, in any case."""
    if text.lower() not in choices:
        raise ValueError(f"expected one of {', '.join(choices)}")
    return text.lower()


class NetworkFault(NamedTuple):
    """A broken request: the fault, and the bytes of the body before it (None: it has no body)."""

    kind: str
    after_bytes: int | None = None


def parse_drill(text: str) -> tuple[list[NetworkFault], bool] | None:
    """The faults of a drill, and True if the last one repeats forever; ``None``: no drill.

    ``1`` breaks every request. A list breaks one request per entry, in order; later requests work:

        timeout        no reply                     reset      connection refused or reset
        503, 429 ...   a reply with that status     html       a login page instead of the file
        reset@1MB      the body breaks off there    timeout@1MB  the body stops there
        timeout:2      the same twice
    """
    if text.strip().lower() in _TRUE | _FALSE:
        return ([NetworkFault("reset")], True) if parse_boolean(text) else None
    faults: list[NetworkFault] = []
    for entry in text.split(","):
        match = _FAULT.fullmatch(entry.strip())
        if match is None:
            raise ValueError("expected 1, or a list such as timeout:2,503,reset@1MB,429:3,html")
        after = int(match["size"]) * _UNITS[match["unit"].lower()] if match["size"] else None
        faults += [NetworkFault(match["kind"].lower(), after)] * int(match["times"] or 1)
    return faults, False
