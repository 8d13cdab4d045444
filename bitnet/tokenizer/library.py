"""The ``tokenizers`` library with its exceptions translated to ours.

It raises bare ``Exception``, and for Rust panics one that ``except Exception`` does not catch.
"""

from __future__ import annotations

import base64
import binascii
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bitnet.errors import BitnetError, InvalidFormat, is_panic
from bitnet.tokenizer.charsmap import CharsMap
from bitnet.tokenizer.library_patterns import linear_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tokenizers import Tokenizer

    from bitnet.tokenizer.spec import Step

__all__ = ["fenced", "keeps_ascii", "library_for"]


@contextmanager
def fenced(what: str) -> Iterator[None]:
    """Translate exceptions of the library into :class:`InvalidFormat` about *what*."""
    try:
        yield
    except (BitnetError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise InvalidFormat(
            f"{what} cannot be run: {error}",
            hint="fetch the file again, or name another tokenizer with --tokenizer FILE",
        ) from None


def library_for(
    source: str, normalizer: Iterable[Step] = (), pre_tokenizer: Iterable[Step] = ()
) -> Tokenizer:
    """A ``tokenizers.Tokenizer`` of these steps, with an empty model.

    Raises:
        InvalidFormat: the library does not support a step, or one is damaged.
    """
    from tokenizers import Tokenizer

    outline: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": _sequence(normalizer, "normalizers"),
        "pre_tokenizer": _sequence(pre_tokenizer, "pretokenizers"),
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    with fenced(f"the tokenizer {source}"):
        return Tokenizer.from_str(json.dumps(outline))


def _sequence(steps: Iterable[Step], kind: str) -> dict[str, Any] | None:
    items = [{"type": step.type, **step.options} for step in linear_steps(tuple(steps))]
    for item in items:
        if item["type"] == "Precompiled":
            _check_charsmap(item.get("precompiled_charsmap"))
    return {"type": "Sequence", kind: items} if items else None


def keeps_ascii(step: Step) -> bool:
    """True if a character map changes no text in printable ASCII.

    The library replaces each grapheme, and in such a text each character is one.
    """
    if step.type != "Precompiled":
        return False
    table = CharsMap(base64.b64decode(str(step.options.get("precompiled_charsmap"))))
    return all(table.longest(bytes([byte]), 0) is None for byte in range(0x20, 0x7F))


def _check_charsmap(encoded: object) -> None:
    """Check a character map, whose bounds the library does not check."""
    try:
        CharsMap(base64.b64decode(str(encoded), validate=True))
    except binascii.Error as error:
        raise InvalidFormat(f"precompiled_charsmap is not base64: {error}") from None
