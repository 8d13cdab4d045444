"""Run a cross-validation: ask both sides, compare, record the evidence."""

from __future__ import annotations

import logging
import platform
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bitnet
from bitnet import native
from bitnet.base.cores import thread_count
from bitnet.base.errors import ReferenceUnavailable
from bitnet.base.files import digest_of
from bitnet.crossval.answers import Answered, measure_completeness
from bitnet.crossval.asking import PROMPTS, our_trace, question_for
from bitnet.crossval.bounds import near_tie_for
from bitnet.crossval.compare import compare
from bitnet.crossval.evidence import (
    Evidence,
    OurEngine,
    Plan,
    Prompt,
    ReferenceFacts,
    TestedModel,
)
from bitnet.crossval.operations import check_operations, our_intermediates
from bitnet.crossval.options import CrossvalOptions
from bitnet.crossval.receipt import Receipt
from bitnet.crossval.references import EngineFailed, Question, Reference
from bitnet.crossval.tokens import texts_for, tokenizer_parity
from bitnet.crossval.trace import Trace, positions_from
from bitnet.kernels.reference import ReferenceOps
from bitnet.quants import registry
from bitnet.tokenizer.load import read_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bitnet.crossval.compare import Greedy, Row
    from bitnet.crossval.operations import Operations
    from bitnet.crossval.trace import Arithmetic
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.models.transformer import Model
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.tokenizer import Tokenizer

__all__ = [
    "compare_tokens",
    "cross_validate",
    "recordable",
]

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 5
_TOKENS_ONLY = CrossvalOptions(tokenizer_only=True)
_FLOATS = ("F32", "F16", "BF16")


def cross_validate(
    model: LanguageModel,
    checkpoint: Checkpoint,
    reference: Reference,
    options: CrossvalOptions,
    *,
    texts: Sequence[str] = PROMPTS,
    facts: TestedModel | None = None,
    notify: Callable[[str], None] = logger.info,
) -> tuple[Evidence, Trace | None]:
    """Compare *model* with *reference*.

    Returns:
        All results, and the reference's trace with the float64 pass, None if it did not answer.

    Args:
        model: the model under test.
        checkpoint: the same model on disk.
        reference: the reference engine.
        options: how much to compare.
        texts: the prompts; a recording brings its own.
        facts: description of the model, if known already.
        notify: called with the current step.
    """
    facts = facts or TestedModel(
        checkpoint.path.name, read_files(checkpoint).digest, checkpoint.architecture
    )
    receipt = Receipt(model.engine.model, model.tokenizer)
    mine = _arithmetic(model.engine.model, checkpoint)
    question = question_for(model, checkpoint, reference, texts, options)
    question = replace(question, model_sha256=facts.sha256, notify=notify)
    plan = _plan(texts, question, options)
    evidence = _evidence(model.tokenizer, facts, reference, plan, receipt)
    theirs, about = _ask(reference, question)
    if theirs is None:
        return replace(evidence, reference=about), None
    notify("running the model")
    receipt.begin()
    ours = our_trace(model, question, arithmetic=mine)
    receipt.end()
    evidence = replace(
        evidence,
        compute_path=receipt.compute_path,
        ours=replace(evidence.ours, arithmetic=mine, kernels=receipt.kernels),
        reference=about,
        tokenizer_parity=tokenizer_parity(model.tokenizer, theirs, question.texts),
    )
    evidence, exact = _compare(evidence, model, question, ours, theirs)
    if reference.live and question.prompts:
        notify("comparing operations")
        operations = _operations(model, reference, question, ours)
        evidence = replace(evidence, operations=operations)
    return evidence, replace(theirs, exact=exact)


def _operations(
    model: LanguageModel, reference: Reference, question: Question, ours: Trace
) -> tuple[Operations, ...]:
    """Our operations, and the reference's if it gives intermediates, on the longest prompt."""
    checkpoint, exact = question.checkpoint, question.exact.model
    longest = max(ours.prompts, key=lambda prompt: len(prompt.ids))
    if not longest.ids or longest.error:
        return ()
    prompts = ((longest.prompt, longest.ids),)
    alone = replace(question, prompts=prompts, firsts=(), continued=(), texts=(), greedy=0)
    traced = our_intermediates(model.engine.model, longest.ids, ours.arithmetic)
    logits = positions_from(traced.after["result_output"])
    count = min(len(logits), len(longest.positions))
    # Products of NumPy depend on the number of their rows in the last bits; compiled ones do not.
    same = isinstance(model.engine.model.ops, ReferenceOps)
    same = same or logits[-count:] == list(longest.positions[-count:])
    mine = check_operations(exact, checkpoint, traced, half_cache=False)
    found = [replace(mine, is_compared=count > 0 and same)]
    theirs = reference.intermediates(alone)
    if theirs is not None:
        found.append(check_operations(exact, checkpoint, theirs, half_cache=True))
    return tuple(found)


