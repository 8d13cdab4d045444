"""The verdict: every planned check as passed, failed or not run, from the evidence alone.

Missing data never passes: a number that is ``None``, an empty list, an answer that is shorter or
longer than requested.

The thresholds are mean KL divergences in nats, measured on SmolLM2-135M (Q4_1) and Gemma-3-270M
(Q4_K_M), six prompts with 272 positions: benchmarks/results/crossval.md has the tables.
Correct engines that round activations to 8 bits (``int8``) differ by as much as :data:`NOISE` says,
so no fixed bound can be lower. A bound that depends on what was measured on the model under test
may be lower: see :func:`kl_of_ours` and :func:`kl_between`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal

from bitnet.base.findings import Finding, status_of
from bitnet.base.tables import quantity
from bitnet.crossval.evidence import mean
from bitnet.crossval.operations import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bitnet.base.findings import Status
    from bitnet.crossval.evidence import Evidence, Row
    from bitnet.crossval.trace import Arithmetic

# Mean KL from the float64 pass that rounding causes in a correct engine: measured, then rounded up.
NOISE: dict[Arithmetic, float] = {
    "int8": 5e-3,  # 4.3e-3 in llama.cpp; two correct C++ engines are 5.1e-3 apart
    "float": 4e-6,  # 2.5e-6 in transformers (ternary), 8.4e-7 in llama.cpp (float16 cache)
    "float32": 1e-9,  # 500 times what was measured for NumPy
}

# Bounds are three times the measured value: other prompts and processors give other values.
ALLOWANCE = 3.0

# Values that were measured on the model lower a bound, but not below 1 / 30 of it: even two correct
# engines round differently.
MOST_TIGHTENING = 30.0

# Least number of positions on which the distance of a reference lowers our bound. The divergence
# varies between positions: its standard deviation is up to 2.9 times its mean (80 positions of tiny
# models of many families, in this runtime and llama.cpp, where MOST_TIGHTENING is not reached). So
# the logarithm of the ratio of two means over n positions has a standard deviation of
# sqrt(2 / n) * 2.9; three of these are log(ALLOWANCE) at n = 128. On fewer positions, a correct
# model can be ALLOWANCE times further away than the reference by chance: this was measured on a
# model with a linear RoPE, whose first angles are small.
ENOUGH_POSITIONS = 128

# Largest accepted ratio of the KL divergence between two engines to the largest one that their
# distances from the float64 pass explain; 0.3 to 0.7 were measured.
APART = 1.5

# Largest accepted KL of a single position, as a multiple of the bound on the mean; a position was
# measured at 28 times the mean.
WORST = 30.0

# Largest gap, in logits, between the two best tokens that an engine of this arithmetic reversed
# relative to exact arithmetic: 0.317 in llama.cpp. Two engines can deviate in opposite directions,
# so that theirs add up.
FLIPPED: dict[Arithmetic, float] = {"int8": 0.32, "float": 0.01, "float32": 1e-3}

# Largest accepted deviation from 1 of the mean slope of log-probabilities over those of the float64
# pass: rounding scatters them but does not scale them.
SCALE: dict[Arithmetic, float] = {"int8": 0.03, "float": 3e-3, "float32": 1e-4}


def near_tie(evidence: Evidence) -> float:
    """Gap in logits below which the two engines may order two tokens either way."""
    return FLIPPED[evidence.ours.arithmetic] + FLIPPED[evidence.reference.arithmetic]


def kl_of_reference(theirs: Arithmetic) -> float:
    """Largest accepted mean KL from the float64 pass to a reference of the arithmetic *theirs*."""
    return ALLOWANCE * NOISE[theirs]


def kl_of_ours(
    ours: Arithmetic, theirs: Arithmetic, theirs_kl: float | None, *, positions: int
) -> float:
    """Largest accepted mean KL from the float64 pass to ours.

    *theirs_kl* is the distance of the reference. If the reference has the same arithmetic, and was
    compared on enough *positions*, ours may be at most ALLOWANCE times as large.
    """
    most = ALLOWANCE * NOISE[ours]
    if ours != theirs or theirs_kl is None or positions < ENOUGH_POSITIONS:
        return most
    return max(min(most, ALLOWANCE * theirs_kl), most / MOST_TIGHTENING)


def kl_between(
    ours: Arithmetic, theirs: Arithmetic, ours_kl: float | None, theirs_kl: float | None
) -> float:
    """Largest accepted mean KL from the reference to ours.

    *ours_kl* and *theirs_kl* are the mean KL from the float64 pass to ours and to the reference.
    """
    most = ALLOWANCE * max(NOISE[ours], NOISE[theirs])
    if ours_kl is None or theirs_kl is None:
        return most
    # The root of a small KL divergence is a distance: two engines are at most as far apart as the
    # sum of their distances from float64.
    largest = APART * (math.sqrt(ours_kl) + math.sqrt(theirs_kl)) ** 2
    return max(min(most, largest), most / MOST_TIGHTENING)


# same: both prefer one token. tie: the reference barely prefers its own. excused: the float64 pass
# agrees with us. wrong: anything else.
Kind = Literal["same", "tie", "excused", "wrong"]


@dataclass(frozen=True)
class Verdict:
    """Result of a comparison."""

    status: Status  # ``passed`` only if every planned check did
    findings: tuple[Finding, ...]  # one per planned check
    # number of positions and continuations where the reference was sure of another token, but the
    # float64 pass agrees with us
    excused: int = 0
    # metrics over all positions by name, None where a position lacks the number
    summary: dict[str, float | None] = field(default_factory=dict)
    # agreement of the likeliest tokens at each judged position, by prompt and position
    kinds: dict[tuple[int, int], Kind] = field(default_factory=dict)
    # result of the comparison of operations in one sentence, by engine
    operations: dict[str, str] = field(default_factory=dict)

    @property
    def reasons(self) -> list[str]:
        """Reasons why it is not ``passed``; one that several checks give is listed once."""
        by_text: dict[str, str] = {}
        for finding in self._decisive:
            by_text.setdefault(finding.text, f"{finding.subject}: {finding.text}")
        return list(by_text.values())

    @property
    def _decisive(self) -> list[Finding]:
        """The findings for which it is not ``passed``."""
        severity = "failed" if self.status == "failed" else "skipped"
        return [finding for finding in self.findings if finding.severity == severity]

    @property
    def not_checked(self) -> str:
        """One line that names the checks that were not run; empty if all were."""
        names = [finding.subject for finding in self.findings if finding.severity == "skipped"]
        return f"NOT CHECKED: {', '.join(names)}" if names else ""

    @property
    def hint(self) -> str:
        """The first hint of the findings that are its reasons; empty if none has one."""
        return next((finding.hint for finding in self._decisive if finding.hint), "")


def checks_of(evidence: Evidence) -> dict[str, Callable[[Evidence], Finding]]:
    """The planned checks by name, in display order."""
    plan = evidence.plan
    model = evidence.model
    runs = not evidence.plan.tokenizer_only
    # With one of these, the model's file was compared with another one.
    is_known = bool(model.problem or model.original or plan.recorded_sha256)
    checks: dict[str, tuple[bool, Callable[[Evidence], Finding]]] = {
        "model": (is_known, _model),
        "answers": (True, _answers),
        "tokenizer": (plan.texts > 0 or plan.tokenizer_only, _tokenizer),
        "compute path": (runs, _compute_path),
        "reference": (runs and plan.float64 and plan.independent, _reference),
        "logits": (runs, _logits),
        "top-1": (runs, _top1),
        "float64": (runs and plan.float64, _exact),
        "operations": (runs and plan.live, _operations),
        "greedy": (runs and plan.greedy > 0, _greedy),
    }
    return {name: check for name, (is_needed, check) in checks.items() if is_needed}


def judge(evidence: Evidence) -> Verdict:
    """The verdict that follows from *evidence*."""
    by_name = {name: check(evidence) for name, check in checks_of(evidence).items()}
    no_answer = evidence.no_answer
    if no_answer is not None:
        skipped = Finding("skipped", "", "the reference did not answer")
        if not no_answer.failed:
            skipped = Finding("skipped", "", no_answer.text, no_answer.hint)
        for name in by_name.keys() - {"model"}:
            by_name[name] = replace(skipped, subject=name)
        # The reason comes first, also where "reference" is a planned check.
        by_name.pop("reference", None)
        by_name = {"reference": no_answer} | by_name
    findings = tuple(by_name.values())
    tie = near_tie(evidence)
    kinds = {(row.prompt, row.position): kind_of(row, tie) for row in rows_to_judge(evidence)}
    continuations = [kind_of(row, tie) for row in evidence.greedy]
    return Verdict(
        status=status_of(findings),
        findings=findings,
        excused=[*kinds.values(), *continuations].count("excused"),
        summary=_summarize(evidence),
        kinds=kinds,
        operations={
            engine: describe(engine, steps, evidence.model.layers)[1]
            for engine, steps in evidence.operations.items()
        },
    )


def _summarize(evidence: Evidence) -> dict[str, float | None]:
    """Metrics over all positions by name, None where a position lacks the number.

    ``rms_dp`` is of the positions with a next token and finite logits. Without positions there are
    no metrics. Names are those of ``llama-perplexity --kl-divergence`` where
    it has the metric: KLD is the KL divergence from the reference to ours, dp the difference of the
    probabilities of the actual next token.
    """
    rows = evidence.rows
    if not rows:
        return {}
    tie = near_tie(evidence)
    kinds = [kind_of(row, tie) for row in rows]
    ours = mean(row.ours_kl for row in rows)
    theirs = mean(row.theirs_kl for row in rows)
    klds = sorted(row.kl for row in rows if row.kl is not None)
    complete = len(klds) == len(rows)
    squared = mean(
        (math.exp(-row.nll) - math.exp(-row.theirs_nll)) ** 2
        for row in rows
        if row.nll is not None and row.theirs_nll is not None
    )
    return {
        "positions": len(rows),
        "prompts": len({row.prompt for row in rows}),
        "mean_kld": mean(row.kl for row in rows),
        "maximum_kld": klds[-1] if complete else None,
        "kld_99": klds[math.ceil(0.99 * len(klds)) - 1] if complete else None,
        "median_kld": median(klds) if complete else None,
        "rms_dp": None if squared is None else math.sqrt(squared),
        "same_top": kinds.count("same") / len(rows),
        # positions where the reference barely prefers its token, also where ours is the same
        "near_ties": sum(row.gap is not None and row.gap < tie for row in rows),
        "excused": kinds.count("excused"),
        "wrong": kinds.count("wrong"),
        "exact_to_ours": ours,
        "exact_to_reference": theirs,
    }


def rows_to_judge(evidence: Evidence) -> Sequence[Row]:
    """All positions, or for a mixture of experts the half with the smallest KL divergences.

    Where two experts have nearly the same score, a rounding decides between them, and everything
    computed from that choice differs by far more than the rounding. Operations are judged at all
    positions.
    """
    rows = evidence.rows
    if not evidence.model.has_experts:
        return rows

    def distance(row: Row) -> float:
        divergences = [row.kl]
        if evidence.plan.float64:
            divergences += [row.ours_kl, row.theirs_kl]
        numbers = [kl for kl in divergences if kl is not None]
        if len(numbers) < len(divergences):
            return -1.0  # a row that lacks a number comes first, so that it is judged
        return max(numbers)

    return sorted(rows, key=distance)[: (len(rows) + 1) // 2]


def kind_of(row: Row, tie: float) -> Kind:
    """Agreement of the likeliest tokens at a position; *tie* is the gap of :func:`near_tie`."""
    if row.agrees:
        return "same"
    if row.ours is None or row.theirs is None or row.gap is None:
        return "wrong"
    if row.gap < tie:
        return "tie"
    return "excused" if row.exact == row.ours else "wrong"


def _model(evidence: Evidence) -> Finding:
    """Check that the model's file is the known one, or the one that a recording ran."""
    model = evidence.model
    recorded = evidence.plan.recorded_sha256
    if model.problem:
        return Finding("failed", "model", model.problem, "fetch it again: bitnet sync")
    if recorded and recorded != model.sha256:
        text = f"SHA-256 {model.sha256[:16]}..., the reference ran {recorded[:16]}..."
        return Finding("failed", "model", text)
    text = "the file is the one that the reference ran"
    if model.original:
        text = f"it has the content of {model.original}"
    if model.ignored_keys:
        text += f"; computed here as if it had no {', '.join(model.ignored_keys)}"
    return Finding("ok", "model", text)


