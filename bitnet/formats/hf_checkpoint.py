"""A folder with ``config.json`` and safetensors files as a :class:`Checkpoint`."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.base.invocation import word
from bitnet.families import config_json
from bitnet.formats import mlx, safetensors, sentence_transformers
from bitnet.formats.bit_linear import BitLinear
from bitnet.formats.checkpoint import Checkpoint, has_input_norms
from bitnet.formats.expert_tensors import (
    MXFP4,
    split_gates,
    split_heads,
    stack_experts,
    turn_experts,
)
from bitnet.formats.inventory import Inventory
from bitnet.quants import registry, types
from bitnet.quants.weight import Weight

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from bitnet.families.config_json import Description
    from bitnet.formats.safetensors import Tensor
    from bitnet.quants.types import QuantType

__all__ = ["open_folder"]

logger = logging.getLogger(__name__)

_AGAIN = "fetch the whole model again"
_ONLINE = {"linear_class": "autobitlinear", "quantization_mode": "online"}


def open_folder(path: Path, ignore_keys: Collection[str] = ()) -> Checkpoint:
    """The model in the folder *path*, or next to the safetensors file *path*; GGUF keys and names.

    Ternary weights stay packed; plain weights are quantized here if ``quantization_config`` says
    ``online``.

    Args:
        path: the folder, or a file in it.
        ignore_keys: keys of ``config.json`` to ignore.
    """
    folder = path if path.is_dir() else path.parent
    files = Inventory(folder)
    outer = files.json("config.json", dict)
    bits_of_mlx = mlx.mlx_quantization(outer, folder.name)
    stored = safetensors.read_folder(files)
    if path != folder and path.name not in files.names:
        raise InvalidFormat(
            f"{path.name} is not one of the files of the model in {folder}", hint=word(folder)
        )
    config = outer
    if bits_of_mlx is not None:
        stored = mlx.repack(stored, bits_of_mlx)
        config = {key: outer[key] for key in outer if key not in mlx.CONFIG_KEYS}
    description = config_json.describe(config, model=folder.name, ignore=ignore_keys)
    stored = stack_experts(stored, folder.name)
    if description.family.transposed_experts:
        stored = turn_experts(stored, folder.name)
    tensors, names = _rename(stored, description, folder)
    _check_tensors(tensors, description, folder)
    has_norms = has_input_norms(tensors)
    if description.quantization.get("use_rms_norm") and not has_norms:
        raise InvalidFormat(
            f"{folder.name}: quantization_config speaks of norms before every projection, and "
            "there are none",
            hint=_AGAIN,
        )
    # BitNet's embedding models have these norms, and nothing else says that they are ternary.
    bits = BitLinear.of(description.quantization or (_ONLINE if has_norms else {}))
    if description.family.rounds_inputs and bits is None:
        logger.warning(
            "%s: config.json has no quantization_config: its layers are plain, not ternary",
            folder.name,
        )
    weights = {
        name: _weight(name, tensors, description, bits, names.get(name, name))
        for name in tensors
        if not name.endswith(".scale") or _end(name) in description.family.tensors.values()
    }
    if bits is not None and bits.converts("lm_head") and not description.headless:
        head = "output.weight" if "output.weight" in tensors else "token_embd.weight"
        source = _plain_weight(head, tensors[head])
        weights["output.weight"] = bits.weight("output.weight", source, tensors.get("output.scale"))
    _multiply(weights, description)
    weights |= {name: _floats(name, factors) for name, factors in description.freq_factors.items()}
    architecture = description.metadata["general.architecture"]
    pooling = sentence_transformers.pooling_type(files, ignore_keys)
    if pooling is None and description.headless:
        pooling = 1  # sentence-transformers' default is the mean
    own = {} if pooling is None else {f"{architecture}.pooling_type": pooling}
    return Checkpoint(
        folder,
        architecture,
        description.metadata | own,
        weights,
        description.family.rope_style,
        config=outer,
        ignored=description.ignored,
        prompts=sentence_transformers.prompts(files),
        rounds_inputs=bits is not None or description.family.rounds_inputs,
        inventory=files,
    )


def _rename(
    found: Mapping[str, Tensor], said: Description, folder: Path
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by GGUF name, and their original names."""
    names: dict[str, str] = {}
    left_out = []
    for original in found:
        name = config_json.gguf_name(original, said.family)
        if not name or _is_behind(original, said):
            left_out.append(original)
            continue
        if name in names:
            raise InvalidFormat(
                f"{folder.name}: {names[name]} and {original} are the same part of the model",
                hint=_AGAIN,
            )
        names[name] = original
    if left_out:
        logger.info("left out, as text does not need them: %s", ", ".join(left_out))
    head, embedding = (names.get(name) for name in ("output.weight", "token_embd.weight"))
    if said.tied and head:
        if embedding is None:
            names["token_embd.weight"] = names.pop("output.weight")
        elif _same(found[head], found[embedding]):
            del names["output.weight"]
        else:
            logger.warning(
                "config.json says that the head is the embedding, and lm_head.weight is another "
                "matrix: it counts, as in transformers"
            )
    tensors = {name: found[before] for name, before in names.items()}
    tensors = split_gates(tensors, folder.name)
    of_heads = said.value("attention.key_length_mla")
    if of_heads is not None:
        key_dim = of_heads - said.value("rope.dimension_count")
        tensors = split_heads(tensors, said.value("attention.head_count"), key_dim, folder.name)
    return tensors, names


