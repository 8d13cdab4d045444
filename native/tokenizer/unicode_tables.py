"""Writes unicode_tables.hpp: properties that the `tokenizers` library gives to code points.

The native tokenizer must cut text exactly where that library does. So its tables are not taken from
a version of the Unicode database, but from what the library does with each code point. Only the
numbers of combining classes are Python's, for the code points that the library orders by them::

    python native/tokenizer/unicode_tables.py > native/tokenizer/unicode_tables.hpp

Tables are numbers in digits of five bits, see `digits`, which `Digits` in unicode.cpp reads:
properties as runs of code points, see `encode_runs`; sets as general categories and the runs that
differ from them, see `encode_set`; mappings as runs of code points and the differences to what the
code points before become, see `encode_mapping`.
"""

from __future__ import annotations

import sys
import textwrap
import unicodedata
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))
from charsmaps import charsmap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Normalize = Callable[[str], str]
    Split = Callable[[str], list[tuple[str, tuple[int, int]]]]

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
_CHUNK = 4096  # characters of one text: short enough to split quickly
_WIDTH = 90  # digits of a line, which is 100 long at most


def codes_removed_by(step: Split) -> list[int]:
    """Code points that *step* removes: a pre-tokenizer that removes its matches."""
    codes: list[int] = []
    for start in range(0, len(_CODE_POINTS), _CHUNK):
        chunk = _CODE_POINTS[start : start + _CHUNK]
        rest = set("".join(piece for piece, _ in step("".join(map(chr, chunk)))))
        codes += [code for code in chunk if chr(code) not in rest]
    return codes


def codes_matching(pattern: str) -> list[int]:
    """Code points that the regular expression *pattern* matches."""
    from tokenizers import Regex, pre_tokenizers

    return codes_removed_by(pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str)


def codes_alone(step: Split) -> list[int]:
    """Code points that *step* always makes a piece of their own between two letters."""
    return [code for code in _CODE_POINTS if len(step(f"a{chr(code)}a")) == 3]


def codes_removed_in(**options: bool) -> list[int]:
    """Code points that a BertNormalizer with these *options* alone leaves out."""
    from tokenizers import normalizers

    names = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
    step = normalizers.BertNormalizer(**{name: options.get(name, False) for name in names})
    return [code for code in _CODE_POINTS if not step.normalize_str(chr(code))]


def word_characters() -> list[int]:
    """Code points that the library takes for a part of a word beside a ``single_word`` token."""
    from tokenizers import AddedToken, Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))  # noqa: S106
    tokenizer.add_tokens([AddedToken("Q", single_word=True, normalized=False)])
    encodings = tokenizer.encode_batch([f"Q{chr(code)}" for code in _CODE_POINTS])
    pairs = zip(_CODE_POINTS, encodings, strict=True)
    return [code for code, encoding in pairs if encoding.tokens[0] != "Q"]


def expansions(normalize: Normalize) -> dict[int, list[int]]:
    """Code points that *normalize* turns into others, Hangul syllables excepted."""
    changed = {
        code: [ord(char) for char in normalize(chr(code))]
        for code in _CODE_POINTS
        if not 0xAC00 <= code <= 0xD7A3
    }
    return {code: codes for code, codes in changed.items() if codes != [code]}


def combining_classes() -> dict[int, int]:
    """Canonical combining classes other than 0, as normalization orders by them."""
    from tokenizers import normalizers

    nfd = normalizers.NFD().normalize_str
    classes = {}
    for code in _CODE_POINTS:
        # The library shows only that a mark has a class; Python's database has the number.
        number = unicodedata.combining(chr(code))
        # U+0345 has the highest class, 240. Normalization moves marks of lower classes before it; a
        # mark that stays behind it has class 0 in the library.
        moves = number == 240 or nfd(f"a\u0345{chr(code)}")[1] != "\u0345"
        if number and moves and nfd(chr(code)) == chr(code):
            classes[code] = number
    return classes


