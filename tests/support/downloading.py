"""Download one file from an address to a path: the transfer that the tests of the hub examine."""

from dataclasses import dataclass
from pathlib import Path

from bitnet.base import settings
from bitnet.base.errors import Offline
from bitnet.base.files import check_writable
from bitnet.hub.fetch import fetch
from bitnet.hub.orders import FileOrder
from bitnet.hub.repository import file_url
from bitnet.hub.session import HubSession
from bitnet.sources import Source
from bitnet.store import Store


@dataclass
class Download:
    """The file at its destination."""

    path: Path
    sha256: str
    size: int
    cached: bool = True
    revision: str = ""
    commit: str | None = None


def download(
    url,
    destination,
    *,
    sha256=None,
    size=None,
    options=None,
    progress="auto",
    check=None,
    force=False,
    session=None,
    store=None,
):
    """Make *destination* the file at *url*: a link into the store, to which it is fetched."""
    store = store if store is not None else Store(settings.cache_dir())
    digest = sha256.lower() if sha256 else None
    if not force and destination.is_file():
        present = store.digest_of(destination)
        length = destination.stat().st_size
        if length and digest in (None, present) and size in (None, length):
            return Download(destination, present, length)
    if session is None:
        with HubSession(options) as own:
            return download(
                url,
                destination,
                sha256=sha256,
                size=size,
                progress=progress,
                check=check,
                force=force,
                session=own,
                store=store,
            )
    if session.options.is_offline and (digest is None or store.find(digest) is None):
        raise Offline(f"offline: {destination} is not there")
    check_writable(destination.parent)
    source = Source(destination.name, "", destination.name, sha256=digest, size=size, url=url)
    order = FileOrder(source, "tokenizer", check=check)
    result = fetch(order, store, [url], session=session, force=force, progress=progress)
    store.place(result.blob, destination)
    pin = result.pin
    return Download(destination, pin.sha256, pin.size, result.cached, pin.revision, pin.commit)


def fetch_file(session, folder, repo="org/model", file="model.gguf", revision="main"):
    """The *file* of a repository, in *folder*, by a new *session*."""
    with session() as one:
        url = file_url(repo, revision, file, one.options)
        return download(url, folder / file.replace("/", "-"), session=one, progress="none")
