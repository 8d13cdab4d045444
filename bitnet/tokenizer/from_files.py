"""Tokenizers in files of their own, whose format is recognised by content."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat, TokenizerNotFound
from bitnet.formats import not_a_model
from bitnet.formats.inventory import Inventory
from bitnet.tokenizer import vocabularies
from bitnet.tokenizer.limits import damage_error, json_fault, refusal
from bitnet.tokenizer.merges import LazySequence, parse_merges
from bitnet.tokenizer.sentencepiece_model import spec_from_sentencepiece
from bitnet.tokenizer.spec import (
    END_OF_GENERATION,
    AddedToken,
    TokenizerSpec,
    bert_spec,
    parse_added_token,
    stop_ids,
)
from bitnet.tokenizer.tiktoken_file import (
    RANK_LINE,
    is_tekken,
    spec_from_ranks,
    spec_from_tekken,
)
from bitnet.tokenizer.tokenizer_json import spec_from_tokenizer_json
from bitnet.tokenizer.vocabularies import bpe_spec, spec_key

if TYPE_CHECKING:
    import os

logger = logging.getLogger(__name__)

# Originals take precedence over conversions.
TOKENIZER_FILES = ("tokenizer.model", "tekken.json", "tokenizer.json", "vocab.json", "vocab.txt")
_USUAL_SPECIAL = END_OF_GENERATION | {"<s>", "<pad>", "<unk>", "<mask>"}
_GPT2_CLASSES = ("GPT2Tokenizer", "RobertaTokenizer", "GPT2TokenizerFast", "RobertaTokenizerFast")
# Files beside a tokenizer's that may be read.
SIDE_FILES = (
    *("special_tokens_map.json", "tokenizer_config.json", "added_tokens.json"),
    *("generation_config.json", "config.json", "chat_template.jinja", "chat_template.json"),
)

# Roles in Hugging Face's files; usual names in vocabularies if no file names them.
_USUAL = {
    "bos": "<|begin_of_text|> <|begin_of_sentence|> <｜begin▁of▁sentence｜> <bos> <s>",
    "eos": "<|end_of_text|> <｜end▁of▁sentence｜> <|endoftext|> <eos> </s> <|return|>",
}


def spec_from_file(
    path: str | os.PathLike[str], *, pre: str | None = None, files: Inventory | None = None
) -> TokenizerSpec:
    """The tokenizer in one file of any name, whose format is found by its content.

    *pre* is the pre-tokenizer of a byte-level vocabulary whose file has none; *files* are those of
    its folder, if some have been read.
    """
    file = TokenizerFile(Path(path), pre, files)
    name, data = file.path.name, file.data
    if name in ("vocab.json", "merges.txt"):
        return _vocab_merges(file)
    if name == "tokenizer.json" or data[:64].lstrip()[:1] == b"{":
        return (
            spec_from_tekken(file) if is_tekken(file.document) else spec_from_tokenizer_json(file)
        )
    if RANK_LINE.match(data):
        return spec_from_ranks(file)
    if file.path.suffix == ".txt":
        return _vocab_txt(file)
    if data[:1] != b"\n":  # tag of a piece, the first field of every SentencePiece model
        raise _other_kind(file.path, data[:32])
    return spec_from_sentencepiece(file)


def spec_from_folder(
    path: str | os.PathLike[str], *, pre: str | None = None, files: Inventory | None = None
) -> TokenizerSpec:
    """The tokenizer of a model folder: the first of :data:`TOKENIZER_FILES` that is complete."""
    folder = Path(path)
    files = files or Inventory(folder)
    names = [name for name in TOKENIZER_FILES if name in files]
    if "vocab.json" in names and "merges.txt" not in files:  # as of CTC models of speech
        names.remove("vocab.json")
    if not names:
        raise TokenizerNotFound(
            "No compatible tokenizer found. Looked for:\n"
            " - tokenizer.model (SentencePiece)\n"
            " - tokenizer.json (HuggingFace format)\n"
            " - tekken.json (Mistral)\n"
            f"in {folder}",
            hint="put one of them there, or name a file with --tokenizer FILE",
        )
    spec = spec_from_file(folder / names[0], pre=pre, files=files)
    logger.info("tokenizer found: %s (%s)", spec.source, spec.model)
    return spec


def _other_kind(path: Path, head: bytes) -> InvalidFormat:
    if path.suffix == ".gguf":  # intended as a model
        return not_a_model.other_kind(head, path.name)
    neither = f"{path} is neither a SentencePiece model nor a tiktoken rank file"
    if known := not_a_model.kind_from_head(head):
        what, hint = known
        return InvalidFormat(f"{neither} but {what}", hint=hint)
    return damage_error(f"{neither}: it begins with {head!r}")


def _vocab_merges(file: TokenizerFile) -> TokenizerSpec:
    """The byte-level BPE in ``vocab.json`` and ``merges.txt``."""
    vocab, merges = (
        TokenizerFile(file.path.with_name(name), file.pre, file.files)
        for name in ("vocab.json", "merges.txt")
    )
    vocabulary, side = vocab.document, vocab.side
    are_ids = isinstance(vocabulary, dict) and sorted(vocabulary.values()) == [
        *range(len(vocabulary))
    ]
    if not are_ids:
        raise damage_error(f"{vocab.path} is not a vocabulary: ids from 0 on by token are expected")
    lines = [line.removesuffix("\r") for line in merges.data.decode("utf-8", "replace").split("\n")]
    lines = [line for line in lines if line and not line.startswith("#version")]
    name = _recognize_pre(lines, vocab)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    usual = (text for text in _USUAL_SPECIAL if text in vocabulary)
    special = {vocabulary[text]: AddedToken(vocabulary[text], text) for text in usual}
    special.update((token.id, token) for token in side.added)
    tokens += [""] * (max(special, default=-1) + 1 - len(tokens))
    for token in special.values():
        tokens[token.id] = token.text
    by_text = {token.text: id for id, token in sorted(special.items())}
    spec = bpe_spec(
        name,
        tokens=tokens,
        merges=LazySequence(len(lines), lambda: parse_merges(lines, tokens), raw=lines),
        added=tuple(special[id] for id in sorted(special)),
        byte_level=True,
        source=str(vocab.path),
        **side.ends(by_text, bos=(None, False), eos=(None, False)),
    )
    return side.complete(spec, vocab.data, merges.data)


def _recognize_pre(lines: list[str], vocab: TokenizerFile) -> str:
    if any(line.endswith("</w>") for line in lines):
        raise refusal(
            f"{vocab.path} is a vocabulary like CLIP's, with the ends of words in its tokens: it"
            " does not say how text is normalized and cut"
        )
    if vocab.pre:
        return vocab.pre
    known = vocabularies.identify_merges(len(lines), lambda: vocabularies.fingerprint(lines))
    if known is not None:
        return known.pre
    if vocab.side.config.get("tokenizer_class") in _GPT2_CLASSES:
        return "gpt-2"
    raise TokenizerNotFound(
        f"{vocab.path} and its {len(lines):,} merges are not a known vocabulary, and the files do"
        " not say how text is cut into words",
        hint="say which with --pre NAME, or name the model's own tokenizer.json",
    )


def _vocab_txt(file: TokenizerFile) -> TokenizerSpec:
    """BERT's WordPiece in a ``vocab.txt``: one token a line."""
    try:
        lines = file.data.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise damage_error(f"{file.path} is not UTF-8 at byte {error.start}") from None
    tokens = [line.removesuffix("\r") for line in lines]
    ids = {token: id for id, token in enumerate(tokens)}
    if missing := [name for name in ("[UNK]", "[CLS]", "[SEP]") if name not in ids]:
        lacks = ", ".join(missing)
        raise damage_error(f"{file.path} is not a WordPiece vocabulary: it lacks {lacks}")
    config = file.side.config
    lowercase = config.get("do_lower_case")
    if not isinstance(lowercase, bool):
        lowercase = not vocabularies.is_cased(tokens)
    names = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    spec = bert_spec(
        tokens,
        lowercase=lowercase,
        strip_accents=config.get("strip_accents"),
        chinese=config.get("tokenize_chinese_chars", True) is not False,
        added=tuple(AddedToken(ids[name], name) for name in names if name in ids),
        unknown_id=ids["[UNK]"],
        bos_id=ids["[CLS]"],
        eos_id=ids["[SEP]"],
        source=str(file.path),
    )
    return file.side.complete(spec, file.data)


