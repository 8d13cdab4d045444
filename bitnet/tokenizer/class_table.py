"""Table of what each class of transformers makes of a tokenizer's file.

``tests/support/tokenizer_classes.py`` runs the classes and writes ``tokenizer_classes.json``.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.tokenizer.limits import refusal

if TYPE_CHECKING:
    from bitnet.tokenizer.side_files import TokenizerFile

# Classes that read a ``tokenizer.model``; the first ones build steps of their own since version 5.
_BUILT_IN_5 = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer")
_OF_SENTENCEPIECE = (*_BUILT_IN_5, "T5Tokenizer")
_OF_RANKS = ("LlamaTokenizer", "Qwen2Tokenizer", "WhisperTokenizer")


@cache
def class_table() -> dict[str, Any]:
    """Steps that transformers builds for each class, and the class of each type of model."""
    text = Path(__file__).with_name("tokenizer_classes.json").read_text("utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def prefers_tekken(model_config: dict[str, Any]) -> bool:
    """True if transformers reads ``tekken.json`` rather than ``tokenizer.json`` for this model."""
    registered = class_table()["model_types"].get(model_config.get("model_type"))
    return bool(registered == "MistralCommonBackend")


def builds_byte_level(name: str) -> bool:
    """True if the class *name* builds the steps of a byte-level BPE from a vocabulary."""
    row = _row_named(name)
    return row.get("model") == "BPE" and '"ByteLevel"' in json.dumps(row.get("sections"))


def builds_ends(name: str) -> bool:
    """True if the class *name* puts tokens of its own choice around a text."""
    sections = _row_named(name).get("sections", ())
    own = [each["post_processor"] for each in sections if isinstance(each, dict)]
    return any(processor != "that of the file" for processor in own)


def check_class(file: TokenizerFile, *, of_ranks: bool) -> None:
    """Refuse a *file* of which the class of its folder makes another tokenizer than it holds.

    It is a SentencePiece model, or has ranks of tiktoken. Beside a ``tokenizer.json`` it is not the
    one that the class reads. Classes that transformers does not
    know, and those that keep what a file says, do not change it. ``LlamaTokenizer`` and its kind
    read a SentencePiece model as that library does up to transformers 4, and build other steps of
    it in 5.
    """
    path = file.path
    file.side.check_code(str(path))
    name = file.side.class_name
    if "tokenizer.json" in file.files:
        return
    if name not in class_table()["classes"] or "keeps" in _row_named(name):
        return
    if name not in (_OF_RANKS if of_ranks else _OF_SENTENCEPIECE):
        raise refusal(
            f"{path.parent}: tokenizer_class is {name}, and what that class makes of {path.name} is"
            " not known"
        )
    version = str(file.side.model_config.get("transformers_version"))
    if name in _BUILT_IN_5 and not of_ranks and version.startswith("5."):
        raise refusal(
            f"{path.parent}: {name} builds other steps of {path.name} in transformers {version},"
            " which wrote this folder, than the file says"
        )


def _row_named(name: str) -> dict[str, Any]:
    classes = class_table()["classes"]
    row = classes.get(name, {})
    named: dict[str, Any] = classes.get(row.get("same_as"), row)
    return named
