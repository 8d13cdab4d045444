"""Names of models and tokenizers, as users write them, parsed in one place.

models/x.gguf                        a path, always where one exists
smollm2-135m                         a name of this package or its registry
ORG/REPO[:TAG]                       a repository on the hub, unless the folder ORG exists here
hf:ORG/REPO[:TAG][@REVISION]         the same; TAG is a quantization such as Q4_K_M
hf:ORG/REPO[:FILE][@REVISION]        the same; FILE may be a pattern such as *Q4_K_M*
hf:ORG/REPO[@REVISION][:FILE]        the same, as messages write it; also with :TAG
hf://ORG/REPO[@REVISION][/FILE]      the same, as other programs write it
hf.co/ORG/REPO[:TAG]                 the same
https://huggingface.co/ORG/REPO...   the same, as a browser shows its page
https://HOST/FILE                    a file at an address

A page of the hub means the repository, so it is fetched from HF_ENDPOINT like any other.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, unquote, urlsplit

from bitnet import sources
from bitnet.base import settings, trust
from bitnet.base.errors import UsageError
from bitnet.base.files import exists, path_of
from bitnet.base.invocation import shell_quote
from bitnet.formats.gguf_names import whole_name
from bitnet.hub.tags import has_tag, is_tag
from bitnet.shipped import SHIPPED
from bitnet.store import tree

if TYPE_CHECKING:
    from re import Match

_REPO = rf"(?P<repo>{trust.REPOSITORY.pattern})"
_REVISION = r"(?P<revision>[^:@/]+)"
# The forms hf:..., where a revision may also be last (*late*), hf://..., and the path of a page.
_COLON = re.compile(
    rf"hf:{_REPO}(?:@{_REVISION})?(?::(?P<colon>.+?))?(?:@(?P<late>[^:@/]+))?", re.A
)
_SLASH = re.compile(rf"hf://{_REPO}(?:@{_REVISION})?(?:/(?P<file>.+))?", re.A)
_PAGE = re.compile(
    rf"/{_REPO}(?::(?P<colon>[^:/]+)"
    r"|/(?P<kind>tree|blob|resolve|raw)/(?P<revision>[^/]+)(?:/(?P<file>.+))?)?/?",
    re.A,
)
_HUB = "https://huggingface.co"
_WITHOUT_SCHEME = re.compile(r"(?:(?:www\.)?huggingface\.co|hf\.co)/", re.IGNORECASE)
_SUFFIXES = (".gguf", ".safetensors", ".json", ".model", ".txt")
_LONGEST_KEY = 100  # characters of a name that are legible in the key of a tokenizer
_FORMS = "write hf:ORG/REPO, hf:ORG/REPO:TAG, hf:ORG/REPO:FILE, a path, or https://..."


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
    tag: str = ""  # quantization of it, or empty; with a tag, *file* is empty
    url: str = ""  # address of a file elsewhere

    @property
    def name(self) -> str:
        """The name for messages, without secrets."""
        return trust.redact_url(self.url) if self.url else self.text

    @property
    def command(self) -> str:
        """The command that fetches it."""
        if self.url:
            return f"bitnet run {shell_quote(self.name)}"
        if self.packaged:
            return f"bitnet download-model {shell_quote(self.packaged)}"
        name = f"{self.repo}:{self.tag}" if self.tag else self.repo
        more = "" if self.revision == "main" else f" --rev {shell_quote(self.revision)}"
        more += f" --file {shell_quote(self.file)}" if self.file else ""
        return f"bitnet download-model {shell_quote(name)}{more}"

    def name_of(self, file: str) -> str:
        """The name, for a shell, of *file* or of a quantization of its repository and revision."""
        revision = "" if self.revision == "main" else f"@{quote(self.revision, safe='')}"
        return shell_quote(f"hf:{self.repo}{revision}:{file}")

    def means(self, file: str) -> bool:
        """True if this ref means *file* of its repository: by a tag, by its path, or as any file.

        A part of a split model means all of them. Other patterns are not matched.
        """
        if self.tag:
            return has_tag(file, self.tag)
        return not self.file or whole_name(self.file) == whole_name(file)

    def folder(self, cache: Path) -> Path:
        """Folder in *cache* with links to its files."""
        if self.url:
            return tree.models_folder(cache) / address_key(self.url)
        if self.packaged:
            return tree.models_folder(cache) / self.packaged
        return tree.models_folder(cache) / "hf" / f"{self.repo}@{quote(self.revision, safe='')}"

    @property
    def tokenizer_name(self) -> str:
        """Name in the cache of a tokenizer's file, which decides its reader; empty if not known."""
        if not self.url:
            return path_of(self.file).name if self.file else ""
        fits = self.file.endswith((".json", ".model", ".txt"))
        return str(path_of(self.file)) if fits else "tokenizer.json"

    def tokenizer_folder(self, cache: Path) -> Path:
        """Folder in *cache* of the tokenizer that it means, and of no other.

        A ref that names no file of its repository has a folder of its own: which of the files is
        the tokenizer must be decided, whatever was fetched by name before.
        """
        key = address_key(self.url)
        if not self.url:
            name = f"hub-{self.repo}@{self.revision}/{self.file}".rstrip("/")
            readable = re.sub(r"[^\w.@-]+", "--", name, flags=re.ASCII)[:_LONGEST_KEY]
            exact = json.dumps([self.repo, self.revision, self.file])
            key = f"{readable}-{hashlib.sha256(exact.encode()).hexdigest()[:16]}"
        return tree.tokenizer_path(cache, key, "tokenizer.json").parent


