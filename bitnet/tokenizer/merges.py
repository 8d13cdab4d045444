"""Merge lists of BPE vocabularies: parsing them, and deriving them from ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from bitnet.tokenizer.limits import MERGES, RANK_WORK, beyond, damage_error

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator


T = TypeVar("T")


class LazySequence(Sequence[T]):
    """A sequence that *load* creates when it is asked for; *raw* is the source of the elements.

    Its *length* is ``None`` if it is known only then.
    """

    def __init__(
        self, length: int | None, load: Callable[[], list[T]], *, raw: list[Any] | None = None
    ) -> None:
        self.raw = raw
        self._length, self._load = length, load

    @cached_property
    def _items(self) -> list[T]:
        return self._load()

    def __len__(self) -> int:
        return len(self._items) if self._length is None else self._length

    def __getitem__(self, at: Any) -> Any:
        return self._items[at]

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)


def parse_merges(
    lines: Sequence[str], tokens: Sequence[str], prefix: str = ""
) -> list[tuple[int, int]]:
    """Ids of the left and right half of every merge; joining drops *prefix* of a right one."""
    return pair_merges(map(split_merge, lines), tokens, prefix)


def split_merge(line: str) -> tuple[str, str]:
    """Both halves, split at the first space behind the first character: they may have some."""
    at = line.find(" ", 1)
    if at < 0:
        raise damage_error(f"merge {line!r} has no space between its halves")
    return line[:at], line[at + 1 :]


def pair_merges(
    halves: Iterable[Sequence[str]], tokens: Sequence[str], prefix: str = ""
) -> list[tuple[int, int]]:
    """As :func:`parse_merges`, from lines already split."""
    ids = token_ids(tokens)
    merges = []
    try:
        for left, right in halves:
            merges.append((ids[left], ids[right]))
            ids[left + right.removeprefix(prefix)]  # their concatenation must be a token, too
    except KeyError as error:
        token = error.args[0]
        raise damage_error(
            f"a merge needs the token {token!r}, which is not in the vocabulary: the two do not"
            " belong together"
        ) from None
    return merges


def token_ids(tokens: Sequence[str]) -> dict[str, int]:
    """Id by text; of equal texts the first counts."""
    texts = list(tokens)
    return dict(zip(reversed(texts), range(len(texts) - 1, -1, -1), strict=True))


def halves_of(text: str, tokens: Container[str]) -> Iterator[tuple[str, str]]:
    """All ways to join two of *tokens* into *text*."""
    for cut in range(1, len(text)):
        left, right = text[:cut], text[cut:]
        if left in tokens and right in tokens:
            yield left, right


def merges_from_ranks(
    tokens: Sequence[str], ids: Iterable[int], source: str
) -> list[tuple[int, int]]:
    """Merges with which a BPE gives tiktoken's results for *ids*, those of tokens by rank.

    tiktoken joins the neighbours whose joined text has the lowest rank, whatever the halves are;
    so every split of a token into two tokens is a merge, in the order of the token's rank.
    """
    id_by_text = {tokens[id]: id for id in ids}
    work = sum(len(text) * len(text) for text in id_by_text)
    if work > RANK_WORK:
        raise beyond(source, f"tokens of {work:,} squared bytes", RANK_WORK)
    merges: list[tuple[int, int]] = []
    for text in id_by_text:
        pairs = halves_of(text, id_by_text)
        merges.extend(sorted((id_by_text[left], id_by_text[right]) for left, right in pairs))
        if len(merges) > MERGES:
            raise beyond(source, f"{len(merges):,} merges or more", MERGES)
    return merges


def merges_by_score(tokens: list[str], scores: Iterable[float]) -> list[list[str]]:
    """All ways to join two tokens into a third, best score first: SentencePiece's order."""
    rows = enumerate(zip(tokens, map(float, scores), strict=True))
    known = {text: (-score, id) for id, (text, score) in rows}
    pairs = ((known[text][0], *pair) for text in known for pair in halves_of(text, known))
    merges = sorted(pairs, key=lambda row: (row[0], known[row[1]][1], known[row[2]][1]))
    return [[left, right] for _, left, right in merges]
