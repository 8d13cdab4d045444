"""The verdict: every planned check as passed, failed or not run, from the evidence alone.

Missing data never passes: a number that is ``None``, an empty list, an answer that is shorter or
longer than requested.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from bitnet.crossval.bounds import CLEARLY_BETTER, LEAST_NOISE, SAME_FLOAT64
from bitnet.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bitnet.crossval.bounds import Bounds, SideBounds
    from bitnet.crossval.compare import Greedy, Nearness, Row, TokenizerParity
    from bitnet.crossval.evidence import Evidence
    from bitnet.findings import Severity

__all__ = ["Kind", "Status", "Verdict", "judge", "kind_of", "mean", "planned"]

Status = Literal["passed", "failed", "not run"]

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


def planned(evidence: Evidence) -> tuple[str, ...]:
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
    names, reference = planned(evidence), evidence.reference
    if reference.state != "answered":
        findings = tuple(_unanswered(evidence, names))
        return Verdict(_status(findings), findings)
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
    return Verdict(_status(findings), findings, kinds.count("excused"), rejected)


def _status(findings: Sequence[Finding]) -> Status:
    severities = {one.severity for one in findings}
    if "failed" in severities:
        return "failed"
    return "passed" if severities == {"ok"} else "not run"


def _unanswered(evidence: Evidence, names: Sequence[str]) -> Iterator[Finding]:
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


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of *values*; ``None`` if there are none, or one is missing."""
    found = list(values)
    return fmean(one for one in found if one is not None) if found and None not in found else None


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
        said = f"SHA-256 {model.sha256[:16]}..., the reference ran {recorded[:16]}..."
        return Finding("failed", "model", said)
    said = "the file is the one that the reference ran"
    if model.original:
        said = f"it has the content of {model.original}"
    if model.ignored_keys:
        said += f"; computed here as if it had no {', '.join(model.ignored_keys)}"
    return Finding("ok", "model", said)


def _answers(evidence: Evidence) -> Finding:
    """Check that answers are complete on every side of the plan."""
    plan = evidence.plan
    sides = ["reference"]
    if not plan.tokenizer_only:
        sides.insert(0, "ours")
        if evidence.reference.float64:
            sides.append("float64")
    by_side = {one.side: one for one in evidence.answers}
    wrong, told = [], []
    for side in sides:
        one = by_side.get(side)
        if one is None:
            wrong.append(f"{side}: no answer")
            continue
        told.append(f"{side} {one.positions} positions, {one.texts} texts")
        if not one.is_whole:
            what = "; ".join(one.missing) or "less or more than was asked"
            wrong.append(f"{side}: {one.positions} positions, {one.steps} steps: {what}")
    asked = by_side.get("ours", by_side.get("reference"))
    counts = (plan.positions, plan.greedy * plan.continuations)
    if asked and not plan.tokenizer_only and counts != (asked.positions.asked, asked.steps.asked):
        wrong.append("the request was not as planned")
    if not plan.tokenizer_only and not evidence.rows:
        wrong.append("no position was compared")
    elif len(evidence.rows) != plan.positions:
        found = f"{len(evidence.rows):,} positions were compared"
        wrong.append(f"{found}, planned were {plan.positions:,}")
    if len(evidence.greedy) != plan.continuations:
        found = f"{len(evidence.greedy)} continuations were compared"
        wrong.append(f"{found}, planned were {plan.continuations}")
    return Finding.judged("answers", not wrong, "; ".join(wrong or told))


