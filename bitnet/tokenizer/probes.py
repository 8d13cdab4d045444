"""Texts on which tokenizers tend to disagree, for comparisons.

The texts are always the same: real prose and odd cases, and mixes of both from a fixed seed.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from bitnet.base.errors import from_os_error

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PROBES", "corpus_texts", "probe_texts"]

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
