"""The tokenizer everything else uses: text to ids and back, whatever engine runs underneath."""

from __future__ import annotations

import logging
import operator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

from bitnet import native
from bitnet.errors import InvalidFormat, UsageError
from bitnet.tokenizer.byte_alphabet import byte_spelling, spell_bytes
from bitnet.tokenizer.compiled import find_compiled, is_verbatim, open_compiled, read_meta
from bitnet.tokenizer.decoding import Decoder, Spellings
from bitnet.tokenizer.limits import over_budget
from bitnet.tokenizer.spec import SPACE_SYMBOL
from bitnet.tokenizer.steps import NotNative

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bitnet.tokenizer.decoding import Chain
    from bitnet.tokenizer.spec import TokenizerSpec

__all__ = ["TokenStream", "Tokenizer"]

logger = logging.getLogger(__name__)

_VERBATIM, _BYTE = 2, 4  # token flags of the compiled file
_BYTE_TYPE = 6  # GGUF token type


class _Engine(Spellings, Protocol):
    """What runs a specification: native or portable."""

    name: str

    def encode(self, text: str, *, parse_special: bool) -> list[int]: ...
    def id_of(self, text: str) -> int | None: ...
    def __len__(self) -> int: ...


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


class Tokenizer:
    """Text to token ids and back.

    One instance may be used from several threads. It is not picklable: make it again from its
    source, which is fast.

    Attributes:
        source: where it comes from, for people.
        engine: ``native`` or ``portable``; both give the same ids.
        vocab_size: number of ids.
        bos_id: the id that begins a text, ``None`` when there is none.
        eos_id: the id that ends a text, ``None`` when there is none.
        stop_ids: every id that ends a generation.
        special_ids: ids that ``decode(skip_special=True)`` leaves out.
        chat_template: Jinja source, ``None`` when there is none.
        chat_template_source: where that comes from, for people.
        pre: name of the pre-tokenizer in GGUF's terms, or empty.
        fingerprint: SHA-256 over what it was built from.
    """

    def __init__(self, engine: _Engine, meta: dict[str, Any]) -> None:
        self._engine = engine
        self.engine = engine.name
        self.source: str = meta["source"]
        self.vocab_size = len(engine)
        self.bos_id: int | None = meta["bos_id"]
        self.eos_id: int | None = meta["eos_id"]
        self.stop_ids: frozenset[int] = frozenset(meta["stop_ids"])
        self.special_ids: frozenset[int] = frozenset(meta["special_ids"])
        self.chat_template: str | None = meta["chat_template"]
        self.chat_template_source = f"the tokenizer {self.source}"
        self.pre: str = meta["pre"]
        self.fingerprint: str = meta["fingerprint"]
        self._prefix: list[int] = meta["prefix"]
        self._suffix: list[int] = meta["suffix"]
        self._decoder = Decoder(meta["decoder"], engine, dict(meta["respelled"]))
        try:
            self._pieces = self._decoder.start()
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InvalidFormat(
                f"the decoder of the tokenizer {self.source} is damaged: "
                f"{type(error).__name__} {error}",
                hint="fetch the file again; one in the cache goes with: bitnet clean-cache",
            ) from None

    @classmethod
    def from_spec(cls, spec: TokenizerSpec) -> Tokenizer:
        """The tokenizer of a specification, native where that is exact, else portable.

        With a fingerprint whose compiled form is in the cache, nothing of *spec* but that and
        its source is looked at.

        Raises:
            InvalidFormat: the specification's steps or vocabulary are not usable.
        """
        from bitnet.tokenizer.compiled import meta_of

        try:
            engine = open_compiled(spec)
        except NotNative as reason:
            logger.debug("%s runs in the portable engine: %s", spec.source, reason)
            return cls(_Portable(spec), meta_of(spec))
        return cls._native(engine, spec)

    @classmethod
    def from_cache(cls, fingerprint: str, *, source: str) -> Tokenizer | None:
        """The tokenizer whose compiled form is in the cache, ``None`` if it is not.

        Args:
            fingerprint: what it was built from; see ``TokenizerSpec.fingerprint``.
            source: where it comes from, for people.
        """
        engine = find_compiled(fingerprint)
        if engine is None:
            return None
        meta = read_meta(engine) | {"source": source}
        return cls(_Native(engine, meta), meta)

    @classmethod
    def _native(cls, engine: Any, spec: TokenizerSpec) -> Tokenizer:
        # What costs nothing to know is taken from the specification, not from the cache.
        prefix, suffix = map(list, spec.affixes)
        meta = read_meta(engine) | {"prefix": prefix, "suffix": suffix}
        meta |= {name: getattr(spec, name) for name in ("source", "chat_template", "pre")}
        return cls(_Native(engine, meta), meta)

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Ids of *text*.

        Args:
            text: any text that can be written as UTF-8.
            add_special: put BOS and EOS around it where the model wants them; a text that begins
                with BOS, or ends with EOS, gets no second one.
            parse_special: read text that spells a special token as that token.

        Raises:
            UsageError: *text* holds half of a surrogate pair.
        """
        try:
            text.encode() if not text.isascii() else None
        except UnicodeEncodeError as error:
            raise UsageError(
                f"the text cannot be written as UTF-8: character {error.start} is "
                f"U+{ord(text[error.start]):04X}, half of a surrogate pair",
                hint="decode the input as UTF-8, or with errors='replace'",
            ) from None
        ids = self._engine.encode(text, parse_special=parse_special)
        if not add_special:
            return ids
        prefix, suffix = self._prefix, self._suffix
        if prefix and ids[: len(prefix)] != prefix:
            ids = prefix + ids
        if suffix and ids[-len(suffix) :] != suffix:
            ids = ids + suffix
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of *ids*; bytes that are no UTF-8 become U+FFFD.

        Args:
            ids: token ids; a space that encoding put first is taken off where the original does.
            skip_special: leave special tokens out.

        Raises:
            UsageError: an id is not in the vocabulary.
        """
        stream = self.stream(skip_special=skip_special)
        return "".join(map(stream.push, ids)) + stream.finish()

    def token_bytes(self, id: int) -> bytes:
        """What *id* stands for inside a text.

        Raises:
            UsageError: it is not in the vocabulary.
        """
        return self._pieces.piece(self.check_id(id))

    def spelling(self, id: int) -> bytes:
        """*id* as the vocabulary has it, spaces as spaces: the same from any kind of file.

        Raises:
            UsageError: it is not in the vocabulary.
        """
        return self._engine.spelling(self.check_id(id)).replace(SPACE_SYMBOL.encode(), b" ")

    def check_id(self, id: int) -> int:
        """*id* as an ``int``; NumPy's integers are welcome.

        Raises:
            UsageError: it is not in the vocabulary.
        """
        id = operator.index(id)
        if not 0 <= id < self.vocab_size:
            raise UsageError(
                f"token id {id} is not in the vocabulary of {self.source}: "
                f"expected 0 to {self.vocab_size - 1}",
                hint="check that tokenizer and model belong together: bitnet compat-check MODEL",
            )
        return id

    def id_of(self, text: str) -> int | None:
        """The id of the token that stands for exactly *text*, ``None`` when there is none."""
        id = self._engine.id_of(text)
        if id is None:
            return None
        # <0x0A> is the name of a byte token, not the text it stands for.
        wanted = text.encode().removeprefix(b" ")
        return id if self.token_bytes(id).removeprefix(b" ") == wanted else None

    def stream(self, *, skip_special: bool = False) -> TokenStream:
        """A decoder for ids that arrive one by one."""
        return TokenStream(self, self._decoder.start(), skip_special=skip_special)

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return f"<Tokenizer {self.source}: {self.vocab_size:,} tokens, {self.engine}>"

    def __reduce__(self) -> str:
        raise TypeError("a Tokenizer cannot be pickled; make it again from its source")


