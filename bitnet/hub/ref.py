"""Names of models and tokenizers, as users write them, parsed in one place.

models/x.gguf                        a path, always where one exists
smollm2-135m                         a name of this package or its registry
ORG/REPO                             a repository on the hub, unless the folder ORG exists here
hf:ORG/REPO[:FILE][@REVISION]        the same; FILE may be a pattern such as *Q4_K_M*
hf://ORG/REPO[@REVISION][/FILE]      the same, as other programs write it
https://huggingface.co/ORG/REPO...   the same, as a browser shows its page
https://HOST/FILE                    a file at an address
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from bitnet import sources
from bitnet.base import settings, trust
from bitnet.base.errors import UsageError
from bitnet.base.invocation import word
from bitnet.shipped import SHIPPED

if TYPE_CHECKING:
    from re import Match

_REPO = rf"(?P<repo>{trust.REPOSITORY.pattern})"
_REVISION = r"(?P<revision>[^:@/]+)"
_COLON = re.compile(rf"hf:{_REPO}(?:@{_REVISION})?(?::(?P<file>.+?))?(?:@(?P<late>[^:@/]+))?", re.A)
_SLASH = re.compile(rf"hf://{_REPO}(?:@{_REVISION})?(?:/(?P<file>.+))?", re.A)
_PAGE = re.compile(
    rf"/{_REPO}(?:/(?:tree|blob|resolve|raw)/(?P<revision>[^/]+)(?:/(?P<file>.+))?)?/?", re.A
)
_SUFFIXES = (".gguf", ".safetensors", ".json", ".model", ".txt")
_FORMS = "write hf:ORG/REPO, hf:ORG/REPO:FILE, hf:ORG/REPO@REVISION, a path, or https://..."


@dataclass(frozen=True)
class Ref:
    """A parsed name; one of *path*, *shipped*, *packaged*, *repo* and *url* is set."""

    text: str  # as the user wrote it
    path: Path | None = None  # a path on this machine, existing or not
    shipped: str = ""  # id of a model of this package
    packaged: str = ""  # id of a model inside other Python packages
    repo: str = ""  # repository on the hub
    revision: str = "main"  # branch, tag or commit of it
    file: str = ""  # file of it, a pattern, or empty
    url: str = ""  # address of a file elsewhere

    @property
    def name(self) -> str:
        """The name for messages, without secrets."""
        return trust.redact_url(self.url) if self.url else self.text

    @property
    def command(self) -> str:
        """The command that fetches it."""
        if self.url:
            return f"bitnet run {word(self.name)}"
        if self.packaged:
            return f"bitnet download-model {word(self.packaged)}"
        more = "" if self.revision == "main" else f" --rev {word(self.revision)}"
        more += f" --file {word(self.file)}" if self.file else ""
        return f"bitnet download-model {word(self.repo)}{more}"

    def folder(self, cache: Path) -> Path:
        """Folder in *cache* with links to its files."""
        if self.url:
            return cache / "models" / f"url-{hashlib.sha256(self.url.encode()).hexdigest()[:16]}"
        if self.packaged:
            return cache / "models" / self.packaged
        return cache / "models/hf" / f"{self.repo}@{quote(self.revision, safe='')}"


def names() -> list[str]:
    """Names of this package's models, then of the registry's."""
    return [*SHIPPED, *sources.PACKAGED, *sources.MODELS]


def parse(text: str) -> Ref:
    """The model or tokenizer that *text* means; a path if it is nothing else."""
    path = Path(text)
    with suppress(OSError, ValueError):
        if path.exists():
            return Ref(text, path=path)
    if text in names():
        if text in SHIPPED:
            return Ref(text, shipped=text)
        if text in sources.PACKAGED:
            return Ref(text, packaged=text)
        known = sources.MODELS[text]
        return Ref(text, repo=known.repo, revision=known.revision, file=known.file)
    if text.startswith(("http://", "https://")):
        return _from_address(text)
    if text.startswith("hf:"):
        match = (_SLASH if text.startswith("hf://") else _COLON).fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is not a repository on the hub", hint=_FORMS)
        return _from_match(text, match)
    # A mistyped path must not mean a repository: its folder exists.
    is_path = path.parent.is_dir() or text.lower().endswith(_SUFFIXES)
    if not is_path and trust.REPOSITORY.fullmatch(text):
        return Ref(text, repo=text)
    return Ref(text, path=path)


def _from_match(text: str, match: Match[str]) -> Ref:
    groups = match.groupdict()
    revision = groups["revision"] or groups.get("late") or "main"
    return Ref(text, repo=groups["repo"], revision=unquote(revision), file=groups["file"] or "")


def _from_address(text: str) -> Ref:
    """A repository, if *text* is an address of the hub, else the file there."""
    try:
        url = trust.address(text)
    except ValueError as error:
        problem = settings.without_login(text)
        raise UsageError(f"{problem!r} is not an address: {error}", hint=_FORMS) from None
    if trust.is_hub(url, settings.hf_endpoint().partition(",")[0]):
        match = _PAGE.fullmatch(unquote(urlsplit(url).path))
        if match is not None:
            return _from_match(text, match)
    if not urlsplit(url).path.strip("/"):
        raise UsageError(f"{trust.redact_url(url)!r} is not the address of a file", hint=_FORMS)
    return Ref(text, url=url, file=unquote(urlsplit(url).path).rstrip("/").rpartition("/")[2])
