"""How often two tokenizers give the same ids: what ``--approximate-tokenizer`` has to admit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["PROBES", "Agreement", "measure_agreement"]

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
    """Outcome of a comparison.

    Attributes:
        equal: texts with equal ids.
        total: texts compared.
        first_difference: the first text with other ids, ``None`` when there is none.
    """

    equal: int
    total: int
    first_difference: str | None

    @property
    def ratio(self) -> float:
        """Share of texts with equal ids, 0 to 1."""
        return self.equal / self.total if self.total else 0.0

    def __str__(self) -> str:
        return f"{self.equal} of {self.total} probe texts ({self.ratio:.0%}) give the same ids"


def measure_agreement(
    encode: Callable[[str], Sequence[int]],
    other: Callable[[str], Sequence[int]],
    *,
    texts: Sequence[str] = PROBES,
) -> Agreement:
    """Compares two tokenizers text by text.

    Args:
        encode: text to ids.
        other: text to ids, of the other tokenizer.
        texts: what to compare on.
    """
    different = [text for text in texts if list(encode(text)) != list(other(text))]
    return Agreement(
        equal=len(texts) - len(different),
        total=len(texts),
        first_difference=different[0] if different else None,
    )
