"""Read SentencePiece's ``tokenizer.model`` without a protobuf library.

Field numbers are those of ``sentencepiece_model.proto``. Fields that do not change ids are skipped.
"""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bitnet.tokenizer.limits import GROWTH, damage_error, reading, refusal
from bitnet.tokenizer.spec import SPACE_SYMBOL, TokenizerSpec, TokenType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T", int, bytes)

# Wire types of protobuf.
_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5
# Values of ``TrainerSpec.model_type``.
_UNIGRAM = 1
_BPE = 2


def parse_model(data: bytes, *, source: str = "tokenizer.model") -> TokenizerSpec:
    """The tokenizer of a SentencePiece model, without added tokens."""
    with reading(source, "SentencePiece model"):
        return _parse(data, source)


def _parse(data: bytes, source: str) -> TokenizerSpec:
    """The tokenizer in *data*, a ``ModelProto``."""
    tokens: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if number == 1:  # pieces: text, score, type
            piece = dict(_fields(_as(bytes, value)))
            tokens.append(_as(bytes, piece.get(1, b"")).decode())
            scores.append(struct.unpack("<f", _as(bytes, piece.get(2, bytes(4))))[0])
            types.append(_as(int, piece.get(3, 1)))
        elif number == 2:  # trainer_spec
            trainer.update(_fields(_as(bytes, value)))
        elif number == 3:  # normalizer_spec
            normalizer.update(_fields(_as(bytes, value)))
    if not tokens:
        raise ValueError("it has no pieces")
    unknown = [id for id, kind in enumerate(types) if kind == TokenType.UNKNOWN]
    if len(unknown) != 1:
        raise ValueError(f"it has {len(unknown)} pieces for unknown text, expected 1")
    kind = _as(int, trainer.get(3, _UNIGRAM))  # model_type
    if kind not in (_UNIGRAM, _BPE):
        name = {3: "word", 4: "char"}.get(kind, kind)
        raise refusal(f"{source} is a SentencePiece {name} model; supported: BPE, Unigram")
    # treat_whitespace_as_suffix, escape_whitespaces
    if trainer.get(24, 0) or not normalizer.get(5, 1):
        raise refusal(f"{source} marks spaces as suffixes, or not at all: that is not supported")
    # bos_id and eos_id; a negative one, in two's complement of 64 bits, switches the token off.
    ids = (_as(int, trainer.get(field, usual)) for field, usual in ((41, 1), (42, 2)))
    bos, eos = (None if id >> 63 else id for id in ids)
    for id in (bos, eos):
        if id is not None and id >= len(tokens):
            raise ValueError(f"its BOS or EOS is the id {id:,} of {len(tokens):,} pieces")
    return TokenizerSpec(
        model="spm" if kind == _BPE else "unigram",
        tokens=tokens,
        scores=scores,
        token_types=types,
        byte_fallback=bool(trainer.get(35, 0)),
        charsmap=_as(bytes, normalizer.get(2, b"")),  # precompiled_charsmap
        add_space_prefix=bool(normalizer.get(3, 1)),  # add_dummy_prefix
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
        unknown_id=unknown[0],  # as in the library, which ignores unk_id of the trainer
        unknown_text=_as(bytes, trainer.get(44, " \u2047 ".encode())).decode(),  # unk_surface
        bos_id=bos,
        eos_id=eos,
        source=source,
    )


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of every field of one message."""
    at = 0
    size = len(data)
    while at < size:
        tag, at = _varint(data, at)
        number = tag >> 3
        wire = tag & 7
        if number == 0:
            raise ValueError(f"a field has number 0 at byte {at}")
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == _BYTES:
            length, at = _varint(data, at)
        elif wire in (_FIXED32, _FIXED64):
            length = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if length > size - at:
            raise ValueError(f"a field of {length} bytes does not fit at byte {at}")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at byte *at*, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError(f"a number of more than ten bytes at byte {at}")


def _as(kind: type[T], value: int | bytes) -> T:
    """*value*, which must be of the type *kind*."""
    if isinstance(value, kind):
        return value
    raise ValueError(f"{type(value).__name__} where {kind.__name__} is expected")


def charsmaps_of(spec: TokenizerSpec) -> list[bytes]:
    """SentencePiece's character maps in *spec*: its own, and those of normalizer steps."""
    charsmaps = [spec.charsmap] if spec.charsmap else []
    for step in (step for step in spec.normalizer if step.type == "Precompiled"):
        text = str(step.options.get("precompiled_charsmap"))
        with reading(spec.source, "tokenizer with a character map"):
            charsmaps.append(base64.b64decode(text, validate=True))
    return charsmaps


def find_charsmap(normalizer: Any) -> str | None:
    """The first character map of a ``tokenizer.json``'s *normalizer*, in base64; None if none."""
    for step in _steps((normalizer,)):
        if step.get("type") == "Precompiled" and "precompiled_charsmap" in step:
            return str(step["precompiled_charsmap"])
    return None


