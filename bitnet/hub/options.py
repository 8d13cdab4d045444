"""What the command line can say about fetching."""

from __future__ import annotations

from dataclasses import dataclass

from bitnet import settings
from bitnet.errors import UsageError
from bitnet.options import option

__all__ = ["FetchOptions"]


@dataclass(frozen=True)
class FetchOptions:
    """How to fetch; every field is an option of every command that downloads."""

    offline: bool = option(False, "never open a connection; everything must come from disk")
    retries: int = option(3, "attempts in a row without progress before giving up")
    timeout: float | None = option(
        None, "seconds without progress before giving up; default: BITNET_DOWNLOAD_TIMEOUT, or 300"
    )
    stall_timeout: float = option(30.0, "seconds of silence before a connection is replaced")
    lock_timeout: float = option(600.0, "seconds to wait for a process that fetches the same file")
    connections: int = option(
        0, "parallel connections; 0: one, and 4 above 64 MB where one is slow and ranges work"
    )
    base_url: str = option("", "address of the hub or a mirror; default: HF_ENDPOINT")
    retry_after_max: float = option(3600.0, "longest wait in seconds a server may ask for")

    def __post_init__(self) -> None:
        """Check what a type cannot say.

        Raises:
            UsageError: a number is out of range, or the base URL is no HTTP address.
        """
        if self.retries < 1:
            raise UsageError(f"--retries expects 1 or more, got {self.retries}")
        if not 0 <= self.connections <= 64:
            raise UsageError(f"--connections expects 0 to 64, got {self.connections}")
        for name in ("timeout", "stall_timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} expects a positive number of seconds, got {value}")
        for name in ("lock_timeout", "retry_after_max"):
            if not getattr(self, name) >= 0:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} expects 0 or more seconds, got {getattr(self, name)}")
        if self.base_url and not self.base_url.startswith(("http://", "https://")):
            raise UsageError(
                f"--base-url expects an address, got {self.base_url!r}",
                hint="for example --base-url=https://hub.example.org",
            )

    @property
    def is_offline(self) -> bool:
        """Whether connections are switched off, here or in the environment."""
        return self.offline or settings.offline()

    @property
    def deadline_s(self) -> float:
        """Seconds a transfer may go without progress."""
        return self.timeout if self.timeout is not None else settings.download_timeout()

    @property
    def endpoint(self) -> str:
        """Address of the hub, without a slash at the end.

        Raises:
            UsageError: ``HF_ENDPOINT`` is no HTTP address.
        """
        address = (self.base_url or settings.hf_endpoint()).rstrip("/")
        if not address.startswith(("http://", "https://")):
            raise UsageError(
                f"environment variable HF_ENDPOINT is {address!r}: not an address",
                hint="for example HF_ENDPOINT=https://hub.example.org",
            )
        return address
