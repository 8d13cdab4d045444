"""Errors as clients see them: OpenAI's form, an HTTP status, and no internal details."""

from __future__ import annotations

from typing import Any

from bitnet.errors import BitnetError, Unsupported, UsageError

__all__ = ["GONE", "Refused", "body_of", "from_error"]


_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_LLAMA = {"/completion", "/props", "/slots", "/apply-template", "/health", "/embedding"}
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
        if path.startswith("/api/"):  # Ollama's
            return {"error": self.message}
        if path in _LLAMA:
            return {"error": {"code": self.status, "message": self.message, "type": self.kind}}
        if path.startswith("/v1/messages"):  # Anthropic's
            other = "api_error" if self.status >= 500 else "invalid_request_error"
            kind = _ANTHROPIC.get(self.status, other)
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        return body_of(self.message, kind=self.kind, code=self.code, param=self.param)


def body_of(
    message: str, *, kind: str, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def from_error(error: Exception) -> Refused:
    """Refusal for *error*, which was raised while handling a request."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, UsageError | Unsupported):
        return Refused(400, error.message, param=getattr(error, "field", "") or None)
    if isinstance(error, BitnetError):
        return Refused(500, error.message, kind="server_error")
    return Refused(500, f"internal error: {type(error).__name__}", kind="server_error")
