"""Inspection of a GGUF file, as text and as plain data.

``bitnet inspect-gguf`` prints it. Only the header and a sample of ternary tensors are read.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import BitnetError, InvalidFormat
from bitnet.base.findings import Finding, render
from bitnet.base.quantities import human_size
from bitnet.base.tables import brief, quantity, table
from bitnet.families.blocks import KeysValues
from bitnet.formats.checkpoint import Checkpoint
from bitnet.formats.containers import effective_keys
from bitnet.formats.generation import read_gguf_settings, write_value
from bitnet.formats.gguf import GGUF
from bitnet.formats.gguf_audit import TernaryCounts, audit, code_counts
from bitnet.formats.gguf_header import Array, printable
from bitnet.kernels import kv_codes
from bitnet.kernels.kv_cache import KVCache
from bitnet.models.load import config_from
from bitnet.quants.weight import Weight
from bitnet.runtime.scheduler import PREFILL_CHUNK
from bitnet.tokenizer import vocabularies
from bitnet.tokenizer.template_origin import oddities_of, templates_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import RopeStyle
    from bitnet.tokenizer.vocabularies import KnownVocabulary

_FIRST = 3  # elements shown of an array
_LONGEST = 100  # characters shown of a text


@dataclass(frozen=True)
class VocabularySize:
    """Number of tokens, and its source."""

    size: int | None  # number of tokens, ``None`` if the file does not say
    stated: dict[str, int | None]  # value of each key that may state it, ``None`` if absent
    derived_from: str  # key or tensor with *size* entries; empty if tokens and embedding are absent


@dataclass(frozen=True)
class Memory:
    """Memory for running the model, in bytes; ``None`` if the metadata does not say."""

    weights: int  # all tensors as stored
    context_length: int | None  # positions the model was trained for
    kv_per_token: int | None = None  # int16 codes of a token's keys and values, and their steps
    # pages and *states* of a sequence with the whole context; a layer with a window keeps little
    # more than its window
    kv_at_context: int | None = None
    total: int | None = None  # *weights* and *kv_at_context*
    # states, and copies of them, of layers whose cache does not grow; part of *kv_at_context*
    states: int = 0


@dataclass(frozen=True)
class Inspection:
    """Result of :func:`inspect_gguf`, which :meth:`as_json` and :meth:`lines` return."""

    path: str
    files: list[str]
    size_bytes: int
    version: int
    alignment: int
    architecture: str
    dialect: str
    metadata: dict[str, Any]
    tensors: list[dict[str, Any]]
    encodings: list[dict[str, Any]]
    vocabulary: VocabularySize
    tokenizer: dict[str, Any]
    memory: Memory
    generation: dict[str, Any] = field(default_factory=dict)  # what the file recommends
    basis: str = ""  # rotation of the weights, as :func:`describe_basis`
    ternary: list[TernaryCounts] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain data; numbers without a JSON form become texts."""
        findings = [finding.facts() for finding in self.findings]
        plain: dict[str, Any] = _plain(asdict(self) | {"findings": findings})
        return plain

    def lines(self) -> Iterator[str]:
        """The report, line by line, safe to print on a terminal."""
        size = human_size(self.size_bytes)
        yield (
            f"{printable(self.path)}: GGUF {self.version}, {size}, "
            f"architecture {printable(self.architecture) or '?'}, dialect {self.dialect}, "
            f"alignment {self.alignment}"
        )
        if len(self.files) > 1:
            yield f"  {len(self.files)} files: {', '.join(map(printable, self.files))}"
        yield from ("", f"Metadata ({len(self.metadata)} keys)")
        width = min(48, max(map(len, self.metadata), default=0))
        for key, value in self.metadata.items():
            yield f"  {printable(key):<{width}}  {_show(value)}"
        yield from self._vocabulary_lines()
        yield from self._generation_lines()
        yield from self._tensor_lines()
        yield from self._memory_lines()
        yield from self._ternary_lines()
        yield from ("", "Audit")
        if not self.findings:
            yield "  nothing odd"
        for line in render(self.findings):
            yield f"  {printable(line)}"

    def _vocabulary_lines(self) -> Iterator[str]:
        yield from ("", "Vocabulary")
        yield f"  general.architecture: {printable(self.architecture) or 'absent'}"
        for key, value in self.vocabulary.stated.items():
            yield f"  {printable(key)}: {value if value is not None else self._absent(key)}"
        for key, value in self.tokenizer.items():
            if key == "family_pre" and value is None:
                continue
            unknown = key == "family" and value is None
            yield brief(f"  {key}: {'not a known vocabulary' if unknown else _show(value)}")

    def _generation_lines(self) -> Iterator[str]:
        yield from ("", "Generation")
        if not self.generation:
            yield "  the file recommends no sampling"
        for name, entry in self.generation.items():
            if isinstance(entry, dict):
                yield f"  {name}: {write_value(entry['value'])} ({entry['from']})"
            else:
                yield brief(f"  {name}: {_show(entry)}")

    def _absent(self, key: str) -> str:
        """Text for *key*, which may state the vocabulary size and is absent."""
        own = f"{self.architecture}.vocab_size"
        if key not in (own, "tokenizer.ggml.vocab_size") and self.architecture:
            # The key is llama.vocab_size, and the architecture another one.
            return f"absent (normal); the key of this architecture is {printable(own)}"
        if not self.vocabulary.derived_from:
            return "absent, and nothing in the file to derive it from"
        return (
            f"absent (normal); derived from {self.vocabulary.derived_from}: {self.vocabulary.size}"
        )

    def _tensor_lines(self) -> Iterator[str]:
        yield from ("", f"Tensors ({len(self.tensors)})")
        for row in self.encodings:
            yield (
                f"  {row['type']}: {quantity(row['tensors'], 'tensor')}, "
                f"{quantity(row['weights'], 'weight')}, {human_size(row['size_bytes'])}"
            )
        yield f"  {self.basis}"
        rows = [
            (
                printable(row["name"]),
                row["type"],
                " x ".join(map(str, row["shape"])) or "scalar",
                human_size(row["size_bytes"]),
                f"{row['offset']}",
            )
            for row in self.tensors
        ]
        if rows:
            head = ("name", "type", "shape", "size", "offset")
            yield ""
            yield from table(head, rows, right=(2, 3, 4), shrink=(0,))

    def _memory_lines(self) -> Iterator[str]:
        memory = self.memory
        yield from ("", "Memory")
        yield f"  weights: {human_size(memory.weights)}"
        if memory.kv_per_token is None:
            yield "  KV cache: unknown, the metadata does not describe the attention"
            return
        yield f"  KV cache: {human_size(memory.kv_per_token)} per token (16 bits)"
        if memory.states:
            yield f"  states of layers without keys and values: {human_size(memory.states)}"
        if memory.kv_at_context is not None and memory.total is not None:
            yield (
                f"  at {memory.context_length:,} tokens: KV cache "
                f"{human_size(memory.kv_at_context)}, together {human_size(memory.total)}"
            )

    def _ternary_lines(self) -> Iterator[str]:
        if not self.ternary:
            return
        sample = "" if all(row.complete for row in self.ternary) else ", from a sample of each"
        yield from ("", f"Ternary weights ({len(self.ternary)} tensors{sample})")
        rows = []
        values = ["-1", "0", "+1"]
        has_double = any(row.double for row in self.ternary)
        if has_double:
            values.append("+2")
        for row in self.ternary:
            counts = [row.minus, row.zero, row.plus]
            if has_double:
                counts.append(row.double)
            shares = (f"{count / max(1, row.total):.1%}" for count in counts)
            scale = "" if row.scale is None else f"{row.scale:.6g}"
            rows.append((printable(row.name), *shares, scale, f"{row.invalid:,}"))
        head = ("name", *values, "scale", "invalid codes")
        yield from table(head, rows, right=range(1, len(head)), shrink=(0,))