def _answers(evidence: Evidence) -> Finding:
    """Check that every side answered all of the request and nothing else."""
    plan = evidence.plan
    rows = evidence.rows
    if plan.tokenizer_only:
        sides = ["reference"]
    elif plan.float64:
        sides = ["ours", "reference", "float64"]
    else:
        sides = ["ours", "reference"]
    faults = [
        f"{side}: {'; '.join(evidence.faults.get(side, ('no answer',)))}"
        for side in sides
        if evidence.faults.get(side) != ()
    ]
    if not rows and not plan.tokenizer_only:
        faults.append("no position was compared")
    elif len(rows) != evidence.positions:
        faults.append(f"{len(rows):,} positions were compared, planned were {evidence.positions:,}")
    if len(evidence.greedy) != evidence.continuations:
        count = f"{len(evidence.greedy)} continuations were compared"
        faults.append(f"{count}, planned were {evidence.continuations}")
    text = f"{len(rows):,} positions and {plan.texts:,} texts, whole from {', '.join(sides)}"
    return Finding.from_check("answers", not faults, "; ".join(faults) or text)


def _tokenizer(evidence: Evidence) -> Finding:
    parity = evidence.tokenizer_parity
    if parity is None:
        return Finding("skipped", "tokenizer", "the reference has no tokenizer")
    if parity.total < 1:
        return Finding("failed", "tokenizer", "no text was compared")
    text = f"{parity.equal:,} of {parity.total:,} texts give the same ids"
    if parity.decoded:
        text += f", {parity.decoded_equal:,} of {parity.decoded:,} lists of ids the same text"
    else:
        text += "; texts of ids not checked"
    if parity.text is not None:
        text += (
            f"; first difference: {parity.text!r}: ours {list(parity.ours)}, "
            f"the reference's {list(parity.theirs)}"
        )
    if parity.ids:
        text += f"; first ids of another text: {list(parity.ids)}"
    same = parity.equal == parity.total and parity.text is None
    same = same and parity.decoded_equal == parity.decoded and not parity.ids
    return Finding.from_check("tokenizer", same, text)


