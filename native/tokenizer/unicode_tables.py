"""Writes unicode_tables.hpp: what the `tokenizers` library believes about every code point.

The native tokenizer must cut text exactly where that library does, so its tables are not taken
from a version of the Unicode database but asked from the library itself::

    python native/tokenizer/unicode_tables.py > native/tokenizer/unicode_tables.hpp
"""

from __future__ import annotations

import sys
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))
from charsmaps import charsmap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
    ranges: Ranges = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    return ranges


def codes_removed_by(step: Callable[[str], list[tuple[str, tuple[int, int]]]]) -> Ranges:
    """Code points that the pre-tokenizer *step*, which removes what it matches, removes."""
    codes: list[int] = []
    for chunk in chunks():
        kept = set("".join(piece for piece, _ in step("".join(map(chr, chunk)))))
        codes += [code for code in chunk if chr(code) not in kept]
    return to_ranges(codes)


def matching(pattern: str) -> Ranges:
    """Code points that the regular expression *pattern* matches."""
    from tokenizers import Regex, pre_tokenizers

    return codes_removed_by(pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str)


def alone(step: Callable[[str], list[tuple[str, tuple[int, int]]]]) -> Ranges:
    """Code points that *step* always makes a piece of their own between two letters."""
    return to_ranges([code for code in _CODE_POINTS if len(step(f"a{chr(code)}a")) == 3])


def codes_changed_by(normalize: Callable[[str], str]) -> Ranges:
    """Code points that *normalize* turns into something else."""
    return to_ranges([code for code in _CODE_POINTS if normalize(chr(code)) != chr(code)])


def codes_removed_in(normalize: Callable[[str], str]) -> Ranges:
    """Code points that *normalize* leaves out."""
    return to_ranges([code for code in _CODE_POINTS if not normalize(chr(code))])


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


def expansions(normalize: Callable[[str], str]) -> dict[int, list[int]]:
    """Code points that *normalize* turns into others, Hangul syllables excepted."""
    changed = {
        code: [ord(char) for char in normalize(chr(code))]
        for code in _CODE_POINTS
        if not 0xAC00 <= code <= 0xD7A3
    }
    return {code: made for code, made in changed.items() if made != [code]}


def combining_classes() -> list[tuple[int, int, int]]:
    """Ranges of canonical combining classes other than 0, as normalization orders by them."""
    from tokenizers import normalizers

    nfd = normalizers.NFD().normalize_str
    ranges: list[tuple[int, int, int]] = []
    for code in _CODE_POINTS:
        kind = unicodedata.combining(chr(code))
        # It goes before a mark of the highest class, and one of that class before no other.
        moves = kind == 240 or nfd(f"a\u0345{chr(code)}")[1] != "\u0345"
        if kind == 0 or not moves or nfd(chr(code)) != chr(code):
            continue
        if ranges and ranges[-1][1:] == (code - 1, kind):
            ranges[-1] = (ranges[-1][0], code, kind)
        else:
            ranges.append((code, code, kind))
    return ranges


def compositions() -> list[tuple[int, int, int]]:
    """Pairs of code points and what they compose to, Hangul excepted."""
    from tokenizers import normalizers

    nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    triples = []
    for code, parts in expansions(nfd).items():
        first, last = nfc("".join(map(chr, parts[:-1]))), chr(parts[-1])
        if len(parts) > 1 and len(first) == 1 and nfc(first + last) == chr(code):
            triples.append((ord(first), ord(last), code))
    return sorted(triples)


def script_runs() -> list[tuple[int, int, int]]:
    """Ranges of scripts as the pre-tokenizer ``UnicodeScripts`` sees them; 0 fits all."""
    from tokenizers import pre_tokenizers

    split = pre_tokenizers.UnicodeScripts().pre_tokenize_str
    scripts: list[str] = []
    ranges: list[tuple[int, int, int]] = []

    def number_of(char: str) -> int:
        if len(split("a" + char)) == len(split("\u03b1" + char)) == 1:
            return 0
        last = ranges[-1] if ranges else (0, 0, 0)
        if last[2] and len(split(chr(last[1]) + char)) == 1:
            return last[2]
        number = next((n for n, one in enumerate(scripts, 1) if len(split(one + char)) == 1), 0)
        if number == 0:
            scripts.append(char)
        return number or len(scripts)

    for code in _CODE_POINTS:
        number = number_of(chr(code))
        if ranges and ranges[-1][1:] == (code - 1, number):
            ranges[-1] = (ranges[-1][0], code, number)
        elif number:
            ranges.append((code, code, number))
    return ranges


