"""Decode ids to text: a chain of steps, from ``tokenizer.json`` or implied by a container.

Every step passes tokens on, whole or in parts, so that text comes out as soon as later ids cannot
change it. Joined, the parts equal the text that the original decodes from all ids at once. Steps of
``tokenizer.json`` do what the ``tokenizers`` library's decoders of the same name do; ``Bytes`` and
``SentencePiece`` are implied by GGUF files and by tiktoken's and SentencePiece's models.
"""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from bitnet.base import native
from bitnet.tokenizer.clean_up import clean_up, join_contractions
from bitnet.tokenizer.library import load_library
from bitnet.tokenizer.limits import over_budget, refusal
from bitnet.tokenizer.spec import SPACE_SYMBOL, Step, bytes_of_spelling, read_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bitnet.tokenizer.library import Engine

_SYMBOL = SPACE_SYMBOL.encode()
_REPLACEMENT = "\ufffd"
# Six bytes, as the library demands; Rust's number parser accepts a sign.
_BYTE = re.compile(r"<0x(\+[0-9A-Fa-f]|[0-9A-Fa-f]{2})>")


class _Chain:
    """One decoding in progress.

    Subclasses have ``piece``, the bytes of one id alone; ``take``, the text that becomes certain
    with the next id; ``finish``, the text held back. *steps* are pairs of a type and its options.
    """

    def __init__(
        self, steps: Sequence[Sequence[Any]], spellings: Engine, texts: dict[int, str]
    ) -> None:
        self._options: dict[str, Any] = steps[0][1]
        self._spellings = spellings
        self._texts = texts

    def leave_out(self) -> str:
        """Text that becomes certain with a hidden special token."""
        return ""


class _Bytes(_Chain):
    """Byte-level tokens; added tokens as their text, or (option *respell*) as ByteLevel decodes it.

    With *apart*, tokens on both sides of a hidden token do not form a character together.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._respell: bool = self._options["respell"]
        self._apart: bool = self._options["apart"]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def piece(self, id: int) -> bytes:
        if not (self._respell and self._spellings.is_verbatim(id)):
            return self._spellings.spelling(id)
        text = self._texts.get(id) or self._spellings.text(id)
        spelled = bytes_of_spelling(text)
        return text.encode() if spelled is None else spelled

    def take(self, id: int) -> str:
        return self._decoder.decode(self.piece(id))

    def leave_out(self) -> str:
        return self.finish() if self._apart else ""

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _SentencePiece(_Chain):
    """SentencePiece's ``Decode``, with control tokens as their text."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        # The first piece loses a leading space; with the first option the next ones, too, until
        # there is text.
        self._keeps_stripping: bool = self._options["remove_extra_whitespaces"]
        self._strip_first: bool = self._options["add_space_prefix"] or self._keeps_stripping
        self._strip = self._strip_first
        # Behind one of these ids, pieces are stripped as at the beginning.
        self._restarts = frozenset(self._options["restarts"])
        self._unknown: int | None = self._options["unknown_id"]
        self._unknown_text: str = self._options["unknown_text"]
        self._run = b""

    def _is_byte(self, id: int) -> bool:
        return self._spellings.is_byte(id) and not self._spellings.is_verbatim(id)

    def piece(self, id: int) -> bytes:
        if id == self._unknown:
            return self._unknown_text.encode()
        spelling = self._spellings.spelling(id)
        if self._is_byte(id):
            return bytes([int(spelling[3:5], 16)])
        return spelling if self._spellings.is_verbatim(id) else spelling.replace(_SYMBOL, b" ")

    def take(self, id: int) -> str:
        if self._is_byte(id):
            self._run += self.piece(id)
            self._strip = False
            return self._characters(final=False)
        before = self.finish()
        text = self.piece(id).decode()
        plain = id != self._unknown and not self._spellings.is_verbatim(id)
        if self._strip and plain and self._spellings.spelling(id).startswith(_SYMBOL):
            text = text[1:]
            self._strip = self._keeps_stripping and not text
        elif text:
            self._strip = self._strip_first and id in self._restarts
        return before + text

    def leave_out(self) -> str:
        return self.finish()  # it ends a run of bytes

    def finish(self) -> str:
        return self._characters(final=True)

    def _characters(self, *, final: bool) -> str:
        """Complete characters; each byte that is not part of one is U+FFFD."""
        out: list[str] = []
        while self._run:
            width = 1 + sum(self._run[0] >= lead for lead in (0x80, 0xE0, 0xF0))  # by lead byte
            try:
                out.append(self._run[:width].decode())
                self._run = self._run[width:]
            except UnicodeDecodeError as error:
                if error.reason == "unexpected end of data" and not final:
                    break
                out.append(_REPLACEMENT)
                self._run = self._run[1:]
        return "".join(out)