def compare_tokens(
    tokenizer: Tokenizer,
    checkpoint: Checkpoint,
    reference: Reference,
    *,
    options: CrossvalOptions = _TOKENS_ONLY,
    texts: Sequence[str] = PROMPTS,
    facts: TestedModel | None = None,
) -> tuple[Evidence, Trace | None]:
    """Compare *tokenizer* with that of *reference*; weights are not read and not needed.

    Returns:
        As :func:`cross_validate`.

    Args:
        tokenizer: the tokenizer under test.
        checkpoint: its model; a vocabulary without weights suffices.
        reference: the reference engine.
        options: as they are recorded in the plan.
        texts: the prompts, which are compared besides the probe texts.
        facts: description of the model, if known already.
    """
    facts = facts or TestedModel(
        checkpoint.path.name, read_files(checkpoint).digest, checkpoint.architecture
    )
    receipt = Receipt(None, tokenizer)
    question = Question(
        checkpoint,
        texts=texts_for(reference, texts),
        threads=thread_count(),
        model_sha256=facts.sha256,
    )
    plan = Plan(
        *(tuple(texts), options.max_positions, 0, 0, 0, 0, 0, len(question.texts)),
        tokenizer_only=True,
    )
    evidence = _evidence(tokenizer, facts, reference, plan, receipt)
    if not question.texts:
        nothing = measure_completeness("reference", Trace(reference.name), ())
        return replace(evidence, answers=(nothing,)), None
    theirs, about = _ask(reference, question)
    if theirs is None:
        return replace(evidence, reference=about), None
    evidence = replace(
        evidence,
        reference=about,
        answers=(_answer_of_reference(theirs, question, tokenizer.vocab_size),),
        tokenizer_parity=tokenizer_parity(tokenizer, theirs, question.texts),
    )
    return evidence, theirs


def recordable(trace: Trace, model: LanguageModel) -> Trace:
    """*trace* with all ids of its prompts, including later ones than compared, and their texts.

    Texts are included if the reference decoded the ids of every prompt.
    """
    prompts = tuple(
        replace(prompt, ids=tuple(model.tokenizer.encode(prompt.prompt)), asked=len(prompt.ids))
        for prompt in trace.prompts
        if not prompt.error
    )
    texts = dict(zip(trace.tokenized or (), trace.decoded or (), strict=False))
    decoded = tuple(texts[prompt.ids] for prompt in prompts if prompt.ids in texts)
    whole = len(decoded) == len(prompts)
    return replace(trace, prompts=prompts, tokenized=None, decoded=decoded if whole else None)


def _plan(texts: Sequence[str], question: Question, options: CrossvalOptions) -> Plan:
    return Plan(
        asked=tuple(texts),
        limit=options.max_positions,
        prompts=len(question.prompts),
        positions=sum(len(ids) for _, ids in question.prompts) - sum(question.starts),
        positions_there=question.positions_there,
        greedy=question.greedy or options.greedy,
        continuations=sum(question.continued),
        texts=len(question.texts),
        require_real=options.require_real,
    )


def _ask(reference: Reference, question: Question) -> tuple[Trace | None, ReferenceFacts]:
    """The reference's answer, or the reason why there is none."""
    about = _about(reference, None)
    try:
        theirs = reference.trace(question)
    except ReferenceUnavailable as error:
        return None, replace(about, state="missing", said=error.message, hint=error.hint)
    except EngineFailed as error:
        return None, replace(about, state="failed", said=error.message, hint=error.hint)
    return theirs, _about(reference, theirs)


def _about(reference: Reference, theirs: Trace | None) -> ReferenceFacts:
    facts = ReferenceFacts(
        reference.name,
        "answered",
        independent=reference.independent,
        live=reference.live,
        float64=reference.recording is None or reference.recording.exact is not None,
    )
    if theirs is None:
        return facts
    return replace(
        facts,
        engine=theirs.engine,
        version=theirs.version,
        arithmetic=theirs.arithmetic,
        library=theirs.library,
        library_sha256=theirs.library_sha256,
        model_sha256="" if reference.live else theirs.model_sha256,
    )


def _evidence(
    tokenizer: Tokenizer,
    facts: TestedModel,
    reference: Reference,
    plan: Plan,
    receipt: Receipt,
) -> Evidence:
    """Facts known before the comparison."""
    return Evidence(
        schema_version=SCHEMA_VERSION,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        plan=plan,
        compute_path="none",
        model=replace(
            facts,
            tokenizer=_without_folders(tokenizer.source),
            tokenizer_sha256=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
        ),
        ours=OurEngine(
            "bitnet", bitnet.__version__, receipt.backend, None, module_sha256=_module_digest()
        ),
        reference=_about(reference, None),
        machine={
            "system": platform.system(),
            "processor": platform.machine(),
            "python": platform.python_version(),
            "features": ", ".join(native.cpu_features()),
        },
    )


