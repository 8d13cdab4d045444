"""Text to ids and back, with the compiled tables of the native module or with a library."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from bitnet.base.errors import InvalidFormat, UsageError
from bitnet.base.options import check_type, wrong_type
from bitnet.tokenizer.compiled import NativeEngine, find_compiled
from bitnet.tokenizer.decoding import start_decoding
from bitnet.tokenizer.library import Engine, open_engine
from bitnet.tokenizer.spec import SPACE_SYMBOL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from bitnet.tokenizer.decoding import Chain
    from bitnet.tokenizer.spec import TokenizerSpec


class Tokenizer:
    """Text to token ids and back.

    One instance may be used from several threads. It cannot be pickled: create it again from its
    source, which is fast.

    Attributes:
        source: its name in messages.
        engine: ``native`` or ``portable``; both give the same ids.
        vocab_size: number of ids.
        bos_id: the id that begins a text, ``None`` when there is none.
        eos_id: the id that ends a text, ``None`` when there is none.
        stop_ids: every id that ends a generation.
        special_ids: ids that ``decode(skip_special=True)`` leaves out.
        chat_template: Jinja source, ``None`` when there is none.
        named_templates: further templates by name; ``tool_use`` is for requests with tools.
        template_tokens: texts that templates see besides BOS and EOS, by name (``pad_token``).
        chat_template_source: origin of the template, for messages.
        pre: name of the pre-tokenizer in GGUF's terms, or empty.
        model: algorithm: ``bpe``, ``spm``, ``unigram``, ``wordpiece`` or ``wordlevel``.
        fingerprint: SHA-256 of its source; ``mock`` for the mock, empty if it came from no file.
        second_type: ``token_type_ids`` of the second of two texts.
    """

    def __init__(self, engine: Engine, meta: dict[str, Any]) -> None:
        self._engine = engine
        self.engine: str = engine.name
        self.source: str = meta["source"]
        self.vocab_size: int = len(engine)
        self.bos_id: int | None = meta["bos_id"]
        self.eos_id: int | None = meta["eos_id"]
        self.stop_ids: frozenset[int] = frozenset(meta["stop_ids"])
        self.special_ids: frozenset[int] = frozenset(meta["special_ids"])
        self.chat_template: str | None = meta["chat_template"]
        self.named_templates: dict[str, str] = dict(meta["named_templates"])
        self.template_tokens: dict[str, str] = dict(meta["template_tokens"])
        self.chat_template_source: str = f"the tokenizer {self.source}"
        self.pre: str = meta["pre"]
        self.model: str = meta["model"]
        self.fingerprint: str = meta["fingerprint"]
        self._prefix = meta["prefix"]
        self._suffix = meta["suffix"]
        self._middle = meta["middle"]
        self.second_type: int = meta["second_type"]
        # Arguments of start_decoding, which every stream starts again.
        self._decoding = meta["decoder"], engine, dict(meta["respelled"])
        try:
            self._pieces = start_decoding(*self._decoding)  # decodes single ids only
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InvalidFormat(
                f"the decoder of the tokenizer {self.source} is damaged: "
                f"{type(error).__name__} {error}",
                hint="fetch the file again; remove a cached one with: bitnet cache clean",
            ) from None

    @classmethod
    def from_spec(cls, spec: TokenizerSpec) -> Tokenizer:
        """The tokenizer of a specification, native if that is exact, else run by a library.

        If the cache has the compiled form of its fingerprint, the tokens, merges and scores of
        *spec* are not read.

        Raises:
            InvalidFormat: the specification's steps or vocabulary are unusable.
            Unsupported: neither the compiled module nor a library runs it exactly.
        """
        engine, meta = open_engine(spec)
        # Facts that cost no time come from the specification, also if the rest is from the cache.
        prefix, suffix = map(list, spec.affixes)
        meta |= {"prefix": prefix, "suffix": suffix}
        meta |= {"middle": spec.middle_ids, "second_type": spec.second_type}
        cheap = ("source", "chat_template", "named_templates", "template_tokens", "pre")
        meta |= {name: getattr(spec, name) for name in cheap}
        return cls(engine, meta)

    @classmethod
    def from_cache(cls, fingerprint: str, *, source: str) -> Tokenizer | None:
        """The tokenizer whose compiled form is in the cache; ``None`` if the cache has none."""
        compiled = find_compiled(fingerprint)
        if compiled is None:
            return None
        meta = compiled[1] | {"source": source}
        return cls(NativeEngine(compiled[0], meta), meta)

    def template_for(self, *, tools: bool) -> str | None:
        """Jinja source for a conversation, with tools or without; ``None`` when there is none.

        As in transformers, a template named ``tool_use`` is for conversations with tools.
        """
        if tools and "tool_use" in self.named_templates:
            return self.named_templates["tool_use"]
        return self.chat_template

    @property
    def around_pair(self) -> tuple[list[int], list[int], list[int]] | None:
        """Ids before, between and after two texts that a model compares.

        None if the tokenizer does not define how two texts are joined.
        """
        if self._middle is None:
            return None
        return list(self._prefix), list(self._middle), list(self._suffix)

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        at_most: int | None = None,
    ) -> list[int]:
        """Ids of *text*.

        Args:
            text: any text that can be encoded as UTF-8.
            add_special: put BOS and EOS around it if the model uses them; a text that begins with
                BOS, or ends with EOS, gets no second one.
            parse_special: read text that spells a special token as that token.
            at_most: most ids to return; ids at the end of *text* are dropped, BOS and EOS are not.

        Raises:
            UsageError: *text* contains half of a surrogate pair, or *at_most* has no room for BOS
                and EOS.
            WrongType: *text* is not a text.
        """
        if not isinstance(text, str):
            raise wrong_type("text", text, "a text")
        _check_at_most(at_most)
        with _utf8():
            ids = self._engine.encode(text, parse_special=parse_special)
        return self._within_affixes(ids, at_most) if add_special else ids[:at_most]

    def encode_array(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        at_most: int | None = None,
    ) -> NDArray[np.int32]:
        """Ids of *text* as an array, ``(ids,)``; arguments and errors are those of :meth:`encode`.

        Faster than :meth:`encode`, which makes a Python list of the same ids.
        """
        import numpy as np

        if not isinstance(text, str):
            raise wrong_type("text", text, "a text")
        _check_at_most(at_most)
        with _utf8():
            ids = self._engine.encode_array(text, parse_special=parse_special)
        if not add_special:
            return ids[:at_most]

        prefix, count, suffix = self._affixes(ids, at_most)
        parts = (np.array(prefix, np.int32), ids[:count], np.array(suffix, np.int32))
        return np.concatenate(parts)

    def encode_batch(
        self, texts: Iterable[str], *, add_special: bool = True, parse_special: bool = True
    ) -> list[list[int]]:
        """Ids of each of *texts*, equal to those of :meth:`encode`.

        The native engine uses ``BITNET_THREADS`` threads.

        Raises:
            UsageError: a text contains half of a surrogate pair.
            WrongType: *texts* is one text, or holds something else.
        """
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise wrong_type("texts", texts, "a list of texts")
        batch = list(texts)
        for index, text in enumerate(batch):
            if not isinstance(text, str):
                raise wrong_type(f"texts[{index}]", text, "a text")
        with _utf8():
            id_lists = self._engine.encode_batch(batch, parse_special=parse_special)
        return [self._within_affixes(ids) for ids in id_lists] if add_special else id_lists

    def count(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> int:
        """``len(encode(text))``; arguments and errors are those of :meth:`encode`."""
        return len(self.encode(text, add_special=add_special, parse_special=parse_special))

    def spans(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[TokenSpan]:
        """Ids of *text* with their characters: ``text[span.start:span.stop]``.

        The offsets are those of the ``tokenizers`` library before a post-processor trims them, or
        those of ``sentencepiece``. If a character becomes several tokens of bytes, each has the
        whole character; BOS and EOS have none. Slower than :meth:`encode`, with the same ids.

        Raises:
            UsageError: *text* contains half of a surrogate pair.
            WrongType: *text* is not a text.
        """
        if not isinstance(text, str):
            raise wrong_type("text", text, "a text")
        with _utf8():
            triples = self._engine.spans(text, parse_special=parse_special)
        spans = [TokenSpan(*span) for span in triples]
        if not add_special:
            return spans
        ids = [span.id for span in spans]
        all_ids = self._within_affixes(list(ids))
        before = len(self._prefix) if self._adds_prefix(ids) else 0
        first = [TokenSpan(id, 0, 0) for id in all_ids[:before]]
        end = len(text)
        return [*first, *spans, *(TokenSpan(id, end, end) for id in all_ids[before + len(ids) :])]

    def _adds_prefix(self, ids: Sequence[int] | NDArray[np.int32]) -> bool:
        """True if the prefix has to be put before *ids*, which do not begin with it."""
        return bool(self._prefix) and list(ids[: len(self._prefix)]) != self._prefix

    def _affixes(
        self, ids: Sequence[int] | NDArray[np.int32], at_most: int | None
    ) -> tuple[list[int], int, list[int]]:
        """Ids to put before *ids*, the number of *ids* to keep, and ids to put after these."""
        prefix = self._prefix if self._adds_prefix(ids) else []
        suffix = self._suffix
        count = len(ids)
        if suffix and list(ids[-len(suffix) :]) == suffix:
            count -= len(suffix)  # replaced by the one that is put after them
        if at_most is not None:
            around = len(self._prefix) + len(suffix)  # the prefix may be in *ids*
            if at_most < around:
                raise UsageError(
                    f"at_most is {at_most}, and {around} ids are put around a text",
                    hint=f"use at_most={around} or more, or add_special=False",
                    field="at_most",
                )
            count = min(count, at_most - len(prefix) - len(suffix))
        return prefix, count, suffix

    def _within_affixes(self, ids: list[int], at_most: int | None = None) -> list[int]:
        """*ids* with prefix and suffix, *at_most* in all; the list is changed in place."""
        prefix, count, suffix = self._affixes(ids, at_most)
        del ids[count:]
        ids[:0] = prefix
        ids += suffix
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Text of *ids*; bytes that are not UTF-8 become U+FFFD.

        Args:
            ids: token ids; a space that encoding adds at the start is removed if the original
                tokenizer removes it.
            skip_special: leave special tokens out.

        Raises:
            UsageError: an id is not in the vocabulary.
            WrongType: *ids* is not iterable, or holds something else.
        """
        if not isinstance(ids, Iterable):
            raise wrong_type("ids", ids, "token ids")
        stream = self.stream(skip_special=skip_special)
        return "".join(map(stream.push, ids)) + stream.finish()

    def token_bytes(self, id: int) -> bytes:
        """Bytes that *id* adds to a text in which it is neither first nor last.

        Raises:
            UsageError: it is not in the vocabulary.
        """
        return self._pieces.piece(self.check_id(id))

    def spelling(self, id: int) -> bytes:
        """Bytes of *id* as the vocabulary spells it, but with U+2581 as a space.

        They do not depend on the format of the file.

        Raises:
            UsageError: it is not in the vocabulary.
        """
        return self._engine.spelling(self.check_id(id)).replace(SPACE_SYMBOL.encode(), b" ")

    def is_added(self, id: int) -> bool:
        """True if *id* is a control token, or an added one that is not of the type user-defined."""
        return bool(self._engine.is_verbatim(self.check_id(id)))

    def check_id(self, id: int) -> int:
        """*id* as an ``int``; NumPy integers are accepted.

        Raises:
            UsageError: it is not in the vocabulary.
            WrongType: it is not an integer.
        """
        try:
            id = operator.index(id)
        except TypeError:
            raise wrong_type("id", id, "a token id") from None
        if not 0 <= id < self.vocab_size:
            raise UsageError(
                f"token id {id} is not in the vocabulary of {self.source}: "
                f"expected 0 to {self.vocab_size - 1}",
                hint="check that tokenizer and model belong together: bitnet compat-check MODEL",
            )
        return id

    def stream(self, *, skip_special: bool = False) -> TokenStream:
        """A decoder for ids that arrive one by one."""
        return TokenStream(self, start_decoding(*self._decoding), skip_special=skip_special)

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return f"<Tokenizer {self.source}: {self.vocab_size:,} tokens, {self.engine}>"

    def __reduce__(self) -> str:
        raise TypeError("a Tokenizer cannot be pickled; make it again from its source")


