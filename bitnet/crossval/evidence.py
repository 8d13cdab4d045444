"""Two traces compared, and all results of a cross-validation as one record.

*theirs* is the reference, *ours* is under test. KL divergences are in nats and never exceed the
full ones: tokens that were not stored count as one event, and a token that one side did not store
as no more likely than the last one it did.

``report.json`` is the record; :mod:`bitnet.crossval.judge` reads nothing else, so anyone with the
file can derive the verdict again.
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Literal

import numpy as np

from bitnet.base.errors import BitnetError
from bitnet.base.findings import Finding
from bitnet.crossval.operations import Operation
from bitnet.crossval.trace import EngineFacts, Prompt
from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.transformer import Model
from bitnet.tokenizer.probes import probe_texts
from bitnet.tokenizer.spec import SPACE_SYMBOL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bitnet.crossval.trace import Position, Reference, Trace
    from bitnet.tokenizer import Tokenizer

SCHEMA_VERSION = 9  # of a report
_TINY = 1e-12  # smallest remaining probability; anything below is rounding
_ALIKE = 1e-6  # spread of log-probabilities below which no slope is measured
_ROUNDING = 1e-7  # of a remaining probability, from writing down logits


@dataclass(frozen=True)
class Row:
    """One position, teacher-forced: both engines were given the same tokens.

    In a continuation, it is the first step where the engines part, or the last one, and holds
    tokens and the gap alone. A field is ``None`` if one of them has no finite logits there, which
    never passes.
    """

    prompt: int  # index of the prompt
    position: int  # index of the last token given, or of the step
    ours: int | None  # our likeliest next token
    theirs: int | None  # the reference's
    gap: float | None  # logit difference between the reference's best and second token
    kl: float | None = None  # from the reference to ours
    # upper bound of our ``-log p`` of the actual next token; None at the end
    nll: float | None = None
    theirs_nll: float | None = None  # the reference's
    # likeliest next token of the float64 pass, ``None`` without such a pass
    exact: int | None = None
    ours_kl: float | None = None  # from the float64 pass to ours
    # slope of our log-probabilities over those of the float64 pass, 1 without scaling; ``None`` if
    # all tokens of the float64 pass are equal
    ours_scale: float | None = None
    theirs_kl: float | None = None  # from the float64 pass to the reference
    theirs_scale: float | None = None  # slope of its log-probabilities

    @property
    def agrees(self) -> bool:
        """True if both have the same likeliest token."""
        return self.ours is not None and self.ours == self.theirs


def divergence(p: Position | None, q: Position | None) -> float | None:
    """KL from *p* to *q*, at least 0; the module describes the sum. None without finite logits."""
    if p is None or q is None or not (p.is_finite and q.is_finite):
        return None
    mine, other = p.log_probabilities(), q.log_probabilities()
    floor = min(other.values())
    common = {token: log_p for token, log_p in mine.items() if token in other}
    return max(_sum(common, other, floor), _sum(mine, other, floor), 0.0)


def _sum(mine: Mapping[int, float], theirs: Mapping[int, float], floor: float) -> float:
    """The divergence over the tokens of *mine*, with all others as one event.

    A token that *theirs* lacks is there at most as likely as *floor*.
    """
    total, mass, other_mass = 0.0, 0.0, 0.0
    for token, log_p in mine.items():
        log_q = theirs.get(token)
        mass += math.exp(log_p)
        other_mass += 0.0 if log_q is None else math.exp(log_q)
        total += math.exp(log_p) * (log_p - (floor if log_q is None else log_q))
    rest, rest_other = max(1 - mass, 0.0), max(1 - other_mass, _TINY)
    if rest > _ROUNDING:
        total += rest * math.log(rest / rest_other)
    return total


def compare(
    ours: Trace, theirs: Trace, *, exact: Trace | None = None
) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """*ours* beside *theirs*: a row for each position, and one for each continuation.

    Prompts are paired by index and only if their tokens are equal; unpaired ones have no row, and
    :mod:`bitnet.crossval.run` has found them. *exact* is the float64 pass over the same prompts.
    """
    rows: list[Row] = []
    continuations: list[Row] = []
    pairs = zip(ours.prompts, theirs.prompts, strict=False)
    for number, (answer, reply) in enumerate(pairs):
        if (answer.ids, answer.first) != (reply.ids, reply.first):
            continue
        right = exact.prompts[number : number + 1] if exact else ()
        truths = (*(right[0].positions if right else ()), *[None] * len(answer.ids))
        following: list[int | None] = [*answer.ids[answer.first + 1 :], None]
        for at, (p, q) in enumerate(zip(answer.positions, reply.positions, strict=False)):
            place = number, answer.first + at
            rows.append(_compare_position(place, p, q, truths[at], following[at]))
        steps = list(zip(answer.greedy, reply.greedy, strict=False))
        if steps:
            parted = (at for at, (best, other) in enumerate(steps) if best != other)
            at = next(parted, len(steps) - 1)
            continuations.append(Row(number, at, *steps[at], reply.top2_gaps[at]))
    return tuple(rows), tuple(continuations)


def _compare_position(
    place: tuple[int, int],
    ours: Position,
    theirs: Position,
    exact: Position | None,
    following: int | None,
) -> Row:
    best = [it.ids[0] if it is not None and it.is_finite else None for it in (ours, theirs, exact)]
    ours_kl, ours_scale = nearness(exact, ours)
    theirs_kl, theirs_scale = nearness(exact, theirs)
    return Row(
        *place,
        *(best[0], best[1]),
        gap=None if None in best[:2] else theirs.gap,
        kl=divergence(theirs, ours),
        nll=_nll(ours, following),
        theirs_nll=_nll(theirs, following),
        exact=best[2],
        ours_kl=ours_kl,
        ours_scale=ours_scale,
        theirs_kl=theirs_kl,
        theirs_scale=theirs_scale,
    )


def nearness(exact: Position | None, engine: Position) -> tuple[float | None, float | None]:
    """KL from *exact* to *engine*, and the slope of its log-probabilities over the exact ones.

    Both are None without finite logits, the slope also where the exact ones are equal.
    """
    if exact is None or not (exact.is_finite and engine.is_finite):
        return None, None
    right, theirs = exact.log_probabilities(), engine.log_probabilities()
    common = [token for token in exact.ids if token in theirs]
    x = np.array([right[token] for token in common])
    y = np.array([theirs[token] for token in common])
    scale: float | None = None
    if len(common) > 2 and float(np.std(x)) > _ALIKE:
        x = x - x.mean()
        scale = float(x @ (y - y.mean()) / (x @ x))
    return divergence(exact, engine), scale


def _nll(position: Position | None, following: int | None) -> float | None:
    """``-log p`` of *following*; a token that is not stored counts as the last stored one."""
    if following is None or position is None or not position.is_finite:
        return None
    known = position.log_probabilities()
    return max(-known.get(following, min(known.values())), 0.0)


_LOOKS_SPECIAL = re.compile(r"</?s>|<\|?\w+\|?>")
_CLEANED_UP = re.compile(r" [?!.,]| ' | n't| '(?:m|s|ve|re)| \u2047 ")


@dataclass(frozen=True)
class TokenizerParity:
    """Two tokenizers compared on the same texts, and on the ids that both gave for them.

    Where both give the same ids, their decoded texts are compared too, except for three kinds: the
    C++ engines remove a space before some punctuation, join WordPiece in their own way, and spell
    the unknown token by its name, for which SentencePiece has U+2047.
    """

    total: int  # texts
    equal: int  # of these, texts with equal ids
    text: str | None = None  # the first text with different ids, ``None`` if there is none
    ours: tuple[int, ...] = ()  # our ids of it
    theirs: tuple[int, ...] = ()  # the reference's
    decoded: int = 0  # lists of ids that were decoded and are judged; 0: the reference decoded none
    decoded_equal: int = 0  # of these, lists with equal texts
    ids: tuple[int, ...] = ()  # the first of them with different texts, empty if there is none


def texts_for(
    reference: Reference, tokenizer: Tokenizer, texts: Sequence[str]
) -> tuple[tuple[str, bool], ...]:
    """Texts to tokenize, each with true if special tokens are added.

    A recording brings its own texts; our own code is not asked.
    """
    if reference.recording is not None:
        return tuple((one.prompt, True) for one in reference.recording.prompts)
    if not reference.independent:
        return ()
    probes = ((text, special) for special in (False, True) for text in probe_texts())
    candidates = (*((text, True) for text in texts), *probes)
    tokens = {tokenizer.token_bytes(id): id for id in reversed(range(len(tokenizer)))}
    return tuple(it for it in candidates if _is_judged(tokenizer, tokens, *it))


def tokenizer_parity(
    tokenizer: Tokenizer, theirs: Trace, texts: Sequence[tuple[str, bool]]
) -> TokenizerParity | None:
    """*tokenizer* compared with the reference's on *texts*, ``None`` if the reference has none.

    Texts that the reference left out count as read differently.
    """
    if theirs.tokenized is None or not texts:
        return None
    decoded = theirs.decoded or (None,) * len(texts)
    if not len(theirs.tokenized) == len(decoded) == len(texts):
        return TokenizerParity(len(texts), 0)
    different, same_text = [], []
    for (text, special), reply, their_text in zip(texts, theirs.tokenized, decoded, strict=True):
        ids = tuple(tokenizer.encode(text, add_special=special))
        if ids != reply:
            different.append((text, ids, reply))
        elif their_text is not None and tokenizer.model != "wordpiece":
            own = tokenizer.decode(list(ids))
            if not _CLEANED_UP.search(own):
                same_text.append((ids, own == their_text))
    wrong = [ids for ids, is_same in same_text if not is_same]
    first = different[0] if different else (None, (), ())
    return TokenizerParity(
        total=len(texts),
        equal=len(texts) - len(different),
        text=first[0],
        ours=first[1],
        theirs=first[2],
        decoded=len(same_text),
        decoded_equal=len(same_text) - len(wrong),
        ids=wrong[0] if wrong else (),
    )


def _is_judged(tokenizer: Tokenizer, tokens: Mapping[bytes, int], text: str, special: bool) -> bool:
    """False if correct engines read *text* differently, on purpose, or ours cannot read it.

    - U+2581 stands for a space inside SentencePiece vocabularies, and engines split a literal one
      differently;
    - decomposed characters, if our tokenizer composes them as the model's own does (NFC; Qwen2's):
      the C++ engines do not;
    - text that looks like a special token but is an ordinary one in the vocabulary (Qwen2's
      ``</s>``): the C++ engines make it special;
    - a text that spells BOS itself may get another BOS, or not.
    """

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False)

    composed = unicodedata.normalize("NFC", text)
    try:
        if SPACE_SYMBOL in text or (composed != text and encode(composed) == encode(text)):
            return False
        for name in _LOOKS_SPECIAL.findall(text):
            id = tokens.get(name.encode())
            if id is not None and encode(name) != [id]:
                return False
        return not (special and encode(text)[:1] == [tokenizer.bos_id])
    except BitnetError:  # of a prompt; its answer says so
        return False


# real: the native kernels; reference: our NumPy backend; mock: a mock tokenizer;
# none: nothing was counted.
ComputePath = Literal["real", "reference", "mock", "none"]

_MOCK = "mock"  # fingerprint of the tokenizer that treats bytes as tokens


def read_counters(model: Model) -> dict[str, int]:
    """Calls of each kernel so far; empty for a backend that is not ours."""
    return dict(model.ops.counters()) if type(model.ops) in (NativeOps, ReferenceOps) else {}


def kernels_since(model: Model, before: Mapping[str, int]) -> dict[str, int]:
    """Calls of each kernel that ran since the counters read *before*, by name."""
    calls = {name: count - before.get(name, 0) for name, count in read_counters(model).items()}
    return {name: count for name, count in sorted(calls.items()) if count > 0}


def compute_path(model: Model, tokenizer: Tokenizer, kernels: Mapping[str, int]) -> ComputePath:
    """Kind of backend that computed a pass of *model* with calls of *kernels*.

    It is ``real`` only if the native module counted at least one product of weights per layer, for
    a model bound to exactly our native backend, with a real tokenizer. This protects against
    mistakes: a mock, a backend replaced by a slower one, missing kernels. Only ``crossval --check
    --replay`` on another machine protects against someone who controls this Python process.
    """
    products = sum(count for name, count in kernels.items() if name.startswith("linear/"))
    if type(model) is not Model or products < model.config.n_layers:
        return "none"
    if tokenizer.fingerprint == _MOCK:
        return "mock"
    kind = type(model.ops)
    return "real" if kind is NativeOps else "reference" if kind is ReferenceOps else "none"


@dataclass(frozen=True)
class Plan:
    """Plan of a comparison, made before any engine runs."""

    against: str  # name of the reference on the command line
    float64: bool  # a float64 pass is there to judge it: today's, or one that was recorded with it
    asked: tuple[str, ...]  # the texts of all prompts, as they were given
    limit: int  # positions to compare at most
    greedy: int  # steps of each continuation; 0: none
    texts: int  # texts that are tokenized by both; 0: the reference has no tokenizer of its own
    tokenizer_only: bool = False  # nothing else is compared
    require_real: bool = False  # only the native kernels are accepted
    recorded_sha256: str = ""  # of the file that a recording is of, if known

    @property
    def live(self) -> bool:
        """True if the reference runs the same file here and now; a recording does not."""
        return self.against != "recorded"

    @property
    def independent(self) -> bool:
        """True if the reference is not this project's code."""
        return self.against != "float64"