def _without_folders(source: str) -> str:
    """*source* without folders of the machine."""
    words = source.replace("\\", "/").split(" ")
    return " ".join(word.rpartition("/")[2] if "/" in word else word for word in words)


def _module_digest() -> str:
    """SHA-256 of the native module, empty without one."""
    module = native.module()
    file = getattr(module, "__file__", None)
    return digest_of(Path(file)) if file else ""


def _compare(
    evidence: Evidence, model: LanguageModel, question: Question, ours: Trace, theirs: Trace
) -> tuple[Evidence, Trace | None]:
    """*evidence* with both traces compared with each other and with the float64 pass, and that.

    A recording brings its own: today's would run the very file in question, and is only compared
    with the recorded one.
    """
    independent, live = evidence.reference.independent, evidence.reference.live
    steps, vocabulary = question.steps, model.config.vocab_size
    asked, starts = question.prompts, question.starts
    answers = [
        measure_completeness(
            "ours", ours, asked, firsts=starts, steps=steps, vocabulary=vocabulary
        ),
        _answer_of_reference(theirs, question, vocabulary),
    ]
    exact: Trace | None = theirs.exact
    today: Trace | None = None
    if live:
        exact = question.exact.trace(asked, starts) if independent else theirs
    elif exact is not None:
        today = question.exact.trace(asked, starts)
    if exact is not None:
        steps = () if independent else steps
        answers.append(
            measure_completeness(
                "float64", exact, asked, firsts=starts, steps=steps, vocabulary=vocabulary
            )
        )
    rows, greedy = compare(ours, theirs, exact=exact, today=today)
    if live:
        near_tie = near_tie_for(ours.arithmetic, theirs.arithmetic)
        greedy = _arbitrate(greedy, ours, question, near_tie)
    evidence = replace(
        evidence,
        answers=tuple(answers),
        rows=rows,
        greedy=greedy,
        **_texts_of(model.tokenizer, question, rows),
    )
    return evidence, exact


def _texts_of(tokenizer: Tokenizer, question: Question, rows: Sequence[Row]) -> dict[str, Any]:
    """Text of the prompts' tokens, and of those that an engine preferred."""
    prompts = tuple(
        Prompt(text, ids, first, tuple(tokenizer.decode([token]) for token in ids))
        for (text, ids), first in zip(question.prompts, question.starts, strict=True)
    )
    best = {token for row in rows for token in (row.ours, row.theirs, row.exact)}
    known = sorted(token for token in best if token is not None)
    return {"prompts": prompts, "spellings": {str(one): tokenizer.decode([one]) for one in known}}


def _answer_of_reference(theirs: Trace, question: Question, vocabulary: int) -> Answered:
    # A reference without a tokenizer was not asked for ids: that check is not run.
    texts = 0 if theirs.tokenized is None else len(question.texts)
    return measure_completeness(
        "reference",
        theirs,
        question.prompts,
        firsts=question.starts,
        steps=question.steps,
        texts=texts,
        vocabulary=vocabulary,
    )


def _arithmetic(model: Model, checkpoint: Checkpoint) -> Arithmetic:
    """Arithmetic of *model*: 8-bit activations on the native backend and for ternary weights."""
    ternary = any(registry.rounds_activations(one) for one in checkpoint.weights.values())
    floats = all(one.quant.name in _FLOATS for one in checkpoint.weights.values())
    if ternary:
        return "int8"
    return "float" if floats or isinstance(model.ops, ReferenceOps) else "int8"


def _arbitrate(
    greedy: Sequence[Greedy], ours: Trace, question: Question, near_tie: float
) -> tuple[Greedy, ...]:
    """*greedy* with the float64 pass asked where continuations part for good."""
    open_ones = [
        continuation
        for continuation in greedy
        if continuation.gap is not None and continuation.gap >= near_tie
    ]
    prompts = [ours.prompts[continuation.prompt] for continuation in open_ones]
    shared = [
        (prompt.prompt, (*prompt.ids, *prompt.greedy[: continuation.agreed]))
        for continuation, prompt in zip(open_ones, prompts, strict=True)
    ]
    lengths = [len(ids) - 1 for _, ids in shared]
    exact = question.exact.trace(shared, lengths)
    decided = {
        continuation.prompt: truth.positions[-1].ids[:1] == (prompt.greedy[continuation.agreed],)
        for continuation, prompt, truth in zip(open_ones, prompts, exact.prompts, strict=True)
    }
    return tuple(
        replace(continuation, exact_agrees=decided.get(continuation.prompt))
        for continuation in greedy
    )