def _compute_path(evidence: Evidence) -> Finding:
    """Check that kernels of a real backend computed our side, with a real tokenizer."""
    path = evidence.compute_path
    kernels = evidence.kernels
    products = sum(calls for name, calls in kernels.items() if name.startswith("linear/"))
    if path == "mock":
        text = "the tokenizer is a mock, which takes bytes for tokens"
        return Finding("skipped", "compute path", text, "leave --allow-mock out")
    if path == "none" or not products:
        return Finding("failed", "compute path", "no product of weights was counted")
    summary = f"{path}: {products:,} products of weights by {evidence.backend}"
    if evidence.plan.require_real and path != "real":
        hint = "install the compiled module; see: bitnet doctor"
        return Finding("failed", "compute path", f"{summary}, and --require-real asks for it", hint)
    return Finding("ok", "compute path", summary)


def _check_divergences(values: Sequence[float | None], most: float) -> tuple[bool, str]:
    """True if KL divergences are within *most* on average, and each within WORST times *most*.

    The other result is the metrics as text.
    """
    divergences = [value for value in values if value is not None]
    if not divergences or len(divergences) < len(values):
        count = len(values) - len(divergences)
        return False, f"{count} of {len(values)} positions could not be compared"
    average = fmean(divergences)
    worst = max(divergences)
    text = (
        f"mean KL {average:.1e} (at most {most:.1e}), worst position {worst:.1e} "
        f"(at most {WORST * most:.1e})"
    )
    return average <= most and worst <= WORST * most, text