def _tokenizer(parity: TokenizerParity | None) -> Finding:
    if parity is None:
        return Finding("skipped", "tokenizer", "the reference has no tokenizer")
    if parity.total < 1:
        return Finding("failed", "tokenizer", "no text was compared")
    said = f"{parity.equal:,} of {parity.total:,} texts give the same ids"
    if parity.decoded:
        said += f", {parity.decoded_equal:,} of {parity.decoded:,} lists of ids the same text"
    else:
        said += "; texts of ids not checked"
    if parity.text is not None:
        said += (
            f"; first difference: {parity.text!r}: ours {list(parity.ours)}, "
            f"the reference's {list(parity.theirs)}"
        )
    if parity.ids:
        said += f"; first ids of another text: {list(parity.ids)}"
    if parity.apart:
        said += (
            f"; of {parity.apart:,} more that are not judged, since engines read them differently "
            f"(U+2581, decomposed characters, what looks special), {parity.apart_equal:,} do"
        )
    same = parity.equal == parity.total and parity.text is None
    same = same and parity.decoded_equal == parity.decoded and not parity.ids
    return Finding.judged("tokenizer", same, said)


def _compute_path(evidence: Evidence) -> Finding:
    """Check the backend, and that the noise fits its counters."""
    path, ours = evidence.compute_path, evidence.ours
    products = {name: calls for name, calls in ours.kernels.items() if name.startswith("linear/")}
    said = f"{path}: {sum(products.values()):,} products of weights by {ours.backend}"
    if path == "mock":
        text = "the tokenizer is a mock, which takes bytes for tokens"
        return Finding("skipped", "compute path", text, "leave --allow-mock out")
    if path == "none" or not products:
        return Finding("failed", "compute path", "no product of weights was counted")
    if evidence.plan.require_real and path != "real":
        hint = "install the compiled module; see: bitnet doctor"
        return Finding("failed", "compute path", f"{said}, and --require-real asks for it", hint)
    noise = mean(row.exact_ours.noise if row.exact_ours else None for row in evidence.rows)
    is_rounded = path == "real" and ours.arithmetic == "int8"
    if is_rounded and noise is not None and noise < LEAST_NOISE:
        text = (
            f"the counters say 8-bit products, and the logits are as near to float64 ({noise:.1e} "
            f"of their spread) as only floats are (8 bit: at least {LEAST_NOISE:.0e})"
        )
        return Finding("failed", "compute path", text)
    return Finding("ok", "compute path", said)


def _near(rows: Sequence[Row], side: str, bounds: SideBounds) -> tuple[bool, str]:
    """True if one engine is close to the float64 pass everywhere; and the metrics."""
    found: list[Nearness | None] = [getattr(row, side) for row in rows]
    known = [one for one in found if one is not None]
    if not found or len(known) < len(found):
        return False, f"{len(found) - len(known)} of {len(found)} positions could not be compared"
    kl = fmean(one.kl for one in known)
    worst = max(one.kl for one in known)
    slopes = [one.scale for one in known if one.scale is not None]
    scale = fmean(slopes) if slopes else 1.0
    near = kl <= bounds.mean_kl and worst <= bounds.worst_kl and abs(scale - 1) <= bounds.scale
    return near, (
        f"mean KL {kl:.1e} (at most {bounds.mean_kl:.1e}), worst position {worst:.1e} (at most "
        f"{bounds.worst_kl:.1e}), log-probabilities stretched by {scale - 1:+.1%} (at most "
        f"{bounds.scale:.1%})"
    )


def _reference(evidence: Evidence) -> Finding:
    """Check that the reference is within the bounds that apply to us, so that it may judge."""
    rows = evidence.rows
    near, said = _near(rows, "exact_theirs", evidence.bounds.reference)
    if near:
        return Finding("ok", "reference", f"beside the float64 pass: {said}")
    pairs = [(row.exact_surprise, row.theirs_surprise) for row in rows]
    known = [(ours, its) for ours, its in pairs if ours is not None and its is not None]
    ours, its = (fmean(side) for side in zip(*known, strict=True)) if known else (0.0, 0.0)
    if its + CLEARLY_BETTER < ours:
        better = f"it predicts the prompts better than we do ({its:.2f} against {ours:.2f} nats)"
        return Finding("failed", "reference", f"{said}, but {better}: we read the model wrong")
    if evidence.reference.arithmetic == "float32":
        text = f"{said}, although it rounds nothing: one of both reads the model wrong"
        return Finding("failed", "reference", text)
    hint = "choose another engine: --against NAME"
    return Finding("skipped", "reference", f"rejected, its logits are wrong: {said}", hint)


