"""Errors as clients see them: an HTTP status, their dialect's form, and no internal details."""

from __future__ import annotations

from typing import Any

from bitnet.base.errors import BitnetError, Unsupported, UsageError
from bitnet.wire.routes import dialect_of

GONE = 499  # nginx's status for a client that closed the connection


class Refused(Exception):
    """A request that is refused.

    Attributes:
        status: HTTP status.
        kind: OpenAI's ``type``.
        message: description of the problem.
        code: identifier for programs; ``None`` if there is none.
        param: name of the wrong field; ``None`` if none is.
        retry_after_s: seconds until another try is worthwhile; ``None`` if it is not.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

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
    """No more requests are taken."""
    return Refused(503, "the worker is stopping", kind="server_error", retry_after_s=5)


def too_late(limit_s: float) -> Refused:
    """The answer took longer than *limit_s* seconds."""
    return Refused(
        504, f"the answer was not ready after {limit_s:g} s", kind="server_error", code="deadline"
    )
