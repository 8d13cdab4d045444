"""SentencePiece's precompiled normalization table (``normalizer.cc``)."""

from __future__ import annotations

import struct

import numpy as np

from bitnet.errors import InvalidFormat
from bitnet.tokenizer.limits import CHARSMAP_KEY_BYTES

__all__ = ["CharsMap"]

_INSIDE = frozenset(bytes([byte]) for byte in range(0x80, 0xC0))
_LEAF, _HAS_LEAF, _LABEL = 1 << 31, 1 << 8, (1 << 31) | 0xFF


class CharsMap:
    """Four bytes with the size of a double-array trie, the trie, and its replacement texts.

    The trie is darts-clone's, in units of 32 bits; each text ends in a zero byte. Everything is
    checked here, so that the result of a replacement is valid text.

    Raises:
        InvalidFormat: sizes are inconsistent, entries point outside, or texts are not UTF-8.
    """

    def __init__(self, blob: bytes) -> None:
        if len(blob) < 4:
            raise InvalidFormat(f"precompiled_charsmap has {len(blob)} bytes, at least 4 expected")
        (size,) = struct.unpack_from("<I", blob)
        if size % 4 or size < 4 or 4 + size >= len(blob):
            raise InvalidFormat(
                f"precompiled_charsmap of {len(blob)} bytes claims a trie of {size} bytes"
            )
        self._texts = bytes(blob[4 + size :])
        self._check(np.frombuffer(blob, "<u4", size // 4, 4).astype(np.int64))
        self._units = struct.unpack_from(f"<{size // 4}I", blob, 4)

    def _check(self, units: np.ndarray) -> None:
        try:
            self._texts.decode()
        except UnicodeDecodeError as error:
            raise InvalidFormat(
                f"precompiled_charsmap has a text that is not UTF-8: {error}"
            ) from None
        texts = np.frombuffer(self._texts, np.uint8)
        at = np.flatnonzero((units & _LEAF == 0) & (units & _HAS_LEAF != 0))
        leaf = at ^ (units[at] >> 10 << ((units[at] & 1 << 9) >> 6))
        good = texts[-1] == 0 and bool((leaf < len(units)).all())
        if good:
            value = units[leaf] & ~_LEAF
            good = bool((units[leaf] & _LEAF != 0).all() and (value < len(texts)).all())
            # Must not point into the middle of a character.
            good = good and bool((texts[value] & 0xC0 != 0x80).all())
        if not good:
            raise InvalidFormat(
                "precompiled_charsmap has an entry that points outside of its texts"
            )

    def longest(self, text: bytes, start: int) -> tuple[int, int] | None:
        """Length in bytes and value of the longest entry that begins at *start*.

        Raises:
            InvalidFormat: the entry is longer than any real one, or ends inside a character.
        """
        units = self._units
        at = _offset(units[0])
        best = None
        for i in range(start, len(text)):
            if i - start == CHARSMAP_KEY_BYTES:
                raise InvalidFormat(
                    f"precompiled_charsmap has an entry for more than {CHARSMAP_KEY_BYTES} bytes"
                )
            at ^= text[i]
            if at >= len(units):
                break
            unit = units[at]
            if unit & _LABEL != text[i]:
                break
            at ^= _offset(unit)
            if at >= len(units):
                break
            if unit & _HAS_LEAF:
                best = (i + 1 - start, units[at] & ~_LEAF)
        if best is not None and text[start + best[0] : start + best[0] + 1] in _INSIDE:
            raise InvalidFormat("precompiled_charsmap has an entry that ends inside a character")
        return best

    def replacement(self, value: int) -> str:
        """Replacement text of an entry."""
        return self._texts[value : self._texts.index(b"\0", value)].decode()


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 1 << 9) >> 6)
