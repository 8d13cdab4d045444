"""A cross-validation from its plan to its evidence.

Plan what is compared, ask the reference, this runtime and the float64 pass, and record what their
answers say about each other. :mod:`bitnet.crossval.judge` derives the verdict from that record.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import ReferenceUnavailable
from bitnet.base.findings import Finding
from bitnet.base.machine import thread_count
from bitnet.crossval.ask import time_limit
from bitnet.crossval.compare import compare, faults_of, tokenizer_parity
from bitnet.crossval.evidence import Evidence, TestedModel
from bitnet.crossval.float64 import Float64
from bitnet.crossval.judge import near_tie
from bitnet.crossval.operations import (
    check_operations,
    list_planned,
    missing_operations,
    our_intermediates,
    reference_operations,
)
from bitnet.crossval.ours import compute_path, kernels_since, our_trace, read_counters
from bitnet.crossval.plan import PROMPTS, begin_evidence, prompts_for, texts_for
from bitnet.crossval.recording import changes_of
from bitnet.crossval.records import from_json, to_json
from bitnet.crossval.trace import EngineFailed, Prompt, Question, positions_from
from bitnet.formats.generation import GenerationSettings
from bitnet.kernels.reference import ReferenceOps
from bitnet.tokenizer.load import read_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from bitnet.base.findings import Severity
    from bitnet.crossval.crossval_options import CrossvalOptions
    from bitnet.crossval.evidence import Row
    from bitnet.crossval.operations import Operation
    from bitnet.crossval.trace import PromptTrace, Reference, Trace
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.models.transformer import Model
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# The folders of an absolute path that is alone in quotes, or has no spaces.
_FOLDERS = re.compile(
    r"(?<=')(?:/(?:[^/'\n]+/)+|[A-Za-z]:\\(?:[^\\'\n]+\\)+)(?=[^/\\'\n]*')"
    r"|(?:file://|(?<![\w./:]))/(?:[^/\s'\"]+/)+"
    r"|(?<![\w./:])[A-Za-z]:\\(?:[^\\\s'\"]+\\)+"
)


# The checks report values that are not finite; NumPy's warnings would repeat it.
@np.errstate(invalid="ignore", over="ignore")
def cross_validate(
    model: LanguageModel | None,
    checkpoint: Checkpoint,
    reference: Reference,
    options: CrossvalOptions,
    *,
    tokenizer: Tokenizer | None = None,
    texts: Sequence[str] = PROMPTS,
    facts: TestedModel | None = None,
    notify: Callable[[str], None] = logger.info,
) -> tuple[Evidence, Trace | None]:
    """Compare *model*, or a *tokenizer* alone, with *reference*.

    Args:
        model: the loaded model; None compares the tokenizers alone, without reading any weights.
        checkpoint: the files of the model.
        reference: the engine to compare with, or a recording of one.
        options: the user's choice of what is compared.
        tokenizer: the tokenizer if *model* is None; a model has its own.
        texts: prompts; a recording brings its own instead.
        facts: description of the model; by default made from *checkpoint*.
        notify: called with the current step.

    Returns:
        The evidence, and the reference's trace with the float64 pass, None if the reference did
        not answer.
    """
    tokenizer = model.tokenizer if model is not None else tokenizer
    assert tokenizer is not None  # callers pass a model or a tokenizer
    if facts is None:
        digest = read_files(checkpoint).digest
        facts = TestedModel(checkpoint.path.name, digest, checkpoint.architecture)

    # Plan: what every engine is asked.
    prompts: tuple[Prompt, ...] = ()
    if model is not None:
        prompts = prompts_for(model, reference.recording, texts, options)
    to_tokenize = texts_for(reference, tokenizer, texts)
    limit_s = time_limit(checkpoint, options.reference_timeout)
    generation = GenerationSettings()
    if model is not None:
        generation = model.generation.within(model.config.vocab_size)
    question = Question(
        checkpoint,
        prompts,
        to_tokenize,
        threads=thread_count(),
        limit_s=limit_s,
        notify=notify,
        generation=generation,
    )
    evidence = begin_evidence(model, tokenizer, reference, question, options, facts, texts)

    # Ask the reference. Without its answer nothing can be compared.
    try:
        theirs = reference.trace(question)
    except (ReferenceUnavailable, EngineFailed) as error:
        severity: Severity = "skipped" if isinstance(error, ReferenceUnavailable) else "failed"
        no_answer = Finding(severity, "reference", error.message, error.hint)
        return _as_reported(replace(evidence, no_answer=no_answer), checkpoint), None
    evidence = _with_reference(evidence, theirs, question, tokenizer, model)
    if model is None:
        return _as_reported(evidence, checkpoint), theirs

    # Ask this runtime and the float64 pass, and compare all answers.
    evidence, exact = _with_model(evidence, theirs, question, reference, model)
    theirs = replace(theirs, exact=exact)
    if evidence.plan.live:
        theirs = replace(theirs, model_sha256=facts.sha256)
    return _as_reported(evidence, checkpoint), theirs


def _as_reported(evidence: Evidence, checkpoint: Checkpoint) -> Evidence:
    """*evidence* as in a report: with rounded numbers, and without folders of the machine."""
    folder = f"{checkpoint.path.absolute().parent}{os.sep}"
    no_answer = evidence.no_answer
    if no_answer is not None:
        text = without_folders(no_answer.text, folder)
        hint = without_folders(no_answer.hint, folder)
        no_answer = replace(no_answer, text=text, hint=hint)
    faults = {
        side: tuple(without_folders(fault, folder) for fault in texts)
        for side, texts in evidence.faults.items()
    }
    evidence = replace(evidence, no_answer=no_answer, faults=faults)
    return from_json(Evidence, to_json(evidence))


def without_folders(text: str, folder: str = "") -> str:
    """*text* of an error or a hint with the names of files instead of their paths.

    *folder* is one that is known, and may have spaces.
    """
    return _FOLDERS.sub("", text.replace(folder, ""))


def _with_reference(
    evidence: Evidence,
    theirs: Trace,
    question: Question,
    tokenizer: Tokenizer,
    model: LanguageModel | None,
) -> Evidence:
    """*evidence* with the faults of the answer *theirs*, and with both tokenizers compared."""
    # A reference without a tokenizer was not asked for ids: that check is not run.
    count = 0 if theirs.tokenized is None else len(question.texts)
    size = tokenizer.vocab_size if model is None else model.config.vocab_size
    return replace(
        evidence,
        reference=theirs.engine,
        faults={"reference": faults_of(theirs, question.prompts, texts=count, vocabulary=size)},
        tokenizer_parity=tokenizer_parity(tokenizer, theirs, question.texts),
    )


def _with_model(
    evidence: Evidence,
    theirs: Trace,
    question: Question,
    reference: Reference,
    model: LanguageModel,
) -> tuple[Evidence, Trace | None]:
    """*evidence* with *model* and the float64 pass compared with *theirs*; and that pass.

    The pass is None for a recording without one.
    """
    graph = model.engine.model
    float64 = reference if isinstance(reference, Float64) else Float64()

    # Ask this runtime.
    question.notify("running the model")
    before = read_counters(graph)
    ours = our_trace(model, question)
    kernels = kernels_since(graph, before)
    our_engine = replace(evidence.ours, arithmetic=ours.engine.arithmetic)
    evidence = replace(evidence, ours=our_engine)
    size = model.config.vocab_size
    faults = evidence.faults | {"ours": faults_of(ours, question.prompts, vocabulary=size)}

    # Ask the float64 pass.
    exact, changes = _ask_float64(float64, reference, theirs, question)
    if exact is not None:
        prompts = [replace(prompt, steps=0) for prompt in question.prompts]
        faults["float64"] = (*faults_of(exact, prompts, vocabulary=size), *changes)

    # Compare position by position, continuation by continuation, operation by operation.
    rows, greedy = compare(ours, theirs, exact=exact)
    operations: dict[str, tuple[Operation, ...]] = {}
    if evidence.plan.live and question.prompts:
        tie = near_tie(evidence)
        greedy = tuple(
            _arbitrate(row, ours.prompts[row.prompt], tie, float64, question) for row in greedy
        )
        question.notify("comparing operations")
        longest = max(ours.prompts, key=lambda answer: len(answer.ids))
        if longest.ids and not longest.error:
            operations, problems = _compare_operations(
                longest, graph, float64, reference, evidence, question
            )
            for side, problem in problems.items():
                faults[side] += (problem,)

    tokens = {id for prompt in question.prompts for id in prompt.ids}
    tokens |= {id for row in rows for id in (row.ours, row.theirs) if id is not None}
    # The model may have rows behind the tokenizer's vocabulary, and an engine may give any number.
    spelled = sorted(id for id in tokens if 0 <= id < model.tokenizer.vocab_size)
    evidence = replace(
        evidence,
        compute_path=compute_path(graph, model.tokenizer, kernels),
        kernels=kernels,
        faults=faults,
        rows=rows,
        greedy=greedy,
        operations=operations,
        spellings={str(id): model.tokenizer.decode([id]) for id in spelled},
    )
    return evidence, exact


def _ask_float64(
    float64: Float64, reference: Reference, theirs: Trace, question: Question
) -> tuple[Trace | None, tuple[str, ...]]:
    """The float64 pass that judges both sides, and how today's pass differs from it.

    A recording brings its own pass. It is used only if the pass over the file in question gives the
    same today; every difference is a fault. The pass is None for a recording without one.
    """
    if reference is float64:
        # Its continuations are the reference's answers, not part of the pass.
        prompts = tuple(replace(prompt, greedy=(), top2_gaps=()) for prompt in theirs.prompts)
        return replace(theirs, prompts=prompts), ()
    without_steps = tuple(replace(prompt, steps=0) for prompt in question.prompts)
    positions_only = replace(question, prompts=without_steps)
    if reference.recording is None:
        return float64.trace(positions_only), ()
    if theirs.exact is None:
        return None, ()
    return theirs.exact, changes_of(float64.trace(positions_only), theirs.exact)


def _arbitrate(
    row: Row, answer: PromptTrace, tie: float, float64: Float64, question: Question
) -> Row:
    """*row* of a continuation, with the float64 pass's token where the engines really differ.

    Where they agree, or the reference's two best tokens are within *tie*, the row is unchanged.
    *answer* is ours to the prompt.
    """
    if row.agrees or row.gap is None or row.gap < tie:
        return row
    ids = (*answer.ids, *answer.greedy[: row.position])
    left_out = GenerationSettings(suppressed=question.generation.list_suppressed(row.position))
    prompt = Prompt(answer.prompt, ids, first=len(ids) - 1, steps=1)
    next_token = replace(question, prompts=(prompt,), generation=left_out)
    (exact,) = float64.trace(next_token).prompts
    return replace(row, exact=exact.greedy[0] if exact.greedy else None)


def _compare_operations(
    answer: PromptTrace,
    graph: Model,
    float64: Float64,
    reference: Reference,
    evidence: Evidence,
    question: Question,
) -> tuple[dict[str, tuple[Operation, ...]], dict[str, str]]:
    """Operations of a pass over the prompt of our *answer*, by engine; and faults, by side.

    The engines are ours and the reference, if it returns intermediates.
    """
    checkpoint = question.checkpoint
    ids = answer.ids
    exact = float64.model(checkpoint)
    planned_names = list_planned(exact.program)
    problems: dict[str, str] = {}

    traced = our_intermediates(graph, ids)
    if not _has_same_logits(graph, traced["result_output"], answer):
        problems["ours"] = "other logits with intermediates than without them"
    arithmetic = evidence.ours.arithmetic
    steps = check_operations(
        exact, checkpoint, ids, traced, arithmetic=arithmetic, half_cache=False
    )
    missing = missing_operations(steps, planned_names, all_of_them=True)
    operations = {"bitnet": (*steps, *missing)}

    one_pass = replace(question, prompts=(Prompt(answer.prompt, ids),), texts=())
    try:
        theirs = reference_operations(reference, one_pass, exact)
    except EngineFailed as error:
        problems["reference"] = f"no intermediates: {error.message}"
        return operations, problems
    if theirs is not None:
        missing = missing_operations(theirs, planned_names, all_of_them=False)
        operations[reference.name] = (*theirs, *missing)
    return operations, problems


def _has_same_logits(graph: Model, traced: NDArray[Any], answer: PromptTrace) -> bool:
    """True if the *traced* logits are those of the last positions of *answer*, bit by bit.

    For the NumPy backend any logits count as the same: the last bits of its products depend on the
    number of rows.
    """
    logits = positions_from(traced)
    count = min(len(logits), len(answer.positions))
    if not count:
        return False
    if isinstance(graph.ops, ReferenceOps):
        return True
    return logits[len(logits) - count :] == list(answer.positions[-count:])
