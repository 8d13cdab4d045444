"""Table of what each class of transformers makes of a tokenizer's file.

``tests/support/tokenizer_classes.py`` runs the classes and writes ``tokenizer_classes.json``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.tokenizer.limits import refusal

if TYPE_CHECKING:
    from bitnet.tokenizer.side_files import TokenizerFile

# Classes that read the ranks of a ``tokenizer.model``.
_OF_RANKS = ("LlamaTokenizer", "Qwen2Tokenizer", "WhisperTokenizer")

# Arguments of transformers' constructors that replace a part of the tokenizer.
_ARGUMENTS = (
    *("vocab", "merges", "tokenizer_object", "gguf_file", "post_processor", "init_inputs"),
    *("tokenizer_truncation", "tokenizer_padding", "model_specific_special_tokens"),
)
# Keys of ``tokenizer_config.json`` that are refused unless empty or false, with their effect.
REFUSED_KEYS = {
    **dict.fromkeys(_ARGUMENTS, "stands for a part of the tokenizer"),
    "split_special_tokens": "would cut special tokens in texts",
    "fix_mistral_regex": "would replace the pre-tokenizer",
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": (
        "would change decoded texts"
    ),
}


@dataclass(frozen=True)
class FolderClass:
    """A class of transformers and the special tokens that it has in a folder."""

    name: str
    row: dict[str, Any]  # in ``tokenizer_classes.json``
    roles: dict[str, str]  # texts of its special tokens by their role
    extra: tuple[str, ...]  # texts of those without a role


@cache
def class_table() -> dict[str, Any]:
    """Steps that transformers builds for each class, and the class of each type of model."""
    text = Path(__file__).with_name("tokenizer_classes.json").read_text("utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def prefers_tekken(model_config: dict[str, Any]) -> bool:
    """True if transformers reads ``tekken.json`` rather than ``tokenizer.json`` for this model."""
    model_type = model_config.get("model_type")
    if not isinstance(model_type, str):
        return False
    return bool(class_table()["model_types"].get(model_type) == "MistralCommonBackend")


def builds_byte_level(name: str) -> bool:
    """True if the class *name* builds the steps of a byte-level BPE from a vocabulary."""
    row = _row_named(name)
    return row.get("model") == "BPE" and '"ByteLevel"' in json.dumps(row.get("sections"))


def builds_ends(name: str) -> bool:
    """True if the class *name* puts tokens of its own choice around a text."""
    sections = _row_named(name).get("sections", ())
    processors = [each["post_processor"] for each in sections if isinstance(each, dict)]
    # GPT-NeoX's class builds a template of the text alone.
    return any(
        processor != "that of the file" and processor.get("special_tokens") != []
        for processor in processors
    )


def check_rank_class(file: TokenizerFile) -> None:
    """Refuse a *file* of ranks if the class of its folder would make another tokenizer of it.

    That class does not matter if a ``tokenizer.json`` is beside the ranks, which it reads instead,
    or if it keeps what a file says, or transformers does not know it.
    """
    name = file.side.class_name
    if "tokenizer.json" not in file.files and not leaves_file(name) and name not in _OF_RANKS:
        raise refusal(
            f"{file.path.parent}: tokenizer_class is {name}, and what that class makes of"
            f" {file.path.name} is not known"
        )


def leaves_file(name: str) -> bool:
    """True if the class *name* keeps what a file says, or transformers does not know it."""
    return name not in class_table()["classes"] or "keeps" in _row_named(name)


def _row_named(name: str) -> dict[str, Any]:
    """Row of the class *name*, or of the class that it equals; empty if it is unknown."""
    classes = class_table()["classes"]
    row = classes.get(name, {})
    named: dict[str, Any] = classes.get(row.get("same_as"), row)
    return named
