"""Specification of a tokenizer, independent of its file format; every loader creates one.

Loaders (``from_gguf.py``, ``from_files.py``) write a :class:`TokenizerSpec`; engines (the native
one behind ``compiled.py``, those of libraries in ``library.py``) run it. Neither knows the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

SPACE_SYMBOL = "\u2581"  # spells a space in SentencePiece vocabularies
BYTE_NAMES = {f"<0x{byte:02X}>": byte for byte in range(256)}  # tokens of single bytes there

ADDED_FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")

# GPT-2's alphabet: a printable byte is spelled as itself, the others as U+0100 and following.
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_TO_CHARACTER = [
    chr(byte if byte in _PRINTABLE else 0x100 + _OTHERS.index(byte)) for byte in range(256)
]
_BYTE_OF_CODE = {ord(character): byte for byte, character in enumerate(BYTE_TO_CHARACTER)}
# Latin-1 characters outside of the alphabet must not pass for a byte: U+FFFD is not Latin-1.
_TO_BYTES = {code: 0xFFFD for code in range(256) if code not in _BYTE_OF_CODE} | _BYTE_OF_CODE
_FROM_BYTES = {byte: code for code, byte in _BYTE_OF_CODE.items()}

END_OF_GENERATION = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
    "<|eot|>", "<|eom|>",  # LLaMA-4
    # Fill-in-the-middle models end with a marker of the next file or padding.
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>",
    "<reponame>", "<|file_sep|>",
})  # fmt: skip

Model = Literal["bpe", "spm", "unigram", "wordpiece", "wordlevel"]


class TokenType(IntEnum):
    """Types of tokens, numbered as in GGUF files and SentencePiece models."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class AddedToken:
    """A token that is split off the text before the rest of the text is cut and encoded."""

    id: int  # its id
    text: str  # the text to match; if *normalized*, already normalized
    # Left out by ``decode(skip_special=True)``, found only with ``encode(parse_special=True)``.
    special: bool = True
    lstrip: bool = False  # the match includes white space to the left
    rstrip: bool = False  # the match includes white space to the right
    single_word: bool = False  # matches only between word borders
    normalized: bool = False  # matched in the normalized text between the tokens found in raw text


def parse_added_token(id: int, entry: dict[str, Any]) -> AddedToken:
    """An added token as ``tokenizer.json`` and ``tokenizer_config.json`` write it."""
    flags = {name: bool(entry.get(name, False)) for name in ADDED_FLAGS}
    return AddedToken(id, str(entry["content"]), **flags)


@dataclass(frozen=True)
class Step:
    """One step of a normalizer, pre-tokenizer or decoder.

    Types are named as in Hugging Face's ``tokenizer.json``; the decoders ``Bytes`` and
    ``SentencePiece`` are ours, see :mod:`bitnet.tokenizer.decoding`.
    """

    type: str  # ``NFC``, ``Lowercase``, ``Prepend``, ``Replace``, ``Split``, ``ByteLevel`` ...
    options: dict[str, object] = field(default_factory=dict)  # its other fields


def read_steps(entry: dict[str, Any] | None, kind: str) -> Iterator[Step]:
    """Steps of a section of ``tokenizer.json``, none for None.

    The steps of a ``Sequence`` are in its field *kind*, such as ``normalizers``.
    """
    if entry is None:
        return
    if entry["type"] == "Sequence":
        for inner in entry[kind]:
            yield from read_steps(inner, kind)
        return
    yield Step(entry["type"], {key: value for key, value in entry.items() if key != "type"})


# Decoder of vocabularies with U+2581 for the space and ``<0xNN>`` for bytes.
PLAIN_DECODING = (
    Step("Replace", {"pattern": {"String": SPACE_SYMBOL}, "content": " "}),
    Step("ByteFallback"),
    Step("Fuse"),
)


