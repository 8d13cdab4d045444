"""Writes unicode_tables.hpp: what the `tokenizers` library believes about every code point.

The native tokenizer must cut text exactly where that library does, so its tables are not taken
from a version of the Unicode database but asked from the library itself::

    python bitnet/native/unicode_tables.py > bitnet/native/unicode_tables.hpp
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CATEGORIES = [
    *("Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps"),
    *("Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cs"),
]
SCRIPTS = [
    *("Latin", "Greek", "Cyrillic", "Armenian", "Hebrew", "Arabic", "Devanagari", "Bengali"),
    *("Tamil", "Telugu", "Thai", "Lao", "Tibetan", "Myanmar", "Georgian", "Hangul", "Ethiopic"),
    *("Khmer", "Hiragana", "Katakana", "Bopomofo", "Han"),
]
_SURROGATES = range(0xD800, 0xE000)
_CODE_POINTS = [code for code in range(0x110000) if code not in _SURROGATES]
_CHUNK = 4096

Ranges = list[tuple[int, int]]


def chunks() -> Iterator[list[int]]:
    """All code points except surrogates, in order, in lists short enough to split quickly."""
    for start in range(0, len(_CODE_POINTS), _CHUNK):
        yield _CODE_POINTS[start : start + _CHUNK]


def to_ranges(codes: list[int]) -> Ranges:
    """Runs of consecutive *codes* as ``(first, last)``."""
    found: Ranges = []
    for code in codes:
        if found and found[-1][1] == code - 1:
            found[-1] = (found[-1][0], code)
        else:
            found.append((code, code))
    return found


def removed_by(step: Callable[[str], list[tuple[str, tuple[int, int]]]]) -> Ranges:
    """Code points that the pre-tokenizer *step*, which removes what it matches, removes."""
    codes: list[int] = []
    for chunk in chunks():
        kept = set("".join(piece for piece, _ in step("".join(map(chr, chunk)))))
        codes += [code for code in chunk if chr(code) not in kept]
    return to_ranges(codes)


def matching(pattern: str) -> Ranges:
    """Code points that the regular expression *pattern* matches."""
    from tokenizers import Regex, pre_tokenizers

    return removed_by(pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str)


def alone(step: Callable[[str], list[tuple[str, tuple[int, int]]]]) -> Ranges:
    """Code points that *step* always makes a piece of their own between two letters."""
    return to_ranges([code for code in _CODE_POINTS if len(step(f"a{chr(code)}a")) == 3])


def changed_by(normalize: Callable[[str], str]) -> Ranges:
    """Code points that *normalize* turns into something else."""
    return to_ranges([code for code in _CODE_POINTS if normalize(chr(code)) != chr(code)])


def word_characters() -> Ranges:
    """Code points the library counts as part of a word around a ``single_word`` added token."""
    from tokenizers import AddedToken, Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))  # noqa: S106
    tokenizer.add_tokens([AddedToken("Q", single_word=True, normalized=False)])
    texts = [f"Q{chr(code)}" for code in _CODE_POINTS]
    found = tokenizer.encode_batch(texts)
    return to_ranges(
        [
            code
            for code, encoding in zip(_CODE_POINTS, found, strict=True)
            if encoding.tokens[0] != "Q"
        ]
    )


def table(name: str, ranges: Ranges) -> str:
    """A C++ array of ``{first, last}``."""
    cells = [f"{{{first:#x},{last:#x}}}" for first, last in ranges]
    lines = [",".join(cells[i : i + 6]) for i in range(0, len(cells), 6)]
    return f"constexpr Range k{name}[] = {{\n    " + ",\n    ".join(lines) + "};\n"


def write() -> str:
    """The header file."""
    from tokenizers import normalizers, pre_tokenizers

    labelled = sorted(
        (first, last, index)
        for index, name in enumerate(CATEGORIES)
        if name not in ("Cn", "Cs")
        for first, last in matching(rf"\p{{{name}}}")
    )
    cells = [f"{{{first:#x},{last:#x},{index}}}" for first, last, index in labelled]
    lines = [",".join(cells[i : i + 6]) for i in range(0, len(cells), 6)]
    parts = [
        "// Written by unicode_tables.py from the `tokenizers` library; do not edit.\n",
        "#pragma once\n",
        "#include <cstddef>\n#include <cstdint>\n\nnamespace bitnet::unicode {\n",
        "struct Range {\n    uint32_t first, last;\n};\n",
        "struct CategoryRange {\n    uint32_t first, last;\n    uint8_t category;\n};\n",
        "constexpr const char* kCategoryNames[] = {"
        + ", ".join(f'"{name}"' for name in CATEGORIES)
        + "};\n",
        "constexpr CategoryRange kCategories[] = {\n    " + ",\n    ".join(lines) + "};\n",
        *(table(f"Script{name}", matching(rf"\p{{{name}}}")) for name in SCRIPTS),
        "struct Script {\n    const char* name;\n    const Range* ranges;\n    size_t count;\n};\n",
        "constexpr Script kScripts[] = {\n    "
        + ",\n    ".join(
            f'{{"{name}", kScript{name}, sizeof(kScript{name}) / sizeof(Range)}}'
            for name in SCRIPTS
        )
        + "};\n",
        table("Space", matching(r"\s")),
        table("Word", matching(r"\w")),
        table("AddedTokenWord", word_characters()),
        table("BertSpace", removed_by(pre_tokenizers.WhitespaceSplit().pre_tokenize_str)),
        table("Punctuation", removed_by(pre_tokenizers.Punctuation("removed").pre_tokenize_str)),
        table("Numeric", alone(pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str)),
        table("NfcChanges", changed_by(normalizers.NFC().normalize_str)),
        table("NfkcChanges", changed_by(normalizers.NFKC().normalize_str)),
        "}  // namespace bitnet::unicode\n",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(write())
