"""All results of a cross-validation as one record.

``report.json`` is the record; :mod:`bitnet.crossval.judge` reads nothing else, so anyone with the
file can derive the verdict again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from bitnet.base.findings import Finding
from bitnet.crossval.operations import Operation
from bitnet.crossval.trace import EngineFacts, Prompt

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA_VERSION = 10  # of a report

# real: the native kernels; reference: our NumPy backend; mock: a mock tokenizer;
# none: nothing was counted.
ComputePath = Literal["real", "reference", "mock", "none"]


@dataclass(frozen=True)
class Row:
    """One position, teacher-forced: both engines were given the same tokens.

    The row of a continuation is its first step with different tokens, or its last step; it has only
    the tokens, the gap and, where the engines really differ, ``exact``. A field is ``None`` if one
    of the engines has no finite logits there, which never passes.
    """

    prompt: int  # index of the prompt
    position: int  # index of the last token given, or of the step
    ours: int | None  # our likeliest next token
    theirs: int | None  # the reference's
    gap: float | None  # logit difference between the reference's best and second token
    # KL divergence from the reference to ours, in nats; a lower bound, as only the best tokens are
    # stored
    kl: float | None = None
    # lower bound of our ``-log p`` of the actual next token; None at the end
    nll: float | None = None
    theirs_nll: float | None = None  # the reference's
    # likeliest next token of the float64 pass, ``None`` without such a pass
    exact: int | None = None
    ours_kl: float | None = None  # from the float64 pass to ours
    # slope of our log-probabilities over those of the float64 pass, 1 without scaling; ``None``
    # with fewer than three common tokens, or if the float64 pass finds all of them equally likely
    ours_scale: float | None = None
    theirs_kl: float | None = None  # from the float64 pass to the reference
    theirs_scale: float | None = None  # slope of its log-probabilities

    @property
    def agrees(self) -> bool:
        """True if both have the same likeliest token."""
        return self.ours is not None and self.ours == self.theirs


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
    ids: tuple[int, ...] = ()  # the first of these lists with different texts; empty if none has


@dataclass(frozen=True)
class Plan:
    """Plan of a comparison, made before any engine runs."""

    against: str  # name of the reference on the command line
    float64: bool  # a float64 pass judges the reference: today's, or the one in the recording
    asked: tuple[str, ...]  # the texts of all prompts, before they were cut
    limit: int  # positions to compare at most
    greedy: int  # steps of each continuation; 0: none
    texts: int  # texts that are tokenized by both; 0: the reference has no tokenizer of its own
    tokenizer_only: bool = False  # nothing else is compared
    require_real: bool = False  # only the native kernels are accepted
    recorded_sha256: str = ""  # SHA-256 of the model file of a recording; empty if unknown

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
    sha256: str  # of the file; of several files, over their names and digests
    architecture: str  # from the file
    origin: str = "a file"  # its source, for messages
    attestation: str = ""  # digest of its content, empty if unknown
    original: str = ""  # name of the known model with the same content, empty if there is none
    problem: str = ""  # difference from the known model that it claims to be
    ignored_keys: tuple[str, ...] = ()  # metadata keys that were ignored
    tokenizer: str = ""  # file of the tokenizer of the prompts, without folders
    tokenizer_sha256: str = ""  # fingerprint of that tokenizer
    vocab_size: int = 0  # number of tokens of that tokenizer
    layers: int = 0  # of the model; 0 if its weights are not read
    has_experts: bool = False


@dataclass(frozen=True)
class Evidence:
    """Record of one cross-validation."""

    schema_version: int  # of this record
    created: str  # time in ISO 8601, UTC
    plan: Plan  # what was planned
    # the machine that ran both: ``system``, ``processor``, ``python`` and ``features``, the
    # instruction sets that the native module can use
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
    # faults of the answers of ``ours``, ``reference`` and ``float64``; empty for a whole answer
    faults: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tokenizer_parity: TokenizerParity | None = None  # text by text; ``None`` if none were compared
    prompts: tuple[Prompt, ...] = ()  # texts to run
    rows: tuple[Row, ...] = ()  # position by position
    greedy: tuple[Row, ...] = ()  # continuation by continuation
    # the operations of each engine that returns its intermediates, by name of the engine
    operations: dict[str, tuple[Operation, ...]] = field(default_factory=dict)
    # text of each token of the prompts, and of each token that an engine found likeliest, by id
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
    entries = list(values)
    numbers = [value for value in entries if value is not None]
    if not numbers or len(numbers) < len(entries):
        return None
    return fmean(numbers)