class _Steps(_Chain):
    """A chain of ``tokenizer.json``'s decoders."""

    def __init__(self, steps: Sequence[Sequence[Any]], *parts: Any) -> None:
        super().__init__(steps, *parts)
        self._stages = [_STEPS[kind](options) for kind, options in steps]

    def piece(self, id: int) -> bytes:
        value: Any = self._text(id)
        fused = False
        for stage in self._stages:
            # Once tokens are joined, a step that needs whole tokens does nothing to one of them.
            fused = fused or stage.fuses
            if isinstance(value, str) and (not fused or stage.anywhere):
                value = stage.inside(value)
        return value if isinstance(value, bytes) else value.encode()

    def take(self, id: int) -> str:
        text = self._text(id)
        # An id without a token has an empty text, too, but is not among the texts.
        return self._run([Part(text)], 0) if text or id in self._texts else ""

    def finish(self) -> str:
        stages = enumerate(self._stages, 1)
        return "".join([self._run(stage.finish(), at) for at, stage in stages])

    def _run(self, parts: Iterable[Part], at: int) -> str:
        """Text that the stages from index *at* on make of *parts*."""
        for stage in self._stages[at:]:
            parts = [made for part in parts for made in stage.take(part)]
        return "".join(part.text for part in parts)

    def _text(self, id: int) -> str:
        text = self._texts.get(id)
        if text is None:
            text = self._spellings.text(id)
            if text:
                self._texts[id] = text
        return text


Chain: TypeAlias = _Bytes | _SentencePiece | _Steps


def start_decoding(
    steps: Sequence[Sequence[Any]], spellings: Engine, texts: dict[int, str]
) -> Chain:
    """A new decoding by *steps*; *texts* are of added tokens spelled otherwise, or empty, by id.

    *texts* also caches the texts of other tokens: decodings may share it.
    """
    chains: dict[str, type[Chain]] = {"Bytes": _Bytes, "SentencePiece": _SentencePiece}
    return chains.get(steps[0][0], _Steps)(steps, spellings, texts)


def decoder_steps(entry: dict[str, Any] | None) -> tuple[Step, ...]:
    """Steps of *entry*, the ``decoder`` of a ``tokenizer.json``, with every option explicit."""
    if entry is None:
        return (Step("Join"),)
    library = load_library("with this decoder", decoder=entry)
    steps = tuple(read_steps(json.loads(library.to_str())["decoder"], "decoders"))
    for step in steps:
        if step.type not in _STEPS:
            supported = ", ".join(_STEPS)
            raise refusal(f"the decoder {step.type} is not supported; supported: {supported}")
        if step.type == "Replace":
            _check_pattern(step.options["pattern"])
    return steps or (Step("Fuse"),)


def _check_pattern(pattern: Any) -> None:
    """Refuse a pattern that neither ``str.replace`` nor the native regex engine can match."""
    (kind, text), *_ = pattern.items()
    if kind == "String" and text:
        return
    try:
        if (module := native.module()) is None:
            raise ValueError("it needs the compiled module")
        module.regex_find_all(text, "")
    except ValueError as error:
        raise refusal(f"a decoder replaces {text!r:.80}: {error}") from None


