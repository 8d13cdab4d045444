"""Writes SentencePiece models, which the ``sentencepiece`` library loads."""

import struct

from bitnet.tokenizer.sentencepiece_model import SentencePieceModel

_VARINT, _BYTES = 0, 2
_UNIGRAM, _BPE = 1, 2


def write_model(model):
    """The protobuf bytes of *model*; the ``sentencepiece`` library loads them."""
    out = bytearray()
    for piece, score, kind in zip(model.pieces, model.scores, model.types, strict=True):
        body = _string(1, piece.encode()) + b"\x15" + struct.pack("<f", score)
        out += _string(1, body + _number(3, kind))
    trainer = _number(3, model.kind) + _number(35, int(model.byte_fallback))
    trainer += _string(44, model.unknown_text.encode())
    for field, id in ((40, model.unknown_id), (41, model.bos_id), (42, model.eos_id)):
        trainer += _number(field, id)
    # The library looks these up by text, and insists on finding them.
    for field, id in ((45, model.unknown_id), (46, model.bos_id), (47, model.eos_id)):
        if 0 <= id < len(model.pieces):
            trainer += _string(field, model.pieces[id].encode())
    normalizer = _string(1, b"identity" if not model.charsmap else b"user_defined")
    normalizer += _string(2, model.charsmap)
    normalizer += _number(3, int(model.add_dummy_prefix))
    normalizer += _number(4, int(model.remove_extra_whitespaces)) + _number(5, 1)
    return bytes(out + _string(2, trainer) + _string(3, normalizer))


def _encode_varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field, value):
    return _encode_varint(field << 3 | _VARINT) + _encode_varint(value)


def _string(field, value):
    return _encode_varint(field << 3 | _BYTES) + _encode_varint(len(value)) + value


def model_from_spec(spec):
    """The SentencePiece model behind a specification of model ``spm`` or ``unigram``."""
    types = list(spec.token_types) or [1] * len(spec.tokens)
    return SentencePieceModel(
        kind=_BPE if spec.model == "spm" else _UNIGRAM,
        pieces=list(spec.tokens),
        scores=list(spec.scores),
        types=types,
        byte_fallback=spec.byte_fallback,
        charsmap=spec.charsmap,
        add_dummy_prefix=spec.add_space_prefix,
        remove_extra_whitespaces=spec.remove_extra_whitespaces,
        unknown_id=-1 if spec.unknown_id is None else spec.unknown_id,
        bos_id=-1 if spec.bos_id is None else spec.bos_id,
        eos_id=-1 if spec.eos_id is None else spec.eos_id,
    )
