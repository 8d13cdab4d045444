"""GPT-2's alphabet: one printable character for each byte, used by byte-level vocabularies."""

from __future__ import annotations

__all__ = ["BYTE_TO_CHARACTER", "byte_spelling", "spell_bytes"]


def _alphabet() -> list[str]:
    """Character of each byte: printable bytes stand for themselves, others start at U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    moved = {byte: chr(0x100 + n) for n, byte in enumerate(others)}
    return [moved.get(byte, chr(byte)) for byte in range(256)]


BYTE_TO_CHARACTER = _alphabet()

_LETTERS = {ord(character): byte for byte, character in enumerate(BYTE_TO_CHARACTER)}
# Latin-1 characters outside of the alphabet must not pass for a byte.
_SHIFT = {code: 0xFFFD for code in range(256) if code not in _LETTERS} | _LETTERS
_UNSHIFT = {byte: code for code, byte in _LETTERS.items()}


def spell_bytes(text: str) -> bytes | None:
    """Bytes of a byte-level token, ``None`` if a character is not in the alphabet."""
    shifted = text.translate(_SHIFT)
    try:
        return shifted.encode("latin-1")
    except UnicodeEncodeError:
        return None


def byte_spelling(data: bytes) -> str:
    """*data* in the spelling of a byte-level vocabulary."""
    return data.decode("latin-1").translate(_UNSHIFT)
