r"""Pre-tokenizers by their ``tokenizer.ggml.pre`` name, for byte-level BPE vocabularies.

The names are those of llama.cpp's ``src/llama-vocab.cpp``. The steps in ``pre_tokenizers.json`` are
those of the model's own ``tokenizer.json`` where it is known, in Hugging Face's terms; llama.cpp
rewrites some of them, with different results for rare characters. Two equivalent rewritings keep
the expressions simple: no possessive quantifiers where backtracking cannot succeed, and
``(?!\p{Han})`` instead of a class intersection.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import Unsupported
from bitnet.tokenizer.spec import Step

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class PreTokenizer:
    """Properties implied by a ``pre`` name, besides the vocabulary itself.

    Attributes:
        steps: split normalized text into pieces.
        normalizer: steps before that.
        ignore_merges: a piece that is a token as a whole becomes that token.
        add_bos: default if the file has no ``tokenizer.ggml.add_bos_token``.
        byte_level: token texts are in GPT-2's byte spelling; else they are plain UTF-8 with U+2581
            for the space and ``<0xNN>`` for bytes.
        has_bos: a file without ``tokenizer.ggml.bos_token_id`` has the default BOS nevertheless.
    """

    steps: tuple[Step, ...]
    normalizer: tuple[Step, ...] = ()
    ignore_merges: bool = False
    add_bos: bool = False
    byte_level: bool = True
    has_bos: bool = True


def _read_steps(entries: Iterable[Any], *, byte_level: bool = False) -> tuple[Step, ...]:
    """Steps as in ``tokenizer.json``; a text is an expression whose matches are pieces."""
    rows: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": entry}, "behavior": "Isolated", "invert": False}
        if isinstance(entry, str)
        else entry
        for entry in entries
    ]
    if byte_level and all(row["type"] != "ByteLevel" for row in rows):
        plain = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        rows.append({"type": "ByteLevel", **plain})
    return tuple(Step(row.pop("type"), row) for row in rows)


def _read_table() -> dict[str, PreTokenizer]:
    """The table; ``steps`` may be those of an earlier name."""
    table: dict[str, PreTokenizer] = {}
    for row in json.loads(Path(__file__).with_name("pre_tokenizers.json").read_text("utf-8")):
        names, steps, normalizer = row.pop("names"), row.pop("steps"), row.pop("normalizer", ())
        row.pop("note", None)
        pre = PreTokenizer(
            table[steps].steps
            if isinstance(steps, str)
            else _read_steps(steps, byte_level=row.get("byte_level", True)),
            _read_steps(normalizer),
            **row,
        )
        table.update(dict.fromkeys(names, pre))
    return table


PRE_TOKENIZERS = _read_table()


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer named *name* in ``tokenizer.ggml.pre``."""
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        raise Unsupported(
            f"unknown pre-tokenizer {name!r} (tokenizer.ggml.pre)",
            hint=f"choose a known one with --pre NAME: {', '.join(sorted(PRE_TOKENIZERS))}",
        ) from None