class TokenStream:
    """Text of ids as they arrive: what is certain comes out at once, and nothing twice."""

    def __init__(self, tokenizer: Tokenizer, chain: Chain, *, skip_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._chain = chain
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._due = 0  # characters that belong to the text before

    def push(self, id: int) -> str:
        """The text that *id* makes certain, often empty inside a character.

        Raises:
            UsageError: *id* is not in the vocabulary.
        """
        id = self._tokenizer.check_id(id)
        hidden = id in self._skipped
        return self._after(self._chain.leave_out() if hidden else self._chain.take(id))

    def finish(self) -> str:
        """What was held back; a character that was never completed is U+FFFD."""
        return self._after(self._chain.finish())

    def skip(self, ids: Sequence[int]) -> None:
        """Take *ids* in, and give out nothing of their text: what follows continues it.

        Raises:
            UsageError: an id is not in the vocabulary.
        """
        given = "".join(map(self.push, ids))
        whole = self._tokenizer.decode(ids, skip_special=bool(self._skipped))
        # Bytes at the end that are not yet a character belong to what follows.
        self._due = max(len(whole.rstrip("\ufffd")) - len(given), 0)

    def _after(self, text: str) -> str:
        if not self._due:
            return text
        kept = text[self._due :]
        self._due -= len(text) - len(kept)
        return kept
