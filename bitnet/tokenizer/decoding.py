"""Decode ids to text: a chain of steps, from ``tokenizer.json`` or implied by a container.

:class:`Chain` gives the spelling of each id to the first step, and every step passes tokens on,
whole or in parts, so that text comes out as soon as later ids cannot change it. Joined, the parts
equal the original's text for all ids at once. Steps of ``tokenizer.json`` do what the
``tokenizers`` library's decoders of the same name do; ``Bytes`` and ``SentencePiece`` are implied
by GGUF files and by tiktoken's and SentencePiece's models.
"""

from __future__ import annotations

import codecs
import json
from typing import TYPE_CHECKING, Any, Protocol

from bitnet.base.errors import Unsupported
from bitnet.tokenizer.decoding_steps import REPLACEMENT, STEPS, Part, check_pattern
from bitnet.tokenizer.library import translate_errors
from bitnet.tokenizer.spec import SPACE_SYMBOL, Step, spell_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bitnet.tokenizer.library import Engine


_SYMBOL = SPACE_SYMBOL.encode()


class _Bytes:
    """Byte-level tokens; added tokens as their text, or (*respell*) as ByteLevel decodes it.

    If *apart*, tokens on both sides of a hidden token do not form a character together.
    """

    def __init__(self, spellings: Engine, texts: dict[int, str], options: dict[str, Any]) -> None:
        self._spellings = spellings
        self._texts = texts
        self._respell: bool = options["respell"]
        self._apart: bool = options["apart"]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def piece(self, id: int) -> bytes:
        if not (self._respell and self._spellings.is_verbatim(id)):
            return self._spellings.spelling(id)
        text = self._texts.get(id) or self._spellings.text(id)
        spelled = spell_bytes(text)
        return text.encode() if spelled is None else spelled

    def take(self, id: int) -> str:
        return self._decoder.decode(self.piece(id))

    def leave_out(self) -> str:
        return self.finish() if self._apart else ""

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _SentencePiece:
    """SentencePiece's ``Decode``, with control tokens as their text."""

    def __init__(self, spellings: Engine, options: dict[str, Any]) -> None:
        self._spellings = spellings
        self._strip: bool = options["add_space_prefix"] or options["remove_extra_whitespaces"]
        self._strip_on: bool = options["remove_extra_whitespaces"]
        self._unknown: int | None = options["unknown_id"]
        self._unknown_text: str = options["unknown_text"]
        self._run = b""

    def _is_byte(self, id: int) -> bool:
        return self._spellings.is_byte(id) and not self._spellings.is_verbatim(id)

    def piece(self, id: int) -> bytes:
        if id == self._unknown:
            return self._unknown_text.encode()
        spelling = self._spellings.spelling(id)
        if self._is_byte(id):
            return bytes([int(spelling[3:5], 16)])
        if self._spellings.is_verbatim(id):
            return spelling
        return spelling.replace(_SYMBOL, b" ")

    def take(self, id: int) -> str:
        if self._is_byte(id):
            self._run += self.piece(id)
            self._strip = False
            return self._characters(final=False)
        before, text = self.finish(), self.piece(id).decode()
        plain = id != self._unknown and not self._spellings.is_verbatim(id)
        if self._strip and plain and self._spellings.spelling(id).startswith(_SYMBOL):
            text = text[1:]
            self._strip = self._strip_on and not text
        elif text:
            self._strip = False
        return before + text

    def leave_out(self) -> str:
        return self.finish()  # it ends a run of bytes

    def finish(self) -> str:
        return self._characters(final=True)

    def _characters(self, *, final: bool) -> str:
        """Complete characters; each byte that is not part of one is U+FFFD."""
        out: list[str] = []
        while self._run:
            width = _width(self._run[0])
            try:
                out.append(self._run[:width].decode())
                self._run = self._run[width:]
            except UnicodeDecodeError as error:
                if error.reason == "unexpected end of data" and not final:
                    break
                out.append(REPLACEMENT)
                self._run = self._run[1:]
        return "".join(out)


def _width(lead: int) -> int:
    """Number of bytes of the UTF-8 character that starts with *lead*."""
    if lead < 0x80:
        return 1
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


class _Steps:
    """A chain of ``tokenizer.json``'s decoders."""

    def __init__(
        self,
        spellings: Engine,
        steps: Sequence[Sequence[Any]],
        texts: dict[int, str],
    ) -> None:
        self._spellings = spellings
        self._texts = texts
        self._stages = [STEPS[kind](options) for kind, options in steps]

    def piece(self, id: int) -> bytes:
        value: Any = self._text(id)
        fused = False
        for stage in self._stages:
            fused = fused or stage.fuses
            if isinstance(value, str) and (not fused or stage.anywhere):
                value = stage.inside(value)
        return value if isinstance(value, bytes) else value.encode()

    def take(self, id: int) -> str:
        text = self._text(id)
        if not text:
            return ""  # a hole in the vocabulary
        return self._run([Part(text)], 0)

    def leave_out(self) -> str:
        return ""

    def finish(self) -> str:
        out = []
        for at, stage in enumerate(self._stages):
            out.append(self._run(stage.finish(), at + 1))
        return "".join(out)

    def _run(self, parts: Iterable[Part], at: int) -> str:
        for stage in self._stages[at:]:
            parts = [made for part in parts for made in stage.take(part)]
        return "".join(part.text for part in parts)

    def _text(self, id: int) -> str:
        text = self._texts.get(id)
        if text is None:
            text = self._texts[id] = self._spellings.text(id)
        return text


class Chain(Protocol):
    """One decoding in progress: ids in, text out."""

    def piece(self, id: int) -> bytes:
        """Text of *id* inside a text."""

    def take(self, id: int) -> str:
        """Text that becomes certain with *id*."""

    def leave_out(self) -> str:
        """Text that becomes certain with a hidden special token."""

    def finish(self) -> str:
        """Text that was held back."""


def start_decoding(
    steps: Sequence[Sequence[Any]], spellings: Engine, texts: dict[int, str]
) -> Chain:
    """A new decoding.

    *steps* are types and options in order. *texts* are those of tokens whose decoded text
    differs from their spelling: in ``tokenizer.json``, added tokens that are found in
    normalized text.
    """
    kind, options = steps[0]
    if kind == "Bytes":
        return _Bytes(spellings, texts, options)
    if kind == "SentencePiece":
        return _SentencePiece(spellings, options)
    return _Steps(spellings, steps, texts)


def decoder_steps(entry: dict[str, Any] | None) -> tuple[Step, ...]:
    """Steps of the ``decoder`` of a ``tokenizer.json``, with every option explicit."""
    from tokenizers import Tokenizer, models

    if entry is None:
        return (Step("Join"),)
    outline = json.loads(Tokenizer(models.BPE()).to_str())
    with translate_errors("the decoder"):
        library = Tokenizer.from_str(json.dumps(outline | {"decoder": entry}))
    return tuple(_flat(json.loads(library.to_str())["decoder"])) or (Step("Fuse"),)


def _flat(entry: dict[str, Any]) -> Iterator[Step]:
    if entry["type"] == "Sequence":
        for inner in entry["decoders"]:
            yield from _flat(inner)
        return
    if entry["type"] not in STEPS:
        raise Unsupported(
            f"the decoder {entry['type']} is not supported; supported: {', '.join(STEPS)}",
            hint="name another tokenizer of the model with --tokenizer FILE",
        )
    if entry["type"] == "Replace":
        check_pattern(entry["pattern"])
    yield Step(entry["type"], {key: value for key, value in entry.items() if key != "type"})
