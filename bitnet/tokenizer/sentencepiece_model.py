"""Read SentencePiece's ``tokenizer.model`` without a protobuf library.

Field numbers are those of ``sentencepiece_model.proto``. Fields that do not change ids are skipped.
"""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bitnet.tokenizer.limits import GROWTH, damage_error, refusal
from bitnet.tokenizer.spec import SPACE_SYMBOL, TokenType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bitnet.tokenizer.spec import TokenizerSpec

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_UNIGRAM, _BPE = 1, 2
_KINDS = {1: "Unigram", 2: "BPE", 3: "word", 4: "char"}


@dataclass(frozen=True)
class SentencePieceModel:
    """Content of a ``tokenizer.model``."""

    kind: int  # 1 Unigram, 2 BPE
    pieces: Sequence[str]  # texts by id
    scores: Sequence[float]  # float32 by id
    types: Sequence[int]  # ``TokenType`` by id
    byte_fallback: bool = False  # characters without a piece become bytes
    charsmap: bytes = b""  # precompiled normalization table, may be empty
    add_dummy_prefix: bool = True  # a space is put before the text
    remove_extra_whitespaces: bool = True  # runs of spaces become one, the ends are trimmed
    unknown_id: int = 0  # and *bos_id*, *eos_id*: -1 when switched off
    unknown_text: str = " \u2047 "  # text of the unknown piece (``unk_surface``)
    bos_id: int = 1  # see *unknown_id*
    eos_id: int = 2  # see *unknown_id*


def parse_model(data: bytes, *, source: str = "tokenizer.model") -> SentencePieceModel:
    """Read a SentencePiece model."""
    try:
        return _parse(data, source)
    except (IndexError, struct.error, UnicodeDecodeError, ValueError) as error:
        text = f"{source} is damaged, or not a SentencePiece model: {error}"
        raise damage_error(text) from None


def _parse(data: bytes, source: str) -> SentencePieceModel:
    pieces: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if number == 1:
            piece = dict(_fields(_as_bytes(value)))
            pieces.append(_as_bytes(piece.get(1, b"")).decode())
            scores.append(struct.unpack("<f", _as_bytes(piece.get(2, bytes(4))))[0])
            types.append(_as_int(piece.get(3, 1)))
        elif number == 2:
            trainer.update(_fields(_as_bytes(value)))
        elif number == 3:
            normalizer.update(_fields(_as_bytes(value)))
    if not pieces:
        raise ValueError("it has no pieces")
    unknown = [id for id, kind in enumerate(types) if kind == TokenType.UNKNOWN]
    if len(unknown) != 1:
        raise ValueError(f"it has {len(unknown)} pieces for what is unknown, expected 1")
    kind = _as_int(trainer.get(3, _UNIGRAM))
    if kind not in (_UNIGRAM, _BPE):
        name = _KINDS.get(kind, kind)
        raise refusal(f"{source} is a SentencePiece {name} model; supported: BPE, Unigram")
    if trainer.get(24, 0) or not normalizer.get(5, 1):
        raise refusal(f"{source} marks spaces as suffixes, or not at all: that is not supported")
    # Negative ids are stored as 64-bit two's complement.
    ids = (_as_int(trainer.get(field, usual)) for field, usual in ((41, 1), (42, 2)))
    bos, eos = (id - (1 << 64) if id >> 63 else id for id in ids)
    return SentencePieceModel(
        kind=kind,
        pieces=pieces,
        scores=scores,
        types=types,
        byte_fallback=bool(trainer.get(35, 0)),
        charsmap=_as_bytes(normalizer.get(2, b"")),
        add_dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
        unknown_text=_as_bytes(trainer.get(44, " \u2047 ".encode())).decode(),
        unknown_id=unknown[0],  # as in the library, whatever the trainer's settings are
        bos_id=bos,
        eos_id=eos,
    )


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of every field of one message."""
    at, size = 0, len(data)
    while at < size:
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
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
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError(f"a number of more than ten bytes at byte {at}")


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    raise ValueError("a number where a string or message is expected")


def _as_int(value: int | bytes) -> int:
    if isinstance(value, int):
        return value
    raise ValueError("a string or message where a number is expected")


def charsmaps_of(spec: TokenizerSpec) -> list[bytes]:
    """SentencePiece's character maps of *spec*, its own and those of steps."""
    charsmaps = [spec.charsmap] if spec.charsmap else []
    for step in (step for step in spec.normalizer if step.type == "Precompiled"):
        text = str(step.options.get("precompiled_charsmap"))
        try:
            charsmaps.append(base64.b64decode(text, validate=True))
        except binascii.Error as error:
            raise damage_error(
                f"{spec.source}: precompiled_charsmap is not base64: {error}"
            ) from None
    return charsmaps


