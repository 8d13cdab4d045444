"""Metadata keys of a converted file: the model, and its tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.base.errors import TokenizerNotFound, Unsupported
from bitnet.convert.engines import is_dynamic
from bitnet.convert.request import MIXTURES
from bitnet.families.family import find_zero, of_gguf
from bitnet.formats.containers import INPUTS, effective_keys
from bitnet.formats.gguf_write import encode_value, raw_values
from bitnet.quants import registry
from bitnet.tokenizer.export import gguf_keys
from bitnet.tokenizer.from_gguf import spec_from_gguf
from bitnet.tokenizer.load import load_spec

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.convert.importance import Importance
    from bitnet.convert.request import ConversionRequest
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.formats.gguf import GGUF

# general.file_type as llama.cpp numbers it; 40 is Q1_0 as well as bitnet.cpp's I2_S, 137
# ik_llama.cpp's, 141 and 143 are PrismML's.
_FILE_TYPES = {
    "F32": 0,
    "F16": 1,
    "BF16": 32,
    **{name: mixture.file_type for name, mixture in MIXTURES.items()},
    "TQ1_0": 36,
    "TQ2_0": 37,
    "I2_S": 40,
    "IQ2_BN": 137,
    "Q1_0": 40,
    "Q2_0": 41,
    "PQ2_0": 141,
    "PTQ1_0": 143,
}


def metadata(
    checkpoint: Checkpoint, request: ConversionRequest, importance: Importance | None = None
) -> dict[str, bytes]:
    """All keys of the new file."""
    keys = _all_keys(checkpoint, request) | _importance_keys(importance)
    if is_dynamic(checkpoint):
        _check_dynamic(checkpoint)
        prefix = checkpoint.architecture
        for key in ("type", "factor", "original_context_length"):
            keys.pop(f"{prefix}.rope.scaling.{key}", None)  # llama.cpp aborts at the type
    return keys


def _all_keys(checkpoint: Checkpoint, request: ConversionRequest) -> dict[str, bytes]:
    about = {
        "general.file_type": _FILE_TYPES[request.type],
        "general.quantization_version": 2,
    }
    encoded = {key: encode_value(value) for key, value in about.items()}
    gguf = checkpoint.gguf
    if request.type in registry.OF_ANY_MODEL and checkpoint.rounds_inputs:
        key, per_token = INPUTS
        encoded[key] = encode_value(per_token)
    if gguf is None:
        keys = _keys_of_folder(checkpoint)
        own = {key: encode_value(value) for key, value in keys.items()} | encoded
        return own | _tokenizer(checkpoint, request, default=checkpoint.path)
    raw = {
        key: value
        for key, value in raw_values(gguf).items()
        if not key.startswith(("split.", "general.alignment")) and key not in checkpoint.ignored
    } | encoded
    if request.no_tokenizer or request.tokenizer:
        kept = {key: value for key, value in raw.items() if not key.startswith("tokenizer.")}
        return kept | _tokenizer(checkpoint, request, default=None)
    return raw | _missing_pre(gguf, request)


def _importance_keys(importance: Importance | None) -> dict[str, bytes]:
    """Keys that name the importance matrix, as llama-quantize writes them."""
    if importance is None:
        return {}
    keys: dict[str, Any] = {
        "file": str(importance.path),
        "dataset": importance.dataset,
        "entries_count": len(importance.values),
        "chunks_count": importance.chunks,
    }
    return {f"quantize.imatrix.{key}": encode_value(its) for key, its in keys.items() if its}


def _check_dynamic(checkpoint: Checkpoint) -> None:
    """Check that dynamic RoPE begins where the context ends: then a file without it is right."""
    context = checkpoint.integer("context_length")
    original = checkpoint.integer("rope.scaling.original_context_length", context)
    if original < context:
        raise Unsupported(
            f"{checkpoint.path.name}: rope scaling is dynamic from position {original:,} on, and "
            "GGUF has no word for it",
            hint="run the folder as it is",
        )


def _check_zeros(checkpoint: Checkpoint) -> None:
    """Check that llama.cpp can compute what the keys of a folder would say in a file."""
    family = of_gguf(checkpoint.architecture)
    metadata = effective_keys(checkpoint.metadata, checkpoint.architecture)
    if family is not None and (zero := find_zero(metadata, family)):
        raise Unsupported(
            f"{checkpoint.path.name}: {zero} would be 0 in the file, and llama.cpp computes no "
            f"usable logits of {family.title} models with it",
            hint="run the folder as it is",
        )


def _keys_of_folder(checkpoint: Checkpoint) -> dict[str, Any]:
    _check_zeros(checkpoint)
    keys = dict(checkpoint.metadata)
    prefix = checkpoint.architecture
    keys["general.name"] = checkpoint.path.resolve().name
    keys[f"{prefix}.vocab_size"] = checkpoint.weights["token_embd.weight"].shape[0]
    head_dim = keys.get(f"{prefix}.attention.key_length")
    if head_dim is not None:
        keys.setdefault(f"{prefix}.attention.value_length", head_dim)
    if "rope_factors_long.weight" in checkpoint.weights:
        keys[f"{prefix}.rope.scaling.type"] = "longrope"  # llama.cpp looks for them because of it
    window = f"{prefix}.attention.sliding_window"
    if not keys.get(window) and not prefix.startswith("gemma"):
        keys.pop(window, None)  # its absence means the same, and older readers fail on 0
    return keys


def _tokenizer(
    checkpoint: Checkpoint, request: ConversionRequest, *, default: Path | None
) -> dict[str, bytes]:
    """Keys of the requested tokenizer, or of the one at *default*."""
    path = request.tokenizer or default
    if request.no_tokenizer or path is None:
        return {}
    try:
        spec = load_spec(path, pre=request.pre)
    except TokenizerNotFound as error:
        raise TokenizerNotFound(
            error.message, hint="name one: --tokenizer PATH, or leave it out: --no-tokenizer"
        ) from None
    rows = checkpoint.weights["token_embd.weight"].shape[0]
    name = checkpoint.metadata.get("general.name", checkpoint.path.name)
    keys = gguf_keys(spec, rows=rows, pre=request.pre, more={"general.name": name})
    return {key: encode_value(value) for key, value in keys.items()}


def _missing_pre(gguf: GGUF, request: ConversionRequest) -> dict[str, bytes]:
    """Name of the pre-tokenizer, if *gguf* lacks it and its vocabulary is known."""
    key = "tokenizer.ggml.pre"
    if request.pre:
        return {key: encode_value(request.pre)}
    if key in gguf.metadata or gguf.metadata.get("tokenizer.ggml.model") != "gpt2":
        return {}
    try:
        return {key: encode_value(spec_from_gguf(gguf).pre)}
    except TokenizerNotFound:
        return {}  # the copy is as incomplete as the source
