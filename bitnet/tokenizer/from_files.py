"""Tokenizers in files of their own, whose format is recognised by content."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat, TokenizerNotFound, Unsupported
from bitnet.formats import not_a_model
from bitnet.formats.inventory import Inventory
from bitnet.tokenizer import vocabularies
from bitnet.tokenizer.merges import LazySequence, parse_merges
from bitnet.tokenizer.sentencepiece_model import parse_model
from bitnet.tokenizer.side_files import SideFiles, read_bytes, read_json, read_side_files
from bitnet.tokenizer.spec import (
    END_OF_GENERATION,
    AddedToken,
    Step,
    TokenizerSpec,
    TokenType,
)
from bitnet.tokenizer.tiktoken_file import (
    is_tekken,
    looks_like_ranks,
    spec_from_ranks,
    spec_from_tekken,
)
from bitnet.tokenizer.tokenizer_json import spec_from_tokenizer_json
from bitnet.tokenizer.vocabularies import pre_tokenizer

if TYPE_CHECKING:
    import os

logger = logging.getLogger(__name__)

_UNKNOWN, _CONTROL = TokenType.UNKNOWN, TokenType.CONTROL
_USER_DEFINED = TokenType.USER_DEFINED
_USUAL_SPECIAL = END_OF_GENERATION | {"<s>", "<pad>", "<unk>", "<mask>"}
_GPT2_CLASSES = ("GPT2Tokenizer", "RobertaTokenizer", "GPT2TokenizerFast", "RobertaTokenizerFast")


def spec_from_file(
    path: str | os.PathLike[str], *, pre: str | None = None, files: Inventory | None = None
) -> TokenizerSpec:
    """The tokenizer in one file of any name.

    *path* is a ``tokenizer.json``, ``tekken.json``, SentencePiece model, tiktoken rank file,
    ``vocab.json`` (next to ``merges.txt``) or ``vocab.txt``. *pre* overrides the pre-tokenizer
    of a byte-level vocabulary, if the file has none; *files* are those of its folder, if some
    have been read.
    """
    path = Path(path)
    files = files or Inventory(path.parent)
    data = read_bytes(files, path.name)
    if path.name in ("vocab.json", "merges.txt"):
        return spec_from_vocab_merges(path.parent, pre=pre, files=files)
    if data[:64].lstrip()[:1] == b"{":
        document = read_json(files, path.name)
        if is_tekken(document):
            return spec_from_tekken(path, document, files, pre=pre)
        return spec_from_tokenizer_json(path, document, files=files)
    if path.suffix == ".txt" and not looks_like_ranks(data):
        return spec_from_vocab_txt(path, files=files)
    return spec_from_tokenizer_model(path, pre=pre, files=files)


def spec_from_folder(
    path: str | os.PathLike[str], *, pre: str | None = None, files: Inventory | None = None
) -> TokenizerSpec:
    """The tokenizer of a model folder.

    Originals take precedence over conversions: ``tokenizer.model`` and ``tekken.json`` before
    ``tokenizer.json``; then ``vocab.json`` with ``merges.txt``, then ``vocab.txt``.
    """
    folder = Path(path)
    files = files or Inventory(folder)
    if "tokenizer.model" in files:
        spec = spec_from_tokenizer_model(folder / "tokenizer.model", pre=pre, files=files)
    elif "tekken.json" in files:
        spec = spec_from_file(folder / "tekken.json", pre=pre, files=files)
    elif "tokenizer.json" in files:
        spec = spec_from_tokenizer_json(folder / "tokenizer.json", files=files)
    elif "vocab.json" in files and "merges.txt" in files:
        spec = spec_from_vocab_merges(folder, pre=pre, files=files)
    elif "vocab.txt" in files:
        spec = spec_from_vocab_txt(folder / "vocab.txt", files=files)
    elif "vocab.json" in files:
        raise Unsupported(
            f"{folder} has a vocab.json without merges.txt, like a CTC model of speech: it does not"
            " say how text becomes tokens",
            hint="name the model's own tokenizer.json with --tokenizer FILE",
        )
    else:
        raise TokenizerNotFound(
            "No compatible tokenizer found. Looked for:\n"
            " - tokenizer.model (SentencePiece)\n"
            " - tokenizer.json (HuggingFace format)\n"
            " - tekken.json (Mistral)\n"
            f"in {folder}",
            hint="put one of them there, or name a file with --tokenizer FILE",
        )
    logger.info("tokenizer found: %s (%s)", spec.source, spec.model)
    return spec


def spec_from_tokenizer_model(
    path: str | os.PathLike[str], *, pre: str | None = None, files: Inventory | None = None
) -> TokenizerSpec:
    """The tokenizer in a ``tokenizer.model``: SentencePiece or tiktoken ranks, by its content."""
    path = Path(path)
    files = files or Inventory(path.parent)
    data = read_bytes(files, path.name)
    if looks_like_ranks(data):
        return spec_from_ranks(path, pre=pre, files=files)
    if data[:1] != b"\n":  # tag of a piece, the first field of every SentencePiece model
        raise _other_kind(path, data[:32])
    return _sentencepiece(path, data, read_side_files(files))


def _other_kind(path: Path, head: bytes) -> InvalidFormat:
    if path.suffix == ".gguf":  # intended as a model
        return not_a_model.other_kind(head, path.name)
    neither = f"{path} is neither a SentencePiece model nor a tiktoken rank file"
    if known := not_a_model.kind_from_head(head):
        what, hint = known
        return InvalidFormat(f"{neither} but {what}", hint=hint)
    return InvalidFormat(
        f"{neither}: it begins with {head!r}",
        hint="fetch the file again, or name a tokenizer.json with --tokenizer FILE",
    )


def _sentencepiece(path: Path, data: bytes, side: SideFiles) -> TokenizerSpec:
    model = parse_model(data, source=str(path))
    tokens, types, scores = list(model.pieces), list(model.types), list(model.scores)
    own = len(tokens)
    more = {token.id: token for token in side.added}
    for id in range(own, max(more, default=-1) + 1):
        tokens.append(more[id].text if id in more else "")
        types.append(_CONTROL)
        scores.append(0.0)
    bpe = model.kind == 2
    # A Unigram model prefers its user-defined pieces but does not split at them.
    cut = (_UNKNOWN, _CONTROL, _USER_DEFINED) if bpe else (_UNKNOWN, _CONTROL)
    added = {
        id: AddedToken(id, piece, special=kind != _USER_DEFINED, normalized=kind == _USER_DEFINED)
        for id, (piece, kind) in enumerate(zip(model.pieces, model.types, strict=True))
        if kind in cut
    }
    added.update((id, token) for id, token in more.items() if token.text == tokens[id])
    bos, eos, unknown = (
        id if id >= 0 else None for id in (model.bos_id, model.eos_id, model.unknown_id)
    )
    is_t5 = "T5" in str(side.config.get("tokenizer_class", ""))
    by_text = {tokens[id]: id for id in added}
    spec = TokenizerSpec(
        model="spm" if bpe else "unigram",
        tokens=tokens,
        scores=scores,
        token_types=types,
        added=tuple(added[id] for id in sorted(added)),
        byte_fallback=model.byte_fallback,
        add_space_prefix=model.add_dummy_prefix,
        remove_extra_whitespaces=model.remove_extra_whitespaces,
        charsmap=model.charsmap,
        unknown_id=unknown,
        unknown_text=model.unknown_text,
        source=str(path),
        **side.ends(by_text, bos=(bos, bpe), eos=(eos, is_t5)),
    )
    return side.complete(spec, data)


def spec_from_vocab_merges(
    folder: str | os.PathLike[str], *, pre: str | None = None, files: Inventory | None = None
) -> TokenizerSpec:
    """The byte-level BPE in ``vocab.json`` and ``merges.txt``."""
    folder = Path(folder)
    files = files or Inventory(folder)
    path = folder / "vocab.json"
    vocabulary = read_json(files, "vocab.json")
    if not isinstance(vocabulary, dict) or sorted(vocabulary.values()) != list(
        range(len(vocabulary))
    ):
        raise InvalidFormat(f"{path} is not a vocabulary: ids from 0 on by token are expected")
    merges_data = read_bytes(files, "merges.txt")
    lines = merges_data.decode("utf-8", "replace").split("\n")
    lines = [line.removesuffix("\r") for line in lines if not line.startswith("#version")]
    lines = [line for line in lines if line]
    side = read_side_files(files)
    name = _pre_of(lines, side, path, pre)
    kind = pre_tokenizer(name)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    added = _special_of(vocabulary, side)
    tokens += [""] * (max((token.id for token in added), default=-1) + 1 - len(tokens))
    for token in added:
        tokens[token.id] = token.text
    by_text = {token.text: token.id for token in added}
    spec = TokenizerSpec(
        model="bpe",
        tokens=tokens,
        merges=LazySequence(len(lines), lambda: parse_merges(lines, tokens), raw=lines),
        added=added,
        normalizer=kind.normalizer,
        pre_tokenizer=kind.steps,
        byte_level=True,
        ignore_merges=kind.ignore_merges,
        pre=name,
        source=str(path),
        **side.ends(by_text, bos=(None, False), eos=(None, False)),
    )
    return side.complete(spec, read_bytes(files, "vocab.json"), merges_data)


def _pre_of(lines: list[str], side: SideFiles, path: Path, pre: str | None) -> str:
    if any(line.endswith("</w>") for line in lines):
        raise Unsupported(
            f"{path} is a vocabulary like CLIP's, with the ends of words in its tokens: it does not"
            " say how text is normalized and cut",
            hint="name the model's own tokenizer.json with --tokenizer FILE",
        )
    if pre:
        return pre
    known = vocabularies.identify_merges(len(lines), lambda: vocabularies.fingerprint(lines))
    if known is not None:
        return known.pre
    if side.config.get("tokenizer_class") in _GPT2_CLASSES:
        return "gpt-2"
    raise TokenizerNotFound(
        f"{path} and its {len(lines):,} merges are not a known vocabulary, and the files do not"
        " say how text is cut into words",
        hint="say which with --pre NAME, or name the model's own tokenizer.json",
    )


def _special_of(vocabulary: dict[str, Any], side: SideFiles) -> tuple[AddedToken, ...]:
    tokens = {
        vocabulary[text]: AddedToken(vocabulary[text], text)
        for text in _USUAL_SPECIAL
        if text in vocabulary
    }
    tokens.update((token.id, token) for token in side.added)
    return tuple(tokens[id] for id in sorted(tokens))


def spec_from_vocab_txt(
    path: str | os.PathLike[str], *, files: Inventory | None = None
) -> TokenizerSpec:
    """BERT's WordPiece in a ``vocab.txt``: one token a line."""
    path = Path(path)
    files = files or Inventory(path.parent)
    data = read_bytes(files, path.name)
    try:
        tokens = data.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise InvalidFormat(f"{path} is not UTF-8 at byte {error.start}") from None
    tokens = [token.removesuffix("\r") for token in tokens]
    side = read_side_files(files)
    ids = {token: id for id, token in enumerate(tokens)}
    missing = [name for name in ("[UNK]", "[CLS]", "[SEP]") if name not in ids]
    if missing:
        raise InvalidFormat(f"{path} is not a WordPiece vocabulary: it lacks {', '.join(missing)}")
    lowercase = side.config.get("do_lower_case")
    if not isinstance(lowercase, bool):
        # A vocabulary that can spell capital letters comes from cased text.
        special = {id for token, id in ids.items() if token.startswith("[")}
        lowercase = not any(
            char.isascii() and char.isupper()
            for id, token in enumerate(tokens)
            if id not in special
            for char in token
        )
    options: dict[str, object] = {
        "clean_text": True,
        "handle_chinese_chars": side.config.get("tokenize_chinese_chars", True) is not False,
        "strip_accents": side.config.get("strip_accents"),
        "lowercase": lowercase,
    }
    names = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    spec = TokenizerSpec(
        model="wordpiece",
        tokens=tokens,
        added=tuple(AddedToken(ids[name], name) for name in names if name in ids),
        normalizer=(Step("BertNormalizer", options),),
        pre_tokenizer=(Step("BertPreTokenizer"),),
        unknown_id=ids["[UNK]"],
        continuing_prefix="##",
        bos_id=ids["[CLS]"],
        eos_id=ids["[SEP]"],
        add_bos=True,
        add_eos=True,
        source=str(path),
    )
    return side.complete(spec, data)
