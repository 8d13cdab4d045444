"""Write SentencePiece models that the ``sentencepiece`` library loads."""

import struct

# Wire types of protobuf.
_VARINT = 0
_BYTES = 2
_FIXED32 = 5
# Types of models.
_UNIGRAM = 1
_BPE = 2


def sentencepiece_bytes(spec, kind=None):
    """The protobuf bytes of *spec*, which the ``sentencepiece`` library loads.

    *kind* is the number of the model's type, by default that of *spec*. Numbers of fields are those
    of ``sentencepiece_model.proto``.
    """
    out = bytearray()
    types = spec.token_types or [1] * len(spec.tokens)
    for piece, score, type_ in zip(spec.tokens, spec.scores, types, strict=True):
        body = _string(1, piece.encode()) + _float(2, score) + _number(3, type_)
        out += _string(1, body)
    trainer = _number(3, kind or (_BPE if spec.model == "spm" else _UNIGRAM))
    trainer += _number(35, int(spec.byte_fallback)) + _string(44, spec.unknown_text.encode())
    for field, id in ((40, spec.unknown_id), (41, spec.bos_id), (42, spec.eos_id)):
        trainer += _number(field, -1 if id is None else id)
        if id is not None:  # the library looks these up by text, and insists on finding them
            trainer += _string(field + 5, spec.tokens[id].encode())
    normalizer = _string(1, b"identity" if not spec.charsmap else b"user_defined")
    normalizer += _string(2, spec.charsmap)
    normalizer += _number(3, int(spec.add_space_prefix))
    normalizer += _number(4, int(spec.remove_extra_whitespaces))
    normalizer += _number(5, 1)  # escape_whitespaces
    return bytes(out + _string(2, trainer) + _string(3, normalizer))


def _encode_varint(value):
    """*value*, an integer of 64 bits, as a varint of protobuf."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field, value):
    """A field of protobuf with an integer."""
    return _encode_varint(field << 3 | _VARINT) + _encode_varint(value)


def _float(field, value):
    """A field of protobuf with a number of 32 bits."""
    return _encode_varint(field << 3 | _FIXED32) + struct.pack("<f", value)


def _string(field, value):
    """A field of protobuf with bytes."""
    return _encode_varint(field << 3 | _BYTES) + _encode_varint(len(value)) + value