def address_key(url: str) -> str:
    """Name in the cache of the file at *url*: a digest, because *url* may contain a secret."""
    return f"url-{hashlib.sha256(url.encode()).hexdigest()[:16]}"


def names() -> list[str]:
    """Names of this package's models, then of the registry's."""
    return [*SHIPPED, *sources.PACKAGED, *sources.MODELS]


def parse(text: str) -> Ref:
    """The model or tokenizer that *text* means; a path if it is nothing else."""
    path = Path(text)
    if exists(path):
        return Ref(text, path=path)
    if text in names():
        if text in SHIPPED:
            return Ref(text, shipped=text)
        if text in sources.PACKAGED:
            return Ref(text, packaged=text)
        listed = sources.MODELS[text]
        return Ref(text, repo=listed.repo, revision=listed.revision, file=listed.file)
    if text.startswith(("http://", "https://")):
        return _from_address(text, text)
    if text.startswith("hf:"):
        match = (_SLASH if text.startswith("hf://") else _COLON).fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is not a repository on the hub", hint=_FORMS)
        return _from_match(text, match)
    # A name in an existing folder is a mistyped path, and must not mean a repository.
    is_in_folder = exists(path.parent) and path.parent.is_dir()
    if is_in_folder or text.lower().endswith(_SUFFIXES):
        return Ref(text, path=path)
    if _WITHOUT_SCHEME.match(text):
        return _from_address(f"https://{text}", text)
    repo, colon, tag = text.partition(":")
    if trust.REPOSITORY.fullmatch(repo) and (is_tag(tag) or not colon):
        return Ref(text, repo=repo, tag=_read_tag(tag))
    return Ref(text, path=path)


def _read_tag(text: str) -> str:
    """The quantization that *text* means; empty for ``latest``, other programs' default tag."""
    return "" if text.lower() == "latest" else text


def _from_match(text: str, match: Match[str]) -> Ref:
    """The repository in *match* of one of the patterns above, with its revision and files."""
    groups = match.groupdict()
    revision = groups["revision"] or groups.get("late") or "main"
    ref = Ref(text, repo=groups["repo"], revision=unquote(revision))
    file = groups.get("file") or ""
    after_colon = groups.get("colon") or ""
    if "kind" in groups:  # from an address, whose characters may be quoted
        file = unquote(file)
        after_colon = unquote(after_colon)
    if groups.get("kind") == "tree":  # the page of a folder, such as one with parts of a model
        after_colon = file
    if is_tag(after_colon):
        return replace(ref, tag=_read_tag(after_colon))
    return replace(ref, file=file or after_colon)


def _from_address(address: str, text: str) -> Ref:
    """The repository, if *address* is a page of the hub, else the file at *address*.

    *text* is what the user typed: *address*, or *address* without its scheme.
    """
    try:
        url = trust.address(address)
    except ValueError as error:
        problem = settings.without_login(text)
        raise UsageError(f"{problem!r} is not an address: {error}", hint=_FORMS) from None
    if (match := _PAGE.fullmatch(_path_on_hub(url))) is not None:
        ref = _from_match(text, match)
        # A page that shows the details of a file names it in the query.
        files = parse_qs(urlsplit(url).query).get("show_file_info", [])
        return replace(ref, file=files[0]) if files and not ref.file else ref
    if not urlsplit(url).path.strip("/"):
        raise UsageError(f"{trust.redact_url(url)!r} is not the address of a file", hint=_FORMS)
    return Ref(
        text if text == address else url,
        url=url,
        file=unquote(urlsplit(url).path).rstrip("/").rpartition("/")[2],
    )


def _path_on_hub(url: str) -> str:
    """Quoted path of *url* below the address of the hub it is on; empty if it is not on one."""
    path = _requote_path(url)
    endpoint = settings.hf_endpoint().partition(",")[0]
    if trust.is_hub(url, endpoint):
        prefix = _requote_path(endpoint)
        if path.startswith(f"{prefix}/"):
            return path.removeprefix(prefix)
    return path if trust.is_hub(url, _HUB) else ""


def _requote_path(url: str) -> str:
    """Path of *url*, in which a character is quoted only if it must be, such as a slash."""
    return "/".join(quote(unquote(part), safe=":") for part in urlsplit(url).path.split("/"))


def suggest_names(text: str) -> str:
    """Hint for a user who typed *text*, which is not a model: names near it, or of its family."""
    typed = text.lower()
    near = difflib.get_close_matches(typed, names(), n=2, cutoff=0.7)
    if near:
        return f"did you mean {' or '.join(near)}? `bitnet models` lists the names"
    related = [name for name in names() if is_related(name, text)]
    if related:
        return (
            f"models like that: {', '.join(related)}; more on the hub: "
            f"bitnet search {shell_quote(text)}"
        )
    return f"`bitnet models` lists the names; on the hub: bitnet search {shell_quote(text)}"


def is_related(name: str, text: str) -> bool:
    """True if the model *name*, one of :func:`names`, is called *text* or of that family."""
    if name in SHIPPED:
        return contains(text, name, SHIPPED[name].family)
    source = sources.PACKAGED.get(name) or sources.MODELS[name]
    return contains(text, name, source.family, source.repo, source.file)


def contains(text: str, *described: str) -> bool:
    """True if one of the texts *described* contains *text*; only letters and digits count.

    So ``llama3.2`` is in ``Llama-3.2-1B``. An empty *text* is in every text.
    """
    return any(_letters(text) in _letters(each) for each in described)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
