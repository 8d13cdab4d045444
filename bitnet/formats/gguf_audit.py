"""Audit of a readable GGUF file: findings for people, not errors.

The reader refuses files that cannot be used safely. Those it accepts may still have problems, which
are listed here, the worst first. ``failed``: engines will refuse or misread the file; ``warning``:
they may; ``note``: harmless, or compensated by the reader. The subject is the kind of the finding:
``tensor-overlap``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.findings import Finding, worst
from bitnet.formats.gguf_values import Array

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bitnet.formats.gguf import GGUF, TensorInfo

__all__ = ["audit"]

_MAX_TENSOR_NAME = 63  # ggml cuts longer names
_MIN_ALIGNMENT = 8  # of the format's definition
_PER_KIND = 5  # findings of one kind listed individually


def audit(gguf: GGUF) -> list[Finding]:
    """Findings about *gguf*, the worst first; empty if there are none."""
    found = [*_layout(gguf), *_encodings(gguf), *_general(gguf), *_tokenizer(gguf.metadata)]
    found += _embedding(gguf)
    return worst(_shortened(found))


def _shortened(findings: list[Finding]) -> Iterator[Finding]:
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
    """Findings on tensor layout: overlaps, gaps, alignment, the end of the file."""
    if gguf.alignment < _MIN_ALIGNMENT:
        yield Finding(
            "warning", "alignment", f"general.alignment is {gguf.alignment}, at least 8 expected"
        )
    for part, size in enumerate(gguf.part_sizes):
        in_order = sorted(
            (info for info in gguf.tensors.values() if info.part == part),
            key=lambda info: (info.offset, info.size_bytes),
        )
        yield from _neighbours(in_order, gguf.alignment)
        if gguf.size is not None:
            yield from _file_end(in_order, size, gguf.alignment)
    for name in gguf.tensors:
        if len(name.encode()) > _MAX_TENSOR_NAME:
            yield Finding("warning", "long-name", f"tensor name {name!r} is longer than 63 bytes")


def _neighbours(in_order: list[TensorInfo], alignment: int) -> Iterator[Finding]:
    previous: TensorInfo | None = None
    for info in in_order:
        if info.offset % alignment:
            yield Finding(
                "failed",
                "unaligned",
                f"tensor {info.name} starts at byte {info.offset:,}, "
                f"not a multiple of the alignment {alignment}",
            )
        if previous is not None:
            gap = info.offset - previous.offset - previous.size_bytes
            if gap < 0:
                yield Finding(
                    "failed",
                    "tensor-overlap",
                    f"tensors {previous.name} and {info.name} share {min(-gap, info.size_bytes):,} "
                    f"bytes from byte {info.offset:,}",
                )
            elif gap >= alignment:
                yield Finding(
                    "note", "gap", f"{gap:,} unused bytes between {previous.name} and {info.name}"
                )
        if (
            previous is None
            or info.offset + info.size_bytes > previous.offset + previous.size_bytes
        ):
            previous = info


def _file_end(in_order: list[TensorInfo], size: int, alignment: int) -> Iterator[Finding]:
    furthest = 0
    for info in in_order:
        end = info.offset + info.size_bytes
        furthest = max(furthest, end)
        if end > size:
            yield Finding(
                "failed",
                "truncated",
                f"tensor {info.name} needs bytes {info.offset:,}..{end:,}, "
                f"the file ends at {size:,}",
            )
    if in_order and size - furthest >= alignment:
        yield Finding(
            "note", "trailing", f"{size - furthest:,} unused bytes at the end of the file"
        )


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