@dataclass(frozen=True)
class TokenizerSpec:
    """A complete tokenizer."""

    # ``bpe`` merges in order, ``spm`` (SentencePiece BPE) by score; ``unigram`` finds the
    # segmentation with the best sum of scores; ``wordpiece`` takes the longest token first;
    # in ``wordlevel`` a piece is one token. Pieces that do not match are unknown.
    model: Model
    # The text of every id as the vocabulary spells it: byte-level BPE in GPT-2's byte-to-character
    # spelling, SentencePiece with U+2581 for the space and ``<0xNN>`` for bytes.
    tokens: Sequence[str]
    merges: Sequence[tuple[int, int]] = ()  # ``bpe``: ids of both halves, in order of priority
    scores: Sequence[float] = ()  # ``spm`` and ``unigram``: log-probability per token, float32
    token_types: Sequence[int] = ()  # ``TokenType`` of every id; empty when the source has none
    # Tokens split off the text first, longest match first. One that is matched in raw and in
    # normalized text is listed twice.
    added: tuple[AddedToken, ...] = ()
    # Ids of added tokens that the model lacks: ordinary text never becomes one of them.
    outside: frozenset[int] = frozenset()
    normalizer: tuple[Step, ...] = ()  # steps applied to the text between added tokens
    pre_tokenizer: tuple[Step, ...] = ()  # steps that split normalized text into pieces
    decoder: tuple[Step, ...] = ()  # as in ``tokenizer.json``; empty if the model implies them
    byte_level: bool = False  # token texts are in GPT-2's byte spelling
    byte_fallback: bool = False  # characters without a token become their ``<0xNN>`` bytes
    fuse_unknown: bool = False  # ``bpe``: a run of characters without a token is one unknown
    ignore_merges: bool = False  # a piece that is a token as a whole becomes that token
    # ``spm`` and ``unigram``: a space is put before every stretch of text between tokens found in
    # raw text (not after tokens found in normalized text)
    add_space_prefix: bool = False
    remove_extra_whitespaces: bool = False  # runs of spaces become one and the ends are trimmed
    charsmap: bytes = b""  # SentencePiece's precompiled normalization table
    unknown_id: int | None = None  # id of unknown text
    unknown_text: str = " \u2047 "  # decoded text of *unknown_id* of a SentencePiece model
    # ``spm`` and ``unigram``: what follows one of these ids is decoded as if it began a text
    restarts: frozenset[int] = frozenset()
    continuing_prefix: str = ""  # ``wordpiece`` and ``bpe``: begins tokens inside a word
    word_suffix: str = ""  # ``bpe``: ends tokens at the end of a word
    max_chars_per_word: int = 100  # ``wordpiece``: longer words are unknown
    bos_id: int | None = None
    eos_id: int | None = None
    add_bos: bool = False  # ``encode(add_special=True)`` puts *bos_id* first
    add_eos: bool = False  # ``encode(add_special=True)`` puts *eos_id* last
    prefix_ids: tuple[int, ...] | None = None  # put first instead of *bos_id*
    suffix_ids: tuple[int, ...] | None = None  # put last instead of *eos_id*
    middle_ids: tuple[int, ...] | None = None  # between two texts; ``None``: they cannot be joined
    second_type: int = 0  # ``token_type_ids`` of the second of two texts
    stop_ids: frozenset[int] = frozenset()  # every id that ends a generation
    chat_template: str | None = None  # Jinja source
    named_templates: tuple[tuple[str, str], ...] = ()  # further templates by name (``tool_use``)
    # Texts that templates see besides those of BOS and EOS, by name (``pad_token``).
    template_tokens: tuple[tuple[str, str], ...] = ()
    pre: str = ""  # name of the pre-tokenizer in GGUF (``llama-bpe``), or empty
    source: str = ""  # name of the tokenizer in messages: ``embedded in model.gguf``
    document: bytes = b""  # content of the ``tokenizer.json`` it was read from, or empty
    fingerprint: str = ""  # SHA-256 over the bytes it was built from; key of its compiled form

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return len(self.tokens)

    @property
    def is_sentencepiece(self) -> bool:
        """True if the model implies all steps, as a SentencePiece model does."""
        steps = self.normalizer or self.pre_tokenizer or self.decoder
        return self.model in ("spm", "unigram") and not steps

    @property
    def shows_unknown_text(self) -> bool:
        """True if *unknown_id* is decoded to *unknown_text*, not its piece, as in SentencePiece.

        False if the loader set *unknown_text* to the piece, as transformers 5 decodes it.
        """
        id = self.unknown_id
        return self.is_sentencepiece and id is not None and self.tokens[id] != self.unknown_text

    @property
    def has_steps(self) -> bool:
        """True for a Unigram model with steps of its own, those of a ``tokenizer.json``."""
        return self.model == "unigram" and not self.is_sentencepiece

    @property
    def affixes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids that ``encode(add_special=True)`` puts before the ids of a text, and after them."""
        first = (self.bos_id,) if self.add_bos and self.bos_id is not None else ()
        last = (self.eos_id,) if self.add_eos and self.eos_id is not None else ()
        return (
            first if self.prefix_ids is None else self.prefix_ids,
            last if self.suffix_ids is None else self.suffix_ids,
        )

    @property
    def decoding(self) -> tuple[Step, ...]:
        """The decoding steps: *decoder*, or those implied by the model."""
        if self.byte_level and [step.type for step in self.decoder] in ([], ["ByteLevel"]):
            # A ByteLevel decoder also decodes added tokens; without a decoder, they are their text.
            return (Step("Bytes", {"respell": bool(self.decoder), "apart": False}),)
        if self.decoder:
            return self.decoder
        if self.model in ("spm", "unigram"):
            flags = ("add_space_prefix", "remove_extra_whitespaces")
            options: dict[str, object] = {name: getattr(self, name) for name in flags}
            options |= {"unknown_id": self.unknown_id, "unknown_text": self.unknown_text}
            options |= {"restarts": sorted(self.restarts)}
            return (Step("SentencePiece", options),)
        if self.model == "wordpiece":
            return (Step("WordPiece", {"prefix": self.continuing_prefix, "cleanup": True}),)
        return PLAIN_DECODING


def bytes_of_spelling(text: str) -> bytes | None:
    """Bytes that *text* spells in GPT-2's alphabet, ``None`` if it has other characters."""
    try:
        return text.translate(_TO_BYTES).encode("latin-1")
    except UnicodeEncodeError:
        return None


def byte_spelling(data: bytes) -> str:
    """*data* spelled in GPT-2's alphabet."""
    return data.decode("latin-1").translate(_FROM_BYTES)


def stop_ids(special: Mapping[str, int], declared: Iterable[int | None]) -> frozenset[int]:
    """Every id that ends a generation.

    These are the *declared* ones of the file, and those of the usual texts in *special*, the ids
    of special tokens by text.
    """
    named = frozenset(id for id in declared if id is not None)
    by_text = {text: id for text, id in special.items() if text in END_OF_GENERATION}
    # In these vocabularies <|end|> closes a message in the middle of an answer, and </s> is an
    # HTML tag; a file that declares them stop tokens is believed nevertheless.
    harmony = "<|return|>" in by_text and "<|call|>" in by_text
    solar = "<|flush|>" in by_text and ("<|call|>" in by_text or "<|calls|>" in by_text)
    if harmony or solar:
        by_text.pop("<|end|>", None)
    if "<|tool_response>" in by_text or "<table>" in special:
        by_text.pop("</s>", None)
    return named | frozenset(by_text.values())
