"""Texts on which tokenizers tend to disagree, for comparisons.

The texts are always the same: real prose and odd cases, and mixes of both from a fixed seed.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from bitnet.errors import from_os_error
from bitnet.tokenizer.agreement import PROBES

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["corpus_texts", "probe_texts"]

_ODD = (
    "I'm, you're, we've, they'll, he'd, it's; I'M, YOU'RE, IT'S",
    "1 12 123 1234 12345 1234567890",
    "\u0661\u0662\u0663 \u0967\u0968\u0969 \uff11\uff12\uff13 \u2167",
    "if (a && b || !c) { x[i] += y->z; } // ok\r\n\treturn 0;\r\n",
    "e\u0301 e\u0300 n\u0303 a\u030a \u1e9b\u0323 \ufb01 \u212b \u2126 \u0130stanbul",
    "\u30ab\u30bf\u30ab\u30ca\u3068\uff8a\uff9d\uff76\uff78 \u1112\u1161\u11ab",
    "\u0651\u064e \u0928\u092e\u0938\u094d\u0924\u0947",
    " leading", "trailing ", "  two  spaces  ", "\t\ttabs\t", "\n\n\nlines\n\n", " \n \r\n \n",
    "\u00a0\u2003\u3000\u200b\ufeff\u2028", "\u2581lower one eighth\u2581", "x" * 70, "=" * 65,
    "\x00\x01\x07\x1b[0m\x7f", "\ud7ff\ue000\ufffd\U0010ffff", "aaaaAAAAaAaA",
    "<s>", "</s>", "<unk>", "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>", "<|im_start|>user",
    "<start_of_turn>", "[CLS] [SEP] [MASK]", "<0x0A>", "<|", "|>",
)  # fmt: skip
_PIECES = (*PROBES, *_ODD)
_JOINS = ("", " ", "\n", "  ", "\u00a0", ".", "-")
_MIXES = 400
_SEED = 20260101


def probe_texts() -> list[str]:
    """About 470 texts, the same in every run; the empty text is one of them."""
    draw = random.Random(_SEED)
    texts = ["", *_PIECES]
    for _ in range(_MIXES):
        parts = draw.choices(_PIECES, k=draw.randint(2, 4))
        cut = [part[draw.randrange(len(part) or 1) :][: draw.randint(1, 40)] for part in parts]
        texts.append(draw.choice(_JOINS).join(cut))
    return texts


def corpus_texts(path: Path | None) -> list[str]:
    """The lines of the file at *path* without their line ends; without a file, the probe texts.

    An empty line is an empty text; an empty file has none.

    Bytes that are not UTF-8 become U+FFFD.
    """
    if path is None:
        return probe_texts()
    try:
        lines = path.read_bytes().decode("utf-8", "replace").split("\n")
    except OSError as error:
        raise from_os_error(error, path) from error
    return lines if lines[-1] else lines[:-1]
