"""Command-line options of downloads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bitnet.base import settings, trust
from bitnet.base.errors import UsageError
from bitnet.base.options import option


@dataclass(frozen=True)
class FetchOptions:
    """Options of downloads; every field is an option of every command that downloads.

    Hidden options override settings.
    """

    SECTION: ClassVar = "Network"

    offline: bool = option(False, "never open a connection; everything must come from disk")
    retries: int | None = option(
        None, "attempts in a row without progress before giving up; default: until the time-out"
    )
    timeout: float | None = option(
        None, "seconds without progress before giving up; default: BITNET_DOWNLOAD_TIMEOUT, or 300"
    )
    base_url: str = option(
        "", "address of the hub or a mirror, or several with commas; default: HF_ENDPOINT"
    )
    limit_rate: str = option(
        "", "bytes per second of all connections, such as 500k or 10M; default: BITNET_LIMIT_RATE"
    )
    stall_timeout: float | None = option(None, "instead of BITNET_STALL_TIMEOUT", hidden=True)
    lock_timeout: float | None = option(None, "instead of BITNET_LOCK_TIMEOUT", hidden=True)
    retry_after_max: float | None = option(None, "instead of BITNET_RETRY_AFTER_MAX", hidden=True)
    connections: int | None = option(None, "instead of BITNET_CONNECTIONS", hidden=True)
    user_endpoint: str = ""  # not an option: set where a project's file gives another address

    def __post_init__(self) -> None:
        """Check value ranges."""
        if self.retries is not None and self.retries < 1:
            raise UsageError(f"--retries expects 1 or more, got {self.retries}")
        if self.connections is not None and not 0 <= self.connections <= settings.MAX_CONNECTIONS:
            raise UsageError(
                f"--connections expects 0 to {settings.MAX_CONNECTIONS}, got {self.connections}"
            )
        for name in ("timeout", "stall_timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} expects a positive number of seconds, got {value}")
        for name in ("lock_timeout", "retry_after_max"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} expects 0 or more seconds, got {value}")
        if self.limit_rate:
            try:
                settings.parse_rate(self.limit_rate)
            except ValueError as error:
                raise UsageError(f"--limit-rate is {self.limit_rate!r}: {error}") from None
        try:
            for part in self.base_url.split(",") if self.base_url else ():
                trust.address(part.strip())
        except ValueError:
            raise UsageError(
                f"--base-url expects an address, got {settings.without_login(self.base_url)!r}",
                hint="for example --base-url=https://hub.example.org",
            ) from None

    @property
    def is_offline(self) -> bool:
        """True if connections are switched off, here or in the environment."""
        return self.offline or settings.offline()

    @property
    def deadline_s(self) -> float:
        """Longest time of a transfer without progress, in seconds."""
        return self.timeout if self.timeout is not None else settings.download_timeout()

    @property
    def stall_s(self) -> float:
        """Silence in seconds after which a connection is replaced."""
        return self.stall_timeout if self.stall_timeout is not None else settings.stall_timeout()

    @property
    def lock_s(self) -> float:
        """Longest wait for a process that fetches the same file, in seconds."""
        return self.lock_timeout if self.lock_timeout is not None else settings.lock_timeout()

    @property
    def retry_after_s(self) -> float:
        """Longest wait that a server may ask for, in seconds."""
        given = self.retry_after_max
        return given if given is not None else settings.retry_after_max()

    @property
    def at_once(self) -> int:
        """Number of parallel connections; 0: chosen by size and speed."""
        return self.connections if self.connections is not None else settings.connections()

    @property
    def rate(self) -> float:
        """Bytes per second of all connections together; 0: unlimited."""
        return settings.parse_rate(self.limit_rate) if self.limit_rate else settings.limit_rate()

    @property
    def endpoint(self) -> str:
        """Address of the hub, without a trailing slash; the first one if there are several."""
        return self._addresses[0]

    @property
    def token_endpoint(self) -> str:
        """The hub as the user named it: only this one may get the access token."""
        return self.user_endpoint or self.endpoint

    @property
    def mirrors(self) -> tuple[str, ...]:
        """Further addresses, tried in this order when the first fails; they get no access token."""
        return self._addresses[1:]

    @property
    def _addresses(self) -> tuple[str, ...]:
        text = self.base_url or settings.hf_endpoint()
        return tuple(address.strip().rstrip("/") for address in text.split(","))


@dataclass(frozen=True)
class FileSelection:
    """Selection of files of a repository; without any, the runnable model.

    Attributes:
        include: patterns of paths or names.
        exclude: patterns of what is left out.
        whole: a repository means all of its files, and a pattern all that match it.
    """

    include: list[str] = option(
        [], "fetch every file whose path or name matches; may be repeated", metavar="GLOB"
    )
    exclude: list[str] = option([], "skip files that match; may be repeated", metavar="GLOB")
    whole: bool = False  # not an option: `download` sets it

    def __bool__(self) -> bool:
        return self.whole or self.is_given

    @property
    def is_given(self) -> bool:
        """True if a user chose by pattern."""
        return bool(self.include or self.exclude)