def grapheme_classes() -> list[tuple[int, int, int]]:
    """Ranges of classes of extended grapheme clusters, see GraphemeClass in unicode.hpp."""
    from tokenizers import normalizers

    def mapping(chars: list[str]) -> Callable[[str], str]:
        table = charsmap({char.encode(): b"X" for char in chars})
        normalize: Callable[[str], str] = normalizers.Precompiled(table).normalize_str
        return normalize

    after_letter, after_sign = mapping(["a"]), mapping(["\u00a9"])
    classes: dict[int, int] = {}
    for start in range(0, len(_CODE_POINTS), 64):
        chunk = _CODE_POINTS[start : start + 64]
        own = mapping([chr(code) for code in chunk if code]) if chunk[0] < 0x20000 else None
        for code in chunk:
            char = chr(code)
            if after_letter("a" + char) == "X":
                classes[code] = 1
            elif own is not None and code and own(char + "b") == "X":
                classes[code] = 2
            elif own is not None and code and code < 0x10000 and own(char + "\u0301") != "X":
                classes[code] = 3
            elif after_sign(f"\u00a9\u200d{char}") != "X" + char:
                classes[code] = 4
    classes[0] = 3
    ranges: list[tuple[int, int, int]] = []
    for code, kind in sorted(classes.items()):
        if ranges and ranges[-1][1:] == (code - 1, kind):
            ranges[-1] = (ranges[-1][0], code, kind)
        else:
            ranges.append((code, code, kind))
    return ranges


def rows(name: str, kind: str, cells: Sequence[tuple[int, ...]]) -> str:
    """A C++ array of *kind*."""
    texts = ["{" + ",".join(f"{value:#x}" for value in cell) + "}" for cell in cells]
    lines = [",".join(texts[i : i + 6]) for i in range(0, len(texts), 6)]
    return f"constexpr {kind} k{name}[] = {{\n    " + ",\n    ".join(lines) + "};\n"


def expansion_table(name: str, found: dict[int, list[int]]) -> str:
    """A C++ array of places in a second one, which holds what each code point becomes."""
    pool: list[int] = []
    cells = []
    for code, made in sorted(found.items()):
        cells.append((code, len(pool), len(made)))
        pool += made
    lines = [",".join(f"{code:#x}" for code in pool[i : i + 14]) for i in range(0, len(pool), 14)]
    return rows(name, "Expansion", cells) + (
        f"constexpr uint32_t k{name}Codes[] = {{\n    " + ",\n    ".join(lines) + "};\n"
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
        table("BertSpace", codes_removed_by(pre_tokenizers.WhitespaceSplit().pre_tokenize_str)),
        table(
            "Punctuation", codes_removed_by(pre_tokenizers.Punctuation("removed").pre_tokenize_str)
        ),
        table("Numeric", alone(pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str)),
        "struct Expansion {\n    uint32_t code;\n    uint16_t at, size;\n};\n",
        "struct Pair {\n    uint32_t first, second, whole;\n};\n",
        "struct Class {\n    uint32_t first, last;\n    uint8_t value;\n};\n",
        expansion_table("Canonical", canonical := expansions(normalizers.NFD().normalize_str)),
        expansion_table(
            "Compatible",
            {
                code: made
                for code, made in expansions(normalizers.NFKD().normalize_str).items()
                if made != canonical.get(code)
            },
        ),
        expansion_table("Lower", expansions(normalizers.Lowercase().normalize_str)),
        rows("CombiningClasses", "Class", combining_classes()),
        rows("Compositions", "Pair", compositions()),
        rows("ScriptRuns", "Class", script_runs()),
        rows("Graphemes", "Class", grapheme_classes()),
        table("CombiningMarks", codes_changed_by(normalizers.StripAccents().normalize_str)),
        table(
            "NonspacingMarks",
            codes_removed_in(
                normalizers.BertNormalizer(
                    clean_text=False,
                    handle_chinese_chars=False,
                    strip_accents=True,
                    lowercase=False,
                ).normalize_str
            ),
        ),
        table(
            "Controls",
            codes_removed_in(
                normalizers.BertNormalizer(
                    clean_text=True,
                    handle_chinese_chars=False,
                    strip_accents=False,
                    lowercase=False,
                ).normalize_str
            ),
        ),
        table("NfcChanges", codes_changed_by(normalizers.NFC().normalize_str)),
        table("NfkcChanges", codes_changed_by(normalizers.NFKC().normalize_str)),
        "}  // namespace bitnet::unicode\n",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(write())