class TokenizerFile:
    """The file at *path*; *pre* is the pre-tokenizer that a caller names for it.

    *files* are those of its folder, if some have been read.
    """

    def __init__(self, path: Path, pre: str | None = None, files: Inventory | None = None) -> None:
        self.path, self.pre = path, pre
        self.files = files or Inventory(path.parent)

    @cached_property
    def data(self) -> bytes:
        """Its content."""
        return _read_bytes(self.files, self.path.name)

    @cached_property
    def document(self) -> Any:
        """The JSON value in it."""
        return read_json(self.files, self.path.name)

    @cached_property
    def side(self) -> SideFiles:
        """The files next to it."""
        return _read_side_files(self.files)


@dataclass(frozen=True)
class SideFiles:
    """Facts from ``tokenizer_config.json`` and its siblings; empty if they do not exist."""

    config: dict[str, Any]  # ``tokenizer_config.json`` over ``special_tokens_map.json``
    added: tuple[AddedToken, ...]  # ``added_tokens_decoder`` or ``added_tokens.json``
    # ``eos_token_id`` of ``generation_config.json`` and ``config.json``
    declared_ends: tuple[int, ...]
    chat_template: str | None  # of the configuration, or of ``chat_template.jinja``
    raw: bytes  # all content that was read, for fingerprints

    def special_id(
        self, role: str, special: dict[str, int], default: int | None = None
    ) -> int | None:
        """Id of the token *role*, ``bos`` or ``eos``: configured, *default*, or by a usual name.

        *special* has ids by text; *default* is the id in the tokenizer's own file.
        """
        named = _named_text(self.config.get(f"{role}_token"))
        if named is not None:
            return special.get(named, default)
        if default is not None or f"{role}_token" in self.config:
            return default  # null: there is none
        return next((special[text] for text in _USUAL[role].split() if text in special), None)

    def adds(self, role: str) -> bool | None:
        """``add_bos_token`` or ``add_eos_token``, if the tokenizer's class follows it."""
        value = self.config.get(f"add_{role}_token")
        plain = self.config.get("tokenizer_class") in (None, "PreTrainedTokenizerFast")
        return value if isinstance(value, bool) and not plain else None

    def ends(
        self, special: dict[str, int], *, bos: tuple[int | None, bool], eos: tuple[int | None, bool]
    ) -> dict[str, Any]:
        """BOS and EOS of a specification, and whether they are put around a text.

        *special* has ids by text; *bos* and *eos* are the ids in the tokenizer's own file,
        each with True if it is put there by default.
        """
        fields: dict[str, Any] = {}
        for role, (default, is_added) in (("bos", bos), ("eos", eos)):
            id, adds = self.special_id(role, special, default), self.adds(role)
            fields[f"{role}_id"] = id
            fields[f"add_{role}"] = id is not None and (is_added if adds is None else adds)
        return fields

    def complete(self, spec: TokenizerSpec, *content: bytes) -> TokenizerSpec:
        """*spec* with its stop ids, its chat template, and the fingerprint of *content*."""
        special = {spec.tokens[token.id]: token.id for token in spec.added}
        eos = None if spec.model == "wordpiece" else spec.eos_id
        declared = (id for id in self.declared_ends if 0 <= id < spec.vocab_size)
        ends = stop_ids(special, (eos, *declared))
        spec = replace(spec, stop_ids=ends, chat_template=self.chat_template)
        return replace(spec, fingerprint=spec_key(spec, *content, self.raw))


