"""Engines that run a specification: the native module's compiled tables, or a library."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from bitnet import native
from bitnet.base.cores import thread_count
from bitnet.base.errors import InvalidFormat
from bitnet.tokenizer.compiled import NotNative, meta_of, open_compiled
from bitnet.tokenizer.decoding import Spellings
from bitnet.tokenizer.library import library_engine
from bitnet.tokenizer.limits import over_budget
from bitnet.tokenizer.spec import SPACE_SYMBOL, byte_spelling, spell_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bitnet._native import TokenizerEngine
    from bitnet.tokenizer.spec import TokenizerSpec

__all__ = ["Engine", "NativeEngine", "open_engine"]

logger = logging.getLogger(__name__)

_VERBATIM, _BYTE = 2, 4  # token flags of the compiled file
_LONG = 1 << 17  # characters: a text this long is encoded on several threads


class Engine(Spellings, Protocol):
    """Runs a specification. ``name`` is ``native`` or ``portable``; both give the same ids."""

    name: str

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        """Ids of *text* without BOS or EOS."""

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool) -> list[list[int]]:
        """Ids of each of *texts*."""

    def spans(self, text: str, *, parse_special: bool = True) -> list[tuple[int, int, int]]:
        """Ids of *text*, each with the start and end of its characters."""

    def id_of(self, text: str) -> int | None:
        """Id of the token spelled *text*."""

    def __len__(self) -> int: ...


def open_engine(spec: TokenizerSpec) -> tuple[Engine, dict[str, Any]]:
    """The engine of *spec*, compiled tables if they are exact, else a library; and its facts.

    Raises:
        InvalidFormat: the specification's steps or vocabulary are unusable.
        Unsupported: neither runs it exactly within the bounds of :mod:`bitnet.tokenizer.limits`.
    """
    try:
        engine, meta = open_compiled(spec)
    except NotNative as reason:
        logger.debug("%s runs in a library: %s", spec.source, reason)
        return library_engine(spec), meta_of(spec)
    return NativeEngine(engine, meta), meta


class NativeEngine:
    """Runs compiled tables; *meta* is what :func:`~bitnet.tokenizer.compiled.meta_of` says."""

    name = "native"

    def __init__(self, engine: TokenizerEngine, meta: dict[str, Any]) -> None:
        self._engine = engine
        self._over_budget: type[RuntimeError] = native.module().OverBudget  # type: ignore[union-attr]
        self._source: str = meta["source"]
        self._byte_level = bool(meta["byte_level"]) and not meta["spelled"]
        self._spelled = bool(meta["spelled"])

    def __len__(self) -> int:
        return len(self._engine)

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        """Ids of *text* without BOS or EOS."""
        if len(text) >= _LONG:
            return self.encode_batch([text], parse_special=parse_special)[0]
        with self._translate_errors():
            return self._engine.encode(text, parse_special)

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool) -> list[list[int]]:
        """Ids of each of *texts*, found on as many threads as a forward pass uses."""
        with self._translate_errors():
            return self._engine.encode_many(list(texts), parse_special, thread_count())

    def spans(self, text: str, *, parse_special: bool = True) -> list[tuple[int, int, int]]:
        """Ids of *text*, each with the start and end of its characters."""
        with self._translate_errors():
            return self._engine.spans(text, parse_special)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except self._over_budget as error:
            raise over_budget(self._source, error) from None
        except UnicodeEncodeError:
            raise  # half of a surrogate pair
        except ValueError as error:
            raise InvalidFormat(
                f"the tokenizer {self._source} is damaged: {error}",
                hint="fetch the file again, or name another tokenizer with --tokenizer FILE",
            ) from None

    def text(self, id: int) -> str:
        """The token as in the vocabulary."""
        spelling = self._engine.token_spelling(id)
        if self._byte_level and not self.is_verbatim(id):
            return byte_spelling(spelling)
        return spelling.decode()

    def is_verbatim(self, id: int) -> bool:
        """True if the token is an added or control token."""
        return bool(self._engine.token_flags(id) & _VERBATIM)

    def is_byte(self, id: int) -> bool:
        """True if the token spells one byte, as ``<0x0A>`` does."""
        return bool(self._engine.token_flags(id) & _BYTE)

    def spelling(self, id: int) -> bytes:
        """Bytes of a byte-level token; text of others, and of added tokens."""
        spelling = self._engine.token_spelling(id)
        if self._spelled and not self.is_verbatim(id):
            return spell_bytes(spelling.decode()) or spelling
        return spelling

    def id_of(self, text: str) -> int | None:
        """Id of the token spelled *text*."""
        if text in self._ids_of_added:
            return self._ids_of_added[text]
        if self._spelled:
            return self._engine.find(byte_spelling(text.encode()).encode())
        spelled = text if self._byte_level else text.replace(" ", SPACE_SYMBOL)
        return self._engine.find(spelled.encode())

    @cached_property
    def _ids_of_added(self) -> dict[str, int]:
        return {text: id for id, text, _ in reversed(self._engine.added())}