def _check_nearness(evidence: Evidence, side: str, most: float, stretch: float) -> tuple[bool, str]:
    """True if *side*, ``ours`` or ``theirs``, is close to the float64 pass; and the metrics.

    *most* bounds the mean KL divergence, *stretch* the deviation of the mean slope from 1. Single
    rows have no slope if their tokens are equally likely; it fails if none has one.
    """
    rows = rows_to_judge(evidence)
    near, text = _check_divergences([getattr(row, f"{side}_kl") for row in rows], most)
    slopes = (getattr(row, f"{side}_scale") for row in rows)
    measured = [slope for slope in slopes if slope is not None]
    if not measured:
        return False, f"beside the float64 pass: {text}, and no slope could be measured"
    scale = fmean(measured)
    text = (
        f"beside the float64 pass: {text}, log-probabilities stretched by {scale - 1:+.1%} "
        f"(at most {stretch:.1%})"
    )
    return near and abs(scale - 1) <= stretch, text


def _reference(evidence: Evidence) -> Finding:
    """Check that the reference is as close to float64 as its arithmetic allows."""
    theirs = evidence.reference.arithmetic
    near, text = _check_nearness(evidence, "theirs", kl_of_reference(theirs), SCALE[theirs])
    if near:
        return Finding("ok", "reference", text)
    text += ": it computes wrong logits, or we read the model wrong"
    return Finding("failed", "reference", text, "compare with another engine: --against NAME")


