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
    """Plan of a comparison, made before any engine runs."""

    against: str  # name of the reference on the command line
    independent: bool  # the reference is not this project's code
    live: bool  # it runs the same file here and now; a recording does not
    float64: bool  # a float64 pass is there to judge it: today's, or one that was recorded with it
    asked: tuple[str, ...]  # the texts of all prompts, as they were given
    limit: int  # positions to compare at most
    greedy: int  # steps of each continuation; 0: none
    texts: int  # texts that are tokenized by both; 0: the reference has no tokenizer of its own
    tokenizer_only: bool = False  # nothing else is compared
    require_real: bool = False  # only the native kernels are accepted
    recorded_sha256: str = ""  # of the file that a recording is of, if known


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
    # text of each token that an engine preferred somewhere, by id
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
