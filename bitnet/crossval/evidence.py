"""All results of a cross-validation as one record, from which the verdict is derived.

``report.json`` is this record; :mod:`bitnet.crossval.judge` reads nothing else, so anyone with the
file can derive the verdict again.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from bitnet.base.findings import Finding
from bitnet.crossval.compare import Row, TokenizerParity
from bitnet.crossval.operations import Operation
from bitnet.crossval.trace import EngineFacts, Prompt
from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.transformer import Model

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bitnet.tokenizer import Tokenizer

SCHEMA_VERSION = 7  # of a report

# real: the native kernels; reference: our NumPy backend; mock: a mock tokenizer;
# none: nothing was counted.
ComputePath = Literal["real", "reference", "mock", "none"]

_MOCK = "mock"  # fingerprint of the tokenizer that treats bytes as tokens


def read_counters(model: Model) -> dict[str, int]:
    """Calls of each kernel so far; empty for a backend that is not ours."""
    if type(model.ops) is ReferenceOps:
        return dict(ReferenceOps.counters(model.ops))
    if type(model.ops) is not NativeOps:
        return {}
    # Read from the extension itself: an attribute of an object can be replaced.
    counters: Any = getattr(sys.modules.get("bitnet._native"), "kernel_counters", None)
    return dict(counters()) if type(counters).__module__ == "nanobind" else {}


def kernels_since(model: Model, before: Mapping[str, int]) -> dict[str, int]:
    """Calls of each kernel that ran since the counters read *before*, by name."""
    calls = {name: count - before.get(name, 0) for name, count in read_counters(model).items()}
    return {name: count for name, count in sorted(calls.items()) if count > 0}


def compute_path(model: Model, tokenizer: Tokenizer, kernels: Mapping[str, int]) -> ComputePath:
    """Kind of backend that computed a pass of *model* with calls of *kernels*.

    It is ``real`` only if the native module itself counted at least one product of weights per
    layer, for a model bound to exactly our native backend, with a real tokenizer. This protects
    against mistakes: a mock, a backend replaced by a slower one, missing kernels. It does not
    protect against someone who controls this Python process and can replace the reading itself;
    ``crossval --check --replay`` on another machine does.
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
    """Plan of a comparison, made before any engine runs.

    Attributes:
        against: name of the reference on the command line.
        independent: the reference is not this project's code.
        live: it runs the same file here and now; a recording does not.
        float64: a float64 pass is there to judge it: today's, or one that was recorded with it.
        asked: the texts of all prompts, as they were given.
        limit: positions to compare at most.
        greedy: steps of each continuation; 0: none.
        texts: texts that are tokenized by both; 0: the reference has no tokenizer of its own.
        tokenizer_only: nothing else is compared.
        require_real: only the native kernels are accepted.
        recorded_sha256: of the file that a recording is of, if known.
    """

    against: str
    independent: bool
    live: bool
    float64: bool
    asked: tuple[str, ...]
    limit: int
    greedy: int
    texts: int
    tokenizer_only: bool = False
    require_real: bool = False
    recorded_sha256: str = ""


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
        layers: of the model; 0 if its weights are not read.
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
    layers: int = 0


@dataclass(frozen=True)
class Evidence:
    """Record of one cross-validation.

    Attributes:
        schema_version: of this record.
        created: time in ISO 8601, UTC.
        plan: what was planned.
        machine: ``system``, ``processor``, ``python`` and ``features``, the instruction sets that
            the native module can use, of the machine that ran both.
        model: the model.
        ours: our engine; its library is the native module.
        backend: compute backend of the model.
        reference: the reference engine.
        no_answer: why the reference did not answer: skipped if it is not installed, failed if it
            crashed, refused the model or took too long.
        compute_path: kind of backend that computed our side.
        kernels: calls of each kernel, as counted inside the backend.
        faults: of the answers of ``ours``, ``reference`` and ``float64``; empty for a whole answer.
        tokenizer_parity: text by text; ``None`` if none were compared.
        prompts: texts to run.
        rows: position by position.
        greedy: continuation by continuation, the first step where they part or the last one.
        operations: of each engine that gives intermediates, by its name.
        spellings: text of each token that an engine preferred somewhere, by id.
    """

    schema_version: int
    created: str
    plan: Plan
    machine: dict[str, str]
    model: TestedModel
    ours: EngineFacts
    backend: str
    reference: EngineFacts
    no_answer: Finding | None = None
    compute_path: ComputePath = "none"
    kernels: dict[str, int] = field(default_factory=dict)
    faults: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tokenizer_parity: TokenizerParity | None = None
    prompts: tuple[Prompt, ...] = ()
    rows: tuple[Row, ...] = ()
    greedy: tuple[Row, ...] = ()
    operations: dict[str, tuple[Operation, ...]] = field(default_factory=dict)
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
