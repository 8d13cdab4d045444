"""Metadata of repositories and files on a hub."""

from __future__ import annotations

import difflib
import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
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
from bitnet.hub import http
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.http import requests, urllib3
from bitnet.hub.servers import first_answer
from bitnet.hub.session import LONGEST_DOCUMENT
from bitnet.sources import Source
from bitnet.store.partial import Version

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bitnet.hub.session import HubSession

_NAMES_SHOWN = 12
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_MOST_PAGES = 10_000  # of a list of files
_DIGEST_ATTEMPTS = 3
_MOST_HOPS = 5  # from a redirect to the server that names the digest


def file_url(repo: str, revision: str, file: str, options: FetchOptions | None = None) -> str:
    """Address of *file* of *repo* at *revision* on the hub."""
    options = options if options is not None else FetchOptions()
    if not _is_path(file) or _CONTROL.search(file):
        raise UsageError(f"not a file of a repository: {file!r}")
    path = f"{_check_repo(repo)}/resolve/{quote(revision, safe='')}/{quote(file)}"
    return f"{options.endpoint}/{path}"


def head(url: str, session: HubSession, *, attempts: int | None = None) -> Version:
    """The server's description of the file at *url*, without its content.

    The request is tried up to *attempts* times.
    """
    try:
        return session.retrying(redact_url(url), partial(_ask, url, session), attempts=attempts)
    except NotFound as error:
        raise _with_candidates(error, url, session) from None


def first_head(urls: Sequence[str], session: HubSession) -> tuple[str, Version]:
    """The first of *urls* whose server describes the file there, and its description."""
    return first_answer(urls, partial(head, session=session))


def _ask(url: str, session: HubSession) -> Version:
    """The description of the file at *url*, by one request."""
    requested_url = url
    with session.open(url, method="HEAD", leave_origin=False) as response:
        headers = response.headers
        is_final = not response.is_redirect
        if is_final:
            http.refuse_pages(response, redact_url(url))
        linked = strong_etag(headers.get("X-Linked-Etag"))
        etag = linked or (strong_etag(headers.get("ETag")) if is_final else None)
        size = headers.get("X-Linked-Size") or (headers.get("Content-Length") if is_final else None)
        commit = headers.get("X-Repo-Commit")
        commit = commit if is_plain_text(commit, 100) else None
        hub_file = http.repository_of(url, session.options.endpoint)
        if hub_file is not None and commit and COMMIT.fullmatch(commit):
            # By the address with the commit, a push meanwhile cannot mix two versions.
            url = file_url(hub_file[0], commit, hub_file[2], session.options)
        sha256 = http.read_digest(response)
        if sha256 is None and not is_final:
            sha256 = _digest_behind(requested_url, response.headers.get("Location", ""), session)
        return Version(
            url=url,
            commit=commit,
            etag=etag,
            size=http.as_count(size),
            sha256=sha256,
            # The hub's ETag of a file that is stored in git itself is its blob id.
            git_oid=etag if commit and is_final and etag and COMMIT.fullmatch(etag) else None,
            # A redirect leads to storage with range requests; its first reply proves it.
            accepts_ranges=not is_final or headers.get("Accept-Ranges", "").lower() == "bytes",
        )


def _digest_behind(url: str, location: str, session: HubSession) -> str | None:
    """SHA-256 that a server behind the redirect of *url* to *location* announces, if one does.

    A mirror may redirect to a hub that names the digest. Storage that refuses ``HEAD``, or fails at
    each of a few attempts, names none.
    """
    with suppress(BitnetError, ValueError):
        for _ in range(_MOST_HOPS):
            url = address(location, url)
            ask = partial(_ask_digest, url, session)
            digest, location = session.retrying(redact_url(url), ask, attempts=_DIGEST_ATTEMPTS)
            if digest is not None or not location:
                return digest
    return None


def _ask_digest(url: str, session: HubSession) -> tuple[str | None, str]:
    """The digest that the server of *url* announces, and where it redirects; empty: nowhere."""
    with session.open(url, method="HEAD", leave_origin=False) as response:
        location = response.headers.get("Location", "") if response.is_redirect else ""
        return http.read_digest(response), location


