"""All results of a cross-validation as one record, from which the verdict is derived.

``report.json`` is this record; :mod:`bitnet.crossval.judge` reads nothing else, so anyone with the
file can derive the verdict again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from bitnet.crossval.answers import Answered
from bitnet.crossval.bounds import Bounds, bounds_for
from bitnet.crossval.compare import Greedy, Row, TokenizerParity
from bitnet.crossval.operations import Operations
from bitnet.crossval.receipt import ComputePath
from bitnet.crossval.trace import Arithmetic

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "Evidence",
    "OurEngine",
    "Plan",
    "Prompt",
    "ReferenceFacts",
    "State",
    "TestedModel",
    "mean",
]

# missing: not installed. failed: installed, but crashed, refused the model or took too long.
State = Literal["answered", "missing", "failed"]


@dataclass(frozen=True)
class Plan:
    """The planned checks.

    Attributes:
        asked: the texts of all prompts, as they were given.
        limit: positions to compare at most.
        prompts: texts that are run.
        positions: tokens of them that are compared.
        positions_there: tokens they have in total.
        greedy: steps of each continuation; 0: none.
        continuations: prompts that are continued.
        texts: texts that are tokenized by both; 0: the reference has no tokenizer of its own.
        tokenizer_only: nothing else is compared.
        require_real: only the native kernels are accepted.
    """

    asked: tuple[str, ...]
    limit: int
    prompts: int
    positions: int
    positions_there: int
    greedy: int
    continuations: int
    texts: int
    tokenizer_only: bool = False
    require_real: bool = False


@dataclass(frozen=True)
class TestedModel:
    """The model under test.

    Attributes:
        file: its name, without folders.
        sha256: of the file; of a folder, over names and digests of its weights.
        architecture: from the file.
        origin: its source, for messages.
        attestation: digest of its content, empty if unknown.
        original: name of the known model with the same content, empty if there is none.
        problem: difference from the known model that it claims to be.
        ignored_keys: metadata keys that were ignored.
        tokenizer: file of the tokenizer of the prompts, without folders.
        tokenizer_sha256: its fingerprint.
        vocab_size: tokens it has.
    """

    file: str
    sha256: str
    architecture: str
    origin: str = "a file"
    attestation: str = ""
    original: str = ""
    problem: str = ""
    ignored_keys: tuple[str, ...] = ()
    tokenizer: str = ""
    tokenizer_sha256: str = ""
    vocab_size: int = 0


@dataclass(frozen=True)
class OurEngine:
    """The engine under test.

    Attributes:
        engine: ``bitnet``.
        version: of this package.
        backend: compute backend of the model.
        arithmetic: of its products; ``None`` if there were none.
        kernels: calls of each kernel, as counted inside the backend.
        module_sha256: of the native module, empty if there is none.
    """

    engine: str
    version: str
    backend: str
    arithmetic: Arithmetic | None
    kernels: dict[str, int] = field(default_factory=dict)
    module_sha256: str = ""


@dataclass(frozen=True)
class ReferenceFacts:
    """The reference engine.

    Attributes:
        name: on the command line.
        state: of its answer.
        said: reason why it did not answer.
        hint: what helps then.
        engine: its own name.
        version: of the engine.
        arithmetic: of its products.
        library: file that computed, without folders.
        library_sha256: of that file.
        independent: it is not this project's code.
        live: it ran the same file here and now; a recording did not.
        float64: a float64 pass is there to judge it: today's, or one that was recorded with it.
        model_sha256: of the file it ran, if known.
    """

    name: str
    state: State
    said: str = ""
    hint: str = ""
    engine: str = ""
    version: str = ""
    arithmetic: Arithmetic | None = None
    library: str = ""
    library_sha256: str = ""
    independent: bool = True
    live: bool = True
    float64: bool = True
    model_sha256: str = ""


@dataclass(frozen=True)
class Prompt:
    """A text that was run.

    Attributes:
        text: the text.
        ids: its tokens, as far as they were run.
        first: index of the first whose position was compared.
        tokens: text of each token.
    """

    text: str
    ids: tuple[int, ...]
    first: int = 0
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """Record of one cross-validation.

    Attributes:
        schema_version: of this record.
        created: time in ISO 8601, UTC.
        plan: the planned checks.
        compute_path: kind of backend that computed our side.
        model: the model.
        ours: our engine.
        reference: the reference engine.
        machine: ``system``, ``processor``, ``python`` and ``features``, the instruction sets that
            the native module can use, of the machine that ran both.
        answers: completeness of each side's answers.
        tokenizer_parity: text by text; ``None`` if none were compared.
        prompts: texts that were run.
        rows: position by position.
        greedy: continuation by continuation.
        operations: of each engine that gives intermediates.
        spellings: text of each token that an engine preferred somewhere, by id.
        kl: description of the divergences.
    """

    schema_version: int
    created: str
    plan: Plan
    compute_path: ComputePath
    model: TestedModel
    ours: OurEngine
    reference: ReferenceFacts
    machine: dict[str, str]
    answers: tuple[Answered, ...] = ()
    tokenizer_parity: TokenizerParity | None = None
    prompts: tuple[Prompt, ...] = ()
    rows: tuple[Row, ...] = ()
    greedy: tuple[Greedy, ...] = ()
    operations: tuple[Operations, ...] = ()
    spellings: dict[str, str] = field(default_factory=dict)
    kl: str = (
        "in nats, over the stored tokens with all others as one event: never more than the "
        "divergence over the whole vocabulary"
    )

    @cached_property
    def bounds(self) -> Bounds:
        """Thresholds of agreement."""
        both = ([row.exact_ours for row in self.rows], [row.exact_theirs for row in self.rows])
        ours_kl, theirs_kl = (mean(its.kl if its else None for its in side) for side in both)
        ours, theirs = self.ours.arithmetic or "int8", self.reference.arithmetic or "int8"
        return bounds_for(ours, theirs, ours_kl=ours_kl, theirs_kl=theirs_kl)


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of *values*; ``None`` if there are none, or one is missing."""
    known = list(values)
    return fmean(one for one in known if one is not None) if known and None not in known else None
