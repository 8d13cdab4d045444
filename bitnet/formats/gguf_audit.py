"""Audit of a readable GGUF file: findings for people, not errors.

The reader refuses files that cannot be used safely. Those it accepts may still have problems, which
are listed here, the worst first. ``failed``: engines will refuse or misread the file; ``warning``:
they may; ``note``: harmless, or compensated by the reader. The subject is the kind of the finding:
``tensor-overlap``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.base.findings import Finding, worst
from bitnet.formats.gguf_checkpoint import find_ignored_keys
from bitnet.formats.gguf_layout import in_order, layout_faults
from bitnet.formats.gguf_values import Array

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bitnet.formats.gguf import GGUF

__all__ = ["audit"]

_MAX_TENSOR_NAME = 63  # ggml cuts longer names
_MIN_ALIGNMENT = 8  # of the format's definition
_PER_KIND = 5  # findings of one kind listed individually


def audit(gguf: GGUF) -> list[Finding]:
    """Findings about *gguf*, the worst first; empty if there are none."""
    found = [*_layout(gguf), *_encodings(gguf), *_general(gguf), *_tokenizer(gguf.metadata)]
    found += _embedding(gguf)
    return worst(_shorten(found))


def _shorten(findings: list[Finding]) -> Iterator[Finding]:
    """The first few of each kind, and a count of the others."""
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.subject] = counts.get(finding.subject, 0) + 1
        if counts[finding.subject] <= _PER_KIND:
            yield finding
    for code, count in counts.items():
        if count > _PER_KIND:
            severity = next(finding.severity for finding in findings if finding.subject == code)
            yield Finding(severity, code, f"{count - _PER_KIND:,} more of the same kind")


def _layout(gguf: GGUF) -> Iterator[Finding]:
    """Findings on tensor layout: what the reader refuses, and gaps."""
    if gguf.alignment < _MIN_ALIGNMENT:
        yield Finding(
            "warning", "alignment", f"general.alignment is {gguf.alignment}, at least 8 expected"
        )
    for kind, fault in layout_faults(gguf.tensors.values(), gguf.part_sizes, gguf.alignment):
        yield Finding("failed", kind, fault)
    for part, size in enumerate(gguf.part_sizes.values()):
        end = None
        for previous, info in in_order(gguf.tensors.values(), part):
            gap = info.offset - previous.offset - previous.size_bytes if previous else 0
            if previous is not None and gap >= gguf.alignment:
                text = f"{gap:,} unused bytes between {previous.name} and {info.name}"
                yield Finding("note", "gap", text)
            end = max(end or 0, info.offset + info.size_bytes)
        if gguf.size is not None and end is not None and size - end >= gguf.alignment:
            text = f"{size - end:,} unused bytes at the end of the file"
            yield Finding("note", "trailing", text)
    for name in gguf.tensors:
        if len(name.encode()) > _MAX_TENSOR_NAME:
            yield Finding("warning", "long-name", f"tensor name {name!r} is longer than 63 bytes")


def _encodings(gguf: GGUF) -> Iterator[Finding]:
    for info in gguf.tensors.values():
        if not info.type.known:
            yield Finding(
                "failed",
                "unknown-encoding",
                f"tensor {info.name} has type id {info.type.ggml_id}, which {gguf.dialect} "
                f"does not know",
            )


def _general(gguf: GGUF) -> Iterator[Finding]:
    if not gguf.architecture:
        yield Finding("failed", "no-architecture", "general.architecture is missing or not text")
    if not gguf.tensors:
        yield Finding("note", "vocabulary-only", "the file has no tensors")
        return
    for key in ("block_count", "context_length", "embedding_length", "attention.head_count"):
        if gguf.architecture and f"{gguf.architecture}.{key}" not in gguf.metadata:
            yield Finding(
                "warning", "missing-key", f"{gguf.architecture}.{key} is missing from the metadata"
            )

    for key, value in find_ignored_keys(gguf.metadata, gguf.architecture).items():
        text = f"{key} is {value!r:.80}: llama.cpp ignores it, and so do we"
        yield Finding("warning", "ignored-key", text)
    original = gguf.metadata.get(f"{gguf.architecture}.rope.scaling.original_context_length")
    if "rope_factors_long.weight" in gguf.tensors and isinstance(original, int):
        text = (
            f"llama.cpp takes the long rope factors wherever its context is above {original:,} "
            "positions; here the length of the text decides"
        )
        yield Finding("note", "rope-factors", text)


def _tokenizer(metadata: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings on the embedded tokenizer: lengths, ids out of range, missing keys."""
    prefix = "tokenizer.ggml."
    tokens = metadata.get(prefix + "tokens")
    if not isinstance(tokens, Array) or tokens.item_type != "string":
        yield Finding("warning", "no-tokenizer", "no tokenizer is embedded (tokenizer.ggml.tokens)")
        return
    model = metadata.get(prefix + "model")
    if not isinstance(model, str):
        yield Finding("failed", "no-tokenizer-model", "tokenizer.ggml.model is missing or not text")
    for key in ("scores", "token_type"):
        values = metadata.get(prefix + key)
        if isinstance(values, Array) and len(values) != len(tokens):
            yield Finding(
                "failed",
                "vocabulary-lengths",
                f"{len(tokens):,} tokens, and {len(values):,} entries in {prefix}{key}",
            )
    for key, value in metadata.items():
        is_id = key.startswith(prefix) and key.endswith("_token_id") and isinstance(value, int)
        if is_id and not 0 <= value < len(tokens):
            yield Finding(
                "failed", "token-id", f"{key} is {value}, the vocabulary has {len(tokens):,} tokens"
            )
    if model == "gpt2" and not metadata.get(prefix + "pre"):
        yield Finding(
            "warning",
            "no-pre",
            "tokenizer.ggml.pre is missing: engines fall back to a default that splits text "
            "otherwise (fix-gguf --set-pre NAME writes a corrected copy)",
        )
    if model == "gpt2" and not isinstance(metadata.get(prefix + "merges"), Array):
        yield Finding("failed", "no-merges", "tokenizer.ggml.merges is missing")


def _embedding(gguf: GGUF) -> Iterator[Finding]:
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    embedding = gguf.tensors.get("token_embd.weight")
    if not isinstance(tokens, Array) or embedding is None or len(embedding.shape) != 2:
        return
    rows = embedding.shape[0]
    if rows < len(tokens):
        yield Finding(
            "failed",
            "embedding-rows",
            f"{len(tokens):,} tokens, and {rows:,} rows in token_embd.weight",
        )
    elif rows > len(tokens):
        yield Finding(
            "note",
            "padded-embedding",
            f"token_embd.weight has {rows - len(tokens):,} rows more than there are tokens",
        )
