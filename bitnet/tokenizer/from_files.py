"""Tokenizers in files of their own, in the format of a usual name, or else of the content."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat, TokenizerNotFound, Unsupported
from bitnet.base.invocation import shell_quote
from bitnet.formats import mapped_file
from bitnet.formats.checkpoint import Inventory
from bitnet.formats.gguf_names import has_gguf_name
from bitnet.tokenizer.class_table import prefers_tekken
from bitnet.tokenizer.limits import damage_error, reading
from bitnet.tokenizer.sentencepiece_file import spec_from_sentencepiece
from bitnet.tokenizer.side_files import TokenizerFile, read_json
from bitnet.tokenizer.tiktoken_file import (
    RANK_LINE,
    is_tekken,
    spec_from_ranks,
    spec_from_tekken,
)
from bitnet.tokenizer.tokenizer_json import spec_from_tokenizer_json
from bitnet.tokenizer.vocabulary_files import spec_from_vocabulary

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection

    from bitnet.tokenizer.spec import TokenizerSpec

logger = logging.getLogger(__name__)

# In the order in which transformers prefers them; ``order_names`` has the exception.
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json"),
    "qwen.tiktoken",  # of the first Qwen, whose code is in its folder
)
# The two files of a byte-level BPE, either of which can be named.
VOCABULARY_FILES = ("vocab.json", "merges.txt")
# Pairs of files that are different tokenizers if they are the first two names of a folder.
_UNDECIDED = (("tokenizer.model", "tekken.json"), ("tokenizer.model", "vocab.json"))


def spec_from_file(
    path: str | os.PathLike[str], *, pre: str | None = None, files: Inventory | None = None
) -> TokenizerSpec:
    """The tokenizer in the file *path*, in the format of its name if usual, else of its content.

    *pre* names the pre-tokenizer of tiktoken ranks, ``tekken.json`` and ``vocab.json``; other
    formats have their own and do not use it. *files* is the inventory of its folder, if the caller
    has one.
    """
    file = TokenizerFile(Path(path), pre, files)
    with reading(file.path, "tokenizer"):
        return _spec_in(file)


def _spec_in(file: TokenizerFile) -> TokenizerSpec:
    """The tokenizer in *file*, read as what its name or first bytes say that it is."""
    name = file.path.name
    data = file.data
    if name in VOCABULARY_FILES:
        return spec_from_vocabulary(file)
    if name == "tokenizer.json" or data[:64].lstrip()[:1] == b"{":
        return (
            spec_from_tekken(file) if is_tekken(file.document) else spec_from_tokenizer_json(file)
        )
    if RANK_LINE.match(data):
        return spec_from_ranks(file)
    # The tag of a piece, the first field of every SentencePiece model, is the byte of a line feed.
    if data[:1] != b"\n":
        raise _other_kind(file.path, data[:32])
    return spec_from_sentencepiece(file)


def tokenizer_names(files: Inventory) -> list[str]:
    """Names of the tokenizer files in a folder, in the order of :func:`order_names`."""
    present = [name for name in (*TOKENIZER_FILES, "merges.txt", "config.json") if name in files]
    return order_names(present, lambda: read_json(files, "config.json"), str(files.root))


def order_names(present: Collection[str], read_config: Callable[[], Any], where: str) -> list[str]:
    """Tokenizer files among *present*, sorted: the first is the one that transformers reads.

    Two different tokenizers are refused if nothing says which one is the model's.

    Args:
        present: names of the files of a folder or a repository.
        read_config: returns its ``config.json``; called only if that decides.
        where: the folder, or the address of the repository, for messages.
    """
    names = [name for name in TOKENIZER_FILES if name in present]
    if "vocab.json" in names and "merges.txt" not in present:  # of CTC speech models
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
    """The tokenizer of the model folder *path*, from the file that transformers would read."""
    folder = Path(path)
    files = files or Inventory(folder)
    names = tokenizer_names(files)
    if not names:
        raise TokenizerNotFound(
            "No compatible tokenizer found. Looked for:\n"
            " - tokenizer.model (SentencePiece)\n"
            " - tokenizer.json (HuggingFace format)\n"
            " - tekken.json (Mistral)\n"
            " - vocab.json with merges.txt (GPT-2)\n"
            " - qwen.tiktoken (Qwen)\n"
            f"in {folder}",
            hint="put one of them there, or name a file with --tokenizer FILE",
        )
    spec = spec_from_file(folder / names[0], pre=pre, files=files)
    logger.info("tokenizer found: %s (%s)", spec.source, spec.model)
    return spec


def _other_kind(path: Path, head: bytes) -> InvalidFormat:
    """Error for a file that is not a tokenizer; *head*, its first bytes, may show what it is."""
    if has_gguf_name(path):  # a damaged model, not a tokenizer of an unknown format
        return mapped_file.other_kind(head, path.name)
    neither = f"{path} is neither a SentencePiece model nor a tiktoken rank file"
    if recognized := mapped_file.kind_from_head(head):
        what, hint = recognized
        return InvalidFormat(f"{neither} but {what}", hint=hint)
    return damage_error(f"{neither}: it begins with {head!r}")
