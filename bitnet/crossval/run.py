"""A cross-validation from beginning to end: ask both sides, compare, judge, measure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

import bitnet
from bitnet.crossval import bisect as bisection
from bitnet.crossval.compare import Comparison, TokenizerParity, compare
from bitnet.crossval.exact import exact_trace
from bitnet.crossval.judge import Bounds, Verdict, bounds_for, judge
from bitnet.crossval.receipt import Receipt
from bitnet.crossval.references import Question, Reference
from bitnet.crossval.tokens import asked, texts_for, tokenizer_parity
from bitnet.crossval.trace import PromptTrace, Trace, first_positions, positions_from
from bitnet.errors import BitnetError, ReferenceUnavailable
from bitnet.files import digest_of
from bitnet.findings import Finding
from bitnet.kernels.native import NativeOps, thread_count
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.quants import registry
from bitnet.runtime.engine import GenerationParams
from bitnet.runtime.kv_cache import KVCache

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from bitnet.crossval.options import CrossvalOptions
    from bitnet.crossval.trace import Arithmetic
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.models.transformer import Model
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.tokenizer import Tokenizer

__all__ = [
    "PROMPTS",
    "Outcome",
    "compare_tokens",
    "cross_validate",
    "model_digest",
    "our_trace",
    "recordable",
]

# Prose, a story, code, a fact with numbers, another language, digits: 137 tokens of SmolLM2's.
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village at the foot of a mountain, there lived a watchmaker who",
    'def fibonacci(n: int) -> int:\n    """Return the n-th Fibonacci number."""\n'
    "    if n < 2:\n        return",
    "Water boils at 100 degrees Celsius at sea level. At an altitude of 3,000 metres it boils at "
    "about",
    "Die Hauptstadt von Deutschland ist Berlin, und die Hauptstadt von Österreich ist",
    "1, 1, 2, 3, 5, 8, 13, 21, 34,",
)


@dataclass(frozen=True)
class Outcome:
    """Everything a report tells.

    Attributes:
        verdict: and its reasons.
        bounds: what the verdict goes by.
        receipt: what really computed on our side.
        ours: our trace; ``None`` when only tokenizers were compared.
        theirs: the reference's, ``None`` when it did not run.
        exact: the float64 pass.
        comparison: position by position.
        tokenizer: text by text.
        bisections: where intermediates part.
        model_sha256: of the file.
        hint: what to do about a reference that could not be asked.
    """

    verdict: Verdict
    bounds: Bounds
    receipt: Receipt
    ours: Trace | None = None
    theirs: Trace | None = None
    exact: Trace | None = None
    comparison: Comparison | None = None
    tokenizer: TokenizerParity | None = None
    bisections: tuple[bisection.Bisection, ...] = ()
    model_sha256: str = ""
    hint: str = ""


def cross_validate(
    model: LanguageModel,
    checkpoint: Checkpoint,
    reference: Reference,
    options: CrossvalOptions,
    *,
    texts: Sequence[str] = PROMPTS,
    cache: Path | None = None,
) -> Outcome:
    """*model* beside *reference*.

    Args:
        model: what is judged.
        checkpoint: the same model on disk.
        reference: who judges.
        options: how much to compare.
        texts: the prompts; a recording brings its own.
        cache: folder where the float64 pass is kept.

    Raises:
        BitnetError: the model cannot be run.
    """
    receipt = Receipt(model.engine.model, model.tokenizer)
    mine = _arithmetic(model.engine.model, checkpoint)
    question = Question(
        checkpoint,
        prompts=_prompts(model, reference, texts, options),
        texts=texts_for(reference, texts),
        greedy=options.greedy,
        threads=thread_count(),
        cache=cache,
        model_sha256=model_digest(checkpoint),
    )
    try:
        theirs = asked(reference, question)
    except ReferenceUnavailable as error:
        return _not_run(error, bounds_for(mine, "int8"), receipt, question.model_sha256)
    receipt.begin()
    ours = our_trace(model, question.prompts, greedy=options.greedy, arithmetic=mine)
    receipt.end()
    tokenizer = tokenizer_parity(model.tokenizer, theirs, question.texts)
    found = _bisected(reference, question, mine, theirs) if options.bisect else ()
    outcome = _judged(reference, question, ours, theirs, tokenizer, receipt)
    return replace(outcome, bisections=found)


def _judged(
    reference: Reference,
    question: Question,
    ours: Trace,
    theirs: Trace,
    tokenizer: TokenizerParity | None,
    receipt: Receipt,
) -> Outcome:
    """Both traces beside each other and beside the float64 pass, and what that amounts to."""
    bounds = bounds_for(ours.arithmetic, theirs.arithmetic)
    digest = question.model_sha256
    exact = theirs if not reference.independent else _exact(question, question.prompts)
    comparison = compare(ours, theirs, near_tie=bounds.near_tie, exact=exact)
    comparison = _arbitrated(comparison, ours, question)
    verdict = judge(
        comparison,
        tokenizer,
        bounds=bounds,
        exact=exact,
        theirs=theirs if reference.live else None,
        independent=reference.independent,
    )
    if not reference.live:
        verdict = _same_file(verdict, theirs, digest)
    return Outcome(
        verdict, bounds, receipt, ours, theirs, exact, comparison, tokenizer, model_sha256=digest
    )


def compare_tokens(
    tokenizer: Tokenizer,
    checkpoint: Checkpoint,
    reference: Reference,
    *,
    texts: Sequence[str] = PROMPTS,
) -> Outcome:
    """*tokenizer* beside that of *reference*; no weight is read, and there need not be any.

    Args:
        tokenizer: what is judged.
        checkpoint: the model it belongs to; one with nothing but a vocabulary will do.
        reference: who judges.
        texts: the prompts, which are compared besides the probe texts.
    """
    digest = model_digest(checkpoint)
    receipt = Receipt(None, tokenizer)
    bounds = bounds_for("int8", "int8")
    question = Question(
        checkpoint,
        texts=texts_for(reference, texts),
        threads=thread_count(),
        model_sha256=digest,
    )
    try:
        theirs = asked(reference, question) if question.texts else None
    except ReferenceUnavailable as error:
        return _not_run(error, bounds, receipt, digest)
    parity = tokenizer_parity(tokenizer, theirs, question.texts) if theirs else None
    verdict = judge(None, parity, bounds=bounds)
    return Outcome(verdict, bounds, receipt, theirs=theirs, tokenizer=parity, model_sha256=digest)


def _not_run(error: ReferenceUnavailable, bounds: Bounds, receipt: Receipt, digest: str) -> Outcome:
    verdict = Verdict("not run", (Finding.judged("reference", False, error.message),))
    return Outcome(verdict, bounds, receipt, model_sha256=digest, hint=error.hint or "")


def recordable(trace: Trace, model: LanguageModel) -> Trace:
    """*trace* with all ids of its prompts, also those behind the last position."""
    prompts = tuple(
        replace(one, ids=tuple(model.tokenizer.encode(one.prompt))) for one in trace.prompts
    )
    return replace(trace, prompts=prompts, tokenized=None)


def model_digest(checkpoint: Checkpoint) -> str:
    """SHA-256 of the model's file; of a folder, over names and digests of its weights."""
    path = checkpoint.path
    if path.is_file():
        return digest_of(path)
    files = sorted(path.glob("*.safetensors"))
    lines = "".join(f"{digest_of(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def _arithmetic(model: Model, checkpoint: Checkpoint) -> Arithmetic:
    """How *model* multiplies: with 8-bit activations, natively and for ternary weights."""
    ternary = any(registry.rounds_activations(one.quant) for one in checkpoint.weights.values())
    return "int8" if ternary or not isinstance(model.ops, ReferenceOps) else "float"


def our_trace(
    model: LanguageModel,
    prompts: Sequence[tuple[str, Sequence[int]]],
    *,
    greedy: int,
    arithmetic: Arithmetic,
) -> Trace:
    """What *model* says about *prompts*."""
    return Trace(
        engine="bitnet",
        version=bitnet.__version__,
        arithmetic=arithmetic,
        prompts=tuple(_our_prompt(model, text, ids, greedy) for text, ids in prompts),
    )


def _our_prompt(model: LanguageModel, text: str, ids: Sequence[int], greedy: int) -> PromptTrace:
    tokens, gaps = [], []
    positions = positions_from(model.logits(ids))
    if greedy:
        params = GenerationParams(max_tokens=greedy, logprobs=2)
        for piece in model.engine.generate(ids, params):
            assert piece.token is not None  # nobody cancels
            tokens.append(piece.token)
            gaps.append(piece.top_logprobs[0][1] - piece.top_logprobs[1][1])
    return PromptTrace(text, tuple(ids), tuple(positions), tuple(tokens), tuple(gaps))


def _prompts(
    model: LanguageModel, reference: Reference, texts: Sequence[str], options: CrossvalOptions
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    recorded = getattr(reference, "recording", None)
    if recorded is not None:
        # Positions of other ids would say nothing; the tokenizer is compared by itself.
        size = model.config.vocab_size
        wanted = [
            (one.prompt, one.ids[: len(one.positions)])
            for one in recorded.prompts
            if max(one.ids) < size
        ]
    else:
        room = max(model.engine.context - options.greedy, 1)
        wanted = [(text, tuple(model.tokenizer.encode(text))[:room]) for text in texts]
    return tuple((text, tuple(ids)) for text, ids in first_positions(wanted, options.max_positions))


def _exact(question: Question, prompts: Sequence[tuple[str, tuple[int, ...]]]) -> Trace:
    """The float64 pass over *prompts*."""
    return exact_trace(
        question.checkpoint, prompts, cache=question.cache, model_sha256=question.model_sha256
    )


def _arbitrated(comparison: Comparison, ours: Trace, question: Question) -> Comparison:
    """*comparison* with the float64 pass asked where greedy continuations part for good."""
    open_ones = [one for one in comparison.greedy if one.wrong]
    prompts = [ours.prompts[one.prompt] for one in open_ones]
    shared = [
        (prompt.prompt, (*prompt.ids, *prompt.greedy[: one.agreed]))
        for one, prompt in zip(open_ones, prompts, strict=True)
    ]
    exact = _exact(question, shared)
    decided = {
        one.prompt: truth.positions[-1].ids[0] == prompt.greedy[one.agreed]
        for one, prompt, truth in zip(open_ones, prompts, exact.prompts, strict=True)
    }
    greedy = tuple(replace(one, exact_agrees=decided.get(one.prompt)) for one in comparison.greedy)
    return replace(comparison, greedy=greedy)


def _same_file(verdict: Verdict, theirs: Trace, digest: str) -> Verdict:
    """*verdict*, failed if a recording is of another file."""
    if not theirs.model_sha256:
        return verdict
    same = theirs.model_sha256 == digest
    said = "the file is the one recorded"
    if not same:
        said = f"SHA-256 {digest[:16]}..., recorded was {theirs.model_sha256[:16]}..."
    findings = (*verdict.findings, Finding.judged("model", same, said))
    status = verdict.status if same or verdict.status == "not run" else "failed"
    return replace(verdict, findings=findings, status=status)


def _bisected(
    reference: Reference, question: Question, mine: Arithmetic, theirs: Trace
) -> tuple[bisection.Bisection, ...]:
    """Our native backend against our reference, and against *reference* where it dumps."""
    _, ids = max(question.prompts, key=lambda prompt: len(prompt[1]))
    reference_values = _traced(question.checkpoint, ReferenceOps(), ids)
    found = []
    values = reference_values
    if mine == "int8":
        try:
            values = _traced(question.checkpoint, NativeOps(), ids)
        except BitnetError:
            pass  # no compiled module: there is one backend only
        else:
            names = ("native", "reference")
            bound = bisection.BOUNDS["int8"]
            found.append(bisection.bisect(values, dict(reference_values), names=names, bound=bound))
    tensors = reference.tensors(replace(question, prompts=(("", ids),), texts=(), greedy=0))
    if tensors is not None:
        arithmetic: Arithmetic = "int8" if "int8" in (mine, theirs.arithmetic) else "float"
        names = ("native" if values is not reference_values else "reference", reference.name)
        bound = bisection.BOUNDS[arithmetic]
        found.append(bisection.bisect(values, tensors, names=names, bound=bound))
    return tuple(found)


def _traced(
    checkpoint: Checkpoint, ops: NativeOps | ReferenceOps, ids: Sequence[int]
) -> list[tuple[str, NDArray[np.floating]]]:
    model = load_model(checkpoint, ops=ops)
    cache = KVCache(model.config, len(ids))
    return [(name, np.array(values)) for name, values in model.traced(ids, cache)]
