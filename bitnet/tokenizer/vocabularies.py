r"""Known pre-tokenizers and vocabularies, by name and by a hash of the tokens; merge lists.

Pre-tokenizers have llama.cpp's names (``tokenizer.ggml.pre``, in its ``src/llama-vocab.cpp``). The
steps in ``pre_tokenizers.json`` are those of the model's own ``tokenizer.json`` where it is known;
llama.cpp rewrites some of them, with different results for rare characters. Two equivalent
rewritings keep the expressions simple: no possessive quantifiers where backtracking cannot succeed,
and ``(?!\p{Han})`` instead of a class intersection.

Many GGUF files lack ``tokenizer.ggml.pre``, or name a wrong one. The token list itself tells which
tokenizer it is; the few pre-tokenizers that share one with another are in ``KnownVocabulary.also``.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bitnet.base.errors import Unsupported
from bitnet.tokenizer.limits import MERGES, RANK_WORK, beyond, damage_error
from bitnet.tokenizer.spec import Step, TokenizerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator

T = TypeVar("T")

# Fields of a specification that spec_key does not hash: long ones, which follow from the content
# that it hashes, and those without an effect on results.
_LONG = frozenset({"tokens", "merges", "scores", "token_types", "charsmap"})
_ASIDE = frozenset({"source", "document", "fingerprint"})


@dataclass(frozen=True)
class PreTokenizer:
    """Properties that the name of a pre-tokenizer (``tokenizer.ggml.pre``) implies."""

    steps: tuple[Step, ...]  # steps that split normalized text into pieces
    normalizer: tuple[Step, ...] = ()  # steps of the normalizer, which run before
    ignore_merges: bool = False  # a piece that is a token as a whole becomes that token
    add_bos: bool = False  # default if the file has no ``tokenizer.ggml.add_bos_token``
    byte_level: bool = True  # token texts are in GPT-2's byte spelling, else in SentencePiece's
    has_bos: bool = True  # a file without ``tokenizer.ggml.bos_token_id`` has the default BOS


def _read_steps(entries: Iterable[Any], *, byte_level: bool = False) -> tuple[Step, ...]:
    """Steps of ``pre_tokenizers.json``, written as in ``tokenizer.json``.

    A text stands for a ``Split`` whose pattern is that expression. With *byte_level*, a ByteLevel
    step is added at the end unless there is one.
    """
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    rows: list[dict[str, Any]] = [
        split | {"pattern": {"Regex": entry}} if isinstance(entry, str) else entry
        for entry in entries
    ]
    if byte_level and all(row["type"] != "ByteLevel" for row in rows):
        plain = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        rows.append({"type": "ByteLevel", **plain})
    return tuple(Step(row.pop("type"), row) for row in rows)


def _read_table() -> dict[str, PreTokenizer]:
    """Pre-tokenizers by name; a row may name an earlier pre-tokenizer for its ``steps``."""
    table: dict[str, PreTokenizer] = {}
    for row in json.loads(Path(__file__).with_name("pre_tokenizers.json").read_text("utf-8")):
        names = row.pop("names")
        steps = row.pop("steps")
        normalizer = row.pop("normalizer", ())
        row.pop("note", None)
        if isinstance(steps, str):
            split = table[steps].steps
        else:
            split = _read_steps(steps, byte_level=row.get("byte_level", True))
        table.update(dict.fromkeys(names, PreTokenizer(split, _read_steps(normalizer), **row)))
    return table


PRE_TOKENIZERS = _read_table()


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer named *name* in ``tokenizer.ggml.pre``."""
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        raise Unsupported(
            f"unknown pre-tokenizer {name!r} (tokenizer.ggml.pre)",
            hint=f"choose a known one with --pre NAME: {', '.join(sorted(PRE_TOKENIZERS))}",
        ) from None