@dataclass(frozen=True)
class Part:
    """A token, or a part of one: *first* begins it, *last* ends it."""

    text: str
    first: bool = True
    last: bool = True


class DecodingStep:
    """One step in progress. By default a step reads one whole token at a time."""

    fuses = False  # joins all tokens into one, and passes text on to the next step
    anywhere = False  # changes a part of a token in the same way as a whole one

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self._index = -1
        self._held = ""

    def take(self, part: Part) -> Iterable[Part]:
        """Output that becomes certain with *part*."""
        if part.first:
            self._index += 1
        self._held += part.text
        if part.last:
            text = self._held
            self._held = ""
            yield from self.token(text)

    def finish(self) -> Iterable[Part]:
        """Output that was held back; no more parts follow."""
        return ()

    def token(self, text: str) -> Iterable[Part]:
        """Output for a whole token; ``self._index`` counts them."""
        made: str = self.inside(text) if self._index else self.at_start(text)
        yield Part(made)

    def at_start(self, text: str) -> str:
        """Output for the first token."""
        return str(self.inside(text))

    def inside(self, text: str) -> Any:
        """Output for a token that is neither the first nor the last: text, or bytes of one."""
        return text


class _Replace(DecodingStep):
    anywhere = True

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        (self._kind, self._pattern), *_ = options["pattern"].items()
        self._content: str = options["content"]

    def inside(self, text: str) -> str:
        if self._kind == "String" and self._pattern:
            return text.replace(self._pattern, self._content)
        module = native.module()
        assert module is not None  # _check_pattern refuses what needs it
        try:
            return str(module.regex_replace(self._pattern, self._content, text))
        except module.OverBudget as error:
            raise over_budget("with this decoder", error) from None

    def take(self, part: Part) -> Iterable[Part]:
        # A pattern of one character cannot lie across two parts of a token.
        if self._kind == "String" and len(self._pattern) == 1:
            return (Part(self.inside(part.text), part.first, part.last),)
        return super().take(part)


class _Fuse(DecodingStep):
    """Joins all tokens into one, which is passed on in parts."""

    fuses = True

    def take(self, part: Part) -> Iterable[Part]:
        self._index += part.first
        if part.text or self._index == 0:
            yield Part(part.text, first=self._index == 0 and part.first, last=False)

    def finish(self) -> Iterable[Part]:
        yield Part("", first=self._index < 0)


class _Strip(DecodingStep):
    """Strips characters from both ends of each token."""

    _left = 0  # characters that may still be stripped from the start

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self._char, self._start, self._stop = map(options.__getitem__, ("content", "start", "stop"))

    def take(self, part: Part) -> Iterable[Part]:
        if part.first:
            self._left = self._start
        text = self._held + part.text
        while self._left and text.startswith(self._char):
            text = text[1:]
            self._left -= 1
        if text:
            self._left = 0
        # These characters are held back: they are stripped if the token ends here.
        ending = min(len(text) - len(text.rstrip(self._char)), self._stop)
        end = len(text) - ending
        self._held = "" if part.last else text[end:]
        yield Part(text[:end], part.first, part.last)

    def inside(self, text: str) -> str:
        (part,) = type(self)(self.options).take(Part(text))
        return part.text


class _ByteFallback(DecodingStep):
    """Runs of ``<0xNN>`` as characters; each byte of a run that is not UTF-8 as U+FFFD."""

    _run = b""

    def inside(self, text: str) -> str | bytes:
        byte = _BYTE.fullmatch(text)
        return bytes([int(byte[1], 16)]) if byte else text

    def token(self, text: str) -> Iterable[Part]:
        value = self.inside(text)
        if isinstance(value, bytes):
            self._run += value
            return
        yield from self.finish()
        yield Part(value)

    def finish(self) -> Iterable[Part]:
        run = self._run
        self._run = b""
        if run:
            try:
                yield Part(run.decode())
            except UnicodeDecodeError:
                yield from (Part(_REPLACEMENT) for _ in run)


