"""The ``tokenizer.ggml.*`` keys of one file, checked and typed."""

from __future__ import annotations

import re
import struct
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from bitnet.base.errors import InvalidFormat, TokenizerNotFound
from bitnet.tokenizer import vocabularies
from bitnet.tokenizer.limits import damage_error
from bitnet.tokenizer.merges import LazySequence
from bitnet.tokenizer.spec import BYTE_NAMES, TokenType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = map(int, TokenType)

_PREFIX = "tokenizer.ggml."
_NOT_NORMAL = re.compile(rb"[^\x01]", re.DOTALL)


class Fields:
    """The tokenizer keys of the *metadata*; arrays as ``bitnet.formats.gguf`` has them, or lists.

    *source* is the file's name in messages: ``embedded in model.gguf``.
    """

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self._metadata = metadata
        self.source = source

    def has(self, name: str) -> bool:
        """True if the file has the key."""
        return _PREFIX + name in self._metadata

    def text(self, name: str) -> str:
        """A string value, empty when absent."""
        return self.optional_text(_PREFIX + name) or ""

    def optional_text(self, key: str) -> str | None:
        """A string value by its full key."""
        value = self._metadata.get(key)
        if value is None or isinstance(value, str):
            return value
        raise self._wrong(key, "a string", value)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean value."""
        value = self._metadata.get(_PREFIX + name, default)
        if isinstance(value, bool):
            return value
        raise self._wrong(_PREFIX + name, "true or false", value)

    def token_id(self, name: str, default: int | None) -> int | None:
        """The id under ``<name>_token_id``; an id outside of the vocabulary counts as absent."""
        value = self._metadata.get(f"{_PREFIX}{name}_token_id")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self._wrong(f"{_PREFIX}{name}_token_id", "a token id", value)
        size = self.length("tokens")
        if value is not None and 0 <= value < size:
            return value
        return default if default is not None and default < size else None

    def special_id(self, name: str, default: int | None) -> int | None:
        """As :meth:`token_id`; the default counts only if that token looks like a special one."""
        value = self.token_id(name, None)
        if value is not None or default is None or default >= self.length("tokens"):
            return value
        text = self.tokens_at(default)
        is_special = text.startswith("<") and text.endswith(">") and text not in BYTE_NAMES
        return default if is_special else None

    def length(self, name: str) -> int:
        """Number of elements of an array."""
        return len(self._array(name))

    @cached_property
    def tokens(self) -> Sequence[str]:
        """The text of every token."""
        own = Fields(self._metadata, self.source)  # not self, which keeps this sequence
        return LazySequence(self.length("tokens"), partial(own.strings, "tokens"))

    def tokens_at(self, id: int) -> str:
        """The text of one token, without reading all of them."""
        text = self._array("tokens")[id]
        if not isinstance(text, str):
            raise self._wrong(_PREFIX + "tokens", "an array of strings", text)
        return text

    @cached_property
    def tokens_key(self) -> str:
        """Fingerprint of the token list."""
        return self.digest("tokens")

    def digest(self, name: str) -> str:
        """SHA-256 of an array of strings as GGUF stores it."""
        array = self._array(name)
        raw = getattr(array, "raw", None)
        return vocabularies.fingerprint(array if raw is None else raw)

    def strings(self, name: str) -> list[str]:
        """An array of strings."""
        values = list(self._array(name))
        if not set(map(type, values)) <= {str}:
            raise self._wrong(_PREFIX + name, "an array of strings", values[0])
        return values

    @cached_property
    def scores(self) -> Sequence[float]:
        """Score of each token, as float32."""
        return self._numbers("scores", "f", "float32")

    @cached_property
    def token_types(self) -> Sequence[int]:
        """Type of each token; empty if the file has none."""
        return self._numbers("token_type", "i", "int32 uint32") if self.has("token_type") else ()

    @cached_property
    def special_types(self) -> dict[int, int]:
        """Type by id of every token that is not normal."""
        size = self.length("tokens")
        types = self.token_types
        if isinstance(types, memoryview):
            # A search through the lowest bytes is 30 times as fast as a loop.
            low, *high = (types.tobytes()[byte : 4 * size : 4] for byte in range(4))
            if all(part.count(0) == size for part in high):
                return {found.start(): types[found.start()] for found in _NOT_NORMAL.finditer(low)}
        return {id: kind for id, kind in enumerate(types) if kind != NORMAL and id < size}

    def has_bytes(self) -> bool:
        """True if the vocabulary has byte tokens to fall back to."""
        if self.token_types:
            return BYTE in self.special_types.values()
        return "<0x00>" in self.tokens

    @cached_property
    def is_phi3(self) -> bool:
        """True if this is Phi-3's extension of LLaMA-2's vocabulary."""
        name = (self.optional_text("general.name") or "").lower()
        if "phi-3" in name or "phi3" in name:
            return True
        return any(
            self.tokens_at(id) == "<|placeholder1|>"
            for id, kind in self.special_types.items()
            if kind in (CONTROL, USER_DEFINED)
        )

    def raw(self, name: str) -> bytes:
        """The bytes of an array; empty when absent."""
        if not self.has(name):
            return b""
        array = self._array(name)
        view = getattr(array, "raw", None)
        if view is not None:
            return bytes(view)
        first = array[0] if len(array) else ""
        if isinstance(first, str):
            return "\0".join(array).encode("utf-8", "surrogateescape")
        if name == "precompiled_charsmap":
            return bytes(value & 0xFF for value in array)
        return struct.pack(f"<{len(array)}{'f' if isinstance(first, float) else 'i'}", *array)

    def _array(self, name: str) -> Any:
        key = _PREFIX + name
        value = self._metadata.get(key)
        if value is None:
            hint = "fetch the file again, or name the tokenizer with --tokenizer FILE"
            raise TokenizerNotFound(f"Missing {key}, {self.source}", hint=hint)
        if isinstance(value, (str, bytes, int, float)):
            raise self._wrong(key, "an array", value)
        return value

    def _numbers(self, name: str, code: Literal["f", "i"], kinds: str) -> Sequence[Any]:
        """A number for each token, as a view into the file if the array is of one of *kinds*."""
        array = self._array(name)
        if len(array) < (size := self.length("tokens")):
            text = f"{_PREFIX}{name} has {len(array):,} elements for {size:,} tokens"
            raise damage_error(f"{text}, {self.source}")
        if getattr(array, "item_type", "none") in kinds.split():
            view: memoryview = array.raw
            return view.cast("B").cast(code)
        values = list(array)
        if values and not all(type(value) in (int, float) for value in values):
            raise self._wrong(_PREFIX + name, "an array of numbers", values[0])
        return [float(value) if code == "f" else int(value) for value in values]

    def _wrong(self, key: str, expected: str, value: object) -> InvalidFormat:
        kind = type(value).__name__
        return damage_error(f"{key} should be {expected}, and is a {kind}, {self.source}")