def inspect_gguf(path: Path, *, full: bool = False) -> Inspection:
    """Read the file at *path* (and the other parts of a split model).

    *full* counts every ternary weight instead of a sample.
    """
    with GGUF.open(path, check_layout=False) as gguf:
        return examine(gguf, full=full)


def examine(gguf: GGUF, *, full: bool = False) -> Inspection:
    """Inspection of an open file; see :func:`inspect_gguf`."""
    known_vocabulary = _identify_vocabulary(gguf.metadata)
    findings = [*audit(gguf), *_pre_findings(gguf.metadata, known_vocabulary)]
    findings += [
        Finding("warning", kind, text)
        for kind, text in oddities_of(templates_of(gguf.metadata), gguf)
    ]
    generation: dict[str, Any] = {}
    try:
        generation = read_gguf_settings(gguf.metadata, gguf.path.name).facts()
    except InvalidFormat as error:
        findings.append(Finding.of("generation", error))
    is_truncated = any(finding.subject == "truncated" for finding in findings)
    ternary = [] if is_truncated else list(code_counts(gguf, full=full))
    findings += [
        Finding("failed", "invalid-codes", f"tensor {row.name}: {row.invalid:,} invalid codes")
        for row in ternary
        if row.invalid
    ]
    return Inspection(
        path=str(gguf.path),
        files=[part.name for part in gguf.paths],
        size_bytes=gguf.size or 0,
        version=gguf.version,
        alignment=gguf.alignment,
        architecture=gguf.architecture,
        dialect=gguf.dialect,
        metadata={key: _first_of(value) for key, value in gguf.metadata.items()},
        tensors=[
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "type": tensor.type.name,
                "offset": tensor.offset,
                "size_bytes": tensor.size_bytes,
                "part": tensor.part,
            }
            for tensor in gguf.tensors.values()
        ],
        encodings=_encodings(gguf),
        vocabulary=vocabulary(gguf),
        tokenizer=_tokenizer(gguf.metadata, known_vocabulary),
        memory=memory(gguf),
        generation=generation,
        basis=describe_basis(gguf.metadata),
        ternary=ternary,
        findings=findings,
    )


