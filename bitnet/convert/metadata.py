"""Metadata keys of a converted file: the model, and its tokenizer."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import TokenizerNotFound, Unsupported, UsageError
from bitnet.convert.convert_options import MIXES
from bitnet.families.family import find_zero, of_gguf
from bitnet.families.heads import classifier
from bitnet.formats.containers import ROUNDED_INPUTS, effective_keys
from bitnet.formats.gguf_write import encode_value, raw_values
from bitnet.quants import registry
from bitnet.tokenizer.export import gguf_keys
from bitnet.tokenizer.from_gguf import spec_from_gguf
from bitnet.tokenizer.load import spec_from_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.convert.convert_options import ConvertOptions
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.formats.gguf import GGUF

logger = logging.getLogger(__name__)

# Rows of token types (segments), without which llama.cpp loads no encoder, and their number.
_TYPES = "token_types.weight"
_TYPE_COUNT = "tokenizer.ggml.token_type_count"
# general.file_type as llama.cpp numbers it, but: 40 is Q1_0 there, and I2_S in bitnet.cpp; 137 is
# ik_llama.cpp's, 141 and 143 are PrismML's.
_FILE_TYPES = {
    "F32": 0,
    "F16": 1,
    "BF16": 32,
    **{name: mix.file_type for name, mix in MIXES.items()},
    "TQ1_0": 36,
    "TQ2_0": 37,
    "I2_S": 40,
    "IQ2_BN": 137,
    "Q1_0": 40,
    "Q2_0": 41,
    "PQ2_0": 141,
    "PTQ1_0": 143,
}


def metadata(checkpoint: Checkpoint, request: ConvertOptions) -> dict[str, bytes]:
    """All keys of the new file."""
    if checkpoint.value("rope.scaling.type", "none") == "dynamic":  # llama.cpp aborts at it
        raise Unsupported(
            f"{checkpoint.path.name}: its rope scaling is dynamic, and GGUF has no word for it",
            hint="run the model as it is",
        )
    overrides: dict[str, Any] = {
        "general.file_type": _FILE_TYPES[request.type],
        "general.quantization_version": 2,
    }
    # Encodings of BitNet's own imply that products round their inputs; others need a key.
    if request.type in registry.OF_ANY_MODEL and checkpoint.rounds_inputs:
        key, per_token = ROUNDED_INPUTS
        overrides[key] = per_token
    gguf = checkpoint.gguf
    if gguf is None:
        keys = _encode(_keys_of_folder(checkpoint), checkpoint.path.name)
        keys |= _tokenizer(checkpoint, request, default=checkpoint.path)
    else:
        keys = {
            key: value
            for key, value in raw_values(gguf).items()
            if not key.startswith(("split.", "general.alignment")) and key not in checkpoint.ignored
        }
        if request.no_tokenizer or request.tokenizer:
            keys = {
                key: value
                for key, value in keys.items()
                if key == _TYPE_COUNT or not key.startswith("tokenizer.")
            }
            keys |= _tokenizer(checkpoint, request, default=None)
        elif pre := _missing_pre(gguf, request.pre):
            overrides["tokenizer.ggml.pre"] = pre
    return keys | _encode(overrides, checkpoint.path.name)


def _encode(keys: Mapping[str, Any], model: str) -> dict[str, bytes]:
    """The *keys* of a *model* with their values as stored in a GGUF file."""
    return {key: _encode_one(f"{model}: {key}", value) for key, value in keys.items()}


def _encode_one(label: str, value: Any) -> bytes:
    """The *value* of the key that the *label* names, as stored in a GGUF file."""
    try:
        return encode_value(value)
    except Unsupported as error:
        raise Unsupported(f"{label}: {error.message}", hint=error.hint) from error


def _keys_of_folder(checkpoint: Checkpoint) -> dict[str, Any]:
    """GGUF keys of the model in a folder, with those that llama.cpp needs besides ours."""
    family = of_gguf(checkpoint.architecture)
    effective = effective_keys(checkpoint.metadata, checkpoint.architecture)
    if family is not None and (zero := find_zero(effective, family)):
        raise Unsupported(
            f"{checkpoint.path.name}: {zero} would be 0 in the file, and llama.cpp computes no "
            f"usable logits of {family.title} models with it",
            hint="run the folder as it is",
        )
    keys = dict(checkpoint.metadata)
    prefix = checkpoint.architecture
    if family is not None and family.encodes:
        keys[_TYPE_COUNT] = checkpoint.row_count(_TYPES, 1)
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
    checkpoint: Checkpoint, request: ConvertOptions, *, default: Path | None
) -> dict[str, bytes]:
    """Keys of the requested tokenizer, or of the one at *default*."""
    path = Path(request.tokenizer) if request.tokenizer else default
    if request.no_tokenizer or path is None:
        return {}
    try:
        spec = spec_from_path(path, pre=request.pre or None)
    except TokenizerNotFound as error:
        raise TokenizerNotFound(
            error.message, hint="name one: --tokenizer PATH, or leave it out: --no-tokenizer"
        ) from None
    rows = checkpoint.weights["token_embd.weight"].shape[0]
    name = checkpoint.metadata.get("general.name", checkpoint.path.name)
    head = classifier(checkpoint)
    keys = gguf_keys(
        spec,
        rows=rows,
        pre=request.pre or None,
        further_keys={"general.name": name},
        ranks=head is not None and head.ranks,
        has_types=checkpoint.row_count(_TYPES, 1) > 1,
    )
    if request.pre and keys.get("tokenizer.ggml.pre") != request.pre:
        text = "the pre-tokenizer %s is not written: %s says itself how text is cut into words"
        logger.warning(text, request.pre, spec.source)
    return _encode(keys, checkpoint.path.name)


def _missing_pre(gguf: GGUF, requested: str) -> str | None:
    """Name of the pre-tokenizer that *gguf* lacks: *requested*, or that of a known vocabulary.

    A *requested* one is refused if it is unknown, or if *gguf* says itself how text is cut.
    """
    model = gguf.metadata.get("tokenizer.ggml.model")
    stated = gguf.metadata.get("tokenizer.ggml.pre")
    if stated is not None or model != "gpt2":
        if requested not in ("", stated):
            key = "tokenizer.ggml.model" if stated is None else "tokenizer.ggml.pre"
            raise UsageError(
                f"--pre is {requested!r}, and {gguf.path.name} says itself how text is cut into "
                f"words: {key} is {gguf.metadata.get(key)!r}",
                hint="leave it out; fix-gguf --set-pre NAME writes a copy with another name",
            )
        return None
    if requested:
        return spec_from_gguf(gguf, pre=requested).pre
    with suppress(TokenizerNotFound):  # the copy is as incomplete as the source
        return spec_from_gguf(gguf).pre
    return None