def _steps(sections: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """The steps of *sections*, and those inside of sequences."""
    for section in sections:
        if not isinstance(section, dict):
            continue
        yield section
        for key in ("normalizers", "pretokenizers", "decoders"):
            inner = section.get(key)
            if isinstance(inner, list):
                yield from _steps(inner)


def check_charsmap(blob: bytes) -> None:
    """Refuse a character map that a library would read beyond its end.

    *blob* has the size of a double-array trie in bytes, the trie in units of 32 bits, and the texts
    that its values point to, each ended by a zero byte.
    """
    size = int.from_bytes(blob[:4], "little")
    is_sound = size % 4 == 0 and 4 <= size < len(blob) - 4 and blob[-1] == 0
    if is_sound:
        units = np.frombuffer(blob, "<u4", size // 4, 4).astype(np.int64)
        texts = np.frombuffer(blob, np.uint8, offset=4 + size)
        # Units of darts-clone: bit 31 marks a value. The others have the offset of their children
        # in bits 10 to 30, times 256 if bit 9 is set, and a value among the children if bit 8 is.
        at = np.flatnonzero(units >> 31 == 0)
        child = at ^ (units[at] >> 10 << ((units[at] & 1 << 9) >> 6))
        is_sound = bool(((child | 0xFF) < len(units)).all())
        leaf = units[child[units[at] & 1 << 8 != 0]] if is_sound else units[:0]
        value = leaf & (1 << 31) - 1
        is_sound = is_sound and bool((leaf >> 31 == 1).all() and (value < len(texts)).all())
        is_sound = is_sound and bool((texts[value] & 0xC0 != 0x80).all())
        try:
            blob[4 + size :].decode()
        except UnicodeDecodeError:
            is_sound = False
    # The longest text, in bytes, that may replace one character of four bytes.
    if is_sound and max(map(len, blob[4 + size :].split(b"\0"))) > 4 * GROWTH:
        raise refusal("a precompiled character map makes a text too long")
    if not is_sound:
        raise damage_error(f"a precompiled character map of {len(blob):,} bytes is damaged")


def write_model(spec: TokenizerSpec) -> bytes:
    """*spec*, whose model is ``spm`` or ``unigram``, as a file of the ``sentencepiece`` library.

    Tokens without text, or of a type that a piece cannot have, become control tokens, which
    ordinary text never becomes.
    """
    out = bytearray()
    types = spec.token_types or [TokenType.NORMAL] * len(spec.tokens)
    # Converters to GGUF write U+2581 as spaces.
    spelled = {token.id: token.text for token in spec.added}
    for id, (piece, score, kind) in enumerate(zip(spec.tokens, spec.scores, types, strict=True)):
        if spelled.get(id) == piece.replace(" ", SPACE_SYMBOL):
            piece = spelled[id]
        if id == spec.unknown_id:
            kind = TokenType.UNKNOWN
        elif kind == TokenType.UNKNOWN or not 1 <= kind <= len(TokenType) or not piece:
            kind = TokenType.CONTROL
        body = _pack_field(1, (piece or f"\U0010ffff{id}").encode())
        # The tag of field 2 with the wire type of 32 bits. Adding 0.0 makes 0.0 of -0.0, which
        # version 0.2.3 of the library takes for a lower score, unlike earlier ones and llama.cpp.
        body += b"\x15" + struct.pack("<f", score + 0.0) + _pack_field(3, kind)
        out += _pack_field(1, body)
    trainer = _pack_field(3, _BPE if spec.model == "spm" else _UNIGRAM)
    trainer += _pack_field(44, spec.unknown_text.encode())
    trainer += _pack_field(35, int(spec.byte_fallback))
    # Fields 40 to 42 are unk_id, bos_id and eos_id; 45 to 47 the texts of these pieces.
    for field, role in ((40, spec.unknown_id), (41, spec.bos_id), (42, spec.eos_id)):
        trainer += _pack_field(field, -1 if role is None else role)
        if role is not None:  # the library looks the piece up by its text, and fails without it
            trainer += _pack_field(field + 5, spec.tokens[role].encode())
    normalizer = _pack_field(1, b"user_defined" if spec.charsmap else b"identity")
    normalizer += _pack_field(2, spec.charsmap) + _pack_field(3, int(spec.add_space_prefix))
    normalizer += _pack_field(4, int(spec.remove_extra_whitespaces)) + _pack_field(5, 1)
    return bytes(out + _pack_field(2, trainer) + _pack_field(3, normalizer))


def _pack_field(field: int, value: int | bytes) -> bytes:
    """One field of a message."""
    if isinstance(value, bytes):
        return _number(field << 3 | _BYTES) + _number(len(value)) + value
    return _number(field << 3 | _VARINT) + _number(value)


def _number(value: int) -> bytes:
    """*value* as a varint; a negative one in two's complement of 64 bits."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
