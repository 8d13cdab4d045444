"""Agreement of two tokenizers: ids of texts, texts of ids, and the tokens themselves."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bitnet.tokenizer.tokenizer import Tokenizer

__all__ = ["PROBES", "Agreement", "agreement", "different_ids", "measure_agreement"]

# Prose, code, numbers, scripts and white space, in about the proportions of real prompts.
PROBES: tuple[str, ...] = (
    "Hello world",
    "The quick brown fox jumps over the lazy dog.",
    "What is the capital of France?",
    "Summarize the following article in three sentences:",
    "It's the dogs' bone; they'll've gone, and I'd say we're late.",
    "ALL CAPS, camelCase, snake_case, kebab-case and SCREAMING_SNAKE",
    "An unquestionably antidisestablishmentarian counterrevolutionary",
    "e.g. Dr. Smith (Ph.D.) paid $1,234.56 on 2024-03-15 at 12:30 p.m.",
    "3.14159265358979 1e-5 0xDEADBEEF 1000000 1,000,000 12 345 6789",
    "A list:\n- one\n- two\n  - nested\n\n1. first\n2. second\n",
    "# Title\n\nSome **bold** and _italic_ text with `code`.\n\n---\n",
    "def add(a: int, b: int) -> int:\n    return a + b\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += x[i] * y[i];\n}\n",
    "SELECT name, COUNT(*) FROM users WHERE age >= 18 GROUP BY name;",
    '{"id": 1, "tags": ["a", "b"], "ok": true, "none": null}',
    "<div class=\"row\"><a href='/x?y=1&z=2'>link</a></div>",
    "https://example.org/path/to/page.html?q=1#section",
    "git commit -m 'fix: off-by-one' && git push origin main",
    "  two leading spaces and trailing ones  ",
    "tabs\tand\t\tmore\ttabs",
    "line\nline\n\nline\n\n\nline\r\nline",
    "                                deep",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío.",
    "Pchnąć w tę łódź jeża lub ośm skrzyń fig.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "השועל החום המהיר קופץ מעל הכלב העצלן",
    "نص حكيم له سر قاطع وذو شأن عظيم",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ",
    "키스의 고유조건은 입술끼리 만나야 하고",
    "Emoji: \U0001f600 \U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 ❤️ ✓",
    "½ ² № ™ € £ ¥ § ¶ … – — “quotes” ‘single’ «guillemets»",
    "naïve cafe\u0301 re\u0301sume\u0301 ﬁne",
    "∀x ∈ ℝ: x² ≥ 0, ∑ᵢ aᵢ = 1, α → β",
    "user@example.com, +1 (555) 123-4567, @handle #hashtag",
)


@dataclass(frozen=True)
class Agreement:
    """Result of a comparison.

    Attributes:
        equal: texts with equal ids.
        total: texts compared.
        first_difference: the first text with different ids, ``None`` if there is none.
        decoded_equal: lists of ids that both decode to the same text.
        decoded: lists of ids decoded; 0 if decoding was not compared.
        first_ids: the first ids that decode to different texts, ``None`` if there are none.
    """

    equal: int
    total: int
    first_difference: str | None
    decoded_equal: int = 0
    decoded: int = 0
    first_ids: tuple[int, ...] | None = None

    @property
    def ratio(self) -> float:
        """Share of texts with equal ids, 0 to 1."""
        return self.equal / self.total if self.total else 0.0

    @property
    def complete(self) -> bool:
        """True if all ids and all decoded texts are equal, with at least one of each."""
        return self.ratio == 1 and 0 < self.decoded == self.decoded_equal

    def __str__(self) -> str:
        ids = f"{self.equal} of {self.total} probe texts ({self.ratio:.0%}) give the same ids"
        if not self.decoded:
            return f"{ids}; texts of ids not checked"
        return f"{ids}, {self.decoded_equal} of {self.decoded} lists of ids the same text"


def measure_agreement(
    encode: Callable[[str], Sequence[int]],
    other: Callable[[str], Sequence[int]],
    *,
    texts: Sequence[str] = PROBES,
    decode: tuple[Callable[[list[int]], str], Callable[[list[int]], str]] | None = None,
) -> Agreement:
    """Compare the ids of two tokenizers for each text, and the texts of equal ids.

    Args:
        encode: text to ids.
        other: text to ids, of the other tokenizer.
        texts: texts to compare.
        decode: ids to text, for both; without them decoding is not compared.
    """
    pairs = [(text, list(encode(text)), list(other(text))) for text in texts]
    decoded = []
    if decode:
        lists = _lists([mine for _, mine, theirs in pairs if mine == theirs])
        decoded = [(ids, decode[0](ids), decode[1](ids)) for ids in lists]
    return agreement(pairs, decoded)


def agreement(
    encoded: Sequence[tuple[str, Sequence[int], Sequence[int]]],
    decoded: Sequence[tuple[Sequence[int], str, str]] = (),
) -> Agreement:
    """Compare results of two tokenizers.

    Args:
        encoded: texts, each with its ids from both.
        decoded: lists of ids, each with its text from both.
    """
    different = [text for text, mine, theirs in encoded if tuple(mine) != tuple(theirs)]
    wrong = [ids for ids, mine, theirs in decoded if mine != theirs]
    return Agreement(
        equal=len(encoded) - len(different),
        total=len(encoded),
        first_difference=different[0] if different else None,
        decoded_equal=len(decoded) - len(wrong),
        decoded=len(decoded),
        first_ids=tuple(wrong[0]) if wrong else None,
    )


def _lists(encoded: list[list[int]]) -> list[list[int]]:
    """Ids of each text, and of pairs of texts, the second without a beginning of text."""
    joined = [one + other for one, other in pairwise(encoded)]
    return [ids for ids in (*encoded, *joined) if ids]


def different_ids(one: Tokenizer, other: Tokenizer) -> list[int]:
    """Ids in both vocabularies whose bytes differ, ascending."""
    shared = range(min(one.vocab_size, other.vocab_size))
    return [id for id in shared if one.spelling(id) != other.spelling(id)]
