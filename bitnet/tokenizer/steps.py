"""Normalizer and pre-tokenizer steps in the form the native engine reads.

Only steps that the native engine runs exactly as the ``tokenizers`` library; others are refused.
"""

from __future__ import annotations

import base64
import binascii
import struct
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat
from bitnet.tokenizer.spec import SPACE_SYMBOL

if TYPE_CHECKING:
    from types import ModuleType

    from bitnet.tokenizer.spec import Step, TokenizerSpec

__all__ = ["NotNative", "charsmaps_of", "pack_steps"]

# Kinds of steps, see native/tokenizer/steps.hpp.
_NORMALIZERS = {
    "NFC": 1, "NFKC": 2, "NFD": 3, "NFKD": 4, "Lowercase": 5, "StripAccents": 6, "Nmt": 11,
    "ByteLevel": 13, "Precompiled": 14,
}  # fmt: skip
_BERT_NORMALIZER, _PREPEND, _REPLACE, _REPLACE_REGEX, _STRIP = 7, 8, 9, 10, 12
_SPLIT_REGEX, _SPLIT_STRING, _DIGITS, _PREFIX_SPACE, _METASPACE, _BERT = 20, 21, 22, 23, 24, 25
_WHITESPACE_SPLIT, _PUNCTUATION, _WHITESPACE, _FIXED_LENGTH, _SCRIPTS, _SPELL = range(26, 32)

_BEHAVIORS = ("removed", "isolated", "mergedwithprevious", "mergedwithnext", "contiguous")
_REMOVED, _ISOLATED, _CONTIGUOUS = 0, 1, 4
_SCHEMES = ("never", "first", "always")
_ALWAYS = 2

# The expression built into the ByteLevel step.
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

Packed = tuple[int, int, int, str, str]


class NotNative(Exception):
    """The native engine does not run this tokenizer exactly; the library may."""


def _pattern(step: Step) -> tuple[str, str]:
    """Kind and text of a pattern; the empty text matches as an expression does."""
    pattern = step.options.get("pattern")
    if isinstance(pattern, str):
        pattern = {"String": pattern}
    if isinstance(pattern, dict) and len(pattern) == 1:
        kind, text = next(iter(pattern.items()))
        if kind in ("String", "Regex") and isinstance(text, str):
            return kind if text else "Regex", text
    raise NotNative(f"the pattern of a {step.type} step")


def _behavior(step: Step, default: str = "") -> int:
    name = str(step.options.get("behavior", default)).lower().replace("_", "")
    if name not in _BEHAVIORS:
        raise NotNative(f"behavior {name!r}")
    return _BEHAVIORS.index(name)


def _normalizer(step: Step) -> Packed:
    options = step.options
    if step.type in _NORMALIZERS:
        return (_NORMALIZERS[step.type], 0, 0, "", "")
    if step.type == "BertNormalizer":
        lowercase = bool(options.get("lowercase", True))
        accents = options.get("strip_accents")
        flags = (
            bool(options.get("clean_text", True))
            | lowercase << 1
            | (lowercase if accents is None else bool(accents)) << 2
            | bool(options.get("handle_chinese_chars", True)) << 3
        )
        return (_BERT_NORMALIZER, flags, 0, "", "")
    if step.type == "Strip":
        sides = bool(options.get("strip_left", True)) | bool(options.get("strip_right", True)) << 1
        return (_STRIP, sides, 0, "", "")
    if step.type == "Prepend":
        return (_PREPEND, 0, 0, str(options["prepend"]), "")
    if step.type == "Replace":
        kind, text = _pattern(step)
        number = _REPLACE if kind == "String" else _REPLACE_REGEX
        return (number, 0, 0, text, str(options["content"]))
    raise NotNative(f"normalizer {step.type}")


