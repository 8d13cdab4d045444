"""Normalizer and pre-tokenizer steps in the form the native engine reads.

Only steps that the native engine runs exactly as the ``tokenizers`` library; others are refused.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from bitnet.tokenizer.library import keeps_ascii, library_for
from bitnet.tokenizer.spec import SPACE_SYMBOL

if TYPE_CHECKING:
    from types import ModuleType

    from bitnet.tokenizer.spec import Step, TokenizerSpec

__all__ = ["NotNative", "moves_first", "pack_steps"]

# Kinds of steps, see tokenizer_steps.hpp.
_NORMALIZERS = {"NFC": 1, "NFKC": 2, "NFD": 3, "NFKD": 3, "StripAccents": 3, "Lowercase": 4}
_BERT_NORMALIZER, _PREPEND, _REPLACE, _LIBRARY = 5, 6, 7, 8
_SPLIT_REGEX, _SPLIT_STRING, _DIGITS, _PREFIX_SPACE, _METASPACE, _BERT = 20, 21, 22, 23, 24, 25
_WHITESPACE_SPLIT, _PUNCTUATION, _WHITESPACE, _FIXED_LENGTH = 26, 27, 28, 29

_BEHAVIORS = ("removed", "isolated", "mergedwithprevious", "mergedwithnext", "contiguous")
_REMOVED, _ISOLATED, _CONTIGUOUS = 0, 1, 4
_SCHEMES = ("never", "first", "always")
_ALWAYS = 2

# The expression built into the ByteLevel step.
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Normalizers that keep the origin of the first character.
_IN_PLACE = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase"})

Packed = tuple[int, int, int, str, str]


class NotNative(Exception):
    """The native engine cannot run this tokenizer exactly; the portable one can."""


def _pattern(step: Step, name: str) -> tuple[str, str]:
    pattern = step.options.get(name)
    if isinstance(pattern, str) and pattern:
        return "String", pattern
    if isinstance(pattern, dict) and len(pattern) == 1:
        kind, text = next(iter(pattern.items()))
        if kind in ("String", "Regex") and isinstance(text, str) and text:
            return kind, text
    raise NotNative(f"the pattern of a {step.type} step")


def _behavior(step: Step, default: str = "") -> int:
    name = str(step.options.get("behavior", default)).lower().replace("_", "")
    if name not in _BEHAVIORS:
        raise NotNative(f"behavior {name!r}")
    return _BEHAVIORS.index(name)


def _normalizer(step: Step) -> list[Packed]:
    options = step.options
    if step.type in _NORMALIZERS:
        return [(_NORMALIZERS[step.type], 0, 0, "", "")]
    if step.type == "BertNormalizer":
        flags = bool(options.get("clean_text", True)) | bool(options.get("lowercase", True)) << 1
        return [(_BERT_NORMALIZER, flags, 0, "", "")]
    if step.type == "Prepend":
        return [(_PREPEND, 0, 0, str(options["prepend"]), "")]
    if step.type == "Replace":
        kind, text = _pattern(step, "pattern")
        if kind == "String":
            return [(_REPLACE, 0, 0, text, str(options["content"]))]
    if step.type == "ByteLevel":
        raise NotNative("a normalizer that spells bytes")
    return [(_LIBRARY, keeps_ascii(step), 0, "", "")]


def _metaspace(options: dict[str, Any], *, first: bool) -> Packed:
    scheme = options.get("prepend_scheme")
    if scheme is None:
        scheme = "always" if options.get("add_prefix_space", True) else "never"
    if scheme == "first" and not first:
        raise NotNative("what is first may not be known to a step that prepends to it")
    if scheme not in _SCHEMES:
        raise NotNative(f"prepend_scheme {scheme!r}")
    symbol = options.get("replacement", SPACE_SYMBOL)
    if not isinstance(symbol, str) or len(symbol) != 1:
        raise NotNative(f"replacement {symbol!r}")
    return _METASPACE, _SCHEMES.index(scheme), bool(options.get("split", True)), symbol, ""


def _pre_tokenizer(step: Step, *, first: bool) -> list[Packed]:
    options = step.options
    if step.type == "Split":
        kind, text = _pattern(step, "pattern")
        number = _SPLIT_REGEX if kind == "Regex" else _SPLIT_STRING
        return [(number, _behavior(step), bool(options.get("invert", False)), text, "")]
    if step.type == "ByteLevel":
        prefix: Packed = (_PREFIX_SPACE, _ALWAYS, 0, " ", "")
        split: Packed = (_SPLIT_REGEX, _ISOLATED, 0, GPT2_PATTERN, "")
        return [
            *([prefix] if options.get("add_prefix_space", True) else []),
            *([split] if options.get("use_regex", True) else []),
        ]
    if step.type == "Digits":
        alone = options.get("individual_digits", False)
        return [(_DIGITS, _ISOLATED if alone else _CONTIGUOUS, 0, "", "")]
    if step.type == "Metaspace":
        return [_metaspace(options, first=first)]
    if step.type == "Punctuation":
        return [(_PUNCTUATION, _behavior(step, "isolated"), 0, "", "")]
    if step.type == "BertPreTokenizer":
        return [(_BERT, _ISOLATED, 0, "", "")]
    if step.type == "WhitespaceSplit":
        return [(_WHITESPACE_SPLIT, _REMOVED, 0, "", "")]
    if step.type == "Whitespace":
        return [(_WHITESPACE, _REMOVED, 0, "", "")]
    if step.type == "CharDelimiterSplit":
        return [(_SPLIT_STRING, _REMOVED, 0, str(options["delimiter"]), "")]
    length = options.get("length")
    if step.type == "FixedLength" and type(length) is int and 0 < length < 1 << 31:
        return [(_FIXED_LENGTH, length, 0, "", "")]
    raise NotNative(f"pre-tokenizer {step.type}")


def moves_first(spec: TokenizerSpec) -> bool:
    """True if normalizing may change which character is first.

    The ``tokenizers`` library's ``prepend_scheme`` ``first`` depends on the text before.
    """
    at_once = spec.pre_tokenizer and spec.pre_tokenizer[0].options.get("prepend_scheme") == "first"
    in_place = {step.type for step in spec.normalizer} <= _IN_PLACE
    return bool(spec.normalizer) and not (at_once and in_place)


def pack_steps(spec: TokenizerSpec, module: ModuleType) -> bytes:
    """All steps of *spec*, little-endian: count, then kind, two numbers and two texts each.

    Args:
        spec: the tokenizer.
        module: the native module, which compiles every expression.

    Raises:
        NotNative: the native engine does not run a step exactly.
    """
    normalizer = [packed for step in spec.normalizer for packed in _normalizer(step)]
    if any(packed[0] == _LIBRARY for packed in normalizer):
        library_for(spec.source, spec.normalizer)  # refuses what is damaged
    moves = moves_first(spec)
    cuts = [
        packed
        for at, step in enumerate(spec.pre_tokenizer)
        for packed in _pre_tokenizer(step, first=at == 0 and not moves)
    ]
    byte_levels = [step.type == "ByteLevel" for step in spec.pre_tokenizer]
    # Later steps would see the spelling of the bytes instead of the text.
    if byte_levels.count(True) != spec.byte_level or (spec.byte_level and not byte_levels[-1]):
        raise NotNative("a ByteLevel step that is missing or not the last")
    out = [struct.pack("<I", len(normalizer) + len(cuts))]
    for kind, a, b, text, other in [*normalizer, *cuts]:
        if kind == _SPLIT_REGEX:
            try:
                module.regex_find_all(text, "")
            except ValueError as error:
                raise NotNative(str(error)) from error
        first, second = text.encode(), other.encode()
        out.append(struct.pack("<4I", kind, a, b, len(first)) + first)
        out.append(struct.pack("<I", len(second)) + second)
    return b"".join(out)
