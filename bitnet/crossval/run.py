"""Run a cross-validation: ask both sides, compare, record the evidence.

Comparisons pair the answers of both sides. A missing answer would silently drop out of these
pairs, so each side is held to the request first.
"""

from __future__ import annotations

import logging
import platform
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bitnet import __version__
from bitnet.base import native
from bitnet.base.errors import BitnetError, ReferenceUnavailable
from bitnet.base.files import digest_of
from bitnet.base.findings import Finding
from bitnet.base.machine import thread_count
from bitnet.crossval.ask import time_limit
from bitnet.crossval.evidence import (
    SCHEMA_VERSION,
    Evidence,
    Plan,
    TestedModel,
    compare,
    compute_path,
    divergence,
    kernels_since,
    read_counters,
    texts_for,
    tokenizer_parity,
)
from bitnet.crossval.judge import near_tie
from bitnet.crossval.operations import (
    check_operations,
    list_planned,
    missing_operations,
    our_intermediates,
    reference_operations,
)
from bitnet.crossval.references import Float64
from bitnet.crossval.trace import (
    EngineFacts,
    EngineFailed,
    Prompt,
    PromptTrace,
    Question,
    Trace,
    from_json,
    positions_from,
    prompt_trace,
    spread,
    to_json,
)
from bitnet.families.blocks import Experts
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.reference import ReferenceOps
from bitnet.quants import registry
from bitnet.runtime.request import Request
from bitnet.tokenizer.load import read_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bitnet.base.findings import Severity
    from bitnet.crossval.evidence import Row
    from bitnet.crossval.operations import Operation
    from bitnet.crossval.options import CrossvalOptions
    from bitnet.crossval.trace import Arithmetic, Reference
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.models.transformer import Model
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.tokenizer import Tokenizer

# Largest KL divergence between two float64 passes over one model, on any machine.
_SAME_PASS = 1e-8
_NO_TOKENS = "it has no tokens"

# Of a longer prompt only the last positions are compared: they attend to all others.
LONG, COMPARED = 128, 48

# Prose, a story, code, a fact with numbers, another language, digits: 137 tokens of SmolLM2's. The
# last has more than 544 of every vocabulary we know, behind the windows of 512 that models have.
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village at the foot of a mountain, there lived a watchmaker who",
    'def fibonacci(n: int) -> int:\n    """Return the n-th Fibonacci number."""\n'
    "    if n < 2:\n        return",
    "Water boils at 100 degrees Celsius at sea level. At an altitude of 3,000 metres it boils at "
    "about",
    "Die Hauptstadt von Deutschland ist Berlin, und die Hauptstadt von Österreich ist",
    "1, 1, 2, 3, 5, 8, 13, 21, 34,",
    files("bitnet.crossval").joinpath("long_prompt.txt").read_text(encoding="utf-8").rstrip(),
)


def prompts_for(
    model: LanguageModel, recording: Trace | None, texts: Sequence[str], options: CrossvalOptions
) -> tuple[Prompt, ...]:
    """The prompts, cut to ``--max-positions`` in all; a *recording* brings its own, whole."""
    if recording is not None:
        return tuple(
            Prompt(it.prompt, it.ids, it.first, len(it.greedy), "" if it.ids else _NO_TOKENS)
            for it in recording.prompts
        )
    whole = [_prompt(model, text, 0 if _has_experts(model) else options.greedy) for text in texts]
    shares = spread([len(it.ids) - it.first for it in whole], options.max_positions)
    prompts = []
    for prompt, share in zip(whole, shares, strict=True):
        if prompt.first and share:
            prompts.append(replace(prompt, first=len(prompt.ids) - share))
        elif share or not prompt.ids:
            prompts.append(replace(prompt, ids=prompt.ids[:share]))
    return tuple(prompts)


def _has_experts(model: LanguageModel) -> bool:
    return any(isinstance(mixer, Experts) for mixer in model.config.mixers())


def _prompt(model: LanguageModel, text: str, steps: int) -> Prompt:
    try:
        ids = tuple(model.tokenizer.encode(text))[: max(model.engine.context - steps, 1)]
    except BitnetError as error:
        return Prompt(text, (), error=f"it cannot be encoded: {error.message}")
    if not ids:
        return Prompt(text, (), error=_NO_TOKENS)
    return Prompt(text, ids, len(ids) - COMPARED if len(ids) > LONG else 0, steps)


def our_trace(model: LanguageModel, question: Question) -> Trace:
    """Answer of *model* to *question*; a failing prompt has an error and does not stop others."""
    arithmetic = _arithmetic(model.engine.model, question.checkpoint)
    engine = EngineFacts("bitnet", __version__, arithmetic)
    return Trace(engine, tuple(_our_prompt(model, prompt) for prompt in question.prompts))


