"""Compiled tokenizers for the native engine: one file of tables, mapped into memory.

``<cache>/tokenizers/compiled/<fingerprint>.tok`` is written when a tokenizer is first used; later
uses build nothing. The native module checks version, size and checksum before it reads the content,
and an invalid file is written again. Without a writable cache folder, the tables stay in memory.

A specification with a step that the native engine does not run exactly is refused here
(:class:`NotNative`), and a library may run it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import mmap
import struct
from array import array
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, get_args

from bitnet.base import native, settings
from bitnet.base.files import open_file
from bitnet.base.machine import thread_count
from bitnet.store import tree
from bitnet.store.root import keep_in_cache
from bitnet.tokenizer.limits import ODD_CONTENT, check_spec, damage_error, over_budget
from bitnet.tokenizer.sentencepiece_model import charsmaps_of
from bitnet.tokenizer.spec import (
    ADDED_FLAGS,
    BYTE_TO_CHARACTER,
    Model,
    TokenType,
    byte_spelling,
    bytes_of_spelling,
)
from bitnet.tokenizer.vocabularies import token_ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import ModuleType

    import numpy as np
    from numpy.typing import NDArray

    from bitnet._native import TokenizerEngine
    from bitnet.tokenizer.spec import TokenizerSpec

logger = logging.getLogger(__name__)

_NO_ID = 0xFFFFFFFF
NORMAL = int(TokenType.NORMAL)
CONTROL = int(TokenType.CONTROL)
_OF_TEXT = (*range(0xC0), *range(0xC2, 0xF5))  # bytes that occur in UTF-8
# Fields of a specification that a compiled file stores as they are.
_META = (
    *("bos_id", "eos_id", "chat_template", "named_templates", "template_tokens", "pre", "source"),
    *("fingerprint", "model", "byte_level"),
)
# Token flags of the compiled file: ``TokenFlag`` in native/tokenizer/file.hpp.
_VERBATIM = 2
_BYTE = 4
_TOO_LONG = "text of 2 GiB or more"  # the module's message for such a text
_LONG = 1 << 17  # characters: a text this long is encoded on several threads


class NotNative(Exception):
    """The native engine does not run this tokenizer exactly; the library may."""


def _merges(spec: TokenizerSpec, module: ModuleType) -> bytes:
    """Ids of the halves of all merges.

    The module looks up halves that are still texts. If it cannot, iterating over the merges does
    so, or raises an error that says what is wrong.
    """
    raw = getattr(spec.merges, "raw", None)
    packed = None if raw is None else module.pair_ids(raw, token_ids(spec.tokens))
    return bytes(packed or array("I", chain.from_iterable(spec.merges)))


def _config(spec: TokenizerSpec) -> bytes:
    """``Config`` of native/tokenizer/file.hpp, with zeros for what the builder fills in."""
    flags = (  # in the order of ``ConfigFlag``
        *(spec.byte_level, spec.byte_fallback, spec.ignore_merges, spec.add_space_prefix),
        *(spec.remove_extra_whitespaces, spec.has_steps, spec.fuse_unknown),
    )
    bits = sum(bool(flag) << bit for bit, flag in enumerate(flags))
    unknown = _NO_ID if spec.unknown_id is None or spec.byte_level else spec.unknown_id
    model = get_args(Model).index(spec.model)
    return struct.pack("<4I2084x", model, bits, unknown, spec.max_chars_per_word)


def is_spelled(spec: TokenizerSpec) -> bool:
    """True if the model must read the characters that stand for bytes, not the bytes themselves.

    Both are the same where ByteLevel is the last step and every byte has a token.
    """
    if not spec.byte_level:
        return False
    are_byte_level = [step.type == "ByteLevel" for step in spec.pre_tokenizer]
    # Only what a tokenizer.json says has a decoder: there the library's fallbacks count.
    has_fallback = spec.decoder and (spec.unknown_id is not None or spec.byte_fallback)
    alphabet: set[str] = set()
    if has_fallback:
        alphabet = set(spec.tokens).difference(spec.tokens[id] for id in spec.outside)
    return not (
        spec.model == "bpe"
        and are_byte_level.count(True) == 1
        and are_byte_level[-1]
        and all(step.type != "ByteLevel" for step in spec.normalizer)
        and spec.decoding[0].type in ("Bytes", "ByteLevel")
        and not (spec.continuing_prefix or spec.word_suffix)
        and not (has_fallback and any(BYTE_TO_CHARACTER[byte] not in alphabet for byte in _OF_TEXT))
    )


def is_verbatim(kind: int, *, added: bool) -> bool:
    """True if a token of the type *kind* is not a piece, so that its text is its spelling.

    These are control tokens, and *added* tokens that are not user-defined pieces.
    """
    return kind == CONTROL or (added and kind != TokenType.USER_DEFINED)


def meta_of(spec: TokenizerSpec) -> dict[str, Any]:
    """Facts that a :class:`Tokenizer` needs besides its engine, as JSON values."""
    prefix, suffix = spec.affixes
    special = {id for id, kind in enumerate(spec.token_types) if kind == CONTROL}
    special |= {token.id for token in spec.added if token.special}
    if spec.shows_unknown_text:
        special.discard(spec.unknown_id)  # it stands for a part of the text, and is shown
    if spec.decoder:  # the library leaves out every added token with the text of a special one
        texts = {spec.tokens[id] for id in special}
        added = {token.id: token.text for token in spec.added}
        special = {id for id, text in added.items() if text in texts}
    values: dict[str, Any] = {name: getattr(spec, name) for name in _META}
    return values | {
        "prefix": list(prefix),
        "suffix": list(suffix),
        "middle": None if spec.middle_ids is None else list(spec.middle_ids),
        "second_type": spec.second_type,
        "stop_ids": sorted(spec.stop_ids),
        "special_ids": sorted(special),
        "spelled": is_spelled(spec),
        "decoder": [[step.type, step.options] for step in spec.decoding],
        # Added tokens that a decoder gets in another spelling, and tokens with an empty text.
        "respelled": [
            [token.id, token.text]
            for token in spec.added
            if spec.decoder and token.text != spec.tokens[token.id]
        ]
        + [[id, ""] for id in _empty_tokens(spec)],
    }


def _empty_tokens(spec: TokenizerSpec) -> list[int]:
    """Ids of the tokens whose text is empty, unlike the ids without a token among *spec.tokens*."""
    if not spec.document or "" not in spec.tokens:
        return []
    vocabulary = json.loads(spec.document)["model"]["vocab"]
    if isinstance(vocabulary, dict):
        return [vocabulary[""]] if "" in vocabulary else []
    return [id for id, (text, *_) in enumerate(vocabulary) if not text]


def _key(fingerprint: str) -> bytes:
    """The key in the header of a compiled file."""
    return hashlib.sha256(fingerprint.encode()).digest()


def compile_spec(spec: TokenizerSpec) -> bytes:
    """Content of the compiled file for *spec*, or ``NotNative`` if a library has to run it."""
    module = native.module()
    if module is None:
        raise NotNative("the native module is not in use")
    if spec.model == "bpe" and spec.byte_fallback and (spec.continuing_prefix or spec.word_suffix):
        raise NotNative("bytes of characters with a prefix or suffix")
    if spec.model == "bpe" and spec.ignore_merges and not spec.byte_level:
        raise NotNative("a text that is looked up as a whole, which this engine cuts")
    # Merges that are still texts become valid ids, or are refused, in _merges.
    check_spec(spec, merges=getattr(spec.merges, "raw", None) is None)
    bits = [(name, bit) for bit, name in enumerate(ADDED_FLAGS)]
    try:
        meta = meta_of(spec)
        charsmaps = charsmaps_of(spec)
        spelled = is_spelled(spec)
        if len(charsmaps) > 1:
            raise NotNative("several character maps")
        if spelled:
            spec = dataclasses.replace(spec, byte_level=False)
        kinds = spec.token_types or [NORMAL] * len(spec.tokens)
        tokens = module.spell(
            list(spec.tokens),
            bytes(kind if 0 <= kind < 256 else 0 for kind in kinds),
            [
                (token.id, sum(getattr(token, name) << bit for name, bit in bits), token.text)
                for token in spec.added
            ],
            list(spec.outside),
            spec.byte_level,
            spec.byte_fallback,
            spec.model in ("spm", "unigram"),
        )
        compiled = module.build_tokenizer(
            key=_key(spec.fingerprint),
            meta=json.dumps(meta, ensure_ascii=False).encode(),
            config=_config(spec),
            **dict(zip(("bytes", "offsets", "flags", "byte_ids", "added"), tokens, strict=True)),
            merges=_merges(spec, module),
            scores=array("d" if spec.has_steps else "f", spec.scores).tobytes(),
            steps=module.pack_steps(spec.normalizer, spec.pre_tokenizer, spelled),
            charsmap=b"".join(charsmaps),
            prefix=spec.continuing_prefix.encode() if spec.model in ("wordpiece", "bpe") else b"",
            suffix=spec.word_suffix.encode(),
        )
        module.TokenizerEngine(compiled)  # content that cannot be opened is not kept
        return bytes(compiled)
    except ODD_CONTENT as error:
        # If the specification is damaged, the library that is tried next refuses it.
        raise NotNative(f"{type(error).__name__}: {error}") from error


def read_meta(engine: TokenizerEngine) -> dict[str, Any]:
    """Facts that :func:`meta_of` stored; checked, since other programs may write to the cache."""
    meta: dict[str, Any] = json.loads(engine.meta)
    lists = [meta[name] for name in ("prefix", "suffix", "stop_ids", "special_ids")]
    if meta["middle"] is not None:
        lists.append(meta["middle"])
    single = [meta[name] for name in ("bos_id", "eos_id") if meta[name] is not None]
    ids = [*single, *chain.from_iterable(lists), *(id for id, _ in meta["respelled"])]
    texts = [meta[name] for name in ("pre", "source", "fingerprint", "model")]
    if meta["chat_template"] is not None:
        texts.append(meta["chat_template"])
    texts += [text for _, text in meta["respelled"]]
    for name in ("named_templates", "template_tokens"):
        texts += [text for key, value in meta[name] for text in (key, value)]
    flags = [meta[name] for name in ("byte_level", "spelled")]
    is_valid = all(type(id_) is int and 0 <= id_ < len(engine) for id_ in ids)
    is_valid = is_valid and {*map(type, lists)} == {list} and meta["second_type"] in (0, 1)
    is_valid = is_valid and {*map(type, texts)} == {str} and {*map(type, flags)} == {bool}
    if not (is_valid and all(type(a) is str and type(b) is dict for a, b in meta["decoder"])):
        raise ValueError("its description is not one of a tokenizer")
    return meta


def path_of_compiled(fingerprint: str) -> Path:
    """Path of the compiled form of a tokenizer with this fingerprint."""
    return tree.tok_path(settings.cache_dir(), fingerprint)


def find_compiled(fingerprint: str) -> tuple[TokenizerEngine, dict[str, Any]] | None:
    """Native engine of *fingerprint* and its facts; None if the cache has no valid file for it."""
    module = native.module()
    if not fingerprint or module is None:
        return None
    path = path_of_compiled(fingerprint)
    try:
        with open_file(path) as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        engine: TokenizerEngine = module.TokenizerEngine(mapped)
        meta = read_meta(engine)
        if engine.key != _key(fingerprint):
            raise ValueError("it belongs to another tokenizer")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        logger.debug("%s cannot be used, written again: %s", path, error)
        return None
    return engine, meta


def open_compiled(spec: TokenizerSpec) -> tuple[TokenizerEngine, dict[str, Any]]:
    """Engine and facts of *spec*, cached or compiled now; only compiling reads its token lists."""
    cached = find_compiled(spec.fingerprint)
    if cached is not None:
        return cached
    content = compile_spec(spec)
    if spec.fingerprint:
        problem = keep_in_cache(path_of_compiled(spec.fingerprint), content)
        if problem:
            logger.debug("compiled tokenizer not kept: %s", problem)
    engine: TokenizerEngine = native.module().TokenizerEngine(content)  # type: ignore[union-attr]
    return engine, read_meta(engine)


class NativeEngine:
    """Runs compiled tables; *meta* are facts as :func:`meta_of` returns them."""

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

    def encode_array(self, text: str, *, parse_special: bool) -> NDArray[np.int32]:
        """Ids of *text* without BOS or EOS, as an array."""
        with self._translate_errors():
            ids = self._engine.encode_array(text, parse_special, thread_count())
        # Ids are below 2^21, so none becomes negative.
        return ids.view("int32")

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool) -> list[list[int]]:
        """Ids of each of *texts*, encoded on as many threads as a forward pass uses."""
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
            if str(error) == _TOO_LONG:
                raise over_budget(self._source, error) from None
            raise damage_error(f"the tokenizer {self._source} is damaged: {error}") from None

    def text(self, id: int) -> str:
        """The token as in the vocabulary."""
        spelling = self._engine.token_spelling(id)
        if self._byte_level and not self.is_verbatim(id):
            return byte_spelling(spelling)
        return spelling.decode()

    def is_verbatim(self, id: int) -> bool:
        """True if the token is not a piece, see :func:`is_verbatim`."""
        return bool(self._engine.token_flags(id) & _VERBATIM)

    def is_byte(self, id: int) -> bool:
        """True if the token spells one byte, as ``<0x0A>`` does."""
        return bool(self._engine.token_flags(id) & _BYTE)

    def spelling(self, id: int) -> bytes:
        """Bytes of a byte-level token; text of others, and of added tokens."""
        spelling = self._engine.token_spelling(id)
        if self._spelled and not self.is_verbatim(id):
            return bytes_of_spelling(spelling.decode()) or spelling
        return spelling