def list_files(repo: str, revision: str, session: HubSession) -> list[Source]:
    """Every file of *repo* at *revision*, sorted by path, as the first server lists them."""
    path = f"{_check_repo(repo)}/tree/{quote(revision, safe='')}?recursive=true"
    ask = partial(_read_list, repo=repo, revision=revision, session=session)
    _, files = first_answer(_api_urls(path, session), ask)
    return sorted(files, key=lambda file: file.file)


def _api_urls(path: str, session: HubSession) -> list[str]:
    """Address of *path* below the pages about models, on the hub and each of its mirrors."""
    return [f"{server}/api/models/{path}" for server in session.options.addresses]


def _read_list(
    first_url: str, repo: str, revision: str, session: HubSession, *, attempts: int | None
) -> list[Source]:
    """Every file on the pages that begin at *first_url*, the list of files of *repo*."""
    url: str | None = first_url
    files: list[Source] = []
    seen: set[str] = set()
    left_bytes = LONGEST_DOCUMENT
    while url is not None:
        if url in seen or len(seen) >= _MOST_PAGES:
            raise NetworkError(f"{redact_url(url)}: a list of files without an end")
        seen.add(url)
        entries, headers, size = session.json(
            url, f"list of files of {repo}", longest=left_bytes, attempts=attempts
        )
        left_bytes -= size
        try:
            files += [
                _source(entry, repo, revision) for entry in entries if entry["type"] == "file"
            ]
        except (KeyError, TypeError, ValueError, OverflowError):
            raise NetworkError(f"{redact_url(url)}: not a list of files") from None
        url = _next_page(url, headers.get("Link", ""))
    return files


def read_card(repo: str, revision: str, session: HubSession) -> Source:
    """*repo* at *revision*, with its commit, gated access, and the licence on its card."""
    path = f"{_check_repo(repo)}/revision/{quote(revision, safe='')}"
    urls = _api_urls(path, session)
    facts = read_document(urls, f"facts about {repo}", session)
    if not isinstance(facts, dict):
        raise NetworkError(f"{redact_url(urls[0])}: not the facts of a repository")
    card = facts.get("cardData")
    card = card if isinstance(card, dict) else {}
    texts = (
        facts.get("sha"),
        card.get("license_name") or card.get("license"),
        card.get("license_link"),
    )
    commit, licence, link = (printable(t) if isinstance(t, str) else "" for t in texts)
    source = Source(repo, repo, "", revision, commit=commit or None, gated=bool(facts.get("gated")))
    return replace(source, licence=licence, licence_url=link)


def read_document(urls: Sequence[str], what: str, session: HubSession) -> Any:
    """The JSON document *what* at the first of *urls* whose server has it."""
    _, (document, _, _) = first_answer(urls, partial(session.json, what=what))
    return document


def read_range(url: str, start: int, stop: int, session: HubSession) -> bytes:
    """Bytes *start* to *stop* (exclusive) of the file at *url*; fewer if the file ends before."""

    def attempt() -> bytes:
        with session.open(
            url, headers={"Range": f"bytes={start}-{stop - 1}"}, accept=(200, 206)
        ) as response:
            http.refuse_pages(response, redact_url(url))
            size = None  # of the body
            if response.status_code == 206:
                part = http.content_range(response.headers.get("Content-Range"))
                fits = part is not None and part[0] == start and part[1] <= stop
                if part is not None:
                    size = part[1] - start
            else:  # a server without ranges sends the file from its beginning
                fits = start == 0
                size = http.as_count(response.headers.get("Content-Length"))
            if not fits:
                raise NetworkError(f"{redact_url(url)}: the server cannot send a part of the file")
            try:
                content: bytes = response.raw.read(stop - start, decode_content=False)
            except (urllib3.exceptions.HTTPError, OSError):
                raise http.Transient(http.request_error(url, "connection broke")) from None
            if size is not None and len(content) < min(size, stop - start):
                raise http.Transient(http.request_error(url, "connection broke"))
        return content

    return session.retrying(redact_url(url), attempt)


def strong_etag(value: str | None) -> str | None:
    """ETag *value* without quotes, ``None`` if it is weak or missing."""
    if not value or value.startswith("W/"):
        return None
    return value.strip('"') or None


