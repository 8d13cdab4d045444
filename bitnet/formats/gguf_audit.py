"""Audit of a readable GGUF file: findings for people, not errors; and counts of ternary weights.

A file whose header can be read may still have problems, which are listed here, the worst first.
Among them are faults of the layout, which the reader refuses unless *check_layout* is false.
``failed``: engines will refuse or misread the file; ``warning``: they may; ``note``: harmless, or
compensated by the reader. The subject is the kind of the finding: ``tensor-overlap``.

Every ternary type packs several codes into a byte, so it suffices to count bytes: 256 counts, then
the codes of each byte value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bitnet.base.findings import Finding, worst
from bitnet.formats.containers import find_ignored_keys
from bitnet.formats.gguf_header import Array, layout_faults
from bitnet.formats.outside_keys import find_not_followed, find_unknown_keys
from bitnet.quants.scaled_blocks import SCALED_BLOCKS
from bitnet.quants.ternary import split_digits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from bitnet.formats.gguf import GGUF

_MAX_TENSOR_NAME = 63  # ggml cuts longer names
_MIN_ALIGNMENT = 8  # of the format's definition
_PER_KIND = 5  # findings of one kind listed individually


_CHUNK_BYTES = 1 << 20
SAMPLE_BYTES = 1 << 18
_NOTHING = np.zeros(0, np.uint8)
_NO_CODES = np.zeros(4, np.int64)


def audit(gguf: GGUF) -> list[Finding]:
    """Findings about *gguf*, the worst first; empty if there are none."""
    by_kind: dict[str, list[Finding]] = {}
    for check in (_layout, _general, _tokenizer):
        for finding in check(gguf):
            by_kind.setdefault(finding.subject, []).append(finding)
    findings = [
        finding for findings_of_kind in by_kind.values() for finding in findings_of_kind[:_PER_KIND]
    ]
    for kind, findings_of_kind in by_kind.items():
        if unlisted := findings_of_kind[_PER_KIND:]:
            text = f"{len(unlisted):,} more of the same kind"
            findings.append(Finding(findings_of_kind[0].severity, kind, text))
    return worst(findings)


def _layout(gguf: GGUF) -> Iterator[Finding]:
    """Findings on the tensors: what the reader refuses, names and types."""
    if gguf.alignment < _MIN_ALIGNMENT:
        yield Finding(
            "warning", "alignment", f"general.alignment is {gguf.alignment}, at least 8 expected"
        )
    for kind, fault in layout_faults(gguf.tensors.values(), gguf.part_sizes, gguf.part_alignments):
        yield Finding("failed", kind, fault)
    for name, tensor in gguf.tensors.items():
        if len(name.encode()) > _MAX_TENSOR_NAME:
            yield Finding("warning", "long-name", f"tensor name {name!r} is longer than 63 bytes")
        if not tensor.type.known:
            text = f"tensor {name} has type id {tensor.type.ggml_id}, which {gguf.dialect} "
            yield Finding("failed", "unknown-encoding", f"{text}does not know")


def _general(gguf: GGUF) -> Iterator[Finding]:
    if not gguf.architecture:
        yield Finding("failed", "no-architecture", "general.architecture is missing or not text")
    if not gguf.tensors:
        yield Finding("note", "vocabulary-only", "the file has no tensors")
        return
    for key in ("block_count", "context_length", "embedding_length", "attention.head_count"):
        if gguf.architecture and f"{gguf.architecture}.{key}" not in gguf.metadata:
            text = f"{gguf.architecture}.{key} is missing from the metadata"
            yield Finding("warning", "missing-key", text)
    for key, value in find_ignored_keys(gguf.metadata, gguf.architecture).items():
        text = f"{key} is {value!r:.80}: llama.cpp ignores it, and so do we"
        yield Finding("warning", "ignored-key", text)
    for key in find_unknown_keys(gguf.metadata):
        text = f"{key} is not a key of llama.cpp b11434 or of gguf-py: nothing reads it"
        yield Finding("warning", "unknown-key", text)
    for key in find_not_followed(gguf.metadata):
        text = f"{key} names a sampler that does not exist here: answers are computed without it"
        yield Finding("warning", "sampling-not-followed", text)
    original = gguf.metadata.get(f"{gguf.architecture}.rope.scaling.original_context_length")
    if "rope_factors_long.weight" in gguf.tensors and isinstance(original, int):
        text = (
            f"llama.cpp takes the long rope factors wherever its context is above {original:,} "
            "positions; here the length of the text decides"
        )
        yield Finding("note", "rope-factors", text)


def _tokenizer(gguf: GGUF) -> Iterator[Finding]:
    """Findings on the embedded tokenizer: lengths, ids out of range, missing keys."""
    metadata = gguf.metadata
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
            text = f"{len(tokens):,} tokens, and {len(values):,} entries in {prefix}{key}"
            yield Finding("failed", "vocabulary-lengths", text)
    for key, value in metadata.items():
        is_id = key.startswith(prefix) and key.endswith("_token_id") and isinstance(value, int)
        if is_id and not 0 <= value < len(tokens):
            text = f"{key} is {value}, the vocabulary has {len(tokens):,} tokens"
            yield Finding("failed", "token-id", text)
    if model == "gpt2" and not metadata.get(prefix + "pre"):
        text = (
            "tokenizer.ggml.pre is missing: engines fall back to a default that splits text "
            "otherwise (fix-gguf --set-pre NAME writes a corrected copy)"
        )
        yield Finding("warning", "no-pre", text)
    if model == "gpt2" and not isinstance(metadata.get(prefix + "merges"), Array):
        yield Finding("failed", "no-merges", "tokenizer.ggml.merges is missing")
    embedding = gguf.tensors.get("token_embd.weight")
    surplus = embedding.shape[0] - len(tokens) if embedding and len(embedding.shape) == 2 else 0
    if surplus < 0:
        text = f"{len(tokens):,} tokens, and {len(tokens) + surplus:,} rows in token_embd.weight"
        yield Finding("failed", "embedding-rows", text)
    if surplus > 0:
        text = f"token_embd.weight has {surplus:,} rows more than there are tokens"
        yield Finding("note", "padded-embedding", text)


@dataclass(frozen=True)
class TernaryCounts:
    """Code counts of one tensor."""

    name: str  # the tensor
    minus: int  # weights that are -1
    zero: int  # weights that are 0
    plus: int  # weights that are +1
    invalid: int  # codes without a meaning
    scale: float | None  # the tensor's scale; ``None`` if the type has one per block or row
    complete: bool  # all weights were counted, not only a sample
    double: int = 0  # weights that are 2, which Q2_0 and PQ2_0 have a code for

    @property
    def total(self) -> int:
        """Number of codes counted."""
        return self.minus + self.zero + self.plus + self.double + self.invalid


def code_counts(gguf: GGUF, *, full: bool = False) -> Iterator[TernaryCounts]:
    """Counts of every ternary tensor, in file order, but those in IQ1_BN, TL1 and TL2.

    Unless all weights are counted (*full*), a sample from each tensor's start reads at most 256
    KiB of it.
    """
    for tensor in gguf.tensors.values():
        name = tensor.type.name
        scale = None
        double = False
        base_four = (4, 4)  # a byte has four digits in base 4
        view = np.asarray(gguf.tensor_bytes(tensor.name)) if tensor.type.is_ternary else _NOTHING
        # Of each part of a block that has codes: offset, number of bytes, (base, digits) of a byte.
        if name in SCALED_BLOCKS:
            layout = SCALED_BLOCKS[name]
            block_bytes = layout.size
            double = layout.double
            parts = [(part.start, part.count, (part.base, part.digits)) for part in layout.parts]
        elif name == "I2_S":
            # Behind the codes are 32 bytes: the scale as f32, and padding.
            scale = float(view[-32:-28].view("<f4")[0])
            view = view[:-32]
            block_bytes = 1
            parts = [(0, 1, base_four)]
        elif name in ("IQ2_BN", "IQ2_BN_R4"):
            # A row is its f32 scale and 16 bytes per 64 weights. _R4 has the scales of four rows
            # and then their interleaved codes, whose order does not matter here.
            rows = 4 if name == "IQ2_BN_R4" else 1
            block_bytes = rows * (4 + tensor.shape[-1] // 4)
            parts = [(rows * 4, block_bytes - rows * 4, base_four)]
        else:
            continue
        blocks = view[: len(view) // block_bytes * block_bytes].reshape(-1, block_bytes)
        sample = blocks if full else blocks[: max(1, SAMPLE_BYTES // block_bytes)]
        counts = sum((_count(sample[:, at : at + n], *form) for at, n, form in parts), _NO_CODES)
        minus, zero, plus, last = counts.tolist()
        twice, invalid = (last, 0) if double else (0, last)
        complete = len(sample) == len(blocks)
        yield TernaryCounts(tensor.name, minus, zero, plus, invalid, scale, complete, twice)


def _count(packed: NDArray[np.uint8], base: int, digits: int) -> NDArray[np.int64]:
    """Occurrences of the codes 0 to 3 in *packed*, shape ``(4,)``.

    A byte has *digits* codes in *base*. Bytes are counted by value, so that each of the 256 values
    is unpacked once.
    """
    times = np.zeros(256, dtype=np.int64)
    flat = packed.reshape(-1)
    for start in range(0, flat.size, _CHUNK_BYTES):
        times += np.bincount(flat[start : start + _CHUNK_BYTES], minlength=256)
    codes = split_digits(np.arange(256, dtype=np.uint8), base, digits)  # (256, digits)
    return np.stack([((codes == code).sum(axis=1) * times).sum() for code in range(4)])
