"""Find the tokenizer of a model: the first place of the search with one that fits.

No connection is opened: if no place has one, the result names what could be fetched.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base import settings
from bitnet.base.errors import BitnetError, InvalidFormat, TokenizerNotFound, VocabMismatch
from bitnet.base.invocation import shell_quote
from bitnet.base.options import check_type
from bitnet.base.tables import quantity
from bitnet.formats import mapped_file
from bitnet.formats.checkpoint import Checkpoint, Inventory, resolve_unnamed
from bitnet.formats.containers import container_of, open_gguf
from bitnet.formats.gguf import GGUF
from bitnet.sources import TokenizerDownloadInfo, for_model
from bitnet.store import hugging_face, tree
from bitnet.tokenizer.from_files import tokenizer_names
from bitnet.tokenizer.load import (
    array_in,
    extract_tokenizer_from_gguf,
    load_tokenizer,
    mock_tokenizer,
)
from bitnet.tokenizer.model_origin import repository_of, text_of
from bitnet.tokenizer.probes import probe_texts
from bitnet.tokenizer.strategy import Strategy, TokenizerStrategy

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from bitnet.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# Embedding matrices are padded to round sizes. With this many spare rows or more, the vocabulary is
# taken for that of another model.
MAX_PADDING = 1024


@dataclass(frozen=True)
class ModelFacts:
    """Properties of a model that concern its tokenizer."""

    path: Path  # the GGUF file or the folder
    architecture: str  # ``general.architecture``, or ``model_type`` of ``config.json``
    declared: int | None  # vocabulary size in the metadata, ``None`` if absent (normal for GGUF)
    token_count: int  # tokens in the embedded list, 0 if there is none
    embedding_rows: int | None  # rows of the token embedding, ``None`` in files without weights
    filler_tokens: int = 0  # tokens ``[PAD151665]`` at the end of that list, for spare rows
    repository: str = ""  # repository named by the model, empty if unknown
    gguf: GGUF | None = None  # the open file; ``None`` for a folder
    files: Inventory | None = None  # of an open folder; ``None`` for others

    @property
    def vocab_size(self) -> int:
        """Number of ids: the embedded list, else the metadata, else the embedding rows."""
        size = self.token_count or self.declared or self.embedding_rows
        if not size and self.gguf is None:
            raise InvalidFormat(
                f"{self.path}: config.json has no vocab_size, or it is not a positive number",
                hint="compare config.json with the one that the model's author publishes",
            )
        if not size:
            raise InvalidFormat(
                f"{self.path}: no vocabulary size: neither tokenizer.ggml.tokens nor "
                f"{self.architecture}.vocab_size nor token_embd.weight is there",
                hint=f"bitnet inspect-gguf {shell_quote(self.path)}",
            )
        return size

    @property
    def folder(self) -> Path:
        """The folder with its files."""
        return self.path if self.gguf is None else self.path.parent

    @property
    def family(self) -> str:
        """The architecture, but ``bitnet`` for each that begins so, such as ``bitnet-b1.58``."""
        return "bitnet" if self.architecture.startswith("bitnet") else self.architecture

    def padding(self, vocab_size: int) -> int | None:
        """Number of spare embedding rows with *vocab_size* tokens; ``None`` if these do not fit."""
        if self.token_count not in (0, vocab_size, vocab_size + self.filler_tokens):
            return None
        rows = self.embedding_rows or self.declared or self.token_count
        spare = (rows or vocab_size) - vocab_size
        return spare if 0 <= spare < MAX_PADDING else None

    def tokens_beyond(self, tokenizer: Tokenizer) -> int:
        """Number of ids of *tokenizer* without a row, if all are added tokens; else 0.

        Fine-tuned folders have such tokens (``[PAD]`` behind 32,000 rows). As in transformers, they
        do no harm until one occurs: a prompt with one is refused, and no answer can have one.
        """
        rows = self.embedding_rows
        if self.gguf is not None or rows is None or tokenizer.vocab_size <= rows:
            return 0
        beyond = range(rows, tokenizer.vocab_size)
        are_added = len(beyond) < MAX_PADDING and all(map(tokenizer.is_added, beyond))
        return len(beyond) if are_added else 0


def model_facts(model: str | Path | Checkpoint) -> ModelFacts:
    """Facts of a model: a GGUF file, a folder with ``config.json`` or a safetensors file in it."""
    if isinstance(model, Checkpoint):
        path = model.path
        gguf = model.gguf
        files = model.inventory
        config = model.config or {}
    else:
        check_type("model", model, "a path or an open checkpoint", str, os.PathLike, Checkpoint)
        path = Path(model)
        if not path.exists():
            raise mapped_file.missing(path)
        gguf = None
        config = {}
        if not path.is_dir() and container_of(path) is not open_gguf:
            path = resolve_unnamed(path.parent)  # a safetensors file stands for its folder
        files = Inventory(path)
        if not path.is_dir():
            gguf = GGUF.open(path)
        elif "config.json" not in files:
            raise mapped_file.folder_without_model(path)
        else:
            config = files.json("config.json", dict)
    if gguf is None:
        inner_config = config.get("text_config")
        text_config = {**(inner_config if isinstance(inner_config, dict) else {}), **config}
        sizes = (_whole(text_config, key) for key in ("vocab_size", "padded_vocab_size"))
        declared = next(filter(None, sizes), None)  # the second name is ChatGLM's
        name = text_of(text_config, "model_type") or "unknown"
        repo = text_of(text_config, "_name_or_path")
        return ModelFacts(path, name, declared, 0, declared, repository=repo, files=files)
    tokens = array_in(gguf, "tokenizer.ggml.tokens", "strings") or ()
    embedding = gguf.tensors.get("token_embd.weight")
    end = len(tokens)
    while end and tokens[end - 1] == f"[PAD{end - 1}]":
        end -= 1
    return ModelFacts(
        path=gguf.path,
        architecture=gguf.architecture,
        declared=_whole(gguf.metadata, f"{gguf.architecture}.vocab_size"),
        token_count=len(tokens),
        embedding_rows=int(embedding.shape[0]) if embedding and embedding.shape else None,
        filler_tokens=len(tokens) - end,
        repository=repository_of(gguf.metadata),
        gguf=gguf,
    )


def _whole(metadata: Mapping[str, Any], key: str) -> int | None:
    """The value of *key* if it is a positive integer, else None."""
    value = metadata.get(key)
    return value if type(value) is int and value > 0 else None


@dataclass(frozen=True)
class Candidate:
    """One place of the search."""

    place: str  # ``embedded``, ``sibling``, ``parent``, ``cache`` ...
    path: Path  # the file in that place
    # ``chosen``, ``rejected``, ``absent`` or ``not needed``: an earlier place won or was refused
    verdict: str
    reason: str  # reason for the verdict, in words


@dataclass
class Search:
    """Result of :func:`search`."""

    model: ModelFacts  # the model's requirements
    candidates: list[Candidate] = field(default_factory=list)  # every place looked at, in order
    tokenizer: Tokenizer | None = None  # the chosen one
    place: str = ""  # the place where it was found
    path: Path = Path()  # its file; the model itself if it is embedded
    # The first candidate that was rejected, and the error that says why.
    refusal: tuple[Path, BitnetError] | None = None

    def note(self, place: str, path: Path, verdict: str, reason: str) -> None:
        """Add a candidate."""
        logger.debug("tokenizer candidate %s: %s: %s (%s)", place, path, verdict, reason)
        self.candidates.append(Candidate(place, path, verdict, reason))

    @property
    def present(self) -> str:
        """Place of the chosen tokenizer, in words; empty if there is none."""
        if self.tokenizer is None:
            return ""
        where = self.place if self.place == "embedded" else self.path
        return f"{where}, {self.tokenizer.vocab_size:,} tokens"

    @property
    def reason(self) -> str:
        """Reason why the first tokenizer found is unusable; empty if none was rejected."""
        return f"{self.refusal[0]}: {self.refusal[1].message}" if self.refusal else ""


def search(
    model: ModelFacts,
    *,
    explicit: Path | None = None,
    pre: str | None = None,
    exhaustive: bool = False,
    places: Container[str] = (),
) -> Search:
    """Look for the tokenizer of *model*, place by place.

    An *explicit* file is the only candidate. With *exhaustive* every place is looked at, even
    after one has won; *places* names those to look at, all when empty.
    """
    message = "Discovering tokenizer strategy for %s model (vocab_size: %d)"
    logger.info(message, model.family, model.vocab_size)
    logger.debug("model type: %s (%s)", model.family, model.path)
    outcome = Search(model)
    if explicit is not None:
        outcome.tokenizer = load_tokenizer(explicit, pre=pre)
        outcome.place = "explicit"
        outcome.path = explicit
        outcome.note("explicit", explicit, "chosen", check_vocab(model, outcome.tokenizer))
        return outcome
    for place, path in _places(model):
        if outcome.tokenizer is not None and not exhaustive:
            return outcome
        if not places or place in places:
            _consider(outcome, place, path, pre)
    return outcome


def _consider(outcome: Search, place: str, path: Path, pre: str | None) -> None:
    """Choose the tokenizer at *path*, or note why it is not chosen."""
    model = outcome.model
    if not path.exists():
        outcome.note(place, path, "absent", "no such file")
        return
    refusal = outcome.refusal
    if place == "sibling" and refusal is not None and refusal[0].parent == model.path:
        name = refusal[0].name
        outcome.note(place, path, "not needed", f"transformers reads {name}, which is refused")
        return
    if place == "embedded" and model.token_count == 0:
        outcome.note(place, path, "absent", "Missing tokenizer.ggml.tokens")
        return
    try:
        if place == "embedded":
            candidate = extract_tokenizer_from_gguf(model.gguf or path, pre=pre)
        else:
            files = model.files if path.parent == model.path else None
            candidate = load_tokenizer(path, pre=pre, files=files)
        reason = check_vocab(model, candidate)
    except BitnetError as error:
        outcome.note(place, path, "rejected", error.message)
        outcome.refusal = outcome.refusal or (path, error)
        return
    if outcome.tokenizer is None:
        outcome.tokenizer = candidate
        outcome.place = place
        outcome.path = path
        outcome.note(place, path, "chosen", reason)
        return
    difference = disagreement(outcome.tokenizer, candidate)
    verdict = "the same tokenizer"
    if difference:
        verdict = f"ANOTHER TOKENIZER than the one chosen: {difference}"
        logger.warning("%s is another tokenizer than %s: %s", path, outcome.path, difference)
    outcome.note(place, path, "not needed", f"{outcome.place} comes first; {verdict}")


def disagreement(chosen: Tokenizer, candidate: Tokenizer) -> str:
    """The first thing in which two tokenizers differ, empty if there is none.

    It compares the texts of all ids, special tokens, and ids and decoded texts of the probes.
    """
    if chosen.vocab_size != candidate.vocab_size:
        return f"{candidate.vocab_size:,} tokens, not {chosen.vocab_size:,}"
    different = different_ids(chosen, candidate)
    if different:
        return f"{quantity(len(different), 'id')} with another text, the first is {different[0]:,}"
    for what, mine, theirs in (
        ("special tokens", chosen.special_ids, candidate.special_ids),
        ("tokens that end an answer", chosen.stop_ids, candidate.stop_ids),
    ):
        if mine != theirs:
            return f"other {what}, the first is {min(mine ^ theirs):,}"
    for text in probe_texts():
        ids = chosen.encode(text)
        if ids != candidate.encode(text):
            return f"other ids for {text!r:.60}"
        if chosen.decode(ids) != candidate.decode(ids):
            return f"another text for the ids of {text!r:.60}"
    return ""


def different_ids(left: Tokenizer, right: Tokenizer) -> list[int]:
    """Ids in both vocabularies whose bytes differ, ascending."""
    shared = range(min(left.vocab_size, right.vocab_size))
    return [id for id in shared if left.spelling(id) != right.spelling(id)]


def check_vocab(model: ModelFacts, tokenizer: Tokenizer) -> str:
    """The reason why the vocabulary of *tokenizer* fits *model*, in words.

    A mismatch is a :class:`VocabMismatch`, or a warning if mismatches are permitted.
    """
    needed = model.token_count or model.vocab_size
    n_tokens = tokenizer.vocab_size
    spare = model.padding(n_tokens)
    if spare is not None:
        padded = f", {spare} padded embedding rows" if spare else ""
        return f"{n_tokens:,} tokens, as the model needs{padded}"
    beyond = model.tokens_beyond(tokenizer)
    if beyond:
        text = f"{n_tokens:,} tokens, the last {beyond:,} of them without a row of the embedding"
        logger.warning("%s: %s: a prompt with one of these is refused", tokenizer.source, text)
        return text
    if needed == n_tokens:  # the list of tokens fits, the embedding does not
        needed = model.embedding_rows or needed
    text = f"Vocabulary size mismatch: expected {needed}, got {n_tokens}"
    if settings.strict_tokenizers() is False:
        logger.warning("%s", text)
        return text
    raise VocabMismatch(
        f"{text} (Model: {needed}, Tokenizer: {n_tokens}): {tokenizer.source} is not the tokenizer "
        f"of {model.path.name}",
        hint=f"bitnet explain-tokenizer {shell_quote(model.path)}",
    )


def _places(model: ModelFacts) -> Iterator[tuple[str, Path]]:
    """Each place of the search with a file that may hold the tokenizer, in order."""
    folder = model.folder
    stem = model.path.stem
    names = ["tokenizer.json", "tokenizer.model", "tekken.json", f"{stem}.tokenizer.json"]
    if folder == model.path:
        names = tokenizer_names(model.files or Inventory(folder))
        names += [name for name in ("tokenizer.json", "tokenizer.model") if name not in names]
    else:
        yield "embedded", model.path
    for name in names:
        # These two are rare: they are not reported as absent.
        if name not in ("tekken.json", "vocab.json") or (folder / name).exists():
            yield "sibling", folder / name
    yield "parent", folder.absolute().parent / "tokenizer.json"
    if info := download_info(model):
        for name in info.files:
            yield "cache", tree.tokenizer_path(settings.cache_dir(), info.cache_key, name)
    if model.repository:
        for name in ("tekken.json", "tokenizer.json"):
            for path in hugging_face.snapshots_of(model.repository, name):
                yield "hugging face cache", path


def download_info(model: ModelFacts) -> TokenizerDownloadInfo | None:
    """The download of a tokenizer for *model*; ``None`` if no source has its vocabulary."""
    source = for_model(model.architecture, model.vocab_size)
    if source is None:
        return None
    files = ("tokenizer.json", "tokenizer.model") if model.family == "bitnet" else (source.file,)
    return TokenizerDownloadInfo(source.repo, files, source.cache_key, source.vocab_size)


def not_found(failed: Search) -> TokenizerNotFound:
    """Error for an unsuccessful search: the places searched, and what would help."""
    model = failed.model
    info = download_info(failed.model)
    places = "".join(
        f"\n - {candidate.place}: {candidate.path}: {candidate.reason}"
        for candidate in failed.candidates
    )
    hint = "name a tokenizer file: --tokenizer FILE"
    if failed.refusal is not None and failed.refusal[1].hint:
        hint = failed.refusal[1].hint
    elif info is not None:
        logger.info("Can download compatible tokenizer from: %s", info.repo)
        folder = model.folder
        command = f"bitnet pre-download-tokenizers --model-dir {shell_quote(folder)}"
        hint = f"fetch {info.repo}: add --auto-download, or {command}"
    return TokenizerNotFound(
        f"No compatible tokenizer found for {model.family} model with vocab_size "
        f"{model.vocab_size} (strict mode). Looked for:{places}",
        hint=hint,
    )


def resolve_tokenizer(
    model: str | Path | Checkpoint,
    explicit: str | Path | None = None,
    *,
    pre: str | None = None,
    allow_mock: bool = False,
) -> Tokenizer:
    """The exact tokenizer of *model*, or the one named, if it fits.

    Args:
        model: GGUF file, or folder with ``config.json``, or either when it is open.
        explicit: tokenizer file or folder; with one, nothing else is searched.
        pre: pre-tokenizer name to use instead of the GGUF file's.
        allow_mock: fall back to bytes, with a warning, unless ``BITNET_STRICT_TOKENIZERS=1``.

    Raises:
        TokenizerNotFound: no place has one that fits; the message lists every place.
        VocabMismatch: the explicit one does not fit.
    """
    check_type("explicit", explicit, "a path or None", str, os.PathLike, None)
    outcome = search(model_facts(model), explicit=Path(explicit) if explicit else None, pre=pre)
    if outcome.tokenizer is not None:
        return outcome.tokenizer
    if (allow_mock or settings.allow_mock()) and not settings.strict_tokenizers():
        logger.warning("MOCK tokenizer: its ids mean nothing to %s", outcome.model.path.name)
        return mock_tokenizer()
    raise not_found(outcome)


class TokenizerDiscovery:
    """Finds the tokenizer of one *model*, as :func:`resolve_tokenizer` takes it."""

    def __init__(self, model: str | Path | Checkpoint) -> None:
        self.model: ModelFacts = model_facts(model)

    @classmethod
    def from_gguf(cls, path: str | Path) -> TokenizerDiscovery:
        """The discovery for a GGUF file."""
        return cls(path)

    def model_type(self) -> str:
        """The model's family: ``llama``, ``bitnet``, ``gpt2`` ..."""
        return self.model.family

    def vocab_size(self) -> int:
        """Number of ids the tokenizer must have."""
        return self.model.vocab_size

    def discover_tokenizer_strategy(self) -> Strategy:
        """The way in which the model gets its tokenizer, one of :class:`TokenizerStrategy`."""
        outcome = search(self.model)
        if outcome.tokenizer is not None:
            if outcome.place == "embedded":
                return TokenizerStrategy.EmbeddedGguf(outcome.tokenizer)
            return TokenizerStrategy.Discovered(outcome.path)
        info = download_info(self.model)
        if info is not None:
            logger.info("Can download compatible tokenizer from: %s", info.repo)
            return TokenizerStrategy.NeedsDownload(info)
        if settings.allow_mock() and not settings.strict_tokenizers():
            return TokenizerStrategy.Mock()
        raise not_found(outcome)

    def discover(self) -> Path:
        """Path of the file with the tokenizer; the model itself if it is embedded."""
        outcome = search(self.model)
        if outcome.tokenizer is None:
            raise not_found(outcome)
        return outcome.path
