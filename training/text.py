"""A folder of texts as tokens: reading, holding out, training a tokenizer, and encoding."""

from __future__ import annotations

import lzma
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = [
    "BEGIN",
    "END",
    "Tokens",
    "prepare",
    "read_texts",
    "read_tokenizer",
    "split",
    "train_tokenizer",
]

BEGIN = "<|begin_of_text|>"
END = "<|end_of_text|>"
# Characters before a cut in which a space is searched. If there is none, the writing has no spaces.
LONGEST_WORD = 100

# How Llama 3, and with it BitNet b1.58 2B-4T, cuts a text before the merges.
_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Tokens(NamedTuple):
    """A text as ids.

    Attributes:
        ids: the whole text, shape ``(n,)``, uint16.
        starts: where its paragraphs begin, ascending, the first at 0.
    """

    ids: NDArray[np.uint16]
    starts: NDArray[np.int64]


def read_texts(folder: Path) -> dict[str, list[str]]:
    """Paragraphs by file name of the ``.txt`` and ``.txt.xz`` files in *folder*, sorted by name.

    Lines of a paragraph are joined by single spaces.

    Raises:
        ValueError: there are none, or one is damaged or not UTF-8.
    """
    texts = {}
    for path in sorted([*folder.glob("*.txt"), *folder.glob("*.txt.xz")]):
        text = _text_of(path)
        blocks = re.split(r"\n\s*\n", text.replace("\r\n", "\n").strip())
        texts[path.name] = [" ".join(block.split()) for block in blocks]
    if not texts:
        raise ValueError(f"{folder} has no .txt or .txt.xz files")
    return texts


def _text_of(path: Path) -> str:
    """The text in the file *path*, which may be compressed.

    Raises:
        ValueError: it is damaged or not UTF-8.
    """
    data = path.read_bytes()
    try:
        return (lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8")
    except lzma.LZMAError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from error


def split(paragraphs: Sequence[str], held_out: float) -> tuple[list[str], list[str]]:
    """Split *paragraphs* into those to train on, and those held out at the end of the text.

    *held_out* is the share of characters to hold out. The paragraph at the border is held out too,
    unless it alone has more characters than that share: such a paragraph is cut between two words.
    """
    count = sum(map(len, paragraphs))
    remaining = count * (1 - held_out)  # characters to train on that come from here on
    for n, paragraph in enumerate(paragraphs):
        if remaining >= len(paragraph):
            remaining -= len(paragraph)
            continue
        if len(paragraph) <= count * held_out:
            return list(paragraphs[:n]), list(paragraphs[n:])
        first, rest = _cut(paragraph, int(remaining))
        return [*paragraphs[:n], *first], [*rest, *paragraphs[n + 1 :]]
    return list(paragraphs), []


def _cut(paragraph: str, most: int) -> tuple[list[str], list[str]]:
    """The two parts of *paragraph*, lists of one text each, or empty ones.

    The first part has up to *most* characters, as many as whole words allow. Writing without spaces
    is cut after *most*.
    """
    space = paragraph.rfind(" ", max(0, most - LONGEST_WORD), most + 1)
    first = paragraph[: space if space > 0 else most]
    rest = paragraph[len(first) :].lstrip(" ")
    return [first] if first else [], [rest] if rest else []


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in the file *path*.

    Raises:
        ValueError: it is missing or damaged.
    """
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises this class itself
        raise ValueError(f"{path} is not a tokenizer that can be read: {error}") from error


def train_tokenizer(texts: Sequence[Sequence[str]], size: int) -> Tokenizer:
    """A byte-level BPE of *size* tokens, in everything but its vocabulary Llama 3's."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA_3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - 2,  # BEGIN and END are added below
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(("\n\n".join(text) for text in texts), trainer)
    tokenizer.add_special_tokens([BEGIN, END])
    begin = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{BEGIN} $A",
                pair=f"{BEGIN} $A {BEGIN}:1 $B:1",
                special_tokens=[(BEGIN, begin)],
            ),
        ]
    )
    return tokenizer


def prepare(texts: Sequence[Sequence[str]], tokenizer: Tokenizer, *, ends: bool) -> Tokens:
    """Encode *texts*, lists of paragraphs, one after the other.

    With *ends*, END follows each text that has paragraphs.
    """
    ids: list[int] = []
    starts: list[int] = []
    for paragraphs in texts:
        for n, paragraph in enumerate(paragraphs):
            starts.append(len(ids))
            gap = "\n\n" if n + 1 < len(paragraphs) else ""
            ids += tokenizer.encode(paragraph + gap, add_special_tokens=False).ids
        if ends and paragraphs:
            ids.append(tokenizer.token_to_id(END))
    return Tokens(np.array(ids, dtype=np.uint16), np.array(starts, dtype=np.int64))
