"""Bounds on what a tokenizer file may ask for; ``SECURITY.md`` states them for users.

They are far above the needs of published tokenizers. ``native/tokenizer/budget.hpp`` has the same
numbers; a test compares the three.
"""

from __future__ import annotations

import itertools
import json
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import BitnetError, InvalidFormat, Unsupported
from bitnet.tokenizer.spec import TokenType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from bitnet.tokenizer.spec import Step, TokenizerSpec

# Of one regular expression: bytes, nesting depth, instructions when compiled, the n of {n}.
PATTERN_BYTES = 16_384
PATTERN_DEPTH = 32
PATTERN_PROGRAM = 20_000
PATTERN_REPEAT = 1_000
# Of matching one text: steps that any text may take, and further steps for each of its bytes.
BASE_STEPS = 20_000
STEPS_PER_BYTE = 150
STEPS = 64  # normalizers and pre-tokenizers of one tokenizer
# Most ids and ranks that fit into the tables of a compiled file, see native/tokenizer/file.hpp.
TOKENS = (1 << 21) - 2
MERGES = (1 << 22) - 2
RANK_WORK = 1 << 26  # sum of squared token lengths when deriving merges from ranks or scores
TOKEN_BYTES = 4_096
ADDED_TOKEN_BYTES = 512
UNIGRAM_PIECE_BYTES = 2_048  # 512 characters, the most that sentencepiece trains
WORD_CHARS = 256  # of one WordPiece word
CHARSMAP_KEY_BYTES = 128  # longest key of a SentencePiece character map
CHARSMAP_BYTES = 4 << 20  # size of such a map; the usual one has 240 KB
AFFIX_IDS = 1_024  # ids put around a text
# Spaces in a row in a text, if an added token of spaces strips its neighbours and the library
# encodes, which then takes a time that grows with their square.
SPACES = 1_024
# Bytes out of the normalizers, or the decoders, for each byte in. Normalizers may add GROWTH_BASE
# bytes to any text.
GROWTH = 64
GROWTH_BASE = 65_536
SCORE = 1e30  # largest absolute score
TEMPLATE_CHARS = 1 << 20  # source of a chat template

# Exceptions that readers raise on unexpected content.
ODD_CONTENT = (
    *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError),
    struct.error,
)

_OTHER_TOKENIZER = (
    "name another tokenizer of the model with --tokenizer FILE, such as its own tokenizer.json"
)


@contextmanager
def reading(source: object, kind: str) -> Iterator[None]:
    """Translate exceptions of a reader to an error: *source* is not a well-formed *kind*."""
    try:
        yield
    except BitnetError:
        raise
    except ODD_CONTENT as error:
        # Readers write the text of a plain ValueError for users.
        what = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise damage_error(f"{source} is damaged, or not a {kind}: {what}") from None


def damage_error(text: str) -> InvalidFormat:
    """Error for a file whose content is wrong."""
    return InvalidFormat(text, hint=f"fetch the file again, or {_OTHER_TOKENIZER}")