def _arithmetic(model: Model, checkpoint: Checkpoint) -> Arithmetic:
    """Arithmetic of *model*: 8-bit activations on the native backend and for ternary weights."""
    weights = checkpoint.weights.values()
    floats = all(one.quant.name in ("F32", "F16", "BF16") for one in weights)
    is_ternary = any(map(registry.rounds_activations, weights))
    is_float = not is_ternary and (floats or isinstance(model.ops, ReferenceOps))
    return "float" if is_float else "int8"


def _our_prompt(model: LanguageModel, prompt: Prompt) -> PromptTrace:
    ids, size, error = prompt.ids, model.config.vocab_size, prompt.error
    if not error and max(ids) >= size:
        error = f"id {max(ids)} is outside the vocabulary of {size}"
    if error:
        return PromptTrace(prompt.text, ids, error=error, first=prompt.first)
    try:
        cache = KVCache(model.config, len(ids))
        forward = partial(model.engine.model.forward, cache=cache)
        answer = prompt_trace(forward, replace(prompt, steps=0))
        if not prompt.steps:
            return answer
        pieces = list(model.engine.generate(ids, Request(prompt.steps, lookup=0, logprobs=2)))
    except BitnetError as failure:
        return PromptTrace(prompt.text, ids, error=failure.message, first=prompt.first)
    best = [piece.top_logprobs for piece in pieces]
    gaps = tuple(first[1] - second[1] for first, second, *_ in best)
    tokens = tuple(piece.token for piece in pieces if piece.token is not None)
    return replace(answer, greedy=tokens, top2_gaps=gaps)


_LEAST = 10  # tokens stored at a position; fewer than that are not a distribution
_SHOWN = 8


def faults_of(
    trace: Trace, prompts: Sequence[Prompt], *, texts: int = 0, vocabulary: int = _LEAST
) -> tuple[str, ...]:
    """Descriptions of what *trace* lacks or has beyond the request; empty if it is whole.

    *texts* is the number of texts to tokenize.
    """
    faults = []
    if len(trace.prompts) != len(prompts):
        faults.append(f"{len(trace.prompts)} prompts, asked were {len(prompts)}")
    least = min(_LEAST, vocabulary)
    for number, (answer, prompt) in enumerate(zip(trace.prompts, prompts, strict=False)):
        faults += [f"prompt {number}: {fault}" for fault in _faults(answer, prompt, least)]
    tokenized = len(trace.tokenized or ()) if texts else 0
    if tokenized != texts:
        faults.append(f"ids of {tokenized:,} texts, asked were {texts:,}")
    return tuple(faults[:_SHOWN])


def _faults(answer: PromptTrace, prompt: Prompt, least: int) -> Iterator[str]:
    if answer.error:
        yield answer.error
    if not prompt.ids and not answer.error:
        yield "no tokens to run"
    if (answer.ids, answer.first) != (prompt.ids, prompt.first):
        yield "the answer is about other tokens"
    count = len(prompt.ids) - prompt.first
    if len(answer.positions) != count and not answer.error:
        yield f"{len(answer.positions)} distributions for {count} tokens"
    for at, position in enumerate(answer.positions):
        if not position.is_finite:
            yield f"the logits of position {at} are not finite"
            break
        if len(position.ids) < least:
            yield f"{len(position.ids)} tokens stored at position {at}, expected at least {least}"
            break
    if len(answer.greedy) != prompt.steps and not answer.error:
        yield f"a continuation of {len(answer.greedy)} tokens, asked were {prompt.steps}"


logger = logging.getLogger(__name__)


