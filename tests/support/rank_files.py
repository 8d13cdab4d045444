"""Rank files of tiktoken: generated ones, and facts about published ones."""

import base64
from pathlib import Path

# Regular expressions that split text, those of tiktoken and of the models' code.
_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_O200K = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        *(r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"),
    ]
)
# Published rank files by name: the regular expression, the number of ids with the special tokens,
# and the ids that end a text.
PUBLISHED = {
    "r50k": (_GPT2, 50_257, {50_256}),
    "p50k": (_GPT2, 50_281, {50_256}),
    "whisper": (_GPT2, 50_358, {50_257}),
    "cl100k": (_CL100K, 100_277, {100_257}),
    "llama3": (_CL100K, 128_256, {128_001, 128_009}),
    "qwen": (_QWEN, 151_851, {151_643, 151_645}),
    "o200k": (_O200K, 200_019, {199_999}),
    "llama4": (_O200K, 202_048, {200_001, 200_007, 200_008}),
}


def write_ranks(path: Path, count: int) -> Path:
    """A rank file of *count* ranks: every byte, then texts of two bytes, then of three."""
    texts = [bytes([rank]) for rank in range(min(count, 256))]
    texts += [rank.to_bytes(2 + (rank >= 1 << 16), "big") for rank in range(count - len(texts))]
    path.write_bytes(b"".join(rank_line(text, rank) for rank, text in enumerate(texts)))
    return path


def rank_line(text: bytes, rank: int) -> bytes:
    """One line of a rank file."""
    return b"%s %d\n" % (base64.b64encode(text), rank)


def read_ranks(path: Path) -> dict[bytes, int]:
    """Rank by text, as tiktoken reads a file."""
    lines = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(text): int(rank) for text, rank in lines}
