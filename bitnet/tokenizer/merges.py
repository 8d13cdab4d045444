"""Merge lists of BPE vocabularies: parsing them, and deriving them from ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.errors import InvalidFormat

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["merges_from_ranks", "pair_merges", "parse_merges"]


def parse_merges(lines: Sequence[str], tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Ids of the left and right half of every merge.

    A line is split at its first space only, and never before its first character: both halves
    may contain spaces.

    Raises:
        InvalidFormat: a half, or what they make together, is not a token.
    """
    halves = []
    for line in lines:
        at = line.find(" ", 1)
        if at < 0:
            raise InvalidFormat(f"merge {line!r} has no space between its halves")
        halves.append((line[:at], line[at + 1 :]))
    return pair_merges(halves, tokens)


def pair_merges(halves: Iterable[Sequence[str]], tokens: Sequence[str]) -> list[tuple[int, int]]:
    """As :func:`parse_merges`, from lines that are split already."""
    ids = token_ids(tokens)
    merges = []
    try:
        for left, right in halves:
            merges.append((ids[left], ids[right]))
            ids[left + right]  # what they make must be a token too
    except KeyError as error:
        raise InvalidFormat(
            f"a merge needs the token {error.args[0]!r}, which is not in the vocabulary",
            hint="the vocabulary and the merges do not belong together; fetch the file again",
        ) from None
    return merges


def token_ids(tokens: Sequence[str]) -> dict[str, int]:
    """Id by text; of equal texts the first one counts."""
    texts = list(tokens)
    return dict(zip(reversed(texts), range(len(texts) - 1, -1, -1), strict=True))


def merges_from_ranks(tokens: Sequence[str], ids: Iterable[int]) -> list[tuple[int, int]]:
    """Merges that make a BPE behave like tiktoken on the same ranks.

    tiktoken joins the neighbours whose joined text has the lowest rank, whatever the halves are;
    so every way to cut a token into two tokens is a merge, in the order of the token's rank.

    Args:
        tokens: texts by id, byte-level spelling.
        ids: ids of the ordinary tokens, in order of rank.
    """
    known = {tokens[id]: id for id in ids}
    merges = []
    for text in known:
        pairs = [
            (known[text[:cut]], known[text[cut:]])
            for cut in range(1, len(text))
            if text[:cut] in known and text[cut:] in known
        ]
        merges.extend(sorted(pairs))
    return merges
