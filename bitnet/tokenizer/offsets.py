"""Map ids to the characters of the original text, through its normalization.

A character produced by a normalizer maps to those it was made of, an inserted one to its neighbour.
The ``tokenizers`` library, whose normalizers these are, provides the mapping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.tokenizer.library import fenced, library_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bitnet.tokenizer.spec import Step

__all__ = ["Origin", "aligner", "moved"]

Origin = list[tuple[int, int]] | None  # by character of the normalized text; None: the same text


def aligner(source: str, steps: Sequence[Step]) -> Callable[[str], tuple[str, Origin]]:
    """A function that normalizes a text and returns the origin of each character.

    Args:
        source: name of the tokenizer in messages.
        steps: its normalizer.

    Raises:
        InvalidFormat: the library does not support a step.
    """
    if not steps:
        return lambda text: (text, None)
    from tokenizers import Regex
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split

    library = library_for(source, steps)
    with fenced(f"the tokenizer {source}"):
        library.model = WordLevel({"?": 0}, unk_token="?")  # noqa: S106
        library.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")

    def align(text: str) -> tuple[str, Origin]:
        with fenced(f"the tokenizer {source}"):
            normal = library.normalizer.normalize_str(text)
            if normal == text:
                return text, None
            return normal, library.encode(text, add_special_tokens=False).offsets

    return align


def moved(
    spans: Iterable[tuple[int, int, int]], origin: Origin, by: int
) -> Iterator[tuple[int, int, int]]:
    """*spans* of a normalized text as spans of its original, which begins at *by*."""
    for id, start, stop in spans:
        if origin is not None and start < stop:
            start, stop = origin[start][0], origin[stop - 1][1]
        yield id, by + start, by + stop
