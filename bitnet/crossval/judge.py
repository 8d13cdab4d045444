"""The bounds, where they come from, and the verdict.

All figures are mean KL divergences in nats, measured on SmolLM2-135M (Q4_1) and Gemma-3-270M
(Q4_K_M), six prompts with 272 positions (benchmarks/results/crossval.md has the tables):

    from the float64 pass to     SmolLM2   Gemma 3   largest position / mean
    llama.cpp                    3.5e-3    4.3e-3    10
    ik_llama.cpp                 3.0e-3    1.9e-3    7
    our native backend           1.4e-3    9.1e-4    7
    our reference (float32)      6.2e-7    1.1e-7    28

    llama.cpp to ik_llama.cpp    3.3e-3    5.1e-3    17

Engines that round activations to 8 bit (``int8``) differ by that, and no bound can be below it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from bitnet.findings import Finding

if TYPE_CHECKING:
    from bitnet.crossval.compare import Comparison, TokenizerParity
    from bitnet.crossval.trace import Arithmetic, Trace

__all__ = ["Bounds", "Verdict", "bounds_for", "judge", "near_tie_for", "surprise"]

# Mean KL from the float64 pass that an engine may have: the largest measured, rounded up
# (llama.cpp 4.3e-3), and for floats the f16 of the KV cache with room for models that amplify
# more. Two C++ engines that are both right are 5.1e-3 apart.
NOISE: dict[Arithmetic, float] = {"int8": 5e-3, "float": 1e-5}

# What an engine may be off is three times what was measured: other prompts, other processors.
ALLOWANCE = 3.0

# A single position was up to 28 times worse than the mean.
WORST = 30.0

# A reference ten times noisier than any that was measured is broken, not noisy.
BROKEN = 10.0

# The largest gap between the two best tokens that such an engine turned round, in logits, against
# exact arithmetic: 0.317 for llama.cpp. Two engines can be off in opposite directions.
FLIPPED: dict[Arithmetic, float] = {"int8": 0.32, "float": 0.01}

# A reference that predicts the next token of real text better than the float64 pass by so many
# nats reads the model better than we do.
CLEARLY_BETTER = 0.5

Status = Literal["passed", "failed", "not run"]


@dataclass(frozen=True)
class Bounds:
    """What is still agreement.

    Attributes:
        near_tie: gap in logits below which the order of two tokens means nothing.
        mean_kl: from the reference to ours.
        worst_kl: the same at a single position.
        mean_kl_to_exact: from the float64 pass to ours.
        broken_kl: from the float64 pass to a reference that may not judge.
    """

    near_tie: float
    mean_kl: float
    worst_kl: float
    mean_kl_to_exact: float
    broken_kl: float


@dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison.

    Attributes:
        status: ``not run`` where there is nothing to judge by.
        findings: check by check: ``tokenizer``, ``reference``, ``positions``, ``model``,
            ``logits``, ``top-1``, ``float64``, ``greedy``.
        rejected: the reference was there and may not judge.
    """

    status: Status
    findings: tuple[Finding, ...] = field(default=())
    rejected: bool = False

    @property
    def reasons(self) -> list[str]:
        """What failed, or why nothing was judged."""
        return [f"{one.subject}: {one.text}" for one in self.findings if one.failed]


def near_tie_for(ours: Arithmetic, theirs: Arithmetic) -> float:
    """Gap in logits below which two such engines may order two tokens either way."""
    return FLIPPED[ours] + FLIPPED[theirs]


def bounds_for(ours: Arithmetic, theirs: Arithmetic) -> Bounds:
    """The bounds for two engines of such arithmetic."""
    mean = ALLOWANCE * max(NOISE[ours], NOISE[theirs])
    return Bounds(
        near_tie=near_tie_for(ours, theirs),
        mean_kl=mean,
        worst_kl=WORST * mean,
        mean_kl_to_exact=ALLOWANCE * NOISE[ours],
        broken_kl=BROKEN * NOISE[theirs],
    )


def surprise(trace: Trace) -> float:
    """Mean of ``-log p`` of the tokens that really came next in the prompts, in nats.

    At most the true one: a token that is not among the stored counts as the last of them.
    """
    found = []
    for prompt in trace.prompts:
        for position, token in zip(prompt.positions, prompt.ids[1:], strict=False):
            known = position.log_probabilities()
            found.append(-known.get(token, min(known.values())))
    return float(np.mean(found)) if found else 0.0