@dataclass(frozen=True)
class TestedModel:
    """The model under test."""

    file: str  # its name, without folders
    sha256: str  # of the file; of a folder, over names and digests of its weights
    architecture: str  # from the file
    origin: str = "a file"  # its source, for messages
    attestation: str = ""  # digest of its content, empty if unknown
    original: str = ""  # name of the known model with the same content, empty if there is none
    problem: str = ""  # difference from the known model that it claims to be
    ignored_keys: tuple[str, ...] = ()  # metadata keys that were ignored
    tokenizer: str = ""  # file of the tokenizer of the prompts, without folders
    tokenizer_sha256: str = ""  # its fingerprint
    vocab_size: int = 0  # tokens it has
    layers: int = 0  # of the model; 0 if its weights are not read
    has_experts: bool = False


@dataclass(frozen=True)
class Evidence:
    """Record of one cross-validation."""

    schema_version: int  # of this record
    created: str  # time in ISO 8601, UTC
    plan: Plan  # what was planned
    # ``system``, ``processor``, ``python`` and ``features``, the instruction sets that the native
    # module can use, of the machine that ran both
    machine: dict[str, str]
    model: TestedModel  # the model
    ours: EngineFacts  # our engine; its library is the native module
    backend: str  # compute backend of the model
    reference: EngineFacts  # the reference engine
    # why the reference did not answer: skipped if it is not installed, failed if it crashed,
    # refused the model or took too long
    no_answer: Finding | None = None
    compute_path: ComputePath = "none"  # kind of backend that computed our side
    # calls of each kernel, as counted inside the backend
    kernels: dict[str, int] = field(default_factory=dict)
    # of the answers of ``ours``, ``reference`` and ``float64``; empty for a whole answer
    faults: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tokenizer_parity: TokenizerParity | None = None  # text by text; ``None`` if none were compared
    prompts: tuple[Prompt, ...] = ()  # texts to run
    rows: tuple[Row, ...] = ()  # position by position
    # continuation by continuation, the first step where they part or the last one
    greedy: tuple[Row, ...] = ()
    # of each engine that gives intermediates, by its name
    operations: dict[str, tuple[Operation, ...]] = field(default_factory=dict)
    # text of each token of the prompts, and of those that an engine preferred, by id
    spellings: dict[str, str] = field(default_factory=dict)

    @property
    def positions(self) -> int:
        """Number of planned positions."""
        return sum(len(prompt.ids) - prompt.first for prompt in self.prompts)

    @property
    def continuations(self) -> int:
        """Number of planned continuations."""
        return sum(prompt.steps > 0 for prompt in self.prompts)


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of *values*; ``None`` if there are none, or one is missing."""
    known = list(values)
    return fmean(one for one in known if one is not None) if known and None not in known else None
