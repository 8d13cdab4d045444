"""Errors as clients see them: OpenAI's shape, an HTTP status, and nothing of our inside."""

from __future__ import annotations

from typing import Any

from bitnet.errors import BitnetError, Unsupported, UsageError

__all__ = ["Refused", "body_of", "from_error"]


class Refused(Exception):
    """A request that is not served.

    Attributes:
        status: HTTP status.
        kind: OpenAI's ``type``.
        message: what is wrong.
        code: a word for programs; ``None`` where there is none.
        param: the field that is wrong; ``None`` where it is none.
        retry_after_s: seconds after which it is worth another try; ``None`` where it is not.
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

    def body(self) -> dict[str, Any]:
        """The JSON reply."""
        return body_of(self.message, kind=self.kind, code=self.code, param=self.param)


def body_of(
    message: str, *, kind: str, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def from_error(error: Exception) -> Refused:
    """What a client is told of *error*, which came up while its request was worked on."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, UsageError | Unsupported):
        return Refused(400, error.message)
    if isinstance(error, BitnetError):
        return Refused(500, error.message, kind="server_error")
    return Refused(500, f"internal error: {type(error).__name__}", kind="server_error")