def script_numbers() -> dict[int, int]:
    """Numbers, from 1, of the scripts that ``UnicodeScripts`` tells apart.

    A code point that is not split from characters of any script has no number.
    """
    from tokenizers import pre_tokenizers

    split = pre_tokenizers.UnicodeScripts().pre_tokenize_str
    scripts: list[str] = []  # a character of each script
    numbers: dict[int, int] = {}

    def number_of(char: str, before: int) -> int:
        if len(split("a" + char)) == len(split("\u03b1" + char)) == 1:
            return 0
        if numbers.get(before) and len(split(chr(before) + char)) == 1:
            return numbers[before]
        number = next((n for n, one in enumerate(scripts, 1) if len(split(one + char)) == 1), 0)
        if number == 0:
            scripts.append(char)
        return number or len(scripts)

    last = 0
    for code in _CODE_POINTS:
        if number := number_of(chr(code), last):
            numbers[code] = number
            last = code
    return numbers


def grapheme_classes() -> dict[int, int]:
    """Classes of extended grapheme clusters other than 0, see `grapheme` in unicode.cpp."""
    from tokenizers import normalizers

    def mapping(chars: list[str]) -> Normalize:
        """A normalizer that replaces a cluster which begins with one of *chars* by X."""
        table = charsmap({char.encode(): b"X" for char in chars})
        normalize: Normalize = normalizers.Precompiled(table).normalize_str
        return normalize

    after_letter = mapping(["a"])
    after_sign = mapping(["\u00a9"])
    classes = {}
    for start in range(0, len(_CODE_POINTS), 64):
        chunk = _CODE_POINTS[start : start + 64]
        # A map cannot have U+0000, and no character from U+20000 on is kPrepends or tested for
        # kControl.
        own = mapping([chr(code) for code in chunk if code]) if chunk[0] < 0x20000 else None
        for code in chunk:
            char = chr(code)
            # Clusters of six bytes are not replaced as a whole, so controls are tested up to FFFF.
            if after_letter("a" + char) == "X":
                classes[code] = 1  # kJoins
            elif own is not None and code and own(char + "b") == "X":
                classes[code] = 2  # kPrepends
            elif own is not None and code and code < 0x10000 and own(char + "\u0301") != "X":
                classes[code] = 3  # kControl
            elif after_sign(f"\u00a9\u200d{char}") != "X" + char:
                classes[code] = 4  # kPicture
    classes[0] = 3
    return classes


def digits(number: int) -> str:
    """*number* in digits of five bits, the lowest first, plus 32 if another one follows."""
    text = ""
    while number >= 32:
        text += chr(ord("0") + 32 + number % 32)
        number //= 32
    return text + chr(ord("0") + number)


def encode_runs(values: dict[int, int]) -> str:
    """A length and a value for each run of code points; those without one of *values* have 0."""
    text = ""
    end = 0
    pairs = enumerate(sorted(values))
    for (_, value), group in groupby(pairs, lambda pair: (pair[1] - pair[0], values[pair[1]])):
        codes = [code for _, code in group]
        if codes[0] > end:
            text += digits(codes[0] - end) + digits(0)
        text += digits(len(codes)) + digits(value)
        end = codes[-1] + 1
    return text


def encode_set(codes: Iterable[int], categories: dict[int, int]) -> str:
    """A bit for each category of which *codes* have most, and the runs that differ from these."""
    codes = set(codes)
    sizes = [0] * len(CATEGORIES)
    for code, category in categories.items():
        sizes[category] += 1 if code in codes else -1
    mask = sum(1 << category for category, size in enumerate(sizes) if size > 0)
    differing = codes ^ {code for code, category in categories.items() if mask >> category & 1}
    return digits(mask) + encode_runs(dict.fromkeys(differing, 1))


