r"""Cuts: places where a text can be split so that its parts give the ids of the whole.

A cut is between two characters. It does not change ids if, whatever the rest of the text is,

- no added token matches across it, and none that includes spaces or requires word borders is next
  to it;
- the normalizer treats the two sides as it treats the whole. Those in ``_LOCAL`` depend on a
  character and the marks after it, and a cut is never before a mark;
- the pre-tokenizer ends a piece there. The expressions with scanners (GPT-2's, LLaMA-3's, o200k's
  and similar ones) have no look-behind and one look-ahead, ``\s+(?!\S)``. Letters end before a
  space, and a space before a letter begins a piece, as no white space precedes it; a single line
  break before something visible ends a piece, since only ``[\r\n/]*`` and ``\s`` match it; letters
  end before punctuation. BERT's pre-tokenizer splits at all of these;
- or, without a pre-tokenizer, no token contains the two characters side by side. Merging produces
  only tokens, so it never joins across the cut, and merges on one side do not depend on the other.
  This is not so for Unigram, whose sums are rounded along the text.

Text after the first cut is a continuation: nothing is put before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from bitnet import native
from bitnet.tokenizer.pretokenizers import PRE_TOKENIZERS
from bitnet.tokenizer.spec import SPACE_SYMBOL
from bitnet.tokenizer.steps import GPT2_PATTERN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bitnet.tokenizer.spec import AddedToken, Step, TokenizerSpec

__all__ = ["cut_pattern", "parts_of"]

_LOCAL = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer")
# Letters that stay letters in every normal form and are not marks.
_LETTERS = (
    r"A-Za-z\u0410-\u044f\u05d0-\u05ea\u0621-\u063a\u0905-\u0928"
    r"\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"
)
_MARKS = "，。！？、；："
_BYTE_NAME = re.compile("<0x[0-9A-Fa-f]{2}>")
_SCANNED = ("gpt-2", "llama3", "qwen2", "gpt-4o", "tekken", "qwen35")


@dataclass(frozen=True)
class _Rule:
    """Cuts between a character of *left* and one of *right*, both character classes."""

    left: str
    right: str
    before: str = ""  # must precede the character on the left
    ahead: str = ""  # must follow the one on the right

    @property
    def pattern(self) -> str:
        ahead = f"[{self.ahead}]" if self.ahead else ""
        return f"(?<={self.before}[{self.left}])(?=[{self.right}]{ahead})"

    def allows(self, tokens: Iterable[AddedToken]) -> bool:
        """True if no added token can match across a cut, or be changed by it."""
        across = re.compile(f"[{self.left}][{self.right}]")
        near = re.compile(f"[{self.left}{self.right}{self.ahead}]")
        for token in tokens:
            text = token.text.replace(SPACE_SYMBOL, " ")
            if across.search(token.text) or across.search(text):
                return False
            picky = token.lstrip or token.rstrip or token.single_word
            if picky and text and (near.match(text[0]) or near.match(text[-1])):
                return False
            if token.lstrip and self.left == r"\n":
                return False
        return True


_RULES = (
    _Rule(_LETTERS, " ", ahead=_LETTERS),
    _Rule(r"\n", f"!-.0-~{_LETTERS}", before=r"\S"),
    _Rule(_LETTERS, _MARKS),
)


@cache
def _scanner_patterns() -> frozenset[str]:
    """Expressions with a scanner."""
    steps = (step for name in _SCANNED for step in PRE_TOKENIZERS[name].steps)
    patterns = (step.options.get("pattern") for step in steps)
    own = {pattern["Regex"] for pattern in patterns if isinstance(pattern, dict)}
    return frozenset({GPT2_PATTERN, *own})


def _is_scanned(step: Step) -> bool:
    pattern = step.options.get("pattern")
    text = pattern.get("Regex") if isinstance(pattern, dict) else None
    kept = "removed" if step.options.get("invert") else "isolated"  # the matches cover every text
    if not isinstance(text, str) or str(step.options.get("behavior", "")).lower() != kept:
        return False
    module = native.module()
    return text in _scanner_patterns() or (
        module is not None and module.scan_all(text, "") is not None
    )


def _ends_pieces(steps: Sequence[Step]) -> bool:
    """True if the pre-tokenizer ends a piece at every cut, and earlier steps do not interfere."""
    for step in steps:
        if step.type in ("BertPreTokenizer", "WhitespaceSplit"):
            return True
        if step.type == "ByteLevel":
            return bool(step.options.get("use_regex", True)) and not step.options.get(
                "add_prefix_space", True
            )
        if step.type == "Split" and _is_scanned(step):
            return True
        if step.type != "Digits":
            return False
    return False


def _only_replaces_spaces(steps: Sequence[Step], *, alone: bool) -> bool:
    """True if the normalizer only replaces spaces by U+2581 and adds a prefix.

    Unless *alone*, a later step relies on there being no spaces.
    """
    if not alone and all(step.type == "Prepend" for step in steps):
        return False
    for step in steps:
        to_symbol = (
            step.type == "Replace"
            and step.options.get("pattern") == {"String": " "}
            and step.options.get("content") == SPACE_SYMBOL
        )
        if not to_symbol and step.type != "Prepend":
            return False
    return True


def cut_pattern(spec: TokenizerSpec) -> str:
    """Expression that matches, between two characters, at every known cut.

    Empty if none is known.
    """
    if spec.model == "bpe" and (spec.continuing_prefix or spec.word_suffix):
        return ""
    rules = [rule for rule in _RULES if rule.allows(spec.added)]
    if spec.model in ("bpe", "wordpiece") and _ends_pieces(spec.pre_tokenizer):
        if not all(step.type in _LOCAL for step in spec.normalizer):
            return ""
        if spec.normalizer and any(token.normalized for token in spec.added):
            return ""  # these look at more than the rules cover
        if any(step.type == "WhitespaceSplit" for step in spec.pre_tokenizer):
            rules = [rule for rule in rules if rule.right != _MARKS]
    elif _merges_alone(spec):
        rules = [rule for rule in rules if not _inside(rule, spec)]
    else:
        return ""
    return "|".join(rule.pattern for rule in rules)


def _merges_alone(spec: TokenizerSpec) -> bool:
    """True if merging sees the whole text up to the cut, with spaces as U+2581."""
    # Gemma's splits at spaces, which its normalizer has replaced.
    idle = {"pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    if any(step.type != "Split" or step.options != idle for step in spec.pre_tokenizer):
        return False
    has_bytes = spec.byte_fallback and {f"<0x{byte:02X}>" for byte in range(256)} <= {*spec.tokens}
    if spec.byte_level or not has_bytes:  # else unknown characters on both sides are one token
        return False
    if any("<0x" in text and len(text) > 6 and _BYTE_NAME.search(text) for text in spec.tokens):
        return False  # bytes that are joined with others are not spelled as the text is
    if spec.model == "spm":
        unused = 5  # a GGUF type: what such a token is made of depends on the text
        plain = not (spec.normalizer or spec.charsmap or spec.remove_extra_whitespaces)
        return plain and unused not in spec.token_types
    return spec.model == "bpe" and _only_replaces_spaces(
        spec.normalizer, alone=not spec.pre_tokenizer
    )


def _inside(rule: _Rule, spec: TokenizerSpec) -> bool:
    """True if a token contains a cut of *rule*."""
    across = re.compile(f"[{rule.left}][{rule.right}]")
    texts = "\x00".join(spec.tokens)
    # A text that contains U+2581 itself is merged as if it were a space.
    return across.search(texts.replace(SPACE_SYMBOL, " ")) is not None


def parts_of(text: str, pattern: re.Pattern[str] | None, size: int) -> Iterator[str]:
    """*text* in parts of at least *size* characters, except the last one."""
    done = 0
    while pattern is not None and len(text) - done > 2 * size:
        found = pattern.search(text, done + size)
        if found is None:
            break
        yield text[done : found.start()]
        done = found.start()
    yield text[done:]