class _Metaspace(DecodingStep):
    """Replaces the symbol by spaces; in the first token, where encoding prepends it, by nothing."""

    def inside(self, text: str, space: str = " ") -> str:
        return text.replace(self.options.get("replacement", SPACE_SYMBOL), space)

    def at_start(self, text: str) -> str:
        if self.options.get("prepend_scheme") == "never":
            return self.inside(text)
        return self.inside(text, "")


class _WordPiece(DecodingStep):
    def inside(self, text: str) -> str:
        prefix = self.options.get("prefix", "##")
        text = text.replace(prefix, "", 1) if text.startswith(prefix) else f" {text}"
        return self.at_start(text)

    def at_start(self, text: str) -> str:
        return join_contractions(text) if self.options.get("cleanup", True) else text


class _CleanUp(DecodingStep):
    """``clean_up_tokenization_spaces``: holds back the whole text, and cleans it up at its end."""

    fuses = True

    def take(self, part: Part) -> Iterable[Part]:
        self._held += part.text
        return ()

    def finish(self) -> Iterable[Part]:
        text = self._held
        self._held = ""
        yield Part(clean_up(text))


class _Ctc(DecodingStep):
    """``CTC``: drops padding and repetitions of a token; the word delimiter becomes a space."""

    _before: str | None = None

    def inside(self, text: str) -> str:
        text = text.replace(self.options.get("pad_token", "<pad>"), "")
        if self.options.get("cleanup", True):
            text = join_contractions(text).replace(
                self.options.get("word_delimiter_token", "|"), " "
            )
        return text

    def token(self, text: str) -> Iterable[Part]:
        repeated = text == self._before
        self._before = text
        if not repeated and (made := self.inside(text)):
            yield Part(made)


class _WordEnds(DecodingStep):
    """``BPEDecoder``: the suffix at the end of a word becomes a space, except in the last token."""

    _waiting: str | None = None

    def inside(self, text: str) -> str:
        return text.replace(self.options.get("suffix", "</w>"), " ")

    def token(self, text: str) -> Iterable[Part]:
        waiting = self._waiting
        self._waiting = text
        if waiting is not None:
            yield Part(self.inside(waiting))

    def finish(self) -> Iterable[Part]:
        if self._waiting is not None:
            yield Part(self._waiting.replace(self.options.get("suffix", "</w>"), ""))


class _Join(DecodingStep):
    """No decoder in the file: the library puts spaces between tokens."""

    def inside(self, text: str) -> str:
        return f" {text}"

    def at_start(self, text: str) -> str:
        return text


class _ByteLevel(DecodingStep):
    """Bytes in GPT-2's spelling; a token with a character outside of its alphabet is plain text.

    It joins tokens. ``fuses`` would change nothing: steps behind it never get the bytes of one.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def inside(self, text: str) -> bytes:
        spelled = bytes_of_spelling(text)
        return text.encode() if spelled is None else spelled

    def token(self, text: str) -> Iterable[Part]:
        text = self._decoder.decode(self.inside(text))
        if text or self._index == 0:
            yield Part(text, first=self._index == 0, last=False)

    def finish(self) -> Iterable[Part]:
        yield Part(self._decoder.decode(b"", final=True), first=self._index < 0)


_STEPS: dict[str, type[DecodingStep]] = {
    "Replace": _Replace,
    "Fuse": _Fuse,
    "Strip": _Strip,
    "ByteFallback": _ByteFallback,
    "Metaspace": _Metaspace,
    "WordPiece": _WordPiece,
    "BPEDecoder": _WordEnds,
    "CTC": _Ctc,
    "ByteLevel": _ByteLevel,
    "Join": _Join,
    "CleanUp": _CleanUp,
}
