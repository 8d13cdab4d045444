"""The verdict: every planned check as passed, failed or not run, from the evidence alone.

Missing data never passes: a number that is ``None``, an empty list, an answer that is shorter or
longer than requested.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from bitnet.base.findings import Finding, status_of
from bitnet.crossval.bounds import CLEARLY_BETTER, LEAST_NOISE, SAME_FLOAT64, WORST
from bitnet.crossval.evidence import mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bitnet.base.findings import Severity, Status
    from bitnet.crossval.bounds import Bounds
    from bitnet.crossval.compare import Greedy, Nearness, Row, TokenizerParity
    from bitnet.crossval.evidence import Evidence

__all__ = ["Kind", "Verdict", "checks_of", "judge", "kind_of"]

# same: both prefer one token. tie: the reference barely prefers its own. excused: it does, but the
# float64 pass agrees with us. wrong: anything else.
Kind = Literal["same", "tie", "excused", "wrong"]

_UNJUDGED = "the reference may not judge"


@dataclass(frozen=True)
class Verdict:
    """Result of a comparison.

    Attributes:
        status: ``passed`` only if every planned check did; ``not run`` if one could not be made
            and none failed.
        findings: one per planned check.
        excused: positions and continuations where the reference was sure of another token, but
            the float64 pass agrees with us.
        reference_rejected: the reference answered but is not accepted as a judge.
    """

    status: Status
    findings: tuple[Finding, ...]
    excused: int = 0
    reference_rejected: bool = False

    @property
    def reasons(self) -> list[str]:
        """The reason why it is not ``passed``."""
        kept = ("failed",) if self.status == "failed" else ("skipped",)
        shown = [one for one in self.findings if one.severity in kept]
        if self.status == "not run":  # most of them have the same reason
            texts = list(dict.fromkeys(one.text for one in shown))
            return [_first(shown, text) for text in texts]
        return [f"{one.subject}: {one.text}" for one in shown]

    @property
    def hint(self) -> str:
        """The hint of the first finding that has one."""
        return next((one.hint for one in self.findings if one.hint), "")


def _first(findings: Iterable[Finding], text: str) -> str:
    subject = next(one.subject for one in findings if one.text == text)
    return f"{subject}: {text}"


def checks_of(evidence: Evidence) -> tuple[str, ...]:
    """Names of the planned checks, in display order."""
    plan, reference = evidence.plan, evidence.reference
    checks = {
        "model": bool(evidence.model.problem or evidence.model.original or reference.model_sha256),
        "answers": True,
        "tokenizer": plan.texts > 0 or plan.tokenizer_only,
        "compute path": not plan.tokenizer_only,
        "reference": not plan.tokenizer_only and reference.float64 and reference.independent,
        "logits": not plan.tokenizer_only,
        "top-1": not plan.tokenizer_only,
        "float64": not plan.tokenizer_only and reference.float64,
        "operations": not plan.tokenizer_only and reference.live,
        "greedy": not plan.tokenizer_only and plan.greedy > 0,
    }
    return tuple(name for name, is_needed in checks.items() if is_needed)


def judge(evidence: Evidence) -> Verdict:
    """The verdict that follows from *evidence*."""
    names, reference = checks_of(evidence), evidence.reference
    if reference.state != "answered":
        findings = tuple(_findings_without_answer(evidence, names))
        return Verdict(status_of(findings), findings)
    checks = _checks(evidence)
    rejected = "reference" in names and checks["reference"]().severity == "skipped"
    findings = tuple(
        Finding("skipped", name, _UNJUDGED)
        if rejected and name in ("logits", "top-1", "greedy")
        else checks[name]()
        for name in names
    )
    kinds = [kind_of(row, evidence.bounds) for row in evidence.rows]
    kinds += [_kind_of_part(one, evidence.bounds) for one in evidence.greedy]
    return Verdict(status_of(findings), findings, kinds.count("excused"), rejected)


def _findings_without_answer(evidence: Evidence, names: Sequence[str]) -> Iterator[Finding]:
    """Findings for all planned checks if the reference did not answer."""
    reference = evidence.reference
    is_missing = reference.state == "missing"
    severity: Severity = "skipped" if is_missing else "failed"
    yield Finding(severity, "reference", reference.said, reference.hint)
    for name in names:
        if name == "model" and (evidence.model.problem or evidence.model.original):
            yield _model(evidence)
        elif name != "reference":
            why = reference.said if is_missing else "the reference did not answer"
            yield Finding("skipped", name, why, reference.hint if is_missing else "")


def _checks(evidence: Evidence) -> dict[str, Callable[[], Finding]]:
    return {
        "model": lambda: _model(evidence),
        "answers": lambda: _answers(evidence),
        "tokenizer": lambda: _tokenizer(evidence.tokenizer_parity),
        "compute path": lambda: _compute_path(evidence),
        "reference": lambda: _reference(evidence),
        "logits": lambda: _logits(evidence),
        "top-1": lambda: _order(evidence),
        "float64": lambda: _exact(evidence),
        "operations": lambda: _operations(evidence),
        "greedy": lambda: _greedy(evidence),
    }


def kind_of(row: Row, bounds: Bounds) -> Kind:
    """Agreement of the likeliest tokens at a position."""
    if row.agrees:
        return "same"
    if row.ours is None or row.theirs is None or row.gap is None:
        return "wrong"
    if row.gap < bounds.near_tie:
        return "tie"
    return "excused" if row.exact == row.ours else "wrong"


def _kind_of_part(one: Greedy, bounds: Bounds) -> Kind:
    if one.gap is None:
        return "same" if one.agreed == one.steps > 0 else "wrong"
    if one.gap < bounds.near_tie:
        return "tie"
    return "excused" if one.exact_agrees else "wrong"


def _model(evidence: Evidence) -> Finding:
    model, recorded = evidence.model, evidence.reference.model_sha256
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
    """Check that answers are complete on every side of the plan."""
    plan = evidence.plan
    sides = ["reference"]
    if not plan.tokenizer_only:
        sides.insert(0, "ours")
        if evidence.reference.float64:
            sides.append("float64")
    by_side = {answer.side: answer for answer in evidence.answers}
    wrong, summaries = [], []
    for side in sides:
        answer = by_side.get(side)
        if answer is None:
            wrong.append(f"{side}: no answer")
            continue
        summaries.append(
            f"{side} {answer.count('positions')} positions, {answer.count('texts')} texts"
        )
        if not answer.is_whole:
            what = "; ".join(answer.missing) or "less or more than was asked"
            counts = f"{answer.count('positions')} positions, {answer.count('steps')} steps"
            wrong.append(f"{side}: {counts}: {what}")
    asked = by_side.get("ours", by_side.get("reference"))
    requests = {"positions": plan.positions, "steps": plan.greedy * plan.continuations}
    if asked and not plan.tokenizer_only and not requests.items() <= asked.asked.items():
        wrong.append("the request was not as planned")
    if evidence.rows and None in (evidence.ours.arithmetic, evidence.reference.arithmetic):
        wrong.append("nothing says how the engines multiply")
    if not plan.tokenizer_only and not evidence.rows:
        wrong.append("no position was compared")
    elif len(evidence.rows) != plan.positions:
        count = f"{len(evidence.rows):,} positions were compared"
        wrong.append(f"{count}, planned were {plan.positions:,}")
    if len(evidence.greedy) != plan.continuations:
        count = f"{len(evidence.greedy)} continuations were compared"
        wrong.append(f"{count}, planned were {plan.continuations}")
    return Finding.from_check("answers", not wrong, "; ".join(wrong or summaries))


def _tokenizer(parity: TokenizerParity | None) -> Finding:
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
    if parity.apart:
        text += (
            f"; of {parity.apart:,} more that are not judged, since engines read them differently "
            f"(U+2581, decomposed characters, what looks special), {parity.apart_equal:,} do"
        )
    same = parity.equal == parity.total and parity.text is None
    same = same and parity.decoded_equal == parity.decoded and not parity.ids
    return Finding.from_check("tokenizer", same, text)


def _compute_path(evidence: Evidence) -> Finding:
    """Check the backend, and that the noise fits its counters."""
    path, ours = evidence.compute_path, evidence.ours
    products = {name: calls for name, calls in ours.kernels.items() if name.startswith("linear/")}
    summary = f"{path}: {sum(products.values()):,} products of weights by {ours.backend}"
    if path == "mock":
        text = "the tokenizer is a mock, which takes bytes for tokens"
        return Finding("skipped", "compute path", text, "leave --allow-mock out")
    if path == "none" or not products:
        return Finding("failed", "compute path", "no product of weights was counted")
    if evidence.plan.require_real and path != "real":
        hint = "install the compiled module; see: bitnet doctor"
        return Finding("failed", "compute path", f"{summary}, and --require-real asks for it", hint)
    noise = mean(row.exact_ours.noise if row.exact_ours else None for row in evidence.rows)
    is_rounded = path == "real" and ours.arithmetic == "int8"
    if is_rounded and noise is not None and noise < LEAST_NOISE:
        text = (
            f"the counters say 8-bit products, and the logits are as near to float64 ({noise:.1e} "
            f"of their spread) as only floats are (8 bit: at least {LEAST_NOISE:.0e})"
        )
        return Finding("failed", "compute path", text)
    return Finding("ok", "compute path", summary)


def _near(rows: Sequence[Row], side: str, most: float, stretch: float) -> tuple[bool, str]:
    """True if one engine is close to the float64 pass everywhere; and the metrics."""
    per_row: list[Nearness | None] = [getattr(row, side) for row in rows]
    measures = [measure for measure in per_row if measure is not None]
    if not per_row or len(measures) < len(per_row):
        return (
            False,
            f"{len(per_row) - len(measures)} of {len(per_row)} positions could not be compared",
        )
    kl = fmean(measure.kl for measure in measures)
    worst = max(measure.kl for measure in measures)
    slopes = [measure.scale for measure in measures if measure.scale is not None]
    scale = fmean(slopes) if slopes else 1.0
    near = kl <= most and worst <= WORST * most and abs(scale - 1) <= stretch
    return near, (
        f"{_distance(kl, worst, most)}, log-probabilities stretched by {scale - 1:+.1%} (at most "
        f"{stretch:.1%})"
    )


def _distance(kl: float, worst: float, most: float) -> str:
    return (
        f"mean KL {kl:.1e} (at most {most:.1e}), worst position {worst:.1e} "
        f"(at most {WORST * most:.1e})"
    )


def _reference(evidence: Evidence) -> Finding:
    """Check that the reference is within the bounds that apply to us, so that it may judge."""
    rows = evidence.rows
    near, summary = _near(
        rows, "exact_theirs", evidence.bounds.theirs_kl, evidence.bounds.theirs_scale
    )
    if near:
        return Finding("ok", "reference", f"beside the float64 pass: {summary}")
    pairs = [(row.exact_surprise, row.theirs_surprise) for row in rows]
    surprises = [(ours, its) for ours, its in pairs if ours is not None and its is not None]
    ours, its = (fmean(side) for side in zip(*surprises, strict=True)) if surprises else (0.0, 0.0)
    if its + CLEARLY_BETTER < ours:
        better = f"it predicts the prompts better than we do ({its:.2f} against {ours:.2f} nats)"
        return Finding("failed", "reference", f"{summary}, but {better}: we read the model wrong")
    if evidence.reference.arithmetic == "float32":
        text = f"{summary}, although it rounds nothing: one of both reads the model wrong"
        return Finding("failed", "reference", text)
    hint = "choose another engine: --against NAME"
    return Finding("skipped", "reference", f"rejected, its logits are wrong: {summary}", hint)


def _logits(evidence: Evidence) -> Finding:
    most = evidence.bounds.kl
    values = [row.kl for row in evidence.rows]
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        said = f"{len(values) - len(known)} of {len(values)} positions could not be compared"
        return Finding("failed", "logits", said)
    average, worst = fmean(known), max(known)
    return Finding.from_check(
        "logits",
        average <= most and worst <= WORST * most,
        _distance(average, worst, most),
    )


def _order(evidence: Evidence) -> Finding:
    rows, bounds = evidence.rows, evidence.bounds
    kinds = [kind_of(row, bounds) for row in rows]
    summary = (
        f"{kinds.count('same')} of {len(rows)} positions prefer the same token, "
        f"{kinds.count('tie')} differ in a near-tie, {kinds.count('excused')} are excused: the "
        "float64 pass sides with us"
    )
    wrong = [row for row, kind in zip(rows, kinds, strict=True) if kind == "wrong"]
    if wrong:
        gap = "no numbers" if wrong[0].gap is None else f"gap {wrong[0].gap:.2f}"
        summary += (
            f", {len(wrong)} where the reference was sure: prompt {wrong[0].prompt} position "
            f"{wrong[0].position}, {gap}"
        )
    return Finding.from_check("top-1", bool(rows) and not wrong, summary)


def _exact(evidence: Evidence) -> Finding:
    near, summary = _near(
        evidence.rows, "exact_ours", evidence.bounds.ours_kl, evidence.bounds.ours_scale
    )
    if not evidence.reference.live:
        drift = [row.drift for row in evidence.rows]
        worst = max((distance for distance in drift if distance is not None), default=0.0)
        near = near and None not in drift and worst <= SAME_FLOAT64
        summary += f"; the recorded one is {worst:.1e} from today's (at most {SAME_FLOAT64:.0e})"
    ours = mean(row.exact_ours.kl if row.exact_ours else None for row in evidence.rows)
    theirs = mean(row.exact_theirs.kl if row.exact_theirs else None for row in evidence.rows)
    if ours is not None and theirs is not None and evidence.reference.independent:
        closer = "ours is closer" if ours < theirs else "the reference is closer"
        summary += f"; {theirs:.1e} to the reference: {closer}"
    return Finding.from_check("float64", near, f"beside the float64 pass: {summary}")


def _greedy(evidence: Evidence) -> Finding:
    parts = evidence.greedy
    if not evidence.plan.continuations:
        text = "the reference has no continuations of these prompts"
        return Finding("skipped", "greedy", text, "leave them out: --greedy 0")
    kinds = [_kind_of_part(part, evidence.bounds) for part in parts]
    summary = (
        f"{kinds.count('same')} of {len(parts)} continuations are equal to the end, "
        f"{kinds.count('tie')} part in a near-tie, {kinds.count('excused')} are excused: the "
        "float64 pass sides with us"
    )
    wrong = [part for part, kind in zip(parts, kinds, strict=True) if kind == "wrong"]
    if wrong:
        gap = wrong[0].gap or 0.0
        summary += f"; prompt {wrong[0].prompt} parts at step {wrong[0].agreed}, gap {gap:.2f}"
    return Finding.from_check("greedy", bool(parts) and not wrong, summary)


def _operations(evidence: Evidence) -> Finding:
    """Check each operation of ours, and of a reference that gives its intermediates."""
    operations = evidence.operations
    if not operations or operations[0].engine != evidence.ours.engine:
        return Finding("failed", "operations", "our intermediates were not compared")
    right = all(operation.is_right for operation in operations)
    wrong = [operation for operation in operations if not operation.is_right]
    return Finding.from_check("operations", right, "; ".join(map(str, wrong or operations)))