def bpe_spec(pre: str, **fields: Any) -> TokenizerSpec:
    """A BPE that cuts text as the pre-tokenizer *pre* does, with further *fields* of a spec."""
    kind = pre_tokenizer(pre)
    defaults: dict[str, Any] = {
        "byte_level": kind.byte_level,
        "ignore_merges": kind.ignore_merges,
        "pre": pre,
    }
    defaults |= {"normalizer": kind.normalizer, "pre_tokenizer": kind.steps}
    return TokenizerSpec(model="bpe", **defaults | fields)


@dataclass(frozen=True)
class KnownVocabulary:
    """Facts implied by a known list of tokens."""

    name: str  # for messages
    pre: str  # its pre-tokenizer, as in ``tokenizer.ggml.pre``; empty if there is none
    n_tokens: int  # number of tokens
    n_merges: int  # number of merges of its canonical conversion; 0 if there are none
    key: str = ""  # ``fingerprint`` of the tokens; empty if only the merges are known
    merges_key: str = ""  # ``fingerprint`` of the merges, which models with added tokens keep
    also: frozenset[str] = frozenset()  # other pre-tokenizers that some models use with its tokens


def fingerprint(tokens: Sequence[str] | Sequence[bytes] | memoryview) -> str:
    """SHA-256 of a token list as GGUF stores it: the length in 64 bits, then the bytes in UTF-8."""
    if isinstance(tokens, memoryview):
        return hashlib.sha256(tokens).hexdigest()
    digest = hashlib.sha256()
    for token in tokens:
        encoded = token.encode() if isinstance(token, str) else token
        digest.update(struct.pack("<Q", len(encoded)))
        digest.update(encoded)
    return digest.hexdigest()


KNOWN = tuple(
    KnownVocabulary(**row | {"also": frozenset(row.get("also", ()))})
    for row in json.loads(Path(__file__).with_name("known_vocabularies.json").read_text("utf-8"))
)
_BY_KEY = {vocabulary.key: vocabulary for vocabulary in KNOWN if vocabulary.key}
_BY_MERGES = {
    (vocabulary.n_merges, vocabulary.merges_key): vocabulary
    for vocabulary in KNOWN
    if vocabulary.merges_key
}
_MERGE_COUNTS = {vocabulary.n_merges for vocabulary in KNOWN if vocabulary.merges_key}


def identify(key: str, n_merges: int | None = None) -> KnownVocabulary | None:
    """The known vocabulary whose tokens have the :func:`fingerprint` *key*; None if unknown.

    It must have *n_merges* merges, unless that is None.
    """
    vocabulary = _BY_KEY.get(key)
    return vocabulary if vocabulary and n_merges in (None, vocabulary.n_merges) else None


def another_pre(vocabulary: KnownVocabulary, named: object) -> bool:
    """True if *named* splits text differently from the pre-tokenizer of *vocabulary*."""
    if not vocabulary.pre or named in vocabulary.also or named == vocabulary.pre:
        return False
    pre_named = PRE_TOKENIZERS.get(named) if isinstance(named, str) else None
    return pre_named is None or pre_named != PRE_TOKENIZERS.get(vocabulary.pre)


def identify_merges(n_merges: int, key: Callable[[], str]) -> KnownVocabulary | None:
    """The known vocabulary with these merges, if any; *key* computes their :func:`fingerprint`."""
    return _BY_MERGES.get((n_merges, key())) if n_merges in _MERGE_COUNTS else None


def spec_key(spec: TokenizerSpec, *content: bytes) -> str:
    """Hash of a specification, with the *content* it was built from: key of its compiled form."""
    digest = hashlib.sha256()
    for part in content:
        digest.update(struct.pack("<Q", len(part)))
        digest.update(part)
    for field in fields(spec):
        if field.name not in _LONG | _ASIDE:
            value = getattr(spec, field.name)
            ordered = sorted(value) if isinstance(value, frozenset) else value
            digest.update(f"{field.name}={ordered!r};".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


class LazySequence(Sequence[T]):
    """A sequence that *load* creates when an element is needed.

    *length* is its length, if that is known before. *raw* are merges that are still texts, in which
    the native module looks their halves up.
    """

    def __init__(
        self, length: int | None, load: Callable[[], list[T]], *, raw: list[Any] | None = None
    ) -> None:
        self.raw = raw
        self._length = length
        self._load = load

    @cached_property
    def _items(self) -> list[T]:
        return self._load()

    def __len__(self) -> int:
        return len(self._items) if self._length is None else self._length

    def __getitem__(self, at: Any) -> Any:
        return self._items[at]

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)