def etag_of(response: requests.Response) -> str | None:
    """Strong ETag of the file in *response*, the same one that :func:`head` reports; or None.

    None also if redirects led to another server, whose ETags are its own, and the hub named none.
    """
    for reply in (*response.history, response):
        linked = strong_etag(reply.headers.get("X-Linked-Etag"))
        if linked is not None:
            return linked
    if any(origin(reply.url) != origin(response.url) for reply in response.history):
        return None
    return strong_etag(response.headers.get("ETag"))


def _check_repo(repo: str) -> str:
    """*repo*, if it is the name of a repository; some old ones, such as ``gpt2``, have no owner."""
    if not REPOSITORY.fullmatch(repo if "/" in repo else f"models/{repo}"):
        raise UsageError(
            f"not a repository: {repo!r}",
            hint="write OWNER/NAME, for example openai-community/gpt2",
        )
    return repo


def _is_path(file: str) -> bool:
    """True if *file* is a path in a repository, which does not lead out of its folder."""
    return not any(part in ("", ".", "..") for part in file.split("/"))


def _next_page(url: str, links: str) -> str | None:
    """Address of the page after *url* of a listing; ``None`` at its end."""
    pages = requests.utils.parse_header_links(links)
    following = next((p["url"] for p in pages if p.get("rel") == "next" and "url" in p), None)
    if following is None:
        return None
    try:
        target = address(following, url)
    except ValueError:
        raise NetworkError(f"{redact_url(url)}: not a list of files") from None
    if origin(target) != origin(url):
        raise NetworkError(
            f"{redact_url(url)}: the list of files goes on at another server, {redact_url(target)}",
            hint="name the file with --file FILE, or use another mirror with --base-url",
        )
    return target


def _source(entry: dict[str, object], repo: str, revision: str) -> Source:
    """The file that an *entry* of a listing describes."""
    path = str(entry["path"])
    lfs = entry.get("lfs")
    count = entry.get("size", 0)
    path.encode()  # raises ValueError for a lone surrogate: not the name of a file
    if not _is_path(path):
        raise ValueError("not the path of a file")
    oid = lfs.get("oid") if isinstance(lfs, dict) else None
    digest = str(oid).removeprefix("sha256:").lower()
    size = http.as_count(str(count)) if type(count) in (int, str) else None
    if size is None:
        raise ValueError("not a number of bytes")
    return Source(repo, repo, path, revision, digest if SHA256.fullmatch(digest) else None, size)


def _with_candidates(error: NotFound, url: str, session: HubSession) -> NotFound:
    """*error*, completed by names of files or revisions that exist, if the hub reports them."""
    endpoint = session.options.endpoint
    named = http.repository_of(url, endpoint)
    if named is None or "repository does not exist" in error.message:
        return error
    repo, revision, wrong = named
    try:
        names = [entry.file for entry in list_files(repo, revision, session)]
        missing = f"no file {wrong!r} in {repo} at {revision}"
    except NotFound:
        try:
            refs, _, _ = session.json(f"{endpoint}/api/models/{repo}/refs", f"revisions of {repo}")
            names = [str(ref["name"]) for kind in ("branches", "tags") for ref in refs[kind]]
        except (BitnetError, KeyError, TypeError):
            return error
        wrong = revision
        missing = f"no revision {revision!r} in {repo}"
    except BitnetError:
        return error
    near = difflib.get_close_matches(wrong, names, n=3, cutoff=0.5)
    # Without a similar path, files of the same name in other folders.
    near = near or [name for name in names if name.rpartition("/")[2] == wrong.rpartition("/")[2]]
    hint = f"did you mean {' or '.join(map(printable, near))}?" if near else ""
    return NotFound(f"{error.message}: {missing}; it has {some_of(names)}", hint=hint)


def some_of(names: Iterable[str]) -> str:
    """The first of *names*, and the number of others."""
    every = [printable(name) for name in names]
    ending = f" and {len(every) - _NAMES_SHOWN} more" if len(every) > _NAMES_SHOWN else ""
    return ", ".join(every[:_NAMES_SHOWN]) + ending if every else "none"
