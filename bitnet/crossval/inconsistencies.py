"""Inconsistencies in a report: invalid digests, contradictory counts.

The verdict follows from the evidence; these checks ask whether the evidence is possible at all.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.crossval.compare import Row
    from bitnet.crossval.evidence import Evidence

__all__ = ["count_faults", "identity_faults", "row_faults"]

_SHA256 = re.compile(r"[0-9a-f]{64}")
# References whose library file is named.
_OWN_LIBRARY = ("llama.cpp", "bitnet.cpp", "ik_llama.cpp")


def identity_faults(evidence: Evidence) -> Iterator[str]:
    """Missing identities of model, tokenizer and engines."""
    model, ours, reference = evidence.model, evidence.ours, evidence.reference
    digests = {"the model": model.sha256, "its content": model.attestation}
    if evidence.compute_path != "mock":
        digests["the tokenizer"] = evidence.tokenizer.sha256
    texts = {"our engine": ours.version, "the reference": reference.name, "the file": model.file}
    texts |= {
        "the architecture": model.architecture,
        "the tokenizer's file": evidence.tokenizer.source,
    }
    if ours.backend.startswith("native"):
        digests["our module"] = ours.module_sha256
    if reference.state == "answered":
        texts |= {"the reference's engine": reference.engine, "its version": reference.version}
        if reference.name in _OWN_LIBRARY:
            digests["the reference's library"] = reference.library_sha256
            texts["the reference's library"] = reference.library
    yield from (
        f"{name} has no SHA-256" for name, one in digests.items() if not _SHA256.fullmatch(one)
    )
    yield from (f"{name} has no name" for name, one in texts.items() if not one)
    if ours.engine != "bitnet":
        yield f"our engine is {ours.engine!r}"
    try:
        datetime.fromisoformat(evidence.created)
    except ValueError:
        yield f"it was made at {evidence.created!r}"


def count_faults(evidence: Evidence) -> Iterator[str]:
    """Contradictory numbers of prompts, texts, steps and calls."""
    plan, prompts = evidence.plan, evidence.prompts
    if plan.positions_there < plan.positions:
        yield "more positions were planned than there are"
    if evidence.tokenizer.vocab_size < 1:
        yield "the tokenizer has no tokens"
    yield from (f"{name} ran {n} times" for name, n in evidence.ours.kernels.items() if n < 1)
    if evidence.reference.state != "answered":
        return
    if (plan.prompts, plan.positions) != (len(prompts), sum(len(one.ids) for one in prompts)):
        yield "the prompts are not those that were planned"
    if any(len(one.tokens) != len(one.ids) or not one.text for one in prompts):
        yield "a prompt has other tokens than ids"
    asked = {one.side: one.texts.asked for one in evidence.answers}
    if asked.get("reference", 0) != plan.texts:
        yield "other texts were asked for than planned"
    ids = [id for one in prompts for id in one.ids]
    ids += [
        id for row in evidence.rows for id in (row.ours, row.theirs, row.exact) if id is not None
    ]
    if any(not 0 <= id < evidence.tokenizer.vocab_size for id in ids):
        yield "a token is outside the vocabulary"
    yield from _continuation_faults(evidence)
    for one in evidence.bisections:
        names = [step.name for step in one.steps]
        if one.least < 1 or "" in names or len(set(names)) < len(names):
            yield "intermediates without a name, or twice"
        if any(step.error < 0 for step in one.steps):
            yield "an intermediate has an error below zero"


def _continuation_faults(evidence: Evidence) -> Iterator[str]:
    found = [one.prompt for one in evidence.greedy]
    if found != sorted(set(found) & set(range(len(evidence.prompts)))):
        yield "continuations of a prompt that is not there, or twice"
    for one in evidence.greedy:
        whole = one.agreed == one.steps
        if not 0 <= one.agreed <= one.steps or whole != (one.gap is None) or (one.gap or 0) < 0:
            yield f"the continuation of prompt {one.prompt} contradicts itself"
    if sum(one.steps for one in evidence.greedy) != evidence.plan.greedy * len(found):
        yield "continuations have other lengths than planned"


def row_faults(evidence: Evidence, *, whole: bool) -> Iterator[str]:
    """Inconsistencies of the rows.

    Args:
        evidence: the rows, and the prompts they belong to.
        whole: every number must be present, as in a report that passed.
    """
    places = [(row.prompt, row.position) for row in evidence.rows]
    if len(set(places)) < len(places):
        yield "a position is there twice"
    expected = {(at, k) for at, one in enumerate(evidence.prompts) for k in range(len(one.ids))}
    if set(places) - expected:
        yield "a position is outside its prompt"
    if expected - set(places) and evidence.reference.state == "answered":
        yield f"{len(expected - set(places))} positions of the prompts have no row"
    lengths = [len(one.ids) for one in evidence.prompts]
    for row in evidence.rows:
        where = f"prompt {row.prompt}, position {row.position}"
        if any(number < 0 for number in _sizes(row)) or abs(row.cosine or 0) > 1 + 1e-6:
            yield f"{where}: a number that cannot be"
        if row.kl == 0 and not row.agrees and row.gap:
            yield f"{where}: other tokens and no divergence"
        if row.kl and row.max_difference == 0:
            yield f"{where}: a divergence and no difference"
        if (
            whole
            and set(places) <= expected
            and _is_short(
                row, live=evidence.reference.live, last=row.position + 1 == lengths[row.prompt]
            )
        ):
            yield f"{where}: a number is missing"


def _sizes(row: Row) -> list[float]:
    """Numbers of *row* that must not be negative."""
    found = [row.gap, row.kl, row.max_difference, row.overlap, row.exact_gap, row.exact_surprise]
    for one in (row.exact_ours, row.exact_theirs):
        found += [] if one is None else [one.kl, one.noise, one.surprise]
    return [number for number in found if number is not None]


def _is_short(row: Row, *, live: bool, last: bool) -> bool:
    """True if *row* lacks a number; the last one of a prompt has no next token."""
    found: list[float | None] = [row.gap, row.kl, row.max_difference, row.overlap, row.cosine]
    if live:
        sides = (row.exact_ours, row.exact_theirs)
        found += [row.exact, row.exact_gap]
        found += [None if one is None else one.kl for one in sides]
        next_token = [row.exact_surprise, *(one.surprise for one in sides if one is not None)]
        found += [] if last else next_token
    return None in found