def split_merge(line: str) -> tuple[str, str]:
    """Both halves of a merge, split at the first space that is not the first character.

    The left half is never empty, and may begin with a space; the right one may contain spaces.
    """
    at = line.find(" ", 1)
    if at < 0:
        raise damage_error(f"merge {line!r} has no space between its halves")
    return line[:at], line[at + 1 :]


def pair_merges(
    merges: Iterable[str | Sequence[str]], tokens: Sequence[str], prefix: str = ""
) -> list[tuple[int, int]]:
    """Ids of the halves of *merges*, which are lines or pairs of texts.

    The result must be a token, too: the halves joined, without the *prefix* of the right one.
    """
    ids = token_ids(tokens)
    pairs = []
    try:
        for merge in merges:
            left, right = split_merge(merge) if isinstance(merge, str) else merge
            pairs.append((ids[left], ids[right]))
            ids[left + right.removeprefix(prefix)]  # raises KeyError if the result is not a token
    except KeyError as error:
        token = error.args[0]
        raise damage_error(
            f"a merge needs the token {token!r}, which is not in the vocabulary: the two do not"
            " belong together"
        ) from None
    return pairs


def token_ids(tokens: Sequence[str]) -> dict[str, int]:
    """Ids by text; of equal texts, the first one counts."""
    texts = list(tokens)
    return dict(zip(reversed(texts), range(len(texts) - 1, -1, -1), strict=True))


def find_halves(
    texts: Collection[str], tokens: Container[str], source: str
) -> Iterator[tuple[str, str, str]]:
    """Each of *texts* with the halves of every cut of it into two *tokens*.

    Every cut copies the text, so time grows with the squared length of a text: more than
    ``RANK_WORK`` steps are refused. *source* is the name of the tokenizer in the error.
    """
    work = sum(len(text) * len(text) for text in texts)
    if work > RANK_WORK:
        raise beyond(source, f"tokens of {work:,} squared characters", RANK_WORK)
    for text in texts:
        for cut in range(1, len(text)):
            left = text[:cut]
            right = text[cut:]
            if left in tokens and right in tokens:
                yield text, left, right


def merges_from_ranks(
    tokens: Sequence[str], ids: Iterable[int], source: str
) -> list[tuple[int, int]]:
    """Merges with which a BPE gives tiktoken's results for *ids*, those of tokens by rank.

    tiktoken joins the neighbours whose joined text has the lowest rank, whatever the halves are;
    so every split of a token into two tokens is a merge, in the order of the joined token's rank.
    """
    id_by_text = {tokens[id]: id for id in ids}
    merges: list[tuple[int, int]] = []
    cuts = find_halves(id_by_text, id_by_text, source)
    for _, cuts_of_text in itertools.groupby(cuts, key=itemgetter(0)):
        pairs = ((id_by_text[left], id_by_text[right]) for _, left, right in cuts_of_text)
        merges.extend(sorted(pairs))
        if len(merges) > MERGES:
            raise beyond(source, f"{len(merges):,} merges or more", MERGES)
    return merges


def merges_by_score(tokens: list[str], scores: Iterable[float], source: str) -> list[list[str]]:
    """All ways to join two tokens into a third, best score first: SentencePiece's order.

    *source* is the name of the tokenizer in errors, those of :func:`find_halves`.
    """
    ids = {text: id for id, text in enumerate(tokens)}
    score_of = dict(zip(tokens, map(float, scores), strict=True))
    ranked = [
        (-score_of[text], ids[left], ids[right])
        for text, left, right in find_halves(ids, ids, source)
    ]
    ranked.sort()
    return [[tokens[left], tokens[right]] for _, left, right in ranked]