# What is not finite is named by the checks, not by NumPy's warnings.
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

    Also the reference's trace with the float64 pass, None if it did not answer. Without a
    *model* the tokenizers are compared, without reading any weights; *tokenizer* is the model's
    by default. A recording brings *texts* of its own. *facts* describe the model, if known
    already; *notify* is called with the current step.
    """
    tokenizer = model.tokenizer if model is not None else tokenizer
    assert tokenizer is not None  # there is one or the other
    if facts is None:
        digest = read_files(checkpoint).digest
        facts = TestedModel(checkpoint.path.name, digest, checkpoint.architecture)
    prompts = prompts_for(model, reference.recording, texts, options) if model is not None else ()
    to_tokenize = texts_for(reference, tokenizer, texts)
    limit_s = time_limit(checkpoint, options.reference_timeout)
    question = Question(checkpoint, prompts, to_tokenize, thread_count(), limit_s, notify)
    evidence = _plan(model, tokenizer, reference, question, options, facts, texts)
    trace: Trace | None = None
    try:
        trace = reference.trace(question)
    except (ReferenceUnavailable, EngineFailed) as error:
        severity: Severity = "skipped" if isinstance(error, ReferenceUnavailable) else "failed"
        no_answer = Finding(severity, "reference", error.message, error.hint)
        evidence = replace(evidence, no_answer=no_answer)
    else:
        # A reference without a tokenizer was not asked for ids: that check is not run.
        count = 0 if trace.tokenized is None else len(to_tokenize)
        size = tokenizer.vocab_size if model is None else model.config.vocab_size
        evidence = replace(
            evidence,
            reference=trace.engine,
            faults={"reference": faults_of(trace, prompts, texts=count, vocabulary=size)},
            tokenizer_parity=tokenizer_parity(tokenizer, trace, to_tokenize),
        )
        if model is not None:
            evidence, exact = _Comparison(model, reference, question).run(evidence, trace)
            trace = replace(trace, exact=exact)
            if evidence.plan.live:
                trace = replace(trace, model_sha256=facts.sha256)
    return from_json(Evidence, to_json(evidence)), trace  # with its numbers as a report has them


def _plan(
    model: LanguageModel | None,
    tokenizer: Tokenizer,
    reference: Reference,
    question: Question,
    options: CrossvalOptions,
    facts: TestedModel,
    texts: Sequence[str],
) -> Evidence:
    """The plan, and facts known before the comparison."""
    recording, backend = reference.recording, "none"
    if model is not None:  # with the form of its keys and values if it is not the default
        kind = model.config.kv_type
        backend = model.backend if kind == "f16" else f"{model.backend}, {kind} keys and values"
    source = tokenizer.source.replace("\\", "/")  # shown without folders of the machine
    ours = EngineFacts("bitnet", __version__)
    if module := getattr(native.module(), "__file__", None):
        ours = replace(ours, library=Path(module).name, library_sha256=digest_of(Path(module)))
    return Evidence(
        schema_version=SCHEMA_VERSION,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        plan=Plan(
            against=reference.name,
            float64=recording is None or recording.exact is not None,
            asked=tuple(texts),
            limit=options.max_positions,
            greedy=0 if model is None or _has_experts(model) else options.greedy,
            texts=len(question.texts),
            tokenizer_only=model is None,
            require_real=options.require_real,
            recorded_sha256="" if recording is None else recording.model_sha256,
        ),
        machine={
            "system": platform.system(),
            "processor": platform.machine(),
            "python": platform.python_version(),
            "features": ", ".join(native.cpu_features()),
        },
        model=replace(
            facts,
            tokenizer=" ".join(word.rpartition("/")[2] for word in source.split(" ")),
            tokenizer_sha256=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
            layers=0 if model is None else model.config.n_layers,
            has_experts=model is not None and _has_experts(model),
        ),
        ours=ours,
        backend=backend,
        reference=EngineFacts(reference.name),
        prompts=question.prompts,
    )


@dataclass
class _Comparison:
    """A *model* that runs beside a *reference*, on the prompts of a *question*."""

    model: LanguageModel
    reference: Reference
    question: Question

    def run(self, evidence: Evidence, theirs: Trace) -> tuple[Evidence, Trace | None]:
        """*evidence* with all traces compared, and the float64 pass.

        A recording brings its own pass, from which today's, over the file in question, may not
        differ.
        """
        model, reference, question = self.model, self.reference, self.question
        self.graph, self.exact = model.engine.model, Float64()
        question.notify("running the model")
        size, before = model.config.vocab_size, read_counters(self.graph)
        ours = our_trace(model, question)
        kernels = kernels_since(self.graph, before)
        our_engine = replace(evidence.ours, arithmetic=ours.engine.arithmetic)
        evidence = replace(evidence, ours=our_engine)
        alone = replace(question, prompts=tuple(replace(it, steps=0) for it in question.prompts))
        exact = theirs.exact
        if isinstance(reference, Float64):
            prompts = tuple(replace(it, greedy=(), top2_gaps=()) for it in theirs.prompts)
            self.exact, exact = reference, replace(theirs, prompts=prompts)
        elif evidence.plan.live:
            exact = self.exact.trace(alone)
        faults = evidence.faults | {"ours": faults_of(ours, question.prompts, vocabulary=size)}
        if exact is not None:
            faults["float64"] = faults_of(exact, alone.prompts, vocabulary=size)
        if exact is not None and not evidence.plan.live:
            faults["float64"] += changes_of(self.exact.trace(alone), exact)
        rows, greedy = compare(ours, theirs, exact=exact)
        operations: dict[str, tuple[Operation, ...]] = {}
        if evidence.plan.live and question.prompts:
            tie = near_tie(evidence)
            greedy = tuple(self._arbitrate(row, ours.prompts[row.prompt], tie) for row in greedy)
            operations, fault = self._operations(ours)
            faults["ours"] += (fault,) if fault else ()
        tokens = {id for prompt in question.prompts for id in prompt.ids}
        tokens |= {id for row in rows for id in (row.ours, row.theirs) if id is not None}
        return replace(
            evidence,
            compute_path=compute_path(self.graph, model.tokenizer, kernels),
            kernels=kernels,
            faults=faults,
            rows=rows,
            greedy=greedy,
            operations=operations,
            spellings={str(id): model.tokenizer.decode([id]) for id in sorted(tokens)},
        ), exact

    def _arbitrate(self, row: Row, answer: PromptTrace, tie: float) -> Row:
        """A continuation, with the float64 pass asked where it parts for good."""
        if row.agrees or row.gap is None or row.gap < tie:
            return row
        ids = (*answer.ids, *answer.greedy[: row.position])
        alone = replace(self.question, prompts=(Prompt(answer.prompt, ids, len(ids) - 1),))
        (truth,) = self.exact.trace(alone).prompts
        last = truth.positions[-1]
        return replace(row, exact=last.ids[0] if last.is_finite else None)

    def _operations(self, ours: Trace) -> tuple[dict[str, tuple[Operation, ...]], str]:
        """Operations of ours, and of a reference with intermediates, on the longest prompt.

        By engine, with the fault of our intermediates, empty if they are right.
        """
        self.question.notify("comparing operations")
        checkpoint, reference = self.question.checkpoint, self.reference
        longest = max(ours.prompts, key=lambda answer: len(answer.ids))
        ids = longest.ids
        if not ids or longest.error:
            return {}, ""
        traced = our_intermediates(self.graph, ids)
        logits = positions_from(traced["result_output"])
        count = min(len(logits), len(longest.positions))
        # The last bits of NumPy's products depend on the number of rows.
        same = isinstance(self.graph.ops, ReferenceOps) or (
            logits[len(logits) - count :] == list(longest.positions[-count:])
        )
        fault = "" if same and count else "other logits with intermediates than without them"
        exact, arithmetic = self.exact.model(checkpoint), ours.engine.arithmetic
        planned = list_planned(exact.program)
        steps = check_operations(
            exact, checkpoint, ids, traced, arithmetic=arithmetic, half_cache=False
        )
        missing = missing_operations(steps, planned, all_of_them=True)
        operations = {"bitnet": (*steps, *missing)}
        prompts = (Prompt(longest.prompt, ids),)
        question = replace(self.question, prompts=prompts, texts=())
        theirs = reference_operations(reference, question, exact)
        if theirs is not None:
            missing = missing_operations(theirs, planned, all_of_them=False)
            operations[reference.name] = (*theirs, *missing)
        return operations, fault


def changes_of(today: Trace, recorded: Trace) -> tuple[str, ...]:
    """Faults of the float64 pass of *today* if it differs from the *recorded* one; else empty."""
    for number, (answer, before) in enumerate(zip(today.prompts, recorded.prompts, strict=False)):
        pairs = zip(answer.positions, before.positions, strict=False)
        for at, (position, recorded_position) in enumerate(pairs, before.first):
            kl = divergence(recorded_position, position)
            if kl is None or kl > _SAME_PASS:
                distance = "without numbers" if kl is None else f"KL {kl:.1e}"
                return (
                    f"today's pass is not the recorded one: {distance} at position {at} of prompt "
                    f"{number}, at most {_SAME_PASS:.0e}",
                )
    return ()


def recordable(trace: Trace, tokenizer: Tokenizer) -> Trace:
    """*trace* with the ids of each whole text, of which it ran the first, and their texts.

    Texts are included if the reference decoded the ids of every prompt.
    """
    prompts = tuple(prompt for prompt in trace.prompts if not prompt.error)
    whole = tuple(tuple(tokenizer.encode(prompt.prompt)) for prompt in prompts)
    texts = dict(zip(trace.tokenized or (), trace.decoded or (), strict=False))
    known = all(ids in texts for ids in whole)
    decoded = tuple(texts[ids] for ids in whole) if known else None
    return replace(trace, prompts=prompts, tokenized=whole, decoded=decoded)
