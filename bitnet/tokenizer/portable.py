"""The portable engine: runs any specification without the native module.

Byte-level BPE, WordPiece and everything from a ``tokenizer.json`` run in the ``tokenizers``
library; SentencePiece models in :mod:`bitnet.tokenizer.sentencepiece`. Added tokens are split off
before.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from bitnet.errors import Unsupported
from bitnet.tokenizer.added import AddedTokens
from bitnet.tokenizer.library import fenced, library_for
from bitnet.tokenizer.limits import check_spec
from bitnet.tokenizer.offsets import aligner, moved
from bitnet.tokenizer.pretokenizers import PRE_TOKENIZERS
from bitnet.tokenizer.sentencepiece import SentencePiece
from bitnet.tokenizer.spec import Step
from bitnet.tokenizer.steps import moves_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

    from bitnet.tokenizer.spec import TokenizerSpec

__all__ = ["PortableEngine"]


class _Place(NamedTuple):
    """Position of a stretch in the whole text, and true if special tokens are recognised in it."""

    at_start: bool
    goes_on: bool
    special: bool


class _Pieces(Protocol):
    def encode(self, text: str, place: _Place) -> list[int]: ...
    def spans(self, text: str, place: _Place) -> Iterable[tuple[int, int, int]]: ...


class PortableEngine:
    """Text to ids for one specification.

    Raises:
        InvalidFormat: the specification's steps or vocabulary are unusable.
        Unsupported: they exceed the bounds of :mod:`bitnet.tokenizer.limits`.
    """

    name = "portable"

    def __init__(self, spec: TokenizerSpec) -> None:
        check_spec(spec)
        self.spec = spec
        self._added = AddedTokens(spec.added, sentencepiece=spec.is_sentencepiece)
        self._pieces: _Pieces
        self._pieces = _Own(spec) if spec.is_sentencepiece else _Library(spec)

    def encode(self, text: str, *, parse_special: bool = True, goes_on: bool = False) -> list[int]:
        """Ids of *text*, without BOS and EOS.

        Args:
            text: any text; lone surrogates become U+FFFD.
            parse_special: recognise special tokens in it; other added tokens always are.
            goes_on: it continues after a cut (:mod:`bitnet.tokenizer.cuts`).
        """
        text = _without_surrogates(text)
        ids: list[int] = []
        for i, part in enumerate(self._added.split(text, parse_special=parse_special)):
            if isinstance(part, int):
                ids.append(part)
            else:
                rest = goes_on and i == 0
                place = _Place(i == 0 and not rest, rest, parse_special)
                ids.extend(self._pieces.encode(part, place))
        return ids

    def spans(self, text: str, *, parse_special: bool = True) -> list[tuple[int, int, int]]:
        """Ids of *text*, each with the start and end of its characters."""
        found: list[tuple[int, int, int]] = []
        for id, start, stop in self._added.cut(text, parse_special=parse_special):
            if id is not None:
                found.append((id, start, stop))
                continue
            place = _Place(start == 0, goes_on=False, special=parse_special)
            own = self._pieces.spans(text[start:stop], place)
            found.extend(moved(own, None, start))
        return found


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class _Own:
    """SentencePiece's algorithms."""

    def __init__(self, spec: TokenizerSpec) -> None:
        self._model = SentencePiece(spec)

    def encode(self, text: str, place: _Place) -> list[int]:
        return self._model.encode(text, goes_on=place.goes_on)

    def spans(self, text: str, place: _Place) -> list[tuple[int, int, int]]:  # noqa: ARG002
        return self._model.spans(text)