def charsmaps_of(spec: TokenizerSpec) -> list[bytes]:
    """SentencePiece's character maps of *spec*, its own and those of steps.

    Raises:
        InvalidFormat: one is not base64.
    """
    charsmaps = [spec.charsmap] if spec.charsmap else []
    for step in spec.normalizer:
        if step.type == "Precompiled":
            text = str(step.options.get("precompiled_charsmap"))
            try:
                charsmaps.append(base64.b64decode(text, validate=True))
            except binascii.Error as error:
                raise InvalidFormat(
                    f"{spec.source}: precompiled_charsmap is not base64: {error}",
                    hint="fetch the file again",
                ) from None
    return charsmaps


def _metaspace(options: dict[str, Any]) -> Packed:
    scheme = options.get("prepend_scheme")
    if scheme is None:
        scheme = "always" if options.get("add_prefix_space", True) else "never"
    if scheme not in _SCHEMES:
        raise NotNative(f"prepend_scheme {scheme!r}")
    symbol = options.get("replacement", SPACE_SYMBOL)
    if not isinstance(symbol, str) or len(symbol) != 1:
        raise NotNative(f"replacement {symbol!r}")
    return _METASPACE, _SCHEMES.index(scheme), bool(options.get("split", True)), symbol, ""


def _pre_tokenizer(step: Step, *, spelled: bool) -> list[Packed]:
    options = step.options
    if step.type == "Split":
        kind, text = _pattern(step)
        number = _SPLIT_REGEX if kind == "Regex" else _SPLIT_STRING
        return [(number, _behavior(step), bool(options.get("invert", False)), text, "")]
    if step.type == "ByteLevel":
        prefix: Packed = (_PREFIX_SPACE, _ALWAYS, 0, " ", "")
        split: Packed = (_SPLIT_REGEX, _ISOLATED, 0, GPT2_PATTERN, "")
        return [
            *([prefix] if options.get("add_prefix_space", True) else []),
            *([split] if options.get("use_regex", True) else []),
            *([(_SPELL, 0, 0, "", "")] if spelled else []),
        ]
    if step.type == "Digits":
        alone = options.get("individual_digits", False)
        return [(_DIGITS, _ISOLATED if alone else _CONTIGUOUS, 0, "", "")]
    if step.type == "Metaspace":
        return [_metaspace(options)]
    if step.type == "Punctuation":
        return [(_PUNCTUATION, _behavior(step, "isolated"), 0, "", "")]
    if step.type == "BertPreTokenizer":
        return [(_BERT, _ISOLATED, 0, "", "")]
    if step.type == "WhitespaceSplit":
        return [(_WHITESPACE_SPLIT, _REMOVED, 0, "", "")]
    if step.type == "Whitespace":
        return [(_WHITESPACE, _REMOVED, 0, "", "")]
    if step.type == "UnicodeScripts":
        return [(_SCRIPTS, _REMOVED, 0, "", "")]
    if step.type == "CharDelimiterSplit":
        return [(_SPLIT_STRING, _REMOVED, 0, str(options["delimiter"]), "")]
    length = options.get("length")
    if step.type == "FixedLength" and type(length) is int and 0 < length < 1 << 31:
        return [(_FIXED_LENGTH, length, 0, "", "")]
    raise NotNative(f"pre-tokenizer {step.type}")


def pack_steps(spec: TokenizerSpec, module: ModuleType, *, spelled: bool) -> bytes:
    """All steps of *spec*, little-endian: count, then kind, two numbers and two texts each.

    Args:
        spec: the tokenizer.
        module: the native module, which compiles every expression.
        spelled: ByteLevel writes bytes as characters; else the model reads the bytes themselves.

    Raises:
        NotNative: the native engine does not run a step exactly.
    """
    packed = [_normalizer(step) for step in spec.normalizer]
    for step in spec.pre_tokenizer:
        packed += _pre_tokenizer(step, spelled=spelled)
    out = [struct.pack("<I", len(packed))]
    for kind, a, b, text, extra in packed:
        if kind in (_SPLIT_REGEX, _REPLACE_REGEX):
            try:
                module.regex_find_all(text, "")
            except ValueError as error:
                raise NotNative(str(error)) from error
        first, second = text.encode(), extra.encode()
        out.append(struct.pack("<4I", kind, a, b, len(first)) + first)
        out.append(struct.pack("<I", len(second)) + second)
    return b"".join(out)
