"""Models on the hub by a text in their names, most downloaded first.

The request is the one of ``huggingface_hub.HfApi.list_models``. Everything in its reply is text
from outside: names must be repositories, and other texts are made printable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from bitnet.base.errors import NetworkError, NotFound
from bitnet.base.trust import REPOSITORY, printable, redact_url
from bitnet.hub.repository import read_document
from bitnet.hub.session import HubSession

if TYPE_CHECKING:
    from bitnet.hub.fetch_options import FetchOptions

_PROPERTIES = ("downloads", "gated", "gguf", "tags")
_LICENCE = "license:"  # prefix of the tag that names the licence
_LARGEST = 10**15  # a larger number of parameters or downloads cannot be right


@dataclass(frozen=True)
class HubModel:
    """A repository with GGUF files, as a search of the hub describes it."""

    repo: str  # ``organisation/repository``
    family: str  # architecture, as GGUF files name it; empty if unknown
    parameters: int | None  # weights of the model
    downloads: int | None  # in the last 30 days
    licence: str  # name of the terms, empty if unknown
    gated: bool | None  # needs a token of an account that accepted the terms


def search(text: str, options: FetchOptions, *, limit: int = 20) -> list[HubModel]:
    """At most *limit* repositories with GGUF files whose names contain *text*."""
    query = {"filter": "gguf", "search": text, "sort": "downloads", "limit": limit}
    words = urlencode({**query, "expand": _PROPERTIES}, doseq=True)
    urls = [f"{server}/api/models?{words}" for server in options.addresses]
    with HubSession(options) as session:
        entries = read_document(urls, "list of models", session)
    try:
        models = [_model(entry) for entry in entries[:limit]]
    except (KeyError, TypeError, ValueError):
        raise NetworkError(
            f"{redact_url(urls[0])}: not a list of models",
            hint="this server cannot be searched: use another one with --base-url=URL",
        ) from None
    if not models:
        raise NotFound(
            f"no repository with GGUF files on {redact_url(options.endpoint)} has {text!r} in "
            "its name",
            hint="search for a shorter text, such as a family: bitnet search qwen3",
        )
    return models


def _model(entry: dict[str, Any]) -> HubModel:
    """The model that an *entry* of the list describes; ValueError if its name is not one."""
    repo = entry["id"]
    if not (isinstance(repo, str) and REPOSITORY.fullmatch(repo)):
        raise ValueError("not the name of a repository")
    gguf = entry.get("gguf")
    gguf = gguf if isinstance(gguf, dict) else {}
    gated = entry.get("gated")
    return HubModel(
        repo=repo,
        family=_text(gguf.get("architecture")),
        parameters=_count(gguf.get("total")),
        downloads=_count(entry.get("downloads")),
        licence=_licence(entry.get("tags")),
        gated=None if gated is None else bool(gated),
    )


def _text(value: object) -> str:
    return printable(value, longest=40) if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST:
        return value
    return None


def _licence(tags: object) -> str:
    """Name of the licence among the *tags* of a repository; empty if none names one."""
    names = tags if isinstance(tags, list) else []
    for name in names:
        if isinstance(name, str) and name.startswith(_LICENCE):
            return _text(name.removeprefix(_LICENCE))
    return ""
