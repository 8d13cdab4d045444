"""Network fault injection: ``BITNET_SIMULATE_NETWORK_ERROR`` breaks requests in the transport.

``1`` breaks every request. A list breaks one request per entry, in order, and then nothing:

    timeout        no reply                     reset      connection refused or reset
    503, 429 ...   a reply with that status     html       a login page instead of the file
    reset@1MB      the body breaks off there    timeout@1MB  the body stops there
    timeout:2      the same twice

The faults are injected below the code that retries, resumes and explains, which is the real one.
"""

from __future__ import annotations

import io
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.base.settings import DRILL_ENTRY
from bitnet.hub.http import Transport, requests, urllib3

if TYPE_CHECKING:
    from requests import PreparedRequest, Response

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3}
_PAGE = b"<!DOCTYPE html><html><body>Please log in to use this network.</body></html>"


@dataclass(frozen=True)
class NetworkFault:
    """One broken request: the fault, and the bytes of the body before it (None: at once)."""

    kind: str
    after_bytes: int | None = None


def parse_faults(text: str) -> tuple[list[NetworkFault], bool]:
    """The faults of a drill, and true if the last one repeats forever.

    Raises:
        UsageError: *text* does not follow the grammar.
    """
    text = text.strip()
    if text.lower() in ("", "0", "false", "no", "off"):
        return [], False
    if text.lower() in ("1", "true", "yes", "on"):
        return [NetworkFault("reset")], True
    faults: list[NetworkFault] = []
    for entry in text.split(","):
        match = DRILL_ENTRY.fullmatch(entry.strip())
        if match is None:
            raise UsageError(
                f"environment variable BITNET_SIMULATE_NETWORK_ERROR: cannot read {entry!r}",
                hint="use 1, or a list such as timeout:2,503,reset@1MB,429:3,html",
            )
        after = int(match["size"]) * _UNITS[match["unit"].lower()] if match["size"] else None
        faults += [NetworkFault(match["kind"].lower(), after)] * int(match["times"] or 1)
    return faults, False


class FaultyTransport(Transport):
    """A transport that breaks the requests named by *text* and carries the others."""

    def __init__(self, text: str, **options: Any) -> None:
        super().__init__(**options)
        faults, self._for_ever = parse_faults(text)
        self._faults = deque(faults)

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        """Carry *request*, or break it with the next fault."""
        if not self._faults:
            return super().send(request, *args, **options)
        fault = self._faults[0] if self._for_ever else self._faults.popleft()
        if fault.after_bytes is None:
            return self._broken(fault, request)
        response = super().send(request, *args, **options)
        if request.method == "GET" and response.status_code in (200, 206):
            response.raw = _BreakingBody(response.raw, fault)
        else:
            self._faults.appendleft(fault)  # keep it for a request with a body
        return response

    def _broken(self, fault: NetworkFault, request: PreparedRequest) -> Response:
        if fault.kind == "timeout":
            raise requests.exceptions.ReadTimeout("simulated time-out", request=request)
        if fault.kind == "reset":
            raise requests.exceptions.ConnectionError(
                "simulated connection failure", request=request
            )
        status = 200 if fault.kind == "html" else int(fault.kind)
        headers = {"Content-Type": "text/html" if status == 200 else "text/plain"}
        if status == 429:
            headers["Retry-After"] = "1"
        body = _PAGE if status == 200 else b"simulated"
        raw = urllib3.HTTPResponse(
            io.BytesIO(body),
            headers=headers,
            status=status,
            preload_content=False,
            request_method=request.method,
        )
        return self.build_response(request, raw)


class _BreakingBody:
    """A reply's body that ends in an error after some bytes; everything else is passed on."""

    def __init__(self, raw: Any, fault: NetworkFault) -> None:
        self._raw = raw
        self._fault = fault
        self._left = fault.after_bytes or 0

    def read1(self, amt: int, decode_content: bool | None = None) -> bytes:
        """Read up to *amt* bytes, or raise the fault."""
        if self._left <= 0:
            self._raw.close()
            if self._fault.kind == "timeout":
                raise urllib3.exceptions.ReadTimeoutError(None, None, "simulated time-out")  # type: ignore[arg-type]
            raise urllib3.exceptions.ProtocolError("simulated reset")
        chunk: bytes = self._raw.read1(min(amt, self._left), decode_content=decode_content)
        self._left -= len(chunk)
        return chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)
