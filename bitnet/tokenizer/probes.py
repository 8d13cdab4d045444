"""Texts on which tokenizers are compared, the same in every run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Texts on which tokenizers tend to disagree, always the same: real prose and odd cases.
_TEXTS = json.loads(Path(__file__).with_name("probes.json").read_text("utf-8"))
# Prose, code, numbers, scripts and white space, in about the proportions of real prompts.
PROBES: tuple[str, ...] = tuple(_TEXTS["prose"])
_PIECES = (*PROBES, *_TEXTS["odd"])
_JOINS = ("", " ", "\n", "  ", "\u00a0", ".", "-")
_MIXES = 400
_SEED = 20260101


def draw_texts(count: int, special_texts: Sequence[str] = ()) -> list[str]:
    """*count* mixtures of the probes and of *special_texts*, the same in every run."""
    draw = random.Random(_SEED + 1)  # other mixtures than those of probe_texts
    pieces = (*_PIECES, *special_texts)
    texts = []
    for _ in range(count):
        parts = [draw.choice(pieces) for _ in range(draw.randint(1, 3))]
        cut = [
            part if part in special_texts else part[draw.randrange(len(part) or 1) :]
            for part in parts
        ]
        texts.append(draw.choice(_JOINS).join(part[:60] for part in cut))
    return texts


def probe_texts() -> list[str]:
    """About 470 texts, the same in every run; the empty text is one of them."""
    draw = random.Random(_SEED)
    texts = ["", *_PIECES]
    for _ in range(_MIXES):
        parts = draw.choices(_PIECES, k=draw.randint(2, 4))
        cut = [part[draw.randrange(len(part) or 1) :][: draw.randint(1, 40)] for part in parts]
        texts.append(draw.choice(_JOINS).join(cut))
    return texts
