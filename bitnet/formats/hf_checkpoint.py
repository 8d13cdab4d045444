"""A folder with ``config.json`` and safetensors files as a :class:`Checkpoint`.

Linear layers may be ternary by ``quantization_config``:
https://github.com/huggingface/transformers/blob/v5.0.0/src/transformers/integrations/bitnet.py
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.base.invocation import shell_quote
from bitnet.families import config_json
from bitnet.families.heads import RANKS, SCORES
from bitnet.families.keys import COMPARE, IgnoredKeys
from bitnet.families.tensor_names import (
    SCALES,
    block_number,
    classifier_name,
    gguf_name,
    layers_of_stack,
    name_with_states,
    usual_name,
    without_block,
)
from bitnet.formats import safetensors, sentence_transformers
from bitnet.formats.bit_linear import BitLinear
from bitnet.formats.checkpoint import Checkpoint, Inventory, has_input_norms, resolve_unnamed
from bitnet.formats.classifiers import classifier_keys, read_yes_no_keys
from bitnet.formats.expert_tensors import (
    split_gates,
    split_heads,
    stack_experts,
    stack_norms,
    transpose_by_shape,
    unpack_gpt_oss,
)
from bitnet.formats.mlx_folders import MLX_KEYS, mlx_bits, repack
from bitnet.formats.other_folders import ADAPTER
from bitnet.formats.quantized_folders import (
    find_quantization,
    leave_out_keys,
    unpack_quantized,
)
from bitnet.quants import registry, types
from bitnet.quants.weight import Weight

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from bitnet.families.config_json import Description

logger = logging.getLogger(__name__)

# Integers as wide as the numbers of a type, to move these without changing a bit.
_NUMBERS = {"F32": "<u4", "F16": "<u2", "BF16": "<u2"}
_LAYER = re.compile(r"\blayers\.([0-9]{1,9})\.")
_ONLINE = {"linear_class": "autobitlinear", "quantization_mode": "online"}


def open_folder(path: Path, ignore_keys: Collection[str] = ()) -> Checkpoint:
    """The model in the folder *path*, or next to the safetensors file *path*; GGUF keys and names.

    Ternary weights stay packed; plain weights are quantized here if ``quantization_config`` says
    ``online``.
    """
    folder = resolve_unnamed(path if path.is_dir() else path.parent)
    files = Inventory(folder)
    # *outer* stays as the file has it; *config* loses the keys that are followed here.
    config = outer = files.json("config.json", dict)
    bits_of_mlx = mlx_bits(outer, folder.name)
    stored = safetensors.read_folder(files)
    if not path.is_dir() and path.name not in files.names:
        raise InvalidFormat(
            f"{path.name} is not one of the files of the model in {folder}",
            hint=f"name the folder: {shell_quote(folder)}",
        )
    if ADAPTER in files:
        logger.warning(
            "%s: %s: transformers would run the model with this adapter; here it counts with "
            "--lora %s",
            folder.name,
            ADAPTER,
            shell_quote(folder),
        )
    if bits_of_mlx is not None:
        stored = repack(stored, bits_of_mlx)
        config = {key: outer[key] for key in outer if key not in MLX_KEYS}
    config = find_quantization(files, config, stored)
    config, ignored = leave_out_keys(config, ignore_keys)
    stored, config = unpack_quantized(stored, config, folder.name)
    description = config_json.describe(config, model=folder.name, ignore=ignore_keys)
    tensors, names = _rename(stored, description, folder)
    numbers = _take_numbers(tensors, description, folder)
    own_names = {name: tensor.name for name, tensor in tensors.items()}
    _check_head(tensors, description, folder)
    _remove_zero_biases(tensors, description)
    _check_biases(tensors, description, folder)
    has_norms = has_input_norms(tensors)
    if description.quantization.get("use_rms_norm") and not has_norms:
        raise InvalidFormat(
            f"{folder.name}: quantization_config speaks of norms before every projection, and "
            "there are none",
            hint=COMPARE,
        )
    # BitNet's embedding models have these norms, and nothing else says that they are ternary.
    bit_linear = BitLinear.of(description.quantization or (_ONLINE if has_norms else {}))
    if description.family.rounds_inputs and bit_linear is None:
        logger.warning(
            "%s: config.json has no quantization_config: its layers are plain, not ternary",
            folder.name,
        )
    # The scales of packed ternary layers become a part of their weights.
    weights = {
        name: _weight(name, tensors, description, bit_linear, names.get(name, name))
        for name in tensors
        if not name.endswith(".scale") or without_block(name) in SCALES
    }
    if bit_linear is not None and bit_linear.converts("lm_head") and not description.headless:
        source = _head(tensors, folder.name)
        weights["output.weight"] = bit_linear.weight(
            "output.weight", source, tensors.get("output.scale")
        )
    _multiply(weights, description.factors, folder.name)
    weights |= {name: _floats(name, factors) for name, factors in description.freq_factors.items()}
    architecture = description.metadata["general.architecture"]
    ignored_elsewhere = IgnoredKeys(ignore_keys)  # in files other than config.json
    modules = sentence_transformers.read_modules(
        files, ignored_elsewhere, classifies=description.classifies
    )
    weights |= modules.weights
    pooling = modules.pooling
    head_keys: dict[str, Any] = {}
    if description.classifies:
        head_keys = classifier_keys(files, outer, description.family, weights, ignored_elsewhere)
        pooling = RANKS
    if modules.answers is not None:
        weights[f"{SCORES}.weight"] = _rows_of_head(weights, modules.answers, folder.name)
        head_keys = read_yes_no_keys(files, outer, ignored_elsewhere)
        pooling = RANKS
    if pooling is None and description.headless:
        pooling = 1  # sentence-transformers' default is the mean
    own_keys = {
        f"{architecture}.{key}": value for key, value in {**modules.keys, **head_keys}.items()
    }
    if pooling is not None:
        own_keys[f"{architecture}.pooling_type"] = pooling
    text_limit = sentence_transformers.text_limit(
        files,
        ignored_elsewhere,
        description.value("context_length"),
        is_encoder=description.family.encodes,
        scores=pooling == RANKS,
    )
    prompts = sentence_transformers.prompts(files, ignored_elsewhere, scores=pooling == RANKS)
    return Checkpoint(
        folder,
        architecture,
        description.metadata | numbers | own_keys,
        weights,
        description.family.rope_style,
        config=outer,
        text_config=description.config,
        own_names={**description.own_names, **own_names},
        ignored={**ignored, **description.ignored, **ignored_elsewhere.left_out},
        text_limit=text_limit,
        prompts=prompts,
        rounds_inputs=bit_linear is not None or description.family.rounds_inputs,
        inventory=files,
    )


def _rows_of_head(weights: Mapping[str, Weight], ids: tuple[int, int], model: str) -> Weight:
    """Rows of the head for the tokens *ids*, as the scores of two labels."""
    head = _head(weights, model)
    if max(ids) >= head.shape[0]:
        raise InvalidFormat(
            f"{model}: LogitScore names the tokens {ids[0]:,} and {ids[1]:,}, the head has "
            f"{head.shape[0]:,} rows",
            hint=COMPARE,
        )
    if head.stores_rows:
        return _floats(f"{SCORES}.weight", registry.dequantize(head.take_rows(list(ids))))
    return _floats(f"{SCORES}.weight", registry.dequantize(head)[list(ids)])


def _head(weights: Mapping[str, Weight], model: str) -> Weight:
    """The head among *weights*, which may be the embedding."""
    name = "output.weight" if "output.weight" in weights else "token_embd.weight"
    head = weights.get(name)
    if head is None or len(head.shape) != 2:
        problem = "is missing" if head is None else f"has the shape {head.shape}"
        raise InvalidFormat(
            f"{model}: {usual_name(name)} {problem}, expected a matrix", hint=COMPARE
        )
    return head.like(name=name)


def _rename(
    stored: Mapping[str, Weight], description: Description, folder: Path
) -> tuple[dict[str, Weight], dict[str, str]]:
    """Tensors of *stored* by GGUF name; and their names in the folder, by GGUF name."""
    stored = stack_norms(stack_experts(stored, folder.name), folder.name)
    if description.family.transposed_experts:
        stored = unpack_gpt_oss(stored, folder.name)
    if description.family.turned_experts:
        stored = transpose_by_shape(stored, description.value("embedding_length"), folder.name)
    names: dict[str, str] = {}
    left_out = []
    more_blocks = description.family.more_blocks
    layers = description.value("block_count")
    stack = layers_of_stack(stored, description.family)
    for original in stored:
        name = ""
        if description.classifies:
            name = classifier_name(original, description.family)
        name = name or gguf_name(original, description.family, stack)
        match = _LAYER.search(original) if more_blocks else None
        if not name or (match and int(match[1]) >= layers):
            left_out.append(original)
            continue
        if name in names:
            raise InvalidFormat(
                f"{folder.name}: {names[name]} and {original} are the same part of the model",
                hint=COMPARE,
            )
        names[name] = original
    names = {
        name_with_states(name, description.family, names): original
        for name, original in names.items()
    }
    if left_out:
        logger.info("left out, as text does not need them: %s", ", ".join(left_out))
    head = names.get("output.weight")
    embedding = names.get("token_embd.weight")
    if description.tied and head:
        if embedding is None:
            names["token_embd.weight"] = names.pop("output.weight")
        elif _same(stored[head], stored[embedding]):
            del names["output.weight"]
        else:
            logger.warning(
                "config.json says that the head is the embedding, and lm_head.weight is another "
                "matrix: it counts, as in transformers"
            )
    tensors = {name: stored[original] for name, original in names.items()}
    tensors = split_gates(tensors, folder.name)
    tensors = _split(tensors, description)
    heads = description.value("attention.head_count")
    key_length = description.value("attention.key_length_mla")
    if key_length is not None:
        key_dim = key_length - description.value("rope.dimension_count")
        tensors = split_heads(tensors, heads, key_dim, folder.name)
    return tensors, names


def _take_numbers(
    tensors: dict[str, Weight], description: Description, folder: Path
) -> dict[str, list[float]]:
    """Remove the tensors of one number for each layer from *tensors*, and return them as keys."""
    keys: dict[str, list[float]] = {}
    for name in description.family.numbers:
        numbers: list[float] = []
        for layer in range(description.value("block_count")):
            tensor = tensors.pop(f"blk.{layer}.{name}", None)
            values = np.empty(0) if tensor is None else registry.dequantize(tensor).reshape(-1)
            if values.size != 1:
                raise InvalidFormat(
                    f"{folder.name}: layer {layer} has {values.size} numbers {name}, expected 1",
                    hint=COMPARE,
                )
            numbers.append(float(values[0]))
        keys[name] = numbers
    return keys


def _split(tensors: Mapping[str, Weight], description: Description) -> dict[str, Weight]:
    """*tensors*, with each one that is several tensors in GGUF split into those."""
    split: dict[str, Weight] = {}
    for name, tensor in tensors.items():
        end = without_block(name)
        parts = description.parts.get(end)
        if parts is None:
            split[name] = tensor
            continue
        for part, rows in parts.items():
            split[name.removesuffix(end) + part] = _reorder(tensor, rows, description)
    return split


def _same(first: Weight, second: Weight) -> bool:
    same_form = (first.quant, first.shape) == (second.quant, second.shape)
    return same_form and np.array_equal(first.data, second.data)


def _check_head(tensors: Mapping[str, Weight], description: Description, folder: Path) -> None:
    """Check that head and vocabulary are those of ``config.json``."""
    embedding = tensors.get("token_embd.weight")
    needs_head = not description.tied and not description.headless
    if needs_head and "output.weight" not in tensors and embedding is not None:
        raise InvalidFormat(
            f"{folder.name}: lm_head.weight is missing, and tie_word_embeddings is false in "
            "config.json, or left out and false by default",
            hint=COMPARE,
        )
    size = description.vocab_size
    rows = embedding.shape[0] if embedding is not None and embedding.shape else size
    if size is not None and rows != size:
        raise InvalidFormat(
            f"{folder.name}: vocab_size is {size} in config.json, and the embedding has {rows} "
            "rows",
            hint=COMPARE,
        )


def _remove_zero_biases(tensors: dict[str, Weight], description: Description) -> None:
    """Remove biases of zeros that ``config.json`` does not announce.

    auto-gptq gave every layer a bias, of zeros where it had none.
    """
    expected = _list_announced_biases(tensors, description)
    for name in _find_biases(tensors, description) - expected:
        if not registry.dequantize(tensors[name]).any():
            del tensors[name]


def _check_biases(tensors: Mapping[str, Weight], description: Description, folder: Path) -> None:
    """Check that the biases are those that ``config.json`` announces."""
    expected = _list_announced_biases(tensors, description)
    different = expected ^ _find_biases(tensors, description)
    if not different:
        return
    name = min(different)
    matrix = name.removesuffix(".bias")
    own_name = f"{tensors[f'{matrix}.weight'].name.removesuffix('.weight')}.bias"
    biases = description.family.biases
    keys_of = {part: key for key, parts in biases.items() if key for part in parts}
    key = keys_of.get(without_block(matrix), "")
    place = f"{key} in config.json" if key else "config.json"
    problem = f"is there, and {place} says that it is not"
    if name in expected:
        problem = f"is missing, and {place} says that it is there"
    raise InvalidFormat(f"{folder.name}: {own_name} {problem}", hint=COMPARE)


def _list_announced_biases(tensors: Mapping[str, Weight], description: Description) -> set[str]:
    """Names of the biases that ``config.json`` announces, of the matrices among *tensors*."""
    layers = range(description.value("block_count"))
    parts = [f"blk.{layer}.{part}" for layer in layers for part in description.biases]
    parts += [part for part in description.biases if part == "output"]
    return {f"{part}.bias" for part in parts if f"{part}.weight" in tensors}


def _find_biases(tensors: Mapping[str, Weight], description: Description) -> set[str]:
    """Names of the biases among *tensors* that belong to the head or to a matrix of a layer.

    Those of norms follow from the family, and no key announces them.
    """
    layers = description.value("block_count")
    matrices = {
        name.removesuffix(".weight")
        for name in tensors
        if name.endswith(".weight")
        and not name.endswith(("norm.weight", "norm_2.weight"))
        and not name.startswith("cls.")
    }
    biases = {f"{matrix}.bias" for matrix in matrices if f"{matrix}.bias" in tensors}
    return {name for name in biases if block_number(name) < layers}


def _weight(
    name: str,
    tensors: Mapping[str, Weight],
    description: Description,
    bit_linear: BitLinear | None,
    module: str,
) -> Weight:
    """The weight *name*, made from its tensor; *module* is the tensor's name in the folder."""
    own_name = tensors[name].name
    weight = tensors[name].like(name=name)
    function = description.values.get(without_block(name))
    if function is not None:
        try:
            values = function(registry.dequantize(weight))
        except (ValueError, IndexError) as error:
            raise InvalidFormat(
                f"{own_name} of shape {weight.shape} does not fit the sizes: {error}; "
                f"{description.sizes}",
                hint=COMPARE,
            ) from error
        return _floats(name, values)
    order = description.orders.get(without_block(name))
    if order is not None:
        return replace(_reorder(tensors[name], order, description), name=name)
    if description.family.norms_from_zero and name.endswith("norm.weight"):
        # The checkpoint stores the factor minus one; GGUF stores the factor.
        return _floats(name, registry.dequantize(weight) + np.float32(1))
    is_matrix = name.startswith("blk.") and len(weight.shape) == 2
    if is_matrix and bit_linear is not None and bit_linear.converts(module.removesuffix(".weight")):
        scale = tensors.get(f"{name.removesuffix('weight')}scale")
        return bit_linear.weight(name, weight, scale)
    # AutoBitLinear multiplies the bias, too, by the scale of its packed weights.
    if (
        name.endswith(".bias")
        and bit_linear is not None
        and bit_linear.multiplies
        and not bit_linear.online
    ):
        scale = tensors.get(f"{name.removesuffix('bias')}scale")
        if scale is not None:
            return _floats(
                name, registry.dequantize(weight) * np.float32(bit_linear.factor(name, scale))
            )
    if weight.quant.name == "U8" and is_matrix:
        raise Unsupported(
            f"{own_name}: packed weights, and quantization_config does not say that they are "
            "BitNet's",
            hint="choose another model",
        )
    return weight