def check_charsmap(blob: bytes) -> None:
    """Refuse a character map that a library would read beyond its end.

    It is four bytes with the size of a double-array trie, the trie in units of 32 bits, and the
    texts that its values point to, each ended by a zero byte.
    """
    size = int.from_bytes(blob[:4], "little")
    good = size % 4 == 0 and 4 <= size < len(blob) - 4 and blob[-1] == 0
    if good:
        units = np.frombuffer(blob, "<u4", size // 4, 4).astype(np.int64)
        texts = np.frombuffer(blob, np.uint8, offset=4 + size)
        at = np.flatnonzero(units >> 31 == 0)
        child = at ^ (units[at] >> 10 << ((units[at] & 1 << 9) >> 6))
        good = bool(((child | 0xFF) < len(units)).all())
        leaf = units[child[units[at] & 1 << 8 != 0]] if good else units[:0]
        value = leaf & (1 << 31) - 1
        good = good and bool((leaf >> 31 == 1).all() and (value < len(texts)).all())
        good = good and bool((texts[value] & 0xC0 != 0x80).all())
        try:
            blob[4 + size :].decode()
        except UnicodeDecodeError:
            good = False
    if good and max(map(len, blob[4 + size :].split(b"\0"))) > 4 * GROWTH:
        raise refusal("a precompiled character map makes a text too long")
    if not good:
        raise damage_error(f"a precompiled character map of {len(blob):,} bytes is damaged")


def write_model(spec: TokenizerSpec) -> bytes:
    """The model of *spec*, of model ``spm`` or ``unigram``, for the ``sentencepiece`` library.

    A token that ordinary text never becomes is a control token there.
    """
    out = bytearray()
    types = spec.token_types or [TokenType.NORMAL] * len(spec.tokens)
    spelled = {token.id: token.text for token in spec.added}  # converters write U+2581 as spaces
    for id, (piece, score, kind) in enumerate(zip(spec.tokens, spec.scores, types, strict=True)):
        if spelled.get(id) == piece.replace(" ", SPACE_SYMBOL):
            piece = spelled[id]
        if id == spec.unknown_id:
            kind = TokenType.UNKNOWN
        elif kind == TokenType.UNKNOWN or not 1 <= kind <= len(TokenType) or not piece:
            kind = TokenType.CONTROL
        body = _pack_field(1, (piece or f"\U0010ffff{id}").encode())
        body += b"\x15" + struct.pack("<f", score) + _pack_field(3, kind)
        out += _pack_field(1, body)
    trainer = _pack_field(3, _BPE if spec.model == "spm" else _UNIGRAM)
    trainer += _pack_field(35, int(spec.byte_fallback)) + _pack_field(
        44, spec.unknown_text.encode()
    )
    for field, role in ((40, spec.unknown_id), (41, spec.bos_id), (42, spec.eos_id)):
        trainer += _pack_field(field, -1 if role is None else role)
        if role is not None:  # the library looks these up by text, and insists on finding them
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
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
