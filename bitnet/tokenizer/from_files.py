"""Tokenizers in files of their own, whose format is recognised by content."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat, TokenizerNotFound, Unsupported
from bitnet.base.invocation import shell_quote
from bitnet.formats import mapped_file
from bitnet.formats.checkpoint import Inventory
from bitnet.tokenizer import vocabularies
from bitnet.tokenizer.limits import damage_error, refusal
from bitnet.tokenizer.sentencepiece_model import spec_from_sentencepiece
from bitnet.tokenizer.side_files import TokenizerFile, read_json
from bitnet.tokenizer.spec import (
    END_OF_GENERATION,
    AddedToken,
    TokenizerSpec,
)
from bitnet.tokenizer.tiktoken_file import (
    RANK_LINE,
    is_tekken,
    spec_from_ranks,
    spec_from_tekken,
)
from bitnet.tokenizer.tokenizer_class import prefers_tekken
from bitnet.tokenizer.tokenizer_json import spec_from_tokenizer_json
from bitnet.tokenizer.vocabularies import LazySequence, bpe_spec, pair_merges

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection

logger = logging.getLogger(__name__)

# As transformers prefers them, with the exception in ``tokenizer_names``.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json")
# Files of two kinds of tokenizers: without tokenizer.json nothing says which one is the model's.
_UNDECIDED = (("tokenizer.model", "tekken.json"), ("tokenizer.model", "vocab.json"))
_USUAL_SPECIAL = END_OF_GENERATION | {"<s>", "<pad>", "<unk>", "<mask>"}
_GPT2_CLASSES = ("GPT2Tokenizer", "RobertaTokenizer", "GPT2TokenizerFast", "RobertaTokenizerFast")


def spec_from_file(
    path: str | os.PathLike[str], *, pre: str | None = None, files: Inventory | None = None
) -> TokenizerSpec:
    """The tokenizer in one file of any name, whose format is found by its content.

    *pre* is used where the file names no pre-tokenizer; *files* are those of its folder, if read.
    """
    file = TokenizerFile(Path(path), pre, files)
    name = file.path.name
    data = file.data
    if name in ("vocab.json", "merges.txt"):
        return _vocab_merges(file)
    if name == "tokenizer.json" or data[:64].lstrip()[:1] == b"{":
        return (
            spec_from_tekken(file) if is_tekken(file.document) else spec_from_tokenizer_json(file)
        )
    if RANK_LINE.match(data):
        return spec_from_ranks(file)
    if data[:1] != b"\n":  # tag of a piece, the first field of every SentencePiece model
        raise _other_kind(file.path, data[:32])
    return spec_from_sentencepiece(file)


def tokenizer_names(files: Inventory) -> list[str]:
    """Names of the tokenizer files in a folder, as :func:`order_names`."""
    present = [name for name in (*TOKENIZER_FILES, "merges.txt", "config.json") if name in files]
    return order_names(present, lambda: read_json(files, "config.json"), str(files.root))


def order_names(present: Collection[str], read_config: Callable[[], Any], where: str) -> list[str]:
    """Names of tokenizer files among the *present* ones, the one that transformers reads first.

    Two files that cannot agree are refused if nothing says which one is the model's.

    Args:
        present: the files of a folder or a repository.
        read_config: reads its ``config.json``, where that decides.
        where: the folder, or the address of the repository, for messages.
    """
    names = [name for name in TOKENIZER_FILES if name in present]
    if "vocab.json" in names and "merges.txt" not in present:  # as of CTC models of speech
        names.remove("vocab.json")
    if "tekken.json" in names and len(names) > 1 and "config.json" in present:
        config = read_config()
        if isinstance(config, dict) and prefers_tekken(config):
            names.remove("tekken.json")
            names.insert(0, "tekken.json")
    if tuple(names[:2]) in _UNDECIDED:
        first, second = names[:2]
        raise Unsupported(
            f"{where} has {first} and {second}, which are different tokenizers, and"
            " nothing says which one the model was trained with",
            hint=f"name the right one: --tokenizer {shell_quote(f'{where}/{second}')}",
        )
    return names


def spec_from_folder(
    path: str | os.PathLike[str], *, pre: str | None = None, files: Inventory | None = None
) -> TokenizerSpec:
    """The tokenizer of a model folder: the file that transformers reads."""
    folder = Path(path)
    files = files or Inventory(folder)
    names = tokenizer_names(files)
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
        return mapped_file.other_kind(head, path.name)
    neither = f"{path} is neither a SentencePiece model nor a tiktoken rank file"
    if recognized := mapped_file.kind_from_head(head):
        what, hint = recognized
        return InvalidFormat(f"{neither} but {what}", hint=hint)
    return damage_error(f"{neither}: it begins with {head!r}")


def _vocab_merges(file: TokenizerFile) -> TokenizerSpec:
    """The byte-level BPE in ``vocab.json`` and ``merges.txt``."""
    vocab, merges = (
        TokenizerFile(file.path.with_name(name), file.pre, file.files)
        for name in ("vocab.json", "merges.txt")
    )
    vocabulary = vocab.document
    side = vocab.side
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
        merges=LazySequence(len(lines), lambda: pair_merges(lines, tokens), raw=lines),
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
    vocabulary = vocabularies.identify_merges(len(lines), lambda: vocabularies.fingerprint(lines))
    if vocabulary is not None:
        return vocabulary.pre
    if vocab.side.config.get("tokenizer_class") in _GPT2_CLASSES:
        return "gpt-2"
    raise TokenizerNotFound(
        f"{vocab.path} and its {len(lines):,} merges are not a known vocabulary, and the files do"
        " not say how text is cut into words",
        hint="say which with --pre NAME, or name the model's own tokenizer.json",
    )
