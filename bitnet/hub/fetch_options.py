"""Command-line options of downloads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bitnet.base import settings, trust
from bitnet.base.errors import UsageError
from bitnet.base.options import check_bounds, option
from bitnet.base.setting_values import parse_rate


@dataclass(frozen=True)
class FetchOptions:
    """Options of downloads; all but *user_endpoint* are options of every command that downloads.

    They override settings of the environment, which has further settings without an option.
    """

    SECTION: ClassVar = "Network"

    offline: bool = option(False, "never open a connection; everything must come from disk")
    retries: int | None = option(
        None,
        "attempts in a row without progress before giving up; default: until the time-out",
        bounds=(1, None),
    )
    timeout: float | None = option(
        None,
        "seconds without progress before giving up; default: BITNET_DOWNLOAD_TIMEOUT, or 300",
        bounds=(1e-3, 1e9),
    )
    base_url: str = option(
        "", "address of the hub or a mirror, or several with commas; default: HF_ENDPOINT"
    )
    limit_rate: str = option(
        "", "bytes per second of all connections, such as 500k or 10M; default: BITNET_LIMIT_RATE"
    )
    # Address of the hub that the user chose, if a project's file replaces it in *base_url*: only
    # this one may get the access token.
    user_endpoint: str = ""

    def __post_init__(self) -> None:
        """Check value ranges."""
        check_bounds(self)
        if self.limit_rate:
            try:
                parse_rate(self.limit_rate)
            except ValueError as error:
                raise UsageError(f"--limit-rate is {self.limit_rate!r}: {error}") from None
        addresses = self.base_url.split(",") if self.base_url else []
        try:
            for address in addresses:
                trust.address(address.strip())
        except ValueError:
            safe_address = settings.without_login(self.base_url, is_valid=False)
            raise UsageError(
                f"--base-url expects an address, got {safe_address!r}",
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
    def rate(self) -> float:
        """Bytes per second of all connections together; 0: unlimited."""
        return parse_rate(self.limit_rate) if self.limit_rate else settings.limit_rate()

    @property
    def endpoint(self) -> str:
        """Address of the hub, without a trailing slash; the first one if there are several."""
        return self.addresses[0]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The hub and its mirrors, tried in this order; the mirrors get no access token."""
        text = self.base_url or settings.hf_endpoint()
        return tuple(address.strip().rstrip("/") for address in text.split(","))


@dataclass(frozen=True)
class FileSelection:
    """Selection of files of a repository; an empty one means the runnable model."""

    include: list[str] = option(
        [], "fetch every file whose path or name matches; may be repeated", metavar="GLOB"
    )
    exclude: list[str] = option([], "skip files that match; may be repeated", metavar="GLOB")
    whole: bool = False  # a repository means all of its files; `download` sets it

    def __bool__(self) -> bool:
        """True unless the selection is empty."""
        return self.whole or self.is_given

    @property
    def is_given(self) -> bool:
        """True if a user chose by pattern."""
        return bool(self.include or self.exclude)
