"""Check that a tokenizer belongs to a model."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitnet.base.errors import BitnetError
from bitnet.tokenizer.chat import chat_template
from bitnet.tokenizer.comparison import different_ids, measure_agreement
from bitnet.tokenizer.discover import search
from bitnet.tokenizer.load import extract_tokenizer_from_gguf
from bitnet.tokenizer.model_facts import MAX_PADDING, ModelFacts, model_facts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.formats.gguf import GGUF
    from bitnet.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Compatibility:
    """Result of checking a tokenizer against a model."""

    compatible: bool  # true if they belong together
    verdict: str  # one line for people
    findings: tuple[str, ...]  # further observations, one line each
    model_vocab: int  # ids the model has
    tokenizer_vocab: int  # ids the tokenizer has
    padded_rows: int  # embedding rows beyond the vocabulary


def compatibility(
    model: Path | Checkpoint, tokenizer: Tokenizer, *, pre: str | None = None
) -> Compatibility:
    """Check *tokenizer* against *model*: size, embedded token texts if any, special ids.

    *pre* names a pre-tokenizer to use instead of what the GGUF file says.
    """
    facts = model_facts(model)
    needed, has = facts.vocab_size, tokenizer.vocab_size
    spare = facts.padding(has)
    findings: list[str] = []
    problem = ""
    sizes = (0, has, has + facts.filler_tokens)
    own = _own(facts, pre, findings)
    if facts.token_count not in sizes or spare is None:
        size = facts.token_count or needed
        problem = f"vocabulary size differs (Model: {size}, Tokenizer: {has})"
    elif own is not None:
        problem = _first_difference(own, tokenizer)
        if not (problem or findings):
            findings += _other_ids(own, tokenizer)
    spare = 0 if problem else spare or 0
    if spare:
        findings.append(
            f"{spare} embedding rows beyond the vocabulary (padding, below {MAX_PADDING})"
        )
    findings += _special_findings(tokenizer)
    if problem:
        verdict = f"NOT COMPATIBLE: {tokenizer.source} and {facts.path.name}: {problem}"
    else:
        how = "token by token" if own is not None else "by vocabulary size"
        verdict = f"compatible: {tokenizer.source} and {facts.path.name}: {has:,} tokens, {how}"
    return Compatibility(not problem, verdict, tuple(findings), needed, has, spare)


def _own(facts: ModelFacts, pre: str | None, findings: list[str]) -> Tokenizer | None:
    """The tokenizer that came with the model: in its file, or in its folder."""
    if facts.gguf is not None:
        return _load_embedded(facts.gguf, pre, findings) if facts.token_count else None
    return search(facts, places=("sibling",), pre=pre).tokenizer


def _load_embedded(model: GGUF, pre: str | None, findings: list[str]) -> Tokenizer | None:
    """The embedded tokenizer, at least for its token texts; ``None`` if it is unusable."""
    try:
        return extract_tokenizer_from_gguf(model, pre=pre)
    except BitnetError as error:
        findings.append(f"the embedded tokenizer cannot be rebuilt: {error.message}")
    with suppress(BitnetError):  # token texts do not depend on the pre-tokenizer
        return extract_tokenizer_from_gguf(model, pre="gpt-2")
    return None


def _other_ids(own: Tokenizer, other: Tokenizer) -> Iterator[str]:
    """A finding if texts have other ids than with the model's own tokenizer."""
    found = measure_agreement(own.encode, other.encode)
    if found.first_difference is not None:
        yield (
            f"other ids than {own.source} for {found.total - found.equal} of {found.total} texts;"
            f" the first is {found.first_difference!r}"
        )


def _first_difference(own: Tokenizer, candidate: Tokenizer) -> str:
    """Difference of the vocabularies; empty if every id stands for the same bytes."""
    different = different_ids(own, candidate)
    if not different:
        return ""
    first = different[0]
    return (
        f"same size, other vocabulary: {len(different):,} of {candidate.vocab_size:,} tokens "
        f"differ, first id {first}: {own.spelling(first)!r} and {candidate.spelling(first)!r}"
    )


def _special_findings(tokenizer: Tokenizer) -> list[str]:
    """Findings on special tokens and the chat template."""
    findings = []
    if not tokenizer.stop_ids:
        findings.append("no end-of-generation token is known: generation stops only at its limit")
    for name, token_id in (("BOS", tokenizer.bos_id), ("EOS", tokenizer.eos_id)):
        if token_id is not None and not 0 <= token_id < tokenizer.vocab_size:
            findings.append(f"{name} id {token_id} is outside the vocabulary")
    if tokenizer.chat_template is not None:
        try:
            chat_template(tokenizer).render([{"role": "user", "content": "Hello"}])
        except BitnetError as error:
            findings.append(f"the chat template cannot be rendered: {error.message}")
    return findings