def _reorder(
    weight: Weight, order: Callable[[NDArray[Any]], NDArray[Any]], description: Description
) -> Weight:
    """*weight* with its numbers in another *order*, in the same encoding."""
    numbers = _NUMBERS.get(weight.quant.name)
    if numbers is None:
        raise Unsupported(
            f"{weight.name}: the numbers of {weight.quant.name} cannot be put in another order",
            hint="fetch the folder of plain weights",
        )
    try:
        ordered = np.ascontiguousarray(order(weight.data.view(numbers).reshape(weight.shape)))
    except (ValueError, IndexError) as error:
        raise InvalidFormat(
            f"{weight.name} of shape {weight.shape} does not fit the sizes: {error}; "
            f"{description.sizes}",
            hint=COMPARE,
        ) from error
    return replace(weight, shape=ordered.shape, data=ordered.reshape(-1).view(np.uint8))


def _multiply(weights: dict[str, Weight], factors: Mapping[str, float], model: str) -> None:
    """Multiply *factors* into *weights*; a tied head may become a matrix of its own."""
    head = "output.weight"
    embedding = "token_embd.weight"
    if head not in weights and factors.get(head, 1.0) != factors.get(embedding, 1.0):
        weights[head] = _head(weights, model).like(name=head)
    for name, weight in weights.items():
        if (factor := factors.get(without_block(name), 1.0)) != 1:
            weights[name] = weight.like(scale=weight.scale * factor)


def _floats(name: str, values: NDArray[Any]) -> Weight:
    """*values* as a weight *name* in F32."""
    quant = types.by_id(0)
    return Weight(name, values.shape, quant, values.astype("<f4").reshape(-1).view(np.uint8))
