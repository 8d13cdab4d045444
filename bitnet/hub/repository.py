"""Metadata of repositories and files on a hub."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bitnet.base.errors import BitnetError, NetworkError, NotFound, UsageError
from bitnet.base.trust import (
    COMMIT,
    REPOSITORY,
    SHA256,
    address,
    is_plain_text,
    origin,
    printable,
    redact_url,
)
from bitnet.hub.http import as_count, refuse_pages, repository_of, requests, urllib3
from bitnet.hub.limits import Transient, request_error
from bitnet.hub.options import FetchOptions
from bitnet.hub.session import LONGEST_DOCUMENT, HubSession
from bitnet.sources import Source
from bitnet.store.partial import Version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    T = TypeVar("T")

_NAMES_SHOWN = 12
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_MOST_PAGES = 10_000  # of a listing


@dataclass(frozen=True)
class RepoFacts:
    """A repository: commit, gated access, and the licence on its card."""

    repo: str
    commit: str | None
    gated: bool
    licence: str | None
    licence_link: str | None


def file_url(repo: str, revision: str, file: str, options: FetchOptions | None = None) -> str:
    """Address of *file* of *repo* at *revision* on the hub."""
    options = options if options is not None else FetchOptions()
    parts = file.split("/")
    if any(part in ("", ".", "..") for part in parts) or _CONTROL.search(file):
        raise UsageError(f"not a file of a repository: {file!r}")
    address = f"{_check_repo(repo)}/resolve/{quote(revision, safe='')}/{quote(file)}"
    return f"{options.endpoint}/{address}"


def head(
    url: str,
    options: FetchOptions | None = None,
    *,
    session: HubSession | None = None,
    attempts: int | None = None,
) -> Version:
    """The server's description of the file at *url*, without its content.

    *attempts* bounds the attempts, where another server can be asked.
    """

    def ask(session: HubSession) -> Version:
        with session.open(url, method="HEAD", leave_origin=False) as response:
            facts = response.headers
            final = not response.is_redirect
            if final:
                refuse_pages(response, redact_url(url))
            linked = strong_etag(facts.get("X-Linked-Etag"))
            etag = linked or (strong_etag(facts.get("ETag")) if final else None)
            size = facts.get("X-Linked-Size") or (facts.get("Content-Length") if final else None)
            commit = facts.get("X-Repo-Commit")
            commit = commit if is_plain_text(commit, 100) else None
            sha256 = linked.lower() if linked and SHA256.fullmatch(linked.lower()) else None
            return Version(
                url=_at_commit(url, commit, session.options),
                commit=commit,
                etag=etag,
                size=as_count(size),
                sha256=sha256,
                git_oid=etag if commit and final and etag and COMMIT.fullmatch(etag) else None,
                # A redirect leads to storage with range requests; its first reply proves it.
                accepts_ranges=not final or facts.get("Accept-Ranges", "").lower() == "bytes",
            )

    def attempt(session: HubSession) -> Version:
        try:
            return session.retrying(redact_url(url), lambda: ask(session), attempts=attempts)
        except NotFound as error:
            raise _with_candidates(error, url, session) from None

    return _in_session(attempt, options, session)


def list_files(
    repo: str,
    revision: str = "main",
    options: FetchOptions | None = None,
    *,
    session: HubSession | None = None,
) -> list[Source]:
    """Every file of *repo* at *revision*, sorted by path."""

    def ask(session: HubSession) -> list[Source]:
        path = f"{_check_repo(repo)}/tree/{quote(revision, safe='')}"
        url: str | None = f"{session.options.endpoint}/api/models/{path}?recursive=true"
        files: list[Source] = []
        seen: set[str] = set()
        left = LONGEST_DOCUMENT
        while url is not None:
            if url in seen or len(seen) >= _MOST_PAGES:
                raise NetworkError(f"{redact_url(url)}: a list of files without an end")
            seen.add(url)
            entries, headers, size = session.json(url, f"list of files of {repo}", longest=left)
            left -= size
            try:
                files += [
                    _source(entry, repo, revision) for entry in entries if entry["type"] == "file"
                ]
            except (KeyError, TypeError, ValueError, OverflowError):
                raise NetworkError(f"{redact_url(url)}: not a list of files") from None
            url = _next_page(url, headers.get("Link", ""))
        return sorted(files, key=lambda file: file.file)

    return _in_session(ask, options, session)


def model_facts(
    repo: str,
    revision: str = "main",
    options: FetchOptions | None = None,
) -> RepoFacts:
    """Commit, gated access and licence of *repo* at *revision*."""

    def ask(session: HubSession) -> dict[str, Any]:
        path = f"{_check_repo(repo)}/revision/{quote(revision, safe='')}"
        url = f"{session.options.endpoint}/api/models/{path}"
        facts, _, _ = session.json(url, f"facts about {repo}")
        if not isinstance(facts, dict):
            raise NetworkError(f"{redact_url(url)}: not the facts of a repository")
        return facts

    facts = _in_session(ask, options)
    card = facts.get("cardData")
    card = card if isinstance(card, dict) else {}
    licence = card.get("license_name") or card.get("license")
    return RepoFacts(
        repo=repo,
        commit=_text(facts.get("sha")),
        gated=bool(facts.get("gated")),
        licence=_text(licence),
        licence_link=_text(card.get("license_link")),
    )


def read_range(url: str, start: int, stop: int, options: FetchOptions | None = None) -> bytes:
    """Bytes *start* to *stop* (exclusive) of the file at *url*; fewer if the file ends before."""

    def ask(session: HubSession) -> bytes:
        wanted = {"Range": f"bytes={start}-{stop - 1}"}
        with session.open(url, headers=wanted, accept=(200, 206)) as response:
            refuse_pages(response, redact_url(url))
            if response.status_code == 206:
                begins = response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
            else:
                begins = start == 0  # a server without ranges sends the file from its beginning
            if not begins:
                raise NetworkError(f"{redact_url(url)}: the server cannot send a part of the file")
            return _first_bytes(response.raw, stop - start, url)

    def attempt(session: HubSession) -> bytes:
        return session.retrying(redact_url(url), lambda: ask(session))

    return _in_session(attempt, options)


def strong_etag(value: str | None) -> str | None:
    """ETag *value* without quotes, ``None`` if it is weak or missing."""
    if not value or value.startswith("W/"):
        return None
    return value.strip('"') or None


def _first_bytes(raw: object, count: int, url: str) -> bytes:
    parts: list[bytes] = []
    while count > 0:
        try:
            part = raw.read1(min(count, 1 << 20), decode_content=False)  # type: ignore[attr-defined]
        except (urllib3.exceptions.HTTPError, OSError):
            raise Transient(request_error(url, "the connection broke")) from None
        if not part:
            break
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _in_session(
    call: Callable[[HubSession], T],
    options: FetchOptions | None,
    session: HubSession | None = None,
) -> T:
    if session is not None:
        return call(session)
    with HubSession(options) as own:
        return call(own)


def _check_repo(repo: str) -> str:
    if not REPOSITORY.fullmatch(repo if "/" in repo else f"models/{repo}"):
        raise UsageError(
            f"not a repository: {repo!r}",
            hint="write OWNER/NAME, for example openai-community/gpt2",
        )
    return repo


def _at_commit(url: str, commit: str | None, options: FetchOptions) -> str:
    """*url* with the commit as revision, so that a push in between cannot mix two versions."""
    named = repository_of(url, options.endpoint)
    if named is None or not commit or not COMMIT.fullmatch(commit):
        return url
    return file_url(named[0], commit, named[2], options)


def _next_page(url: str, links: str) -> str | None:
    """Address of the page after *url* of a listing; ``None`` at its end."""
    following = next(
        (link["url"] for link in requests.utils.parse_header_links(links) if _is_next(link)), None
    )
    if following is None:
        return None
    try:
        target = address(following, url)
    except ValueError:
        raise NetworkError(f"{redact_url(url)}: not a list of files") from None
    if origin(target) != origin(url):
        raise NetworkError(
            f"{redact_url(url)}: the list of files goes on at {redact_url(target)}, "
            "another server; a part of it would be missing",
            hint="name the file with --file FILE, or use another mirror with --base-url",
        )
    return target


def _is_next(link: dict[str, str]) -> bool:
    return link.get("rel") == "next" and "url" in link


def _source(entry: dict[str, object], repo: str, revision: str) -> Source:
    """The file that an *entry* of a listing describes."""
    path = str(entry["path"])
    path.encode()  # half a surrogate is not a name
    stored = entry.get("lfs")
    oid = stored.get("oid") if isinstance(stored, dict) else None
    digest = str(oid).removeprefix("sha256:").lower() if oid else ""
    known = digest if SHA256.fullmatch(digest) else None
    return Source(repo, repo, path, revision, known, _size(entry.get("size", 0)))


def _size(value: object) -> int:
    """Number of bytes in a listing."""
    count = as_count(str(value)) if type(value) in (int, str) else None
    if count is None:
        raise ValueError("not a number of bytes")
    return count


def _text(value: object) -> str | None:
    return printable(value) if isinstance(value, str) and value else None


def _with_candidates(error: NotFound, url: str, session: HubSession) -> NotFound:
    """*error* with existing files or revisions, if the hub reports them."""
    named = repository_of(url, session.options.endpoint)
    if named is None or "repository does not exist" in error.message:
        return error
    repo, revision, file = named
    try:
        names = [entry.file for entry in list_files(repo, revision, session=session)]
        what = f"no file {file!r} in {repo} at {revision}"
    except NotFound:
        try:
            names = _revisions(repo, session)
        except (BitnetError, KeyError, TypeError):
            return error
        file, what = revision, f"no revision {revision!r} in {repo}"
    except BitnetError:
        return error
    return NotFound(f"{error.message}: {what}; it has {some_of(names)}", hint=_nearest(file, names))


def _revisions(repo: str, session: HubSession) -> list[str]:
    url = f"{session.options.endpoint}/api/models/{repo}/refs"
    refs, _, _ = session.json(url, f"revisions of {repo}")
    return [str(ref["name"]) for kind in ("branches", "tags") for ref in refs[kind]]


def some_of(names: Iterable[str]) -> str:
    """The first of *names*, and the number of others."""
    every = [printable(name) for name in names]
    more = f" and {len(every) - _NAMES_SHOWN} more" if len(every) > _NAMES_SHOWN else ""
    return ", ".join(every[:_NAMES_SHOWN]) + more if every else "none"


def _nearest(name: str, names: list[str]) -> str:
    found = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    found = found or [
        known for known in names if known.rpartition("/")[2] == name.rpartition("/")[2]
    ]
    return f"did you mean {' or '.join(map(printable, found))}?" if found else ""