def _first_of(value: Any) -> Any:
    """*value*, or a summary of an array."""
    if not isinstance(value, Array):
        return value
    first = [value[at] for at in range(min(len(value), _FIRST))]
    return {"type": value.item_type, "length": len(value), "first": first}


def describe_basis(metadata: Mapping[str, Any]) -> str:
    """Rotation of the weights as the metadata states it, unchecked: loading the model checks it."""
    prefix = "prism.hadamard."
    if not any(key.startswith(prefix) for key in metadata):
        return "not rotated"

    def state(key: str) -> str:
        return printable(str(metadata.get(prefix + key, "unknown")))

    version = state("version")
    block = state("block_size")
    signs = state("sign_mode")
    return f"rotated: {prefix[:-1]} version {version}, blocks of {block}, signs {signs}"


def _encodings(gguf: GGUF) -> list[dict[str, Any]]:
    """Per quantization type: number of tensors, weights and bytes; the largest first."""
    rows: dict[str, dict[str, Any]] = {}
    for tensor in gguf.tensors.values():
        row = rows.setdefault(
            tensor.type.name,
            {"type": tensor.type.name, "tensors": 0, "weights": 0, "size_bytes": 0},
        )
        row["tensors"] += 1
        row["weights"] += math.prod(tensor.shape)
        row["size_bytes"] += tensor.size_bytes
    return sorted(rows.values(), key=lambda row: -row["size_bytes"])


def _number(metadata: Mapping[str, Any], key: str) -> int | None:
    """A count stated by *key*; ``None`` if it is absent or invalid."""
    value = metadata.get(key)
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40
    return int(value) if fits else None  # type: ignore[arg-type]


def vocabulary(gguf: GGUF) -> VocabularySize:
    """Number of tokens of the model, from its header alone."""
    keys = ["tokenizer.ggml.vocab_size", "llama.vocab_size"]
    if gguf.architecture not in ("", "llama"):
        keys.insert(1, f"{gguf.architecture}.vocab_size")
    stated_sizes = {key: _number(gguf.metadata, key) for key in keys}
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Array):
        return VocabularySize(len(tokens), stated_sizes, "tokenizer.ggml.tokens")
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is not None and embedding.shape:
        return VocabularySize(embedding.shape[0], stated_sizes, "token_embd.weight")
    size = next((value for value in stated_sizes.values() if value is not None), None)
    return VocabularySize(size, stated_sizes, "")


