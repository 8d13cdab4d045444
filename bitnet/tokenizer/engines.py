"""Engines that run a specification: the native module's compiled tables, or the portable one."""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from bitnet import native
from bitnet.cores import thread_count
from bitnet.errors import InvalidFormat
from bitnet.tokenizer.added import AddedTokens
from bitnet.tokenizer.byte_alphabet import byte_spelling, spell_bytes
from bitnet.tokenizer.compiled import is_verbatim, read_added
from bitnet.tokenizer.cuts import cut_pattern, parts_of
from bitnet.tokenizer.decoding import Spellings
from bitnet.tokenizer.limits import over_budget
from bitnet.tokenizer.offsets import aligner, moved
from bitnet.tokenizer.spec import SPACE_SYMBOL, Step, TokenType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bitnet._native import TokenizerEngine
    from bitnet.tokenizer.offsets import Origin
    from bitnet.tokenizer.spec import AddedToken, TokenizerSpec

__all__ = ["Engine", "native_engine", "portable_engine"]

_VERBATIM, _BYTE = 2, 4  # token flags of the compiled file
# Characters: a text this long is encoded in parts of this size, on several threads.
_LONG, _PART = 1 << 17, 1 << 16


class Engine(Spellings, Protocol):
    """Runs a specification. ``name`` is ``native`` or ``portable``; both give the same ids."""

    name: str

    cut: re.Pattern[str] | None  # see bitnet.tokenizer.cuts

    def encode(self, text: str, *, parse_special: bool, goes_on: bool = False) -> list[int]:
        """Ids of *text* without BOS or EOS; *goes_on*: it continues after a cut."""

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool) -> list[list[int]]:
        """Ids of each of *texts*."""

    def count(self, text: str, *, parse_special: bool, goes_on: bool) -> int:
        """Number of ids that ``encode`` returns."""

    def spans(self, text: str, *, parse_special: bool) -> list[tuple[int, int, int]]:
        """Ids of *text*, each with the start and end of its characters."""

    def id_of(self, text: str) -> int | None:
        """Id of the token spelled *text*."""

    def __len__(self) -> int: ...


def native_engine(tables: TokenizerEngine, meta: dict[str, Any]) -> Engine:
    """Engine over compiled *tables*; *meta* is their additional information."""
    return _Native(tables, meta)


def portable_engine(spec: TokenizerSpec) -> Engine:
    """Engine that does not need the native module.

    Raises:
        InvalidFormat: the specification's steps or vocabulary are unusable.
        Unsupported: they exceed the bounds of :mod:`bitnet.tokenizer.limits`.
    """
    return _Portable(spec)