def _read_side_files(files: Inventory) -> SideFiles:
    raw = {name: files.read(name) for name in SIDE_FILES if name in files}

    def load(name: str) -> dict[str, Any]:
        value = read_json(files, name) if name in raw else {}
        return value if isinstance(value, dict) else {}

    config = load("special_tokens_map.json") | load("tokenizer_config.json")
    ends: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = load(name).get("eos_token_id")
        ends += [id for id in (value if isinstance(value, list) else [value]) if type(id) is int]
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        entries = [entry for entry in template if isinstance(entry, dict)]
        named = {entry.get("name"): entry.get("template") for entry in entries}
        template = named.get("default", next(iter(named.values()), None))
    if not isinstance(template, str) and "chat_template.jinja" in raw:
        template = raw["chat_template.jinja"].decode("utf-8", "replace")
    elif not isinstance(template, str):
        template = load("chat_template.json").get("chat_template")
    return SideFiles(
        config=config,
        added=_read_added(config, load("added_tokens.json")),
        declared_ends=tuple(dict.fromkeys(ends)),
        chat_template=template if isinstance(template, str) else None,
        raw=b"".join(name.encode() + content for name, content in raw.items()),
    )


def _read_added(config: dict[str, Any], more: dict[str, Any]) -> tuple[AddedToken, ...]:
    decoder = config.get("added_tokens_decoder")
    tokens = {
        id: AddedToken(id, text, special=text.startswith("<|"), normalized=False)
        for text, id in more.items()
        if type(id) is int
    }
    if isinstance(decoder, dict):
        for key, entry in decoder.items():
            if str(key).isdigit() and isinstance(entry, dict) and _named_text(entry):
                tokens[int(key)] = parse_added_token(int(key), entry)
    return tuple(tokens[id] for id in sorted(tokens))


def _named_text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _read_bytes(files: Inventory, name: str) -> bytes:
    if data := files.read(name):
        return data
    raise InvalidFormat(f"{files.path(name)} is empty", hint="fetch the file again")


def read_json(files: Inventory, name: str) -> Any:
    """JSON value in the file *name*."""
    data, path = _read_bytes(files, name), files.path(name)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damage_error(f"Invalid JSON in {path}: {json_fault(error)}") from None
