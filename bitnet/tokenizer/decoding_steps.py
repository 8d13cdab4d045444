"""The decoders of ``tokenizer.json``, each as a step that takes tokens whole or in parts.

Every step does what the ``tokenizers`` library's decoder of the same name does to a list of tokens,
and passes on whatever later tokens cannot change.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet.base import native
from bitnet.base.errors import Unsupported
from bitnet.tokenizer.limits import over_budget
from bitnet.tokenizer.spec import SPACE_SYMBOL, spell_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

REPLACEMENT = "\ufffd"
_BYTE = re.compile(r"<0x(\+?[0-9A-Fa-f]|[0-9A-Fa-f]{2})>")  # Rust's number parser accepts a sign


@dataclass(frozen=True)
class Part:
    """A token, or a part of one: *first* begins it, *last* ends it."""

    text: str
    first: bool = True
    last: bool = True


class DecodingStep:
    """One step in progress. By default a step reads one whole token at a time.

    Attributes:
        fuses: joins all tokens into one.
        anywhere: treats parts of a token like the whole.
    """

    fuses = False
    anywhere = False

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
            text, self._held = self._held, ""
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
        """Output for a token that is neither first nor last: text, or its bytes."""
        return text


def check_pattern(pattern: dict[str, str]) -> None:
    """Refuse a decoder's pattern that only an engine without a bound on its time could match."""
    (kind, text), *_ = pattern.items()
    if kind == "String" and text:
        return
    module = native.module()
    reason = "it needs the compiled module"
    try:
        if module is not None:
            module.regex_find_all(text, "")
            return
    except ValueError as error:
        reason = str(error)
    raise Unsupported(
        f"a decoder replaces {text!r:.80}: {reason}",
        hint="name another tokenizer of the model with --tokenizer FILE",
    )


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
        assert module is not None  # check_pattern refuses what needs it
        try:
            return str(module.regex_replace(self._pattern, self._content, text))
        except module.OverBudget as error:
            raise over_budget("with this decoder", error) from None

    def take(self, part: Part) -> Iterable[Part]:
        # One character is replaced anywhere, also in parts of tokens.
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

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self._char: str = options["content"]
        self._start: int = options["start"]
        self._stop: int = options["stop"]
        self._left = 0

    def take(self, part: Part) -> Iterable[Part]:
        if part.first:
            self._left = self._start
        text = self._held + part.text
        while self._left and text.startswith(self._char):
            text = text[1:]
            self._left -= 1
        if text:
            self._left = 0
        kept = text.rstrip(self._char)
        ending = min(len(text) - len(kept), self._stop)
        end = len(text) - ending
        self._held = "" if part.last else text[end:]
        yield Part(text[:end], part.first, part.last)

    def inside(self, text: str) -> str:
        (part,) = type(self)(self.options).take(Part(text))
        return part.text


class _ByteFallback(DecodingStep):
    """Runs of ``<0xNN>`` as characters; each byte of a run that is not UTF-8 as U+FFFD."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self._run = bytearray()

    def inside(self, text: str) -> str | bytes:
        found = _BYTE.fullmatch(text)
        return bytes([int(found[1], 16)]) if found else text

    def token(self, text: str) -> Iterable[Part]:
        value = self.inside(text)
        if isinstance(value, bytes):
            self._run += value
            return
        yield from self.finish()
        yield Part(value)

    def finish(self) -> Iterable[Part]:
        run, self._run = self._run, bytearray()
        if run:
            try:
                yield Part(run.decode())
            except UnicodeDecodeError:
                yield from (Part(REPLACEMENT) for _ in run)


class _Metaspace(DecodingStep):
    """Replaces the symbol by spaces, except in a prefix that encoding prepends."""

    def inside(self, text: str) -> str:
        return text.replace(self.options.get("replacement", SPACE_SYMBOL), " ")

    def at_start(self, text: str) -> str:
        if self.options.get("prepend_scheme", "always") == "never":
            return self.inside(text)
        return text.replace(self.options.get("replacement", SPACE_SYMBOL), "")


# English contractions and punctuation split by BERT's tokenizer, joined again.
_CLEANUP = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"),
    (" 'm", "'m"), (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


def _clean(text: str) -> str:
    for cut, joined in _CLEANUP:
        text = text.replace(cut, joined)
    return text


class _WordPiece(DecodingStep):
    def inside(self, text: str) -> str:
        prefix = self.options.get("prefix", "##")
        text = text.replace(prefix, "", 1) if text.startswith(prefix) else f" {text}"
        return self.at_start(text)

    def at_start(self, text: str) -> str:
        return _clean(text) if self.options.get("cleanup", True) else text


class _Ctc(DecodingStep):
    """``CTC``: repeated tokens are one, padding is nothing, and a token stands for the space."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self._before: str | None = None

    def inside(self, text: str) -> str:
        text = text.replace(self.options.get("pad_token", "<pad>"), "")
        if self.options.get("cleanup", True):
            text = _clean(text).replace(self.options.get("word_delimiter_token", "|"), " ")
        return text

    def token(self, text: str) -> Iterable[Part]:
        repeated, self._before = text == self._before, text
        if not repeated and (made := self.inside(text)):
            yield Part(made)


class _WordEnds(DecodingStep):
    """``BPEDecoder``: a suffix marks the ends of words; no space follows the last."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self._waiting: str | None = None

    def inside(self, text: str) -> str:
        return text.replace(self.options.get("suffix", "</w>"), " ")

    def token(self, text: str) -> Iterable[Part]:
        waiting, self._waiting = self._waiting, text
        if waiting is not None:
            yield Part(self.inside(waiting))

    def finish(self) -> Iterable[Part]:
        if self._waiting is not None:
            yield Part(self._waiting.replace(self.options.get("suffix", "</w>"), ""))


class _Join(DecodingStep):
    """No decoder: tokens with spaces between them."""

    def inside(self, text: str) -> str:
        return f" {text}"

    def at_start(self, text: str) -> str:
        return text


class _ByteLevel(DecodingStep):
    """GPT-2's spelling of bytes. A token with other characters stands for its text."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def inside(self, text: str) -> bytes:
        spelled = spell_bytes(text)
        return text.encode() if spelled is None else spelled

    def token(self, text: str) -> Iterable[Part]:
        text = self._decoder.decode(self.inside(text))
        if text or self._index == 0:
            yield Part(text, first=self._index == 0, last=False)

    def finish(self) -> Iterable[Part]:
        yield Part(self._decoder.decode(b"", final=True), first=self._index < 0)


STEPS: dict[str, Callable[[dict[str, Any]], DecodingStep]] = {
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
}