class _Native:
    """Runs compiled tables; normalizations beyond them go through the ``tokenizers`` library."""

    name = "native"

    def __init__(self, engine: TokenizerEngine, meta: dict[str, Any]) -> None:
        self._engine = engine
        self._over_budget: type[RuntimeError] = native.module().OverBudget  # type: ignore[union-attr]
        self._source: str = meta["source"]
        self._byte_level = bool(meta["byte_level"])
        self._steps = meta["steps"]
        self.spelling = engine.token_spelling
        self.cut = re.compile(meta["cut"]) if meta["cut"] else None

    def __len__(self) -> int:
        return len(self._engine)

    def encode(self, text: str, *, parse_special: bool, goes_on: bool = False) -> list[int]:
        if goes_on or len(text) >= _LONG:
            return self._many([text], parse_special=parse_special, goes_on=goes_on)[0]
        with self._bounded():
            ids = self._engine.encode(text, parse_special)
            if ids is None:
                return self._normalized(text, parse_special=parse_special)
            return ids

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool) -> list[list[int]]:
        return self._many(texts, parse_special=parse_special)

    def _many(
        self, texts: Sequence[str], *, parse_special: bool, goes_on: bool = False
    ) -> list[list[int]]:
        """Ids of *texts*, long ones in parts, on as many threads as a forward pass uses."""
        parts: list[str] = []
        flags = bytearray()
        threads = thread_count()
        for text in texts:
            own = parts_of(text, self.cut if threads > 1 else None, _PART)
            for i, part in enumerate(own):
                parts.append(part)
                flags.append(i > 0 or goes_on)
        with self._bounded():
            found = self._engine.encode_many(parts, bytes(flags), parse_special, threads)
            return [
                self._normalized(text, parse_special=parse_special, goes_on=goes_on)
                if ids is None
                else ids
                for text, ids in zip(texts, found, strict=True)
            ]

    def count(self, text: str, *, parse_special: bool, goes_on: bool) -> int:
        with self._bounded():
            found = self._engine.count(text, parse_special, goes_on)
        if found is None:
            return len(self.encode(text, parse_special=parse_special, goes_on=goes_on))
        return found

    def spans(self, text: str, *, parse_special: bool) -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        text.encode()  # raises encoding's error for half of a surrogate pair
        for id, start, stop in self._raw_tokens.cut(text, parse_special=parse_special):
            if id is not None:
                found.append((id, start, stop))
                continue
            with self._bounded():
                normal, origin = self._aligned(text[start:stop])
                spans = self._engine.spans(normal, start == 0, parse_special)
            found.extend(moved(spans, origin, start))
        return found

    @cached_property
    def _aligned(self) -> Callable[[str], tuple[str, Origin]]:
        return aligner(self._source, self._normalizer_steps(goes_on=False))

    @contextmanager
    def _bounded(self) -> Iterator[None]:
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
        spelling: bytes = self.spelling(id)
        if self._byte_level and not self.is_verbatim(id):
            return byte_spelling(spelling)
        return spelling.decode()

    def is_verbatim(self, id: int) -> bool:
        return bool(self._engine.token_flags(id) & _VERBATIM)

    def is_byte(self, id: int) -> bool:
        return bool(self._engine.token_flags(id) & _BYTE)

    def id_of(self, text: str) -> int | None:
        found = next((token.id for token in self._added if token.text == text), None)
        if found is not None:
            return found
        spelled = text if self._byte_level else text.replace(" ", SPACE_SYMBOL)
        return self._engine.find(spelled.encode())

    def _normalizer_steps(self, *, goes_on: bool) -> list[Step]:
        steps = (Step(kind, options) for kind, options in self._steps)
        return [step for step in steps if not (goes_on and step.type == "Prepend")]

    @cached_property
    def _normalizers(self) -> tuple[Any, Any]:
        """The library's normalizers for the beginning of a text, and for a continuation."""
        from bitnet.tokenizer.library import library_for

        first, rest = (
            library_for(self._source, self._normalizer_steps(goes_on=goes_on)).normalizer
            for goes_on in (False, True)
        )
        return first, rest

    @cached_property
    def _added(self) -> list[AddedToken]:
        return read_added(self._engine)

    @cached_property
    def _raw_tokens(self) -> AddedTokens:
        return AddedTokens(self._added)

    def _normalized(self, text: str, *, parse_special: bool, goes_on: bool = False) -> list[int]:
        """As ``encode``, with the library's normalizer between the two native halves."""
        from bitnet.tokenizer.library import fenced

        ids: list[int] = []
        for i, part in enumerate(self._raw_tokens.split(text, parse_special=parse_special)):
            if isinstance(part, int):
                ids.append(part)
                continue
            rest = goes_on and i == 0
            normalizer = self._normalizers[rest]
            with fenced(f"the tokenizer {self._source}"):
                normal = part if normalizer is None else normalizer.normalize_str(part)
            ids.extend(self._engine.encode_normalized(normal, i == 0 and not rest, parse_special))
        return ids


class _Portable:
    """Runs the specification without the native module."""

    name = "portable"

    def __init__(self, spec: TokenizerSpec) -> None:
        from bitnet.tokenizer.portable import PortableEngine

        self._spec = spec
        self._engine = PortableEngine(spec)
        pattern = cut_pattern(spec)
        self.cut = re.compile(pattern) if pattern else None
        self._added = {token.id: token.text for token in spec.added}
        self._bytes = frozenset(f"<0x{byte:02X}>" for byte in range(256))

    def __len__(self) -> int:
        return len(self._spec.tokens)

    def encode(self, text: str, *, parse_special: bool, goes_on: bool = False) -> list[int]:
        text.encode()  # raises what the other engine raises for half of a surrogate pair
        return self._engine.encode(text, parse_special=parse_special, goes_on=goes_on)

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool) -> list[list[int]]:
        return [self.encode(text, parse_special=parse_special) for text in texts]

    def count(self, text: str, *, parse_special: bool, goes_on: bool) -> int:
        return len(self.encode(text, parse_special=parse_special, goes_on=goes_on))

    def spans(self, text: str, *, parse_special: bool) -> list[tuple[int, int, int]]:
        text.encode()
        return self._engine.spans(text, parse_special=parse_special)

    def _type(self, id: int) -> int:
        return self._spec.token_types[id] if self._spec.token_types else TokenType.NORMAL

    def is_verbatim(self, id: int) -> bool:
        return is_verbatim(self._type(id), added=id in self._added)

    def is_byte(self, id: int) -> bool:
        spec = self._spec
        own = spec.model in ("spm", "unigram")
        known = not own or self._type(id) in (TokenType.NORMAL, TokenType.BYTE)
        return spec.byte_fallback and known and spec.tokens[id] in self._bytes

    def text(self, id: int) -> str:
        return self._spec.tokens[id]

    def spelling(self, id: int) -> bytes:
        text = self._spec.tokens[id]
        spelled = spell_bytes(text) if self._spec.byte_level and id not in self._added else None
        return text.encode() if spelled is None else spelled

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {text: id for id, text in enumerate(self._spec.tokens)}

    def id_of(self, text: str) -> int | None:
        found = next((id for id, own in self._added.items() if own == text), None)
        if found is not None:
            return found
        if not self._spec.byte_level:
            return self._ids.get(text.replace(" ", SPACE_SYMBOL))
        return self._ids.get(byte_spelling(text.encode()))