def _check_at_most(at_most: int | None) -> None:
    check_type("at_most", at_most, "a number of ids or None", int, None)
    if at_most is not None and at_most < 0:
        raise UsageError(f"at_most is {at_most}, expected 0 or more", field="at_most")


class TokenSpan(NamedTuple):
    """A token of a text: *id*, and the start and end of its characters."""

    id: int
    start: int
    stop: int


@contextmanager
def _utf8() -> Iterator[None]:
    """Translate the error of a text with half of a surrogate pair, which UTF-8 cannot encode."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the text cannot be written as UTF-8: character {error.start} is "
            f"U+{ord(error.object[error.start]):04X}, half of a surrogate pair",
            hint="decode the input as UTF-8, or with errors='replace'",
        ) from None


class TokenStream:
    """Text of ids that arrive one by one: each part is returned once, as soon as it is certain."""

    def __init__(self, tokenizer: Tokenizer, chain: Chain, *, skip_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._chain = chain
        self._hidden = tokenizer.special_ids if skip_special else frozenset()
        self._due = 0  # characters of the ids of :meth:`skip` that the chain has still to return

    def push(self, id: int) -> str:
        """Text that becomes certain with *id*; often empty while a character is incomplete.

        Raises:
            UsageError: *id* is not in the vocabulary.
        """
        id = self._tokenizer.check_id(id)
        is_hidden = id in self._hidden
        return self._without_due(self._chain.leave_out() if is_hidden else self._chain.take(id))

    def finish(self) -> str:
        """Text that was held back; a character that was never completed is U+FFFD."""
        return self._without_due(self._chain.finish())

    def skip(self, ids: Sequence[int]) -> None:
        """Decode *ids* without returning their text, which later parts continue.

        Raises:
            UsageError: an id is not in the vocabulary.
        """
        returned = "".join(map(self.push, ids))
        full_text = self._tokenizer.decode(ids, skip_special=bool(self._hidden))
        # The bytes of an incomplete character at the end belong to the text that follows.
        self._due = max(len(full_text.rstrip("\ufffd")) - len(returned), 0)

    def _without_due(self, text: str) -> str:
        """*text* without the characters that are still due to skipped ids."""
        if not self._due:
            return text
        remaining = text[self._due :]
        self._due -= len(text) - len(remaining)
        return remaining
