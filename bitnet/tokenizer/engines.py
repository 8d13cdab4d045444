"""What runs a specification: the compiled tables of the native module, or the portable engine."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

from bitnet import native
from bitnet.errors import InvalidFormat
from bitnet.tokenizer.byte_alphabet import byte_spelling, spell_bytes
from bitnet.tokenizer.compiled import is_verbatim
from bitnet.tokenizer.decoding import Spellings
from bitnet.tokenizer.limits import over_budget
from bitnet.tokenizer.spec import SPACE_SYMBOL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.tokenizer.spec import TokenizerSpec

__all__ = ["Engine", "native_engine", "portable_engine"]

_VERBATIM, _BYTE = 2, 4  # token flags of the compiled file
_BYTE_TYPE = 6  # GGUF token type


class Engine(Spellings, Protocol):
    """Runs a specification. ``name`` is ``native`` or ``portable``; both give the same ids."""

    name: str

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Ids of *text*, nothing added around it."""

    def id_of(self, text: str) -> int | None:
        """The id of the token that is written *text*."""

    def __len__(self) -> int: ...


def native_engine(tables: Any, meta: dict[str, Any]) -> Engine:
    """The engine over compiled *tables*; *meta* is what they say beside the ids."""
    return _Native(tables, meta)


def portable_engine(spec: TokenizerSpec) -> Engine:
    """The engine that needs no compiled module.

    Raises:
        InvalidFormat: the specification's steps or vocabulary are not usable.
        Unsupported: they ask for more than the bounds of :mod:`bitnet.tokenizer.limits`.
    """
    return _Portable(spec)


class _Native:
    """Runs compiled tables; normalizations beyond them go through the ``tokenizers`` library."""

    name = "native"

    def __init__(self, engine: Any, meta: dict[str, Any]) -> None:
        self._engine = engine
        self._over_budget: type[RuntimeError] = native.module().OverBudget  # type: ignore[union-attr]
        self._source: str = meta["source"]
        self._byte_level = bool(meta["byte_level"])
        self._steps = meta["steps"]
        self._added: list[tuple[int, str, dict[str, bool]]] = meta["added"]
        self.spelling = engine.token_spelling

    def __len__(self) -> int:
        return len(self._engine)

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        with self._bounded():
            ids = self._engine.encode(text, parse_special)
            if ids is None:
                return self._normalized(text, parse_special=parse_special)
            return cast("list[int]", ids)

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        try:
            yield
        except self._over_budget as error:
            raise over_budget(self._source, error) from None
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
        found = next((id for id, own, _ in self._added if own == text), None)
        if found is not None:
            return found
        spelled = text if self._byte_level else text.replace(" ", SPACE_SYMBOL)
        return cast("int | None", self._engine.find(spelled.encode()))

    @cached_property
    def _normalizer(self) -> Any:
        from bitnet.tokenizer.library import library_for
        from bitnet.tokenizer.spec import Step

        steps = (Step(kind, options) for kind, options in self._steps)
        return library_for(self._source, steps).normalizer

    @cached_property
    def _raw_tokens(self) -> Any:
        from bitnet.tokenizer.added import AddedTokens
        from bitnet.tokenizer.spec import AddedToken

        return AddedTokens(AddedToken(id, text, **flags) for id, text, flags in self._added)

    def _normalized(self, text: str, *, parse_special: bool) -> list[int]:
        """The same as ``encode``, with the library's normalizer between the two native halves."""
        from bitnet.tokenizer.library import fenced

        ids: list[int] = []
        for i, part in enumerate(self._raw_tokens.split(text, parse_special=parse_special)):
            if isinstance(part, int):
                ids.append(part)
            else:
                with fenced(f"the tokenizer {self._source}"):
                    normal = self._normalizer.normalize_str(part)
                ids.extend(self._engine.encode_normalized(normal, i == 0))
        return ids


class _Portable:
    """Runs the specification without our compiled module."""

    name = "portable"

    def __init__(self, spec: TokenizerSpec) -> None:
        from bitnet.tokenizer.portable import PortableEngine

        self._spec = spec
        self._engine = PortableEngine(spec)
        self._added = {token.id: token.text for token in spec.added}
        self._bytes = frozenset(f"<0x{byte:02X}>" for byte in range(256))

    def __len__(self) -> int:
        return len(self._spec.tokens)

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        return self._engine.encode(text, parse_special=parse_special)

    def _type(self, id: int) -> int:
        return self._spec.token_types[id] if self._spec.token_types else 1

    def is_verbatim(self, id: int) -> bool:
        return is_verbatim(self._type(id), added=id in self._added)

    def is_byte(self, id: int) -> bool:
        spec = self._spec
        own = spec.model in ("spm", "unigram")
        known = not own or self._type(id) in (1, _BYTE_TYPE)
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
