"""Errors as clients see them: an HTTP status, their dialect's form, and no internal details."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from bitnet.base.errors import BitnetError, Unsupported, UsageError
from bitnet.wire.routes import dialect_of

if TYPE_CHECKING:
    from collections.abc import Mapping

GONE = 499  # nginx's status for a client that closed the connection


class Refused(Exception):
    """Raised to refuse a request, with an HTTP status."""

    def __init__(
        self,
        status: int,  # of HTTP
        message: str,
        *,
        kind: str = "invalid_request_error",  # OpenAI's ``type``
        code: str | None = None,  # for programs
        param: str | None = None,  # the wrong field
        retry_after_s: int | None = None,  # for the header Retry-After
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    def response(self, path: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
        """The reply to a request of *path*."""
        all_headers = dict(headers or {})
        if self.retry_after_s is not None:
            all_headers["Retry-After"] = str(self.retry_after_s)
        if self.status == 401:
            all_headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(path), self.status, headers=all_headers)

    def body(self, path: str = "") -> dict[str, Any]:
        """JSON reply in the error form of the dialect to which *path* belongs."""
        form = dialect_of(path).error_reply
        body: dict[str, Any] = form(self.message, self.status, self.kind, self.code, self.param)
        return body


def from_error(error: Exception) -> Refused:
    """Refusal for *error*, which was raised while handling a request."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, UsageError | Unsupported):
        return Refused(400, error.message, param=getattr(error, "field", "") or None)
    if isinstance(error, BitnetError):
        return Refused(500, error.message, kind="server_error")
    return Refused(500, f"internal error: {type(error).__name__}", kind="server_error")


def stopping() -> Refused:
    """Refusal of a request that the worker no longer takes because it stops."""
    return Refused(503, "the worker is stopping", kind="server_error", retry_after_s=5)


def too_late(limit_s: float) -> Refused:
    """Refusal of a request whose answer took longer than *limit_s* seconds."""
    return Refused(
        504, f"the answer was not ready after {limit_s:g} s", kind="server_error", code="deadline"
    )
