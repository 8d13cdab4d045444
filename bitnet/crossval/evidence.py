"""Everything a cross-validation found out, as one record: the verdict is derived from it alone.

``report.json`` is this record; :mod:`bitnet.crossval.judge` reads nothing else, so whoever has the
file can derive the verdict again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bitnet.crossval.answers import Answered
from bitnet.crossval.bisect import Bisection
from bitnet.crossval.bounds import Bounds
from bitnet.crossval.compare import Greedy, Row, TokenizerParity
from bitnet.crossval.receipt import ComputePath
from bitnet.crossval.trace import Arithmetic

__all__ = [
    "Evidence",
    "Machine",
    "ModelFacts",
    "OurEngine",
    "Plan",
    "Prompt",
    "ReferenceFacts",
    "State",
    "TokenizerFacts",
]

# missing: not installed. failed: it is there and crashed, refused the model or took too long.
State = Literal["answered", "missing", "failed"]


@dataclass(frozen=True)
class Plan:
    """The checks that were to be made.

    Attributes:
        prompts: texts that are run.
        positions: tokens of them that are compared.
        positions_there: tokens they have.
        greedy: steps of each continuation; 0: none were wanted.
        continuations: prompts that are continued.
        texts: texts that are tokenized by both; 0: the reference has no tokenizer of its own.
        tokenizer_only: nothing else was to be compared.
        bisect: intermediates were to be compared.
        require_real: only the compiled kernels will do.
    """

    prompts: int
    positions: int
    positions_there: int
    greedy: int
    continuations: int
    texts: int
    tokenizer_only: bool = False
    bisect: bool = False
    require_real: bool = False


@dataclass(frozen=True)
class ModelFacts:
    """The model that was judged.

    Attributes:
        file: its name, without folders.
        sha256: of the file; of a folder, over names and digests of its weights.
        architecture: as the file says.
        origin: where it comes from, for people.
        attestation: digest of what it is by content, empty where that is not known.
        original: the pinned model it has the content of, empty where it is none.
        problem: how it differs from the pinned model that it claims to be.
        ignored_keys: of its keys, those that were treated as if they were not there.
    """

    file: str
    sha256: str
    architecture: str
    origin: str = "a file"
    attestation: str = ""
    original: str = ""
    problem: str = ""
    ignored_keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class TokenizerFacts:
    """The tokenizer that cut the prompts.

    Attributes:
        sha256: its fingerprint.
        source: the file it comes from, without folders.
        vocab_size: tokens it has.
    """

    sha256: str
    source: str
    vocab_size: int


@dataclass(frozen=True)
class OurEngine:
    """What computed on our side.

    Attributes:
        engine: ``bitnet``.
        version: of this package.
        backend: name of the backend the model is bound to.
        arithmetic: how it multiplies; ``None`` where nothing did.
        kernels: calls of each kernel, as counted inside the backend.
        module_sha256: of the compiled module, empty where there is none.
    """

    engine: str
    version: str
    backend: str
    arithmetic: Arithmetic | None
    kernels: dict[str, int] = field(default_factory=dict)
    module_sha256: str = ""


@dataclass(frozen=True)
class ReferenceFacts:
    """The engine that judges.

    Attributes:
        name: as the command line calls it.
        state: whether it answered.
        said: why it did not answer.
        hint: what helps then.
        engine: its own name.
        version: of the engine.
        arithmetic: how it multiplies.
        library: file that computed, without folders.
        library_sha256: of that file.
        independent: it is not this project's code.
        live: it ran the same file as we did, here and at this time; a recording did not.
        model_sha256: of the file it ran, where that is known.
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
    model_sha256: str = ""


@dataclass(frozen=True)
class Machine:
    """Where it ran.

    Attributes:
        system: operating system.
        machine: architecture of the processor.
        python: version.
        cpu_features: instruction sets that the compiled module can use there.
    """

    system: str
    machine: str
    python: str
    cpu_features: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prompt:
    """A text that was run.

    Attributes:
        text: the text.
        ids: its tokens, as far as they were run.
        tokens: what each of them spells.
    """

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """One cross-validation.

    Attributes:
        schema_version: of this form.
        created: when, as ISO 8601 in UTC.
        plan: what was to be checked.
        compute_path: what really computed on our side.
        model: the model.
        tokenizer: its tokenizer.
        ours: our engine.
        reference: the other.
        machine: where both ran.
        bounds: what still counts as agreement.
        answers: how much of what each side was asked it answered.
        tokenizer_parity: text by text; ``None`` where none were compared.
        prompts: what was run.
        rows: position by position.
        greedy: continuation by continuation.
        bisections: where intermediates part.
        spellings: what the tokens spell that an engine preferred somewhere, by id.
        kl: what the divergences are, for people.
    """

    schema_version: int
    created: str
    plan: Plan
    compute_path: ComputePath
    model: ModelFacts
    tokenizer: TokenizerFacts
    ours: OurEngine
    reference: ReferenceFacts
    machine: Machine
    bounds: Bounds
    answers: tuple[Answered, ...] = ()
    tokenizer_parity: TokenizerParity | None = None
    prompts: tuple[Prompt, ...] = ()
    rows: tuple[Row, ...] = ()
    greedy: tuple[Greedy, ...] = ()
    bisections: tuple[Bisection, ...] = ()
    spellings: dict[str, str] = field(default_factory=dict)
    kl: str = (
        "in nats, over the stored tokens with all others as one event: never more than the "
        "divergence over the whole vocabulary"
    )