class _Library:
    """Normalizer, pre-tokenizer and model of the ``tokenizers`` library."""

    def __init__(self, spec: TokenizerSpec) -> None:
        self._first = _build(spec, first=True)
        prepends = any(step.options.get("prepend_scheme") == "first" for step in _flat(spec))
        self._later = _build(spec, first=False) if prepends else self._first
        self._normalizer = self._first.normalizer
        rest = [step for step in spec.normalizer if step.type != "Prepend"]
        self._rest = library_for(spec.source, rest).normalizer
        self._aligned = aligner(spec.source, spec.normalizer)
        self._whole: Tokenizer | None = None
        if prepends and moves_first(spec):
            # The library decides what is first by the position before normalization.
            if any(token.normalized for token in spec.added):
                raise Unsupported(
                    f"the tokenizer {spec.source} prepends to what is first, which its normalizers"
                    " move, and has added tokens in normalized text",
                    hint="name another tokenizer with --tokenizer FILE",
                )
            self._whole = _build(spec, first=True)
        self._first.normalizer = self._later.normalizer = None
        self._added = AddedTokens(spec.added, normalized=True)
        self._source = spec.source
        self._threes = spec.pre_tokenizer == PRE_TOKENIZERS["superbpe"].steps

    def encode(self, text: str, place: _Place) -> list[int]:
        normalizer = self._rest if place.goes_on else self._normalizer
        with fenced(f"the tokenizer {self._source}"):
            if self._whole is not None and place.at_start:
                return list(self._whole.encode(text, add_special_tokens=False).ids)
            if normalizer is not None:
                text = normalizer.normalize_str(text)
            return [id for id, *_ in self._encoded(text, place)]

    def spans(self, text: str, place: _Place) -> Iterator[tuple[int, int, int]]:
        with fenced(f"the tokenizer {self._source}"):
            if self._whole is not None and place.at_start:
                found = self._whole.encode(text, add_special_tokens=False)
                pairs = zip(found.ids, found.offsets, strict=True)
                yield from ((id, start, stop) for id, (start, stop) in pairs)
                return
            normal, origin = self._aligned(text)
            yield from moved(self._encoded(normal, place), origin, 0)

    def _encoded(self, text: str, place: _Place) -> Iterator[tuple[int, int, int]]:
        """Ids and characters of a normalized text."""
        for id, start, stop in self._added.cut(text, parse_special=place.special):
            if id is not None:
                yield id, start, stop
                continue
            library = self._first if place.at_start and start == 0 else self._later
            part = text[start:stop]
            for stretch in _in_threes(part) if self._threes else (part,):
                found = library.encode(stretch, add_special_tokens=False)
                for one, (first, last) in zip(found.ids, found.offsets, strict=True):
                    yield one, start + first, start + last
                start += len(stretch)


def _in_threes(text: str) -> Iterator[str]:
    """*text* with long runs of digits split where the pre-tokenizer of SuperBPE splits them anyway.

    It splits before every three digits counted from the end of the run, and looks ahead to that
    end from each of them.
    """
    done = 0
    if _LONG_RUN.search(text):
        for _, (start, stop) in _digit_runs().pre_tokenize_str(text):
            for cut in range(stop - (stop - start) // _RUN * _RUN, stop, _RUN):
                if cut > done:
                    yield text[done:cut]
                    done = cut
    yield text[done:]


_RUN = 300  # digits
_LONG_RUN = re.compile(rf"\d{{{2 * _RUN}}}")


@cache
def _digit_runs() -> PreTokenizer:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    return Split(Regex(r"\d+"), "removed", invert=True)


def _flat(spec: TokenizerSpec) -> Iterable[Step]:
    return (*spec.normalizer, *spec.pre_tokenizer)


def _build(spec: TokenizerSpec, *, first: bool) -> Tokenizer:
    """The specification as a ``tokenizers.Tokenizer`` without added tokens."""

    def here(step: Step) -> Step:
        if first or step.options.get("prepend_scheme") != "first":
            return step
        return Step(step.type, {**step.options, "prepend_scheme": "never"})

    library = library_for(spec.source, map(here, spec.normalizer), map(here, spec.pre_tokenizer))
    with fenced(f"the tokenizer {spec.source}"):
        library.model = _model(spec)
    return library


def _model(spec: TokenizerSpec) -> Any:
    from tokenizers import models

    unknown = None if spec.unknown_id is None else spec.tokens[spec.unknown_id]
    vocabulary = {
        text: id for id, text in enumerate(spec.tokens) if text and id not in spec.outside
    }
    if spec.model == "wordpiece":
        return models.WordPiece(
            vocabulary,
            unk_token=unknown or "[UNK]",
            max_input_chars_per_word=spec.max_chars_per_word,
            continuing_subword_prefix=spec.continuing_prefix,
        )
    if spec.model == "wordlevel":
        return models.WordLevel(vocabulary, unk_token=unknown or "")
    if spec.model == "unigram":
        pieces = [
            (f"\U0010ffff{id}" if id in spec.outside or not text else text, float(score))
            for id, (text, score) in enumerate(zip(spec.tokens, spec.scores, strict=True))
        ]
        return models.Unigram(pieces, spec.unknown_id, spec.byte_fallback)
    tokens = spec.tokens
    return models.BPE(
        vocabulary,
        [(tokens[left], tokens[right]) for left, right in spec.merges],
        unk_token=unknown if spec.decoder or not spec.byte_level else None,
        fuse_unk=spec.fuse_unknown,
        byte_fallback=spec.byte_fallback,
        ignore_merges=spec.ignore_merges,
    )
