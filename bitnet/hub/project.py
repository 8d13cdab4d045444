"""A project: a working folder with a lock file, a cache, and ``bitnet.toml``, which names servers.

``--base-url`` wins over the file, a repository over ``default``, and ``default`` over
``HF_ENDPOINT``. A project is not the user: the access token does not go to a server named there.
"""

from __future__ import annotations

import glob
import logging
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bitnet.base import locks, settings, trust
from bitnet.base.errors import NotFound, Offline, PermissionDenied, UsageError, from_os_error
from bitnet.base.files import open_file, path_of, write_text
from bitnet.hub import http
from bitnet.hub.http import Limits
from bitnet.hub.repository import file_url
from bitnet.hub.session import HubSession
from bitnet.store import Store, records, tree
from bitnet.store.placing import ABANDONED_S
from bitnet.store.records import LOCK_FILE

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from bitnet.base.progress import Mode
    from bitnet.hub.fetch_options import FetchOptions
    from bitnet.sources import Source
    from bitnet.store import Pin

    # Returns the model to use, given a repository and its models; None: no choice was made.
    Pick = Callable[[str, list[Any]], Any]

T = TypeVar("T")

logger = logging.getLogger(__name__)

MIRRORS = "bitnet.toml"


@dataclass(frozen=True)
class Project:
    """Paths and options of downloads, shared by all files of one command."""

    folder: Path  # contains the lock file; ``models`` is below it
    cache: Path  # the cache folder
    options: FetchOptions  # how to fetch
    progress: Mode = "auto"  # how progress is shown
    force: bool = False  # fetch again what exists
    update: bool = False  # accept files that differ from the lock file
    rehash: bool = False  # read files again instead of trusting records
    records: bool = True  # write provided files into the lock file
    # of all transfers; default: with the rate of *options*
    limits: Limits = field(default=cast("Limits", None), compare=False, repr=False)
    # called to choose one of several models of a repository; returns None without a user to ask
    pick: Pick = field(default=lambda _repo, _models: None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.limits:
            object.__setattr__(self, "limits", Limits(rate=self.options.rate))

    @property
    def lock_path(self) -> Path:
        """The lock file."""
        return self.folder / LOCK_FILE

    @property
    def store(self) -> Store:
        """The store in the cache folder."""
        return Store(self.cache, rehash=self.rehash)

    @property
    def is_offline(self) -> bool:
        """True if connections are switched off."""
        return self.options.is_offline

    def options_for(self, repo: str) -> FetchOptions:
        """The options, with the server that ``bitnet.toml`` names for *repo*, unless --base-url."""
        if self.options.base_url:
            return self.options
        table = mirrors(self.folder)
        address = table.get(repo, table.get("default", ""))
        if not address:
            return self.options
        return replace(self.options, base_url=address, user_endpoint=self.options.endpoint)

    def addresses_of(self, source: Source) -> list[str]:
        """Addresses of the file *source*: its own, or one on each server of its repository."""
        if source.url:
            return [source.url]
        options = self.options_for(source.repo)
        where = source.repo, source.commit or source.revision, source.file
        servers = [replace(options, base_url=address) for address in options.addresses]
        return [file_url(*where, server) for server in servers]

    @contextmanager
    def connect(self, source: Source, *, retries: int | None = None) -> Iterator[HubSession]:
        """A session with the servers of *source*, within the limits of all transfers."""
        options = self.options if source.url else self.options_for(source.repo)
        if retries is not None:
            options = replace(options, retries=retries)
        with HubSession(options, limits=self.limits, sleep=self.limits.sleep) as session:
            yield session

    def at_once(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """As :func:`bitnet.hub.http.at_once`, within the limits of all transfers."""
        return http.at_once(calls, self.limits)

    def pin_of(self, identity: tuple[str, ...]) -> Pin | None:
        """Lock file entry of this identity; None if it is missing, and always with --update."""
        return None if self.update else records.find_pin(self.pins(), identity)

    def place_of(self, path: Path | None) -> str | None:
        """*path* relative to the lock file; ``None`` if it is outside."""
        return records.relative(path, self.folder) if path is not None else None

    def is_in_cache(self, place: str | None) -> bool:
        """True if *place*, of a lock file in this folder, is in the cache, which may be inside.

        The cache trusts its files by their names, so a lock file must not choose one.
        """
        return place is not None and tree.is_in_area(self.cache, self.folder / path_of(place))

    def refuse_unpinnable(self, pin: Pin) -> None:
        """Refuse a *pin* that the lock file could not contain, if this command writes one."""
        if self.records:
            records.refuse_unreadable(pin)
        if self._writes_pins and self.is_in_cache(pin.place):
            raise UsageError(
                f"{LOCK_FILE} cannot pin {pin.repo}/{pin.file} at {pin.place}: it is in the cache",
                hint="choose another folder: --output DIR",
            )

    def pins(self) -> list[Pin]:
        """Entries of the lock file."""
        return records.read_lock(self.lock_path)

    def pin(self, *entries: Pin) -> None:
        """Write *entries* into the lock file; safe for several processes.

        Nothing is written if the project is the cache itself, which has no lock file.
        """
        if not self._writes_pins:
            return
        pins = self.pins()
        changed = [entry for entry in records.add_pins(pins, entries) if entry not in pins]
        if not changed:
            return
        try:
            with self._hold_lock_file():
                records.write_lock(self.lock_path, records.add_pins(self.pins(), entries))
        except (PermissionDenied, NotFound) as error:  # /proc and others answer "no such file"
            files = ", ".join(f"{entry.repo}/{entry.file}" for entry in changed)
            logger.warning("%s is not pinned: %s", files, error)
            return
        for entry in changed:
            logger.info("pinned %s/%s in %s", entry.repo, entry.file, self.lock_path)

    def write_lock_file(self, text: str) -> None:
        """Write *text* as the lock file; safe for several processes."""
        with self._hold_lock_file():
            write_text(self.lock_path, text)

    @property
    def _writes_pins(self) -> bool:
        """True if this command writes into the lock file; the cache itself has none."""
        return self.records and self.folder.absolute() != self.cache.absolute()

    @contextmanager
    def _hold_lock_file(self) -> Iterator[None]:
        """Keep other processes from writing the lock file; remove drafts of killed writers."""
        guard = self.lock_path.with_name(f".{LOCK_FILE}.lock")
        timeout_s = settings.lock_timeout()
        with locks.hold(guard, timeout_s=timeout_s, what=LOCK_FILE, leave=False) as lock:
            for draft in self.folder.glob(f".{glob.escape(LOCK_FILE)}.*.tmp"):
                with suppress(OSError):
                    if lock.is_kernel or time.time() - draft.stat().st_mtime > ABANDONED_S:
                        draft.unlink()
            yield

    def require_connection(self, path: Path, command: str) -> None:
        """Refuse to fetch the file *path* offline; the hint names the *command* that fetches it."""
        if self.options.is_offline:
            state = "does not exist"
            if path.exists():
                again = self.force or self.update
                state = "would be fetched again" if again else "is not what was asked for"
            raise Offline(
                f"offline: {path} {state}, and the network is switched off",
                hint=f"with a connection: {command}",
            )


def mirrors(folder: Path) -> dict[str, str]:
    """Addresses by repository in the table ``mirrors`` of *folder*'s ``bitnet.toml``.

    Several addresses of one repository are one text, separated by commas. Empty without a file.
    """
    path = folder / MIRRORS
    try:
        with open_file(path) as file:
            document: dict[str, Any] = tomllib.load(file)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise from_os_error(error, path) from error
    except (ValueError, RecursionError) as error:  # ValueError: both TOML and UTF-8 errors
        raise UsageError(f"{path} is not valid TOML: {error}", hint="correct it") from error
    table = document.get("mirrors", {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: 'mirrors' is not a table", hint="write it as [mirrors]")
    servers: dict[str, str] = {}
    for repo, value in table.items():
        addresses = []
        stated = value if isinstance(value, list) else [value]
        for address in stated:
            try:
                parts = address.split(",") if isinstance(address, str) else [""]
                addresses += [trust.address(part.strip()) for part in parts]
            except ValueError:  # noqa: PERF203
                safe_address = settings.without_login(str(address), is_valid=False)
                raise UsageError(
                    f"{path}: mirror of {repo!r} is {safe_address!r}, expected an address",
                    hint=f'"{repo}" = "https://hub.example.org"',
                ) from None
        servers[repo] = ",".join(addresses)
    return servers