def _logits(evidence: Evidence) -> Finding:
    bounds = evidence.bounds
    values = [row.kl for row in evidence.rows]
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        said = f"{len(values) - len(known)} of {len(values)} positions could not be compared"
        return Finding("failed", "logits", said)
    average, worst = fmean(known), max(known)
    return Finding.judged(
        "logits",
        average <= bounds.mean_kl and worst <= bounds.worst_kl,
        f"mean KL {average:.1e} (at most {bounds.mean_kl:.1e}), "
        f"worst position {worst:.1e} (at most {bounds.worst_kl:.1e})",
    )


def _order(evidence: Evidence) -> Finding:
    rows, bounds = evidence.rows, evidence.bounds
    kinds = [kind_of(row, bounds) for row in rows]
    said = (
        f"{kinds.count('same')} of {len(rows)} positions prefer the same token, "
        f"{kinds.count('tie')} differ in a near-tie, {kinds.count('excused')} are excused: the "
        "float64 pass sides with us"
    )
    wrong = [row for row, kind in zip(rows, kinds, strict=True) if kind == "wrong"]
    if wrong:
        gap = "no numbers" if wrong[0].gap is None else f"gap {wrong[0].gap:.2f}"
        said += (
            f", {len(wrong)} where the reference was sure: prompt {wrong[0].prompt} position "
            f"{wrong[0].position}, {gap}"
        )
    return Finding.judged("top-1", bool(rows) and not wrong, said)


def _exact(evidence: Evidence) -> Finding:
    near, said = _near(evidence.rows, "exact_ours", evidence.bounds.ours)
    if not evidence.reference.live:
        drift = [row.drift for row in evidence.rows]
        worst = max((one for one in drift if one is not None), default=0.0)
        near = near and None not in drift and worst <= SAME_FLOAT64
        said += f"; the recorded one is {worst:.1e} from today's (at most {SAME_FLOAT64:.0e})"
    ours = mean(row.exact_ours.kl if row.exact_ours else None for row in evidence.rows)
    theirs = mean(row.exact_theirs.kl if row.exact_theirs else None for row in evidence.rows)
    if ours is not None and theirs is not None and evidence.reference.independent:
        closer = "ours is closer" if ours < theirs else "the reference is closer"
        said += f"; {theirs:.1e} to the reference: {closer}"
    return Finding.judged("float64", near, f"beside the float64 pass: {said}")


def _greedy(evidence: Evidence) -> Finding:
    parts = evidence.greedy
    if not evidence.plan.continuations:
        text = "the reference has no continuations of these prompts"
        return Finding("skipped", "greedy", text, "leave them out: --greedy 0")
    kinds = [_kind_of_part(one, evidence.bounds) for one in parts]
    said = (
        f"{kinds.count('same')} of {len(parts)} continuations are equal to the end, "
        f"{kinds.count('tie')} part in a near-tie, {kinds.count('excused')} are excused: the "
        "float64 pass sides with us"
    )
    wrong = [one for one, kind in zip(parts, kinds, strict=True) if kind == "wrong"]
    if wrong:
        gap = wrong[0].gap or 0.0
        said += f"; prompt {wrong[0].prompt} parts at step {wrong[0].agreed}, gap {gap:.2f}"
    return Finding.judged("greedy", bool(parts) and not wrong, said)


def _operations(evidence: Evidence) -> Finding:
    """Check each operation of ours, and of a reference that gives its intermediates."""
    found = evidence.operations
    if not found or found[0].engine != evidence.ours.engine:
        return Finding("failed", "operations", "our intermediates were not compared")
    right = all(one.is_right for one in found)
    wrong = [one for one in found if not one.is_right]
    return Finding.judged("operations", right, "; ".join(map(str, wrong or found)))
