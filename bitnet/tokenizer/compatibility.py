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
    from pathlib import Path

    from bitnet.formats.checkpoint import Checkpoint
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
    own = _own(facts, pre, findings)
    if spare is None:
        size = facts.token_count or needed
        problem = f"vocabulary size differs (Model: {size}, Tokenizer: {has})"
    elif own is not None:
        if different := different_ids(own, tokenizer):
            count, first = f"{len(different):,} of {has:,} tokens differ", different[0]
            spellings = f"{own.spelling(first)!r} and {tokenizer.spelling(first)!r}"
            problem = f"same size, other vocabulary: {count}, first id {first}: {spellings}"
        elif not findings:
            ids = measure_agreement(own.encode, tokenizer.encode)
            if ids.first_difference is not None:
                count = f"{ids.total - ids.equal} of {ids.total} texts"
                first_text = f"the first is {ids.first_difference!r}"
                findings.append(f"other ids than {own.source} for {count}; {first_text}")
    spare = 0 if problem else spare or 0
    if spare:
        beyond = f"{spare} embedding rows beyond the vocabulary"
        findings.append(f"{beyond} (padding, below {MAX_PADDING})")
    findings += _special_findings(tokenizer)
    if problem:
        verdict = f"NOT COMPATIBLE: {tokenizer.source} and {facts.path.name}: {problem}"
    else:
        how = "token by token" if own is not None else "by vocabulary size"
        verdict = f"compatible: {tokenizer.source} and {facts.path.name}: {has:,} tokens, {how}"
    return Compatibility(not problem, verdict, tuple(findings), needed, has, spare)


def _own(facts: ModelFacts, pre: str | None, findings: list[str]) -> Tokenizer | None:
    """The tokenizer in the model's file, at least for its token texts, or in its folder."""
    if facts.gguf is None:
        return search(facts, places=("sibling",), pre=pre).tokenizer
    if not facts.token_count:
        return None
    try:
        return extract_tokenizer_from_gguf(facts.gguf, pre=pre)
    except BitnetError as error:
        findings.append(f"the embedded tokenizer cannot be rebuilt: {error.message}")
    with suppress(BitnetError):  # token texts do not depend on the pre-tokenizer
        return extract_tokenizer_from_gguf(facts.gguf, pre="gpt-2")
    return None


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
