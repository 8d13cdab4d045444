"""One comparison of two tokenizers: their parts, the ids of texts, and the text of every id."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.tokenizer.merges import halves_of, merges_by_score
from bitnet.tokenizer.spec import BYTE_NAMES, SPACE_SYMBOL, TokenType
from bitnet.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bitnet.tokenizer.spec import Step, TokenizerSpec

_SHOWN = 3

# Texts on which tokenizers tend to disagree, always the same: real prose and odd cases.
_TEXTS = json.loads(Path(__file__).with_name("probes.json").read_text("utf-8"))
# Prose, code, numbers, scripts and white space, in about the proportions of real prompts.
PROBES: tuple[str, ...] = tuple(_TEXTS["prose"])
_PIECES = (*PROBES, *_TEXTS["odd"])
_JOINS = ("", " ", "\n", "  ", "\u00a0", ".", "-")
_MIXES = 400
_SEED = 20260101


@dataclass(frozen=True)
class TokenizerDifference:
    """One part in which two specifications differ."""

    part: str  # ``vocabulary``, ``merges``, ``added tokens``, ``normalizer`` ...
    text: str  # the two values, or the first examples
    # true if some text or list of ids shows it; expressions and decoders can be written in several
    # ways
    certain: bool = True


@dataclass(frozen=True)
class Agreement:
    """Result of a comparison."""

    equal: int  # texts with equal ids
    total: int  # texts compared
    first_difference: str | None  # the first text with different ids, ``None`` if there is none
    decoded_equal: int = 0  # lists of ids that both decode to the same text
    decoded: int = 0  # lists of ids decoded; 0 if decoding was not compared
    # the first ids that decode to different texts, ``None`` if there are none
    first_ids: tuple[int, ...] | None = None
    # parts of the two specifications that differ; empty if only the texts were compared
    differences: tuple[TokenizerDifference, ...] = ()

    @property
    def ratio(self) -> float:
        """Share of texts with equal ids, 0 to 1."""
        return self.equal / self.total if self.total else 0.0

    @property
    def complete(self) -> bool:
        """True if all ids, all decoded texts and all parts are equal, with a text at least."""
        certain = any(difference.certain for difference in self.differences)
        return self.ratio == 1 and 0 < self.decoded == self.decoded_equal and not certain

    def __str__(self) -> str:
        ids = f"{self.equal} of {self.total} probe texts ({self.ratio:.0%}) give the same ids"
        if not self.decoded:
            return f"{ids}; texts of ids not checked"
        return f"{ids}, {self.decoded_equal} of {self.decoded} lists of ids the same text"


def probe_texts() -> list[str]:
    """About 470 texts, the same in every run; the empty text is one of them."""
    draw = random.Random(_SEED)
    texts = ["", *_PIECES]
    for _ in range(_MIXES):
        parts = draw.choices(_PIECES, k=draw.randint(2, 4))
        cut = [part[draw.randrange(len(part) or 1) :][: draw.randint(1, 40)] for part in parts]
        texts.append(draw.choice(_JOINS).join(cut))
    return texts


def measure_agreement(
    encode: Callable[[str], Sequence[int]],
    encode_other: Callable[[str], Sequence[int]],
    *,
    texts: Sequence[str] = PROBES,
    decode: tuple[Callable[[list[int]], str], Callable[[list[int]], str]] | None = None,
) -> Agreement:
    """Compare the ids of two tokenizers for each text, and the texts of equal ids.

    With *decode* of both, the ids of texts and of pairs of texts are decoded.
    """
    pairs = [(text, list(encode(text)), list(encode_other(text))) for text in texts]
    different = [text for text, mine, theirs in pairs if mine != theirs]
    encoded = [mine for _, mine, theirs in pairs if mine == theirs] if decode else []
    joined = [one + other for one, other in itertools.pairwise(encoded)]
    lists = [ids for ids in (*encoded, *joined) if ids]
    wrong = [ids for ids in lists if decode and decode[0](ids) != decode[1](ids)]
    return Agreement(
        equal=len(pairs) - len(different),
        total=len(pairs),
        first_difference=different[0] if different else None,
        decoded_equal=len(lists) - len(wrong),
        decoded=len(lists),
        first_ids=tuple(wrong[0]) if wrong else None,
    )


def different_ids(one: Tokenizer, other: Tokenizer) -> list[int]:
    """Ids in both vocabularies whose bytes differ, ascending."""
    shared = range(min(one.vocab_size, other.vocab_size))
    return [id for id in shared if one.spelling(id) != other.spelling(id)]


def compare(left: TokenizerSpec, right: TokenizerSpec, texts: Sequence[str]) -> Agreement:
    """Compare two specifications, the ids of *texts*, and the text of every id."""
    first, second = Tokenizer.from_spec(left), Tokenizer.from_spec(right)
    unknown = {left.unknown_id} & {right.unknown_id}  # it has no text of its own

    def decode(tokenizer: Tokenizer) -> Callable[[list[int]], str]:
        return lambda ids: tokenizer.decode(id for id in ids if id not in unknown)

    decoders = decode(first), decode(second)
    agreement = measure_agreement(first.encode, second.encode, texts=texts, decode=decoders)
    parts = differences(left, right)
    shared = (id for id in range(min(len(first), len(second))) if id not in unknown)
    pairs = ((id, first.token_bytes(id), second.token_bytes(id)) for id in shared)
    if wrong := [f"{id}: {mine!r} / {theirs!r}" for id, mine, theirs in pairs if mine != theirs]:
        text = f"{len(wrong):,} ids: {'; '.join(wrong[:_SHOWN])}"
        parts.append(TokenizerDifference("text of ids", text))
    return replace(agreement, differences=tuple(parts))


def differences(left: TokenizerSpec, right: TokenizerSpec) -> list[TokenizerDifference]:
    """Parts in which two specifications differ in meaning; empty if there are none.

    A BPE whose merges say what SentencePiece's scores say is compared with them as such. Flags,
    options and expressions without an effect are left out.
    """
    if left.model != right.model:
        left, right = as_sentencepiece(left) or left, as_sentencepiece(right) or right
    merging = left.byte_level == right.byte_level and {left.model, right.model} <= {"bpe", "spm"}
    aside = {"model"} if merging else set()
    if left.pre and left.pre == right.pre:
        aside |= {"normalizer", "pre_tokenizer"}
    if not (left.is_sentencepiece and right.is_sentencepiece):
        aside.add("unknown_text")
    if left.byte_level and right.byte_level:
        aside.add("unknown_id")
    parts = [
        *_vocabularies(left, right),
        *_orders(left, right),
        *_tables("added tokens", _flags_of_added(left, right), _flags_of_added(right, left)),
    ]
    ours, theirs = _values(left), _values(right)
    for name in (name for name in ours if name not in aside and ours[name] != theirs[name]):
        values = (ours[name], theirs[name])
        texts = (json.dumps(value, ensure_ascii=False, sort_keys=True) for value in values)
        shown = " / ".join(text if len(text) <= 200 else f"{text[:197]}..." for text in texts)
        parts.append(TokenizerDifference(name, shown, certain=name not in _UNCERTAIN))
    return parts


_OPTIONS = (
    *("byte_level", "byte_fallback", "fuse_unknown", "ignore_merges", "add_space_prefix"),
    *("remove_extra_whitespaces", "continuing_prefix", "max_chars_per_word", "unknown_text"),
    *("unknown_id", "bos_id", "eos_id", "chat_template"),
)
_UNCERTAIN = frozenset({
    "normalizer", "pre_tokenizer", "decoder", "unknown_id", "bos_id", "eos_id", "chat_template",
    "stop_ids", "fuse_unknown", "ignore_merges",  # most vocabularies give these two nothing to do
})  # fmt: skip


def _values(spec: TokenizerSpec) -> dict[str, Any]:
    """Parts of *spec* that are equal or not, as JSON values."""
    first, last = map(list, spec.affixes)
    steps = ("normalizer", spec.normalizer), ("pre_tokenizer", spec.pre_tokenizer)
    return {
        "model": spec.model,
        **{name: canonical(part) for name, part in (*steps, ("decoder", spec.decoding))},
        **{name: getattr(spec, name) for name in _OPTIONS},
        "ids put first": first,
        "ids put last": last,
        "stop_ids": sorted(spec.stop_ids),
    }


def _vocabularies(one: TokenizerSpec, other: TokenizerSpec) -> list[TokenizerDifference]:
    """Texts of ids; ids without a token that only pad one of them are left out."""
    tables = []
    for spec in (one, other):
        types = spec.token_types
        tables.append({
            id: text
            for id, text in enumerate(_texts(spec))
            if text not in ("", f"[PAD{id}]") and not (types and types[id] == TokenType.UNUSED)
        })  # fmt: skip
    return _tables("vocabulary", *tables)


def _orders(left: TokenizerSpec, right: TokenizerSpec) -> list[TokenizerDifference]:
    """Merges, or the scores that stand for them."""
    models = {left.model, right.model}
    if models == {"spm"}:
        return _sequences("order of scores", _by_score(left), _by_score(right))
    if models == {"unigram"}:
        return _tables("scores", *(dict(enumerate(map(float, s.scores))) for s in (left, right)))
    if models == {"bpe", "spm"} or len(models) == 1:
        return _sequences("merges", _merge_texts(left), _merge_texts(right))
    return []  # said already


def _merge_texts(spec: TokenizerSpec) -> list[str]:
    tokens = _texts(spec)
    if spec.model == "spm":
        return [" ".join(pair) for pair in merges_by_score(tokens, spec.scores)]
    return [f"{tokens[left]} {tokens[right]}" for left, right in spec.merges]


def _texts(spec: TokenizerSpec) -> list[str]:
    """Texts of all tokens; converters write some U+2581 of SentencePiece as spaces."""
    if spec.byte_level or spec.model == "wordpiece":
        return list(spec.tokens)
    return [text.replace(" ", SPACE_SYMBOL) for text in spec.tokens]


def _by_score(spec: TokenizerSpec) -> list[str]:
    """Tokens that two others make, best score first; those cut out of a text are never made."""
    cut_out = {token.id for token in spec.added}
    texts = _texts(spec)
    vocabulary = set(texts)
    made = [
        (-float(score), id, text)
        for id, (text, score) in enumerate(zip(texts, spec.scores, strict=True))
        if id not in cut_out and any(_joins(text, vocabulary))
    ]
    return [text for _, _, text in sorted(made)]


def _joins(text: str, vocabulary: set[str]) -> Iterator[tuple[str, str]]:
    """Ways in which two tokens form *text*; byte tokens have no parts."""
    return iter(()) if text in BYTE_NAMES else halves_of(text, vocabulary)


def _flags_of_added(spec: TokenizerSpec, counterpart: TokenizerSpec) -> dict[int, Any]:
    """Texts and flags of the added tokens by id.

    Where no text is normalized, and in SentencePiece models, the stage in which a token is found
    makes no difference.
    """
    own = spec.is_sentencepiece or counterpart.is_sentencepiece
    own = own or not (spec.normalizer or counterpart.normalizer)
    flags_by_id: defaultdict[int, set[str]] = defaultdict(set)
    for token in spec.added:
        flags = {name: value for name, value in asdict(token).items() if value and name != "id"}
        if own:
            flags.pop("normalized", None)
        flags_by_id[token.id].add(json.dumps(flags, ensure_ascii=False))
    return {id: ", ".join(sorted(texts)) for id, texts in flags_by_id.items()}


def significant(steps: Iterable[Step]) -> list[Any]:
    """*steps* without options that only concern offsets, or how added tokens are spelled."""
    aside = ("trim_offsets", "respell")
    return [
        [step.type, {key: value for key, value in step.options.items() if key not in aside}]
        for step in steps
    ]


def canonical(steps: Iterable[Step]) -> list[Any]:
    """The significant *steps*, those that do the same written in one way."""
    rows: list[Any] = []
    for kind, given in significant(steps):
        options = _DEFAULTS.get(kind, {}) | given
        regex = options["pattern"].get("Regex") if "pattern" in options else None
        if isinstance(regex, str) and re.escape(regex).replace("\\ ", " ") == regex:
            options["pattern"] = {"String": regex}
        if kind == "BertNormalizer" and options.get("strip_accents") is None:
            options["strip_accents"] = options.get("lowercase")
        if kind == "ByteLevel" and options["use_regex"] and not options.get("add_prefix_space"):
            rows.append(["Split", _GPT2])
            options["use_regex"] = False
        before = rows[-1][0] if rows else ""
        if kind in _FORMS and before in _FORMS:  # the last one composes or not, any one folds
            rows.pop()
            kind = f"NF{'K' if 'K' in before + kind else ''}{kind[-1]}"
        elif kind in ("Lowercase", "Fuse") and kind == before:
            continue
        if [kind, options] not in _IDLE_STEPS:
            rows.append([kind, options])
    return rows[:-1] if rows and rows[-1][0] == "Fuse" else rows


# The expression built into ByteLevel.
_GPT2_REGEX = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_GPT2 = {"pattern": {"Regex": _GPT2_REGEX}, "behavior": "Isolated", "invert": False}
_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
_DEFAULTS: dict[str, dict[str, Any]] = {
    "ByteLevel": {"use_regex": True},
    "Metaspace": {"prepend_scheme": "always", "split": True},
}
_IDLE_STEPS = (
    ["Prepend", {"prepend": ""}],
    ["Strip", {"strip_left": False, "strip_right": False}],
    ["Strip", {"content": " ", "start": 0, "stop": 0}],
)


def _tables(part: str, a: dict[int, Any], b: dict[int, Any]) -> list[TokenizerDifference]:
    different = sorted(id for id in a.keys() | b.keys() if a.get(id) != b.get(id))
    if not different:
        return []
    shown = "; ".join(f"id {id}: {a.get(id)!r} / {b.get(id)!r}" for id in different[:_SHOWN])
    text = f"{len(a):,} and {len(b):,} entries, {len(different):,} differ: {shown}"
    return [TokenizerDifference(part, text)]


def _sequences(part: str, a: Sequence[str], b: Sequence[str]) -> list[TokenizerDifference]:
    if a == b:
        return []
    pairs = enumerate(zip(a, b, strict=False))
    first = next((n for n, (x, y) in pairs if x != y), min(len(a), len(b)))
    shown = " / ".join(repr(s[first]) if first < len(s) else "none" for s in (a, b))
    text = f"{len(a):,} and {len(b):,}, different from number {first:,}: {shown}"
    return [TokenizerDifference(part, text)]


def as_sentencepiece(spec: TokenizerSpec) -> TokenizerSpec | None:
    """SentencePiece vocabulary from which a ``tokenizer.json`` was made.

    SentencePiece joins the two neighbours whose result has the best score. Ordered merges express
    the same if all merges that produce one token are adjacent and none is missing.
    """
    steps = [(step.type, step.options.get("content")) for step in spec.normalizer]
    prepends = steps[:1] == [("Prepend", None)]
    plain = steps[prepends:] == [("Replace", SPACE_SYMBOL)] and not spec.ignore_merges
    if spec.model != "bpe" or not spec.byte_fallback or not plain:
        return None
    tokens = list(spec.tokens)
    places: dict[str, int] = {}
    for left, right in spec.merges:
        result = tokens[left] + tokens[right]
        if next(reversed(places), None) != result:
            if result in places:
                return None
            places[result] = len(places)
    vocabulary = set(tokens)
    if sum(1 for text in tokens for _ in _joins(text, vocabulary)) != len(set(spec.merges)):
        return None
    return replace(
        spec,
        model="spm",
        merges=(),
        scores=[-float(places.get(text, len(places))) for text in tokens],
        normalizer=(),
        pre_tokenizer=(),
        add_space_prefix=prepends,
    )