def _logits(evidence: Evidence) -> Finding:
    """Check that our logits are as close to the reference's as the arithmetic of both allows."""
    ours = evidence.ours.arithmetic
    theirs = evidence.reference.arithmetic
    rows = rows_to_judge(evidence)
    ours_kl = mean(row.ours_kl for row in rows)
    theirs_kl = mean(row.theirs_kl for row in rows)
    most = kl_between(ours, theirs, ours_kl, theirs_kl)
    near, text = _check_divergences([row.kl for row in rows], most)
    if left_out := len(evidence.rows) - len(rows):
        positions = quantity(left_out, "position")
        text += f"; without the furthest {positions}, since a rounding may choose experts"
    return Finding.from_check("logits", near, text)


def _agreement(rows: Sequence[Row], tie: float) -> tuple[bool, str]:
    """True if there are *rows* and none is wrong; and the numbers of rows by kind, as text."""
    kinds = [kind_of(row, tie) for row in rows]
    text = (
        f"{kinds.count('same')} of {len(rows)} agree, {kinds.count('tie')} differ in a near-tie, "
        f"{kinds.count('excused')} are excused: the float64 pass agrees with us"
    )
    if "wrong" in kinds:
        wrong = [row for row, kind in zip(rows, kinds, strict=True) if kind == "wrong"]
        row = min(wrong, key=lambda row: (row.prompt, row.position))
        gap = "no numbers" if row.gap is None else f"gap {row.gap:.2f}"
        text += (
            f"; {kinds.count('wrong')} are wrong, first prompt {row.prompt} position "
            f"{row.position}, {gap}"
        )
    return bool(rows) and "wrong" not in kinds, text


def _top1(evidence: Evidence) -> Finding:
    return Finding.from_check("top-1", *_agreement(rows_to_judge(evidence), near_tie(evidence)))


def _exact(evidence: Evidence) -> Finding:
    """Check that our logits are as close to float64 as our arithmetic allows."""
    ours = evidence.ours.arithmetic
    theirs = evidence.reference.arithmetic
    rows = rows_to_judge(evidence)
    ours_kl = mean(row.ours_kl for row in rows)
    theirs_kl = mean(row.theirs_kl for row in rows)
    most = kl_of_ours(ours, theirs, theirs_kl, positions=len(rows))
    near, text = _check_nearness(evidence, "ours", most, SCALE[ours])
    if ours_kl is not None and theirs_kl is not None and evidence.plan.independent:
        closer = "ours is closer" if ours_kl < theirs_kl else "the reference is closer"
        text += f"; {theirs_kl:.1e} to the reference: {closer}"
    return Finding.from_check("float64", near, text)


def _greedy(evidence: Evidence) -> Finding:
    if not evidence.continuations:
        text = "the reference has no continuations of these prompts"
        return Finding("skipped", "greedy", text, "leave them out: --greedy 0")
    return Finding.from_check("greedy", *_agreement(evidence.greedy, near_tie(evidence)))


def _operations(evidence: Evidence) -> Finding:
    """Check each operation of ours, and of a reference that returns its intermediates."""
    if evidence.ours.name not in evidence.operations:
        return Finding("failed", "operations", "our intermediates were not compared")
    results = [
        describe(engine, steps, evidence.model.layers)
        for engine, steps in evidence.operations.items()
    ]
    wrong = [text for is_right, text in results if not is_right]
    texts = wrong or [text for _, text in results]
    return Finding.from_check("operations", not wrong, "; ".join(texts))