def judge(
    comparison: Comparison | None,
    tokenizer: TokenizerParity | None,
    *,
    bounds: Bounds,
    exact: Trace | None = None,
    theirs: Trace | None = None,
    independent: bool = True,
) -> Verdict:
    """The verdict on what was compared.

    Args:
        comparison: positions and continuations; ``None`` when only tokenizers were compared.
        tokenizer: ``None`` where the reference has none of its own.
        bounds: what is still agreement.
        exact: the float64 pass.
        theirs: the reference, when the float64 pass can check it: it ran the same file.
        independent: the reference is not our own code.
    """
    findings = [] if tokenizer is None else [_tokenizer(tokenizer)]
    if comparison is None:
        if tokenizer is None:
            findings.append(Finding.judged("tokenizer", False, "the reference has no tokenizer"))
            return Verdict("not run", tuple(findings))
        return _verdict(findings)
    if not comparison.rows:
        findings.append(Finding.judged("positions", False, "no position was compared"))
        return _verdict(findings)
    if theirs is not None and exact is not None and independent:
        checked, rejected = _reference(comparison, bounds, exact, theirs)
        findings.append(checked)
        if rejected:
            ran_into = any(one.failed for one in findings[:-1])
            return Verdict("failed" if ran_into else "not run", tuple(findings), rejected=True)
    findings += [_logits(comparison, bounds), _order(comparison)]
    if exact is not None:
        findings.append(_exact(comparison, bounds))
    if comparison.greedy:
        findings.append(_greedy(comparison))
    return _verdict(findings)


def _verdict(findings: list[Finding]) -> Verdict:
    passed = not any(one.failed for one in findings)
    return Verdict("passed" if passed else "failed", tuple(findings))


def _tokenizer(parity: TokenizerParity) -> Finding:
    if not parity.total:
        return Finding.judged("tokenizer", False, "no text was compared")
    said = f"{parity.equal:,} of {parity.total:,} texts give the same ids"
    if parity.text is not None:
        said += (
            f"; first difference: {parity.text!r}: ours {list(parity.ours)}, "
            f"the reference's {list(parity.theirs)}"
        )
    if parity.apart:
        said += (
            f"; of {parity.apart:,} more that are not judged, since engines read them differently "
            f"(U+2581, decomposed characters, what looks special), {parity.apart_equal:,} do"
        )
    return Finding.judged("tokenizer", parity.text is None, said)


def _reference(
    comparison: Comparison, bounds: Bounds, exact: Trace, theirs: Trace
) -> tuple[Finding, bool]:
    """Whether the reference may judge, and whether it is rejected."""
    off = comparison.mean(lambda row: row.exact_theirs) or 0.0
    if off <= bounds.broken_kl:
        return Finding.judged(
            "reference", True, f"mean KL {off:.1e} from the float64 pass to it"
        ), False
    ours, its = surprise(exact), surprise(theirs)
    said = f"mean KL {off:.1e} from the float64 pass to it, at most {bounds.broken_kl:.0e} expected"
    if its + CLEARLY_BETTER < ours:
        better = f"it predicts the prompts better than we do ({its:.2f} against {ours:.2f} nats)"
        return Finding.judged(
            "reference", False, f"{said}, but {better}: we read the model wrong"
        ), False
    return Finding.judged("reference", False, f"rejected, its logits are wrong: {said}"), True


def _logits(comparison: Comparison, bounds: Bounds) -> Finding:
    mean = comparison.mean(lambda row: row.kl) or 0.0
    worst = max(row.kl for row in comparison.rows)
    passed = mean <= bounds.mean_kl and worst <= bounds.worst_kl
    return Finding.judged(
        "logits",
        passed,
        f"mean KL {mean:.1e} (at most {bounds.mean_kl:.1e}), "
        f"worst position {worst:.1e} (at most {bounds.worst_kl:.1e})",
    )


def _order(comparison: Comparison) -> Finding:
    rows = comparison.rows
    wrong = [row for row in rows if row.wrong]
    equal = sum(row.agrees for row in rows)
    ties = sum(not row.agrees and row.near_tie for row in rows)
    said = f"{equal} of {len(rows)} positions prefer the same token, {ties} differ in a near-tie"
    if wrong:
        said += (
            f", {len(wrong)} where the reference was sure: prompt {wrong[0].prompt} position "
            f"{wrong[0].position}, gap {wrong[0].gap:.2f}"
        )
    return Finding.judged("top-1", not wrong, said)


def _exact(comparison: Comparison, bounds: Bounds) -> Finding:
    ours = comparison.mean(lambda row: row.exact_ours) or 0.0
    theirs = comparison.mean(lambda row: row.exact_theirs) or 0.0
    closer = "ours is closer" if ours < theirs else "the reference is closer"
    said = f"mean KL {ours:.1e} to ours (at most {bounds.mean_kl_to_exact:.1e}), {theirs:.1e} to "
    return Finding.judged(
        "float64", ours <= bounds.mean_kl_to_exact, f"{said}the reference: {closer}"
    )


def _greedy(comparison: Comparison) -> Finding:
    wrong = [one for one in comparison.greedy if one.wrong]
    whole = sum(one.gap is None for one in comparison.greedy)
    ties = sum(one.gap is not None and not one.wrong for one in comparison.greedy)
    said = f"{whole} of {len(comparison.greedy)} continuations are equal to the end, {ties} part "
    said += "in a near-tie or with the float64 pass on our side"
    if wrong:
        gap = wrong[0].gap or 0.0
        said += f"; prompt {wrong[0].prompt} parts at step {wrong[0].agreed}, gap {gap:.2f}"
    return Finding.judged("greedy", not wrong, said)
