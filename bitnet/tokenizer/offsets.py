"""Which characters of a text an id stands for, through whatever the normalizer does to the text.

A character that a normalizer made stands for those it was made of, one that it put in for its
neighbour. The ``tokenizers`` library, whose normalizers these are, is asked itself.
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
    """A function that normalizes a text and says where each character comes from.

    Args:
        source: the tokenizer, for people.
        steps: its normalizer.

    Raises:
        InvalidFormat: the library does not know a step.
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
    """*spans* of a normalized text as those of the text it comes from, which begins at *by*."""
    for id, start, stop in spans:
        if origin is not None and start < stop:
            start, stop = origin[start][0], origin[stop - 1][1]
        yield id, by + start, by + stop