def json_fault(error: Exception) -> str:
    """Message of the JSON parser's *error*, with line and column if it has them."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno} column {error.colno}"
    return str(error)


def refusal(text: str) -> Unsupported:
    """Error for a tokenizer that is not supported."""
    return Unsupported(text, hint=_OTHER_TOKENIZER)


def over_budget(source: str, reason: object) -> Unsupported:
    """Error for a text that exceeds a bound."""
    text = f"the tokenizer {source} was stopped: {reason}"
    return Unsupported(text, hint=f"send a shorter text, or {_OTHER_TOKENIZER}")


def beyond(source: str, what: str, most: float) -> Unsupported:
    """Error for a tokenizer that has *what*, a number and its unit, but may have at most *most*."""
    return refusal(f"the tokenizer {source} has {what}, at most {most:,} are supported")


def check_id_range(ids: Collection[int], n_tokens: int, source: str) -> None:
    """Refuse *ids* below 0, or so high that a list by id would be mostly empty for *n_tokens*."""
    lowest = min(ids, default=0)
    highest = max(ids, default=0)
    if lowest < 0 or highest >= 4 * n_tokens + 100_000:
        raise damage_error(
            f"{source} has ids from {lowest!r:.40} to {highest!r:.40}, for {n_tokens:,} tokens"
        )


def check_spec(spec: TokenizerSpec, *, merges: bool = True) -> None:
    """Refuse a specification that is inconsistent or exceeds a bound; *merges*: its merges, too."""
    with reading(f"the tokenizer {spec.source}", "tokenizer"):
        _check_tokens(spec)
        _check_ids(spec, spec.merges if merges else ())
        _check_steps(spec)


def _check_tokens(spec: TokenizerSpec) -> None:
    tokens = list(spec.tokens)
    if not all(type(text) is str for text in tokens):
        raise ValueError("a token that is not a text")
    _within(spec, "tokens", len(tokens), TOKENS)
    added = {token.id for token in spec.added}
    most = UNIGRAM_PIECE_BYTES if spec.model == "unigram" else TOKEN_BYTES
    own_texts = (text for id, text in enumerate(tokens) if id not in added)
    # A character of GPT-2's spelling stands for one byte.
    longest = max(map(len, own_texts), default=0) if spec.byte_level else _longest(own_texts)
    _within(spec, "bytes in a token", longest, most)
    types = enumerate(spec.token_types)
    user = (tokens[id] for id, kind in types if kind == TokenType.USER_DEFINED)
    matched_texts = itertools.chain((token.text for token in spec.added), user)
    _within(spec, "bytes in an added token", _longest(matched_texts), ADDED_TOKEN_BYTES)
    for name, values in (("scores", spec.scores), ("token types", spec.token_types)):
        if len(values) not in (0, len(tokens)):
            raise ValueError(f"{len(values):,} {name} for {len(tokens):,} tokens")
    if spec.model in ("spm", "unigram") and not spec.scores:
        raise ValueError("no scores")
    if not all(-SCORE <= score <= SCORE for score in spec.scores):  # also false for NaN
        raise ValueError("a score that is not a number of a sensible size")


def _longest(texts: Iterable[str]) -> int:
    """Bytes of the longest of *texts* in UTF-8."""
    return max((len(text.encode("utf-8", "surrogatepass")) for text in texts), default=0)


def _check_ids(spec: TokenizerSpec, merges: Iterable[tuple[int, int]]) -> None:
    size = len(spec.tokens)
    _within(spec, "merges", len(spec.merges), MERGES)
    _within(spec, "ids around a text", sum(map(len, spec.affixes)), AFFIX_IDS)
    between = spec.middle_ids or ()
    _within(spec, "ids between two texts", len(between), AFFIX_IDS)
    special = (id for id in (spec.bos_id, spec.eos_id, spec.unknown_id) if id is not None)
    added = (token.id for token in spec.added)
    ids: Iterable[Any] = itertools.chain(special, *spec.affixes, between, spec.stop_ids, added)
    if any(len(pair) != 2 for pair in merges):
        raise ValueError("a merge that is not of two tokens")
    for id in itertools.chain(ids, itertools.chain.from_iterable(merges)):
        if type(id) is not int or not 0 <= id < size:
            raise ValueError(f"the id {id!r} for {size:,} tokens")
    affixes = (spec.continuing_prefix, spec.word_suffix)
    max_chars = spec.max_chars_per_word
    if type(max_chars) is not int or not all(type(affix) is str for affix in affixes):
        raise ValueError("WordPiece options of a wrong type")
    _within(spec, "characters in a word", max_chars, WORD_CHARS)
    for affix in affixes:
        _within(spec, "bytes in an affix", len(affix.encode()), ADDED_TOKEN_BYTES)


def _check_steps(spec: TokenizerSpec) -> None:
    _within(spec, "bytes in a character map", len(spec.charsmap), CHARSMAP_BYTES)
    steps = (*spec.normalizer, *spec.pre_tokenizer)
    _within(spec, "normalizers and pre-tokenizers", len(steps), STEPS)
    _within(spec, "decoders", len(spec.decoder), STEPS)
    for name, chain in (("normalizers", steps), ("decoders", spec.decoder)):
        growth = 1.0
        for step in chain:
            most = 2 * CHARSMAP_BYTES if step.type == "Precompiled" else PATTERN_BYTES
            for value in _texts(step.options):
                _within(spec, f"bytes in a text of {step.type}", len(value.encode()), most)
            growth *= _growth(step)
        _within(spec, f"bytes for each byte, after the {name}", growth, GROWTH)


def _texts(value: object) -> Iterator[str]:
    """The texts in the option *value* of a step: itself, or the keys and values of an object."""
    if isinstance(value, dict):
        for item in value.items():
            yield from (text for part in item for text in _texts(part))
    elif isinstance(value, str):
        yield value


def _growth(step: Step) -> float:
    """Factor by which *step* can lengthen a text; 1 unless it prepends or replaces."""
    if step.type == "Prepend":  # by a constant, which GROWTH_BASE allows in short texts
        return 1.0 + len(str(step.options.get("prepend", ""))) / TOKEN_BYTES
    if step.type != "Replace":
        return 1.0
    content = len(str(step.options.get("content", "")).encode())
    pattern = step.options.get("pattern")
    fixed = pattern.get("String") if isinstance(pattern, dict) else pattern
    if isinstance(fixed, str) and fixed:
        return max(1.0, content / len(fixed.encode()))
    return 1.0 + content  # an expression may match the empty text between any two characters


def _within(spec: TokenizerSpec, what: str, actual: float, most: int) -> None:
    """Refuse *spec* if it has more than *most* of *what*."""
    if actual > most:
        raise beyond(spec.source, f"{actual:,.0f} {what}", most)