def _is_behind(name: str, said: Description) -> bool:
    """True if the tensor *name* belongs to a block behind the last."""
    match = re.search(r"\blayers\.(\d+)\.", name) if said.family.more_blocks else None
    layers = said.value("block_count")
    return match is not None and int(match[1]) >= layers


def _same(one: Tensor, other: Tensor) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape) and np.array_equal(
        one.data, other.data
    )


def _check_tensors(tensors: Mapping[str, Tensor], said: Description, folder: Path) -> None:
    """Check head, vocabulary and biases against ``config.json``."""
    embedding = tensors.get("token_embd.weight")
    needs_head = not said.tied and not said.headless
    if needs_head and "output.weight" not in tensors and embedding is not None:
        raise InvalidFormat(
            f"{folder.name}: lm_head.weight is missing, and config.json does not say that the "
            "head is the embedding",
            hint=_AGAIN,
        )
    rows = embedding.shape[0] if embedding is not None and embedding.shape else said.vocab_size
    if said.vocab_size is not None and rows != said.vocab_size:
        raise InvalidFormat(
            f"{folder.name}: config.json says {said.vocab_size} tokens, the embedding has {rows}",
            hint=_AGAIN,
        )
    layers = said.value("block_count")
    parts = (f"blk.{n}.{part}" for n in range(layers) for part in said.biases)
    expected = {f"{part}.bias" for part in parts if f"{part}.weight" in tensors}
    matrices = {name.removesuffix(".weight") for name in tensors if name.endswith(".weight")}
    there = {f"{part}.bias" for part in matrices if f"{part}.bias" in tensors}
    for name in sorted(expected ^ there):
        problem = "is missing" if name in expected else "is there, and config.json speaks of none"
        raise InvalidFormat(f"{folder.name}: {name} {problem}", hint=_AGAIN)


def _weight(
    name: str,
    tensors: Mapping[str, Tensor],
    said: Description,
    bits: BitLinear | None,
    module: str,
) -> Weight:
    tensor = tensors[name]
    weight = _plain_weight(name, tensor)
    function = said.values.get(_end(name))
    if function is not None:
        return _floats(name, function(registry.dequantize(weight)))
    if said.family.norms_from_zero and name.endswith("norm.weight"):
        # The checkpoint stores the factor minus one; GGUF stores the factor.
        return _floats(name, registry.dequantize(weight) + np.float32(1))
    matrix = name.startswith("blk.") and len(tensor.shape) == 2
    if matrix and bits is not None and bits.converts(module.removesuffix(".weight")):
        scale = tensors.get(f"{name.removesuffix('weight')}scale")
        return bits.weight(name, weight, scale)
    if name.endswith(".bias") and bits is not None and bits.scales_biases:
        scale = tensors.get(f"{name.removesuffix('bias')}scale")
        if scale is not None:
            return _floats(name, registry.dequantize(weight) * np.float32(bits.factor(name, scale)))
    if tensor.dtype == "U8" and matrix:
        raise Unsupported(
            f"{name}: packed weights, and quantization_config does not say that they are BitNet's",
            hint="choose another model",
        )
    return weight


def _multiply(weights: dict[str, Weight], said: Description) -> None:
    """Multiply the family's factors into *weights*; a tied head may become a matrix of its own."""
    head, embedding = "output.weight", "token_embd.weight"
    if head not in weights and said.factors.get(head, 1.0) != said.factors.get(embedding, 1.0):
        weights[head] = replace(weights[embedding], name=head)
    for name, weight in weights.items():
        factor = said.factors.get(_end(name), 1.0)
        if factor != 1:
            weights[name] = replace(weight, scale=weight.scale * factor)


def _end(name: str) -> str:
    """GGUF's *name* of a tensor, without the number of its layer."""
    return name.split(".", 2)[2] if name.startswith("blk.") else name


def _plain_weight(name: str, tensor: Tensor) -> Weight:
    quant = types.by_name(tensor.dtype)
    if tensor.dtype not in ("F32", "F16", "BF16", MXFP4, *mlx.TYPES.values()) or quant is None:
        quant = _unknown(tensor.dtype)
    return Weight(name, tensor.shape, quant, tensor.data, rounds_input=False, pieces=tensor.pieces)


def _floats(name: str, values: NDArray[Any]) -> Weight:
    quant = types.by_id(0)
    return Weight(name, values.shape, quant, values.astype("<f4").reshape(-1).view(np.uint8))


def _unknown(dtype: str) -> QuantType:
    """A type without a decoder, so that the error names tensor and type when it is needed."""
    return types.QuantType(dtype, -1, 1, 0)