def encode_mapping(mapping: dict[int, list[int]]) -> str:
    """The entries of *mapping*, in order.

    An entry is three things: twice the gap in code points to the entry before; the number of codes
    that it becomes; and the difference of each to the last code in the same place of the entries
    before, in zigzag form. If the first number is odd, it begins a run of entries with one code
    each: the length of the run comes after the gap, and then the step by which both code point and
    code grow from one entry to the next.
    """
    items = sorted(mapping.items())

    def run_length(at: int, step: int) -> int:
        """Number of items from index *at* on whose code and only target both grow by *step*."""
        code, targets = items[at]
        length = 1
        while len(targets) == 1 and items[at + length : at + length + 1] == [
            (code + step * length, [targets[0] + step * length])
        ]:
            length += 1
        return length

    text = ""
    at = 0
    end = 0
    before = [0] * max(map(len, mapping.values()))
    while at < len(items):
        code, targets = items[at]
        length, step = max((run_length(at, step), -step) for step in (1, 2))
        length, step = (length, -step) if length > 2 else (1, 1)
        text += digits(2 * (code - end) + (length > 1))
        text += digits(length) + digits(step) if length > 1 else ""
        text += digits(len(targets))
        for place, target in enumerate(targets):
            change = target - before[place]
            text += digits(2 * change if change >= 0 else -2 * change - 1)
            before[place] = target
        before[0] += (length - 1) * step
        end = code + (length - 1) * step + 1
        at += length
    return text


def table(name: str, text: str) -> str:
    """A C++ array of *text* in raw literals, which digits cannot end: none is a parenthesis."""
    lines = [text[at : at + _WIDTH] for at in range(0, len(text), _WIDTH)]
    return f"constexpr char k{name}[] =\n" + "\n".join(f'    R"({line})"' for line in lines) + ";\n"


def names(name: str, items: list[str]) -> str:
    """A C++ array of texts."""
    texts = textwrap.fill(", ".join(f'"{item}"' for item in items), 96, break_on_hyphens=False)
    return f"constexpr const char* k{name}[] = {{\n{textwrap.indent(texts, '    ')}}};\n"


def write() -> str:
    """The header file."""
    from tokenizers import normalizers as n
    from tokenizers import pre_tokenizers as p

    categories = dict.fromkeys(_CODE_POINTS, 0)
    for number, name in enumerate(CATEGORIES):
        if name not in ("Cn", "Cs"):
            categories.update(dict.fromkeys(codes_matching(rf"\p{{{name}}}"), number))
    scripts: dict[int, int] = {}
    for number, name in enumerate(SCRIPTS, 1):
        scripts.update(dict.fromkeys(codes_matching(rf"\p{{{name}}}"), number))
    canonical, compatible = (expansions(form.normalize_str) for form in (n.NFD(), n.NFKD()))
    nfc = n.NFC().normalize_str
    excluded = [c for c, parts in canonical.items() if len(parts) > 1 and nfc(chr(c)) != chr(c)]
    sets = {
        "Space": codes_matching(r"\s"),
        "Word": codes_matching(r"\w"),
        "AddedTokenWord": word_characters(),
        "Punctuation": codes_removed_by(p.Punctuation("removed").pre_tokenize_str),
        "Numeric": codes_alone(p.Digits(individual_digits=True).pre_tokenize_str),
        "CombiningMarks": expansions(n.StripAccents().normalize_str),
        "NonspacingMarks": codes_removed_in(strip_accents=True),
        "Controls": codes_removed_in(clean_text=True),
        "NotComposed": excluded,
    }
    runs = {
        "Categories": {code: number for code, number in categories.items() if number},
        "Scripts": scripts,  # \p{Han} and others of a pattern: places in kScriptNames, from 1
        "CombiningClasses": combining_classes(),
        "ScriptNumbers": script_numbers(),  # for UnicodeScripts; not those of kScriptNames
        "Graphemes": grapheme_classes(),
    }
    mappings = {
        "Canonical": canonical,
        "Compatible": {c: to for c, to in compatible.items() if to != canonical.get(c)},
        "Lower": expansions(n.Lowercase().normalize_str),
    }
    parts = [
        "// Written by unicode_tables.py, which says how tables are packed; do not edit.\n",
        "#pragma once\n\nnamespace bitnet::unicode {\n",
        names("CategoryNames", CATEGORIES) + names("ScriptNames", SCRIPTS),
        *(table(name, encode_runs(values)) for name, values in runs.items()),
        *(table(name, encode_set(codes, categories)) for name, codes in sets.items()),
        *(table(name, encode_mapping(mapping)) for name, mapping in mappings.items()),
        "}  // namespace bitnet::unicode\n",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(write())