def _identify_vocabulary(metadata: Mapping[str, Any]) -> KnownVocabulary | None:
    """The known vocabulary that matches the embedded tokens, or else the merges."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(tokens, Array):
        return None
    n_merges = len(merges) if isinstance(merges, Array) else 0
    vocabulary = vocabularies.identify(vocabularies.fingerprint(tokens.raw), n_merges)
    if vocabulary is None and isinstance(merges, Array):
        return vocabularies.identify_merges(n_merges, lambda: vocabularies.fingerprint(merges.raw))
    return vocabulary


def _pre_findings(metadata: Mapping[str, Any], match: KnownVocabulary | None) -> Iterator[Finding]:
    """Findings on a pre-tokenizer that is missing, or does not fit the vocabulary."""
    named = metadata.get("tokenizer.ggml.pre", "")
    if match is None or not vocabularies.another_pre(match, named):
        return
    value = f"is {named!r}" if named else "is missing"
    yield Finding(
        "warning",
        "pre-differs",
        f"tokenizer.ggml.pre {value}, the vocabulary is that of {match.name}: "
        f"fix-gguf --set-pre {match.pre}",
    )


def _tokenizer(metadata: Mapping[str, Any], match: KnownVocabulary | None) -> dict[str, Any]:
    """Summary of the embedded tokenizer; empty if there is none."""
    prefix = "tokenizer.ggml."
    facts: dict[str, Any] = {}
    for name in ("model", "pre"):
        value = metadata.get(prefix + name)
        facts[prefix + name] = value if isinstance(value, str) else None
    for name in ("tokens", "merges"):
        value = metadata.get(prefix + name)
        if isinstance(value, Array):
            facts[name] = len(value)
    for key, value in metadata.items():
        if key.startswith(prefix) and key.endswith("_token_id") and isinstance(value, int):
            facts[key.removeprefix(prefix)] = value
    facts["chat_template"] = isinstance(metadata.get("tokenizer.chat_template"), str)
    tokens = metadata.get(prefix + "tokens")
    if isinstance(tokens, Array):
        facts["fingerprint"] = vocabularies.fingerprint(tokens.raw)
        facts["family"] = match.name if match is not None else None
        facts["family_pre"] = match.pre if match is not None else None
    return facts if "tokens" in facts or facts[prefix + "model"] else {}


def memory(gguf: GGUF) -> Memory:
    """Memory for running the model, from its header alone."""
    weights = sum(tensor.size_bytes for tensor in gguf.tensors.values())
    config = config_of_header(gguf)
    if config is None:
        return Memory(weights, _number(gguf.metadata, f"{gguf.architecture}.context_length"))
    context = config.context_length
    kinds = [kind for kind in config.caches if isinstance(kind, KeysValues)]
    # int16 words of a page of every layer; each head has one part for keys and one for values
    page_words = sum(
        2 * kind.kv_heads * kv_codes.page_words(kind.head_dim, kind.kv_type) for kind in kinds
    )
    kv_cache = KVCache(config, context)
    cache = kv_cache.cost(context, PREFILL_CHUNK)
    return Memory(
        weights,
        context,
        kv_per_token=page_words * 2 // kv_codes.PAGE,  # two bytes a word
        kv_at_context=cache,
        total=weights + cache,
        states=kv_cache.state_bytes,
    )


def config_of_header(gguf: GGUF) -> ModelConfig | None:
    """Configuration from the header alone, ``None`` if the model would be refused."""
    # Matrices only, since the header has no bytes: vectors such as RoPE's factors would be read.
    weights = {
        tensor.name: Weight(tensor.name, tensor.shape, tensor.type, np.empty(0, np.uint8))
        for tensor in gguf.tensors.values()
        if len(tensor.shape) == 2
    }
    keys = effective_keys(gguf.metadata, gguf.architecture)
    rope_style: RopeStyle = "half"  # not in the header; sizes do not depend on it
    try:
        return config_from(Checkpoint(gguf.path, gguf.architecture, keys, weights, rope_style))
    except BitnetError:
        return None


def _show(value: Any) -> str:
    """A metadata value on one line, shortened."""
    if isinstance(value, dict):
        first = ", ".join(_show(item) for item in value["first"])
        ellipsis = ", ..." if value["length"] > len(value["first"]) else ""
        return f"{value['length']:,} x {value['type']} [{first}{ellipsis}]"
    if isinstance(value, str):
        ellipsis = f"... ({len(value):,} characters)" if len(value) > _LONGEST else ""
        return repr(value[:_LONGEST]) + ellipsis
    return "absent" if value is None else str(value)


def _plain(value: Any) -> Any:
    """*value* with tuples as lists, and with infinities and NaN as texts."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
