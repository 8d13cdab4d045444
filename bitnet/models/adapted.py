"""Models with low-rank adapters: the factors of every adapted matrix among its weights.

    checkpoint = with_adapters(open_checkpoint(path), [("adapter.gguf", 1.0)])

The weights stay as they are. ``hidden_program.py`` adds ``B (A x)`` behind each adapted product.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bitnet.base.errors import InvalidFormat, Unsupported, UsageError
from bitnet.families.blocks import State
from bitnet.families.family import of_gguf
from bitnet.families.tensor_names import gguf_name
from bitnet.formats.adapters import Adapter, Pair, read_adapter
from bitnet.models.hidden_program import layout
from bitnet.models.load import config_from
from bitnet.models.orders import row_order
from bitnet.quants import registry, types

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bitnet.families.blocks import ModelConfig
    from bitnet.formats.checkpoint import Checkpoint


def parse_adapter(text: str | os.PathLike[str]) -> tuple[Path, float]:
    """Path and scale of ``FILE[:SCALE]``."""
    path = Path(text)
    name, colon, scale = os.fspath(text).rpartition(":")
    if path.exists() or not name or not colon:
        return path, 1.0
    try:
        factor = float(scale)
    except ValueError:
        factor = math.nan
    if not math.isfinite(factor):
        raise UsageError(
            f"{os.fspath(text)!r} is neither a path nor PATH:SCALE",
            hint="name a GGUF file or a folder that PEFT saved, and a number: lora.gguf:0.5",
        )
    return Path(name), factor


def split_adapters(
    texts: Iterable[str],
) -> tuple[list[tuple[Path, float]], dict[str, tuple[Path, float]]]:
    """Adapters of every answer, as :func:`parse_adapter`, and those of ``NAME=FILE[:SCALE]``."""
    always = []
    by_name = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        if not equals or "/" in name or Path(text).exists():
            always.append(parse_adapter(text))
            continue
        if not name or name in by_name:
            raise UsageError(f"--lora {text}: give each adapter a name of its own", field="lora")
        by_name[name] = parse_adapter(rest)
    return always, by_name


def with_adapters(checkpoint: Checkpoint, adapters: Iterable[tuple[Path, float]]) -> Checkpoint:
    """*checkpoint* with the *adapters*, each with a factor on all that it adds."""
    pairs: dict[str, list[Pair]] = {}
    for path, factor in adapters:
        for name, pair in _for_model(read_adapter(path), checkpoint).items():
            pairs.setdefault(name, []).append(pair._replace(scale=pair.scale * factor))
    weights = dict(checkpoint.weights)
    for name, named_pairs in pairs.items():
        # Several adapters are one of the sum of their ranks.
        a = np.concatenate([pair.a for pair in named_pairs])
        b = np.concatenate([pair.b * np.float64(pair.scale) for pair in named_pairs], axis=1)
        for key, values in ((f"{name}.lora_a", a), (f"{name}.lora_b", b.astype(np.float32))):
            weight = registry.quantize(key, values, types.by_id(0))
            weights[key] = replace(weight, rounds_input=False)
    return replace(checkpoint, weights=weights, adapted=checkpoint.adapted | pairs.keys())


def _for_model(adapter: Adapter, checkpoint: Checkpoint) -> dict[str, Pair]:
    """Pairs of *adapter* by GGUF name, with rows as *checkpoint* has them."""
    name = adapter.path.name
    model = checkpoint.path.name
    if adapter.architecture not in ("", checkpoint.architecture):
        raise InvalidFormat(
            f"{name} is for models of the architecture {adapter.architecture}, {model} is "
            f"{checkpoint.architecture}",
            hint="use the model that the adapter was trained on",
        )
    config = config_from(checkpoint)
    if config.basis is not None or config.input_norms:
        raise Unsupported(
            f"{model} transforms the inputs of its products, and adapters of such models are not "
            "computed",
            hint="run it without --lora",
        )
    products = layout(config).products
    family = of_gguf(checkpoint.architecture)
    pairs = {}
    for key, pair in adapter.pairs.items():
        matrix = key if adapter.is_gguf or family is None else gguf_name(key, family)
        weight = checkpoint.weights.get(matrix)
        if matrix not in products or weight is None:
            raise Unsupported(
                f"{name} changes {key}, which is not a matrix in a product of {model}'s blocks",
                hint="train it for the matrices of attention and feed-forward network only",
            )
        if registry.rounds_activations(weight):
            raise Unsupported(
                f"{name} changes {key}, whose products round their inputs in {model}",
                hint="run it without --lora",
            )
        if weight.shape != (len(pair.b), pair.a.shape[1]):
            raise InvalidFormat(
                f"{name}: {key} is for a matrix of shape {(len(pair.b), pair.a.shape[1])}, that of "
                f"{model} has {weight.shape}",
                hint="use the model that the adapter was trained on",
            )
        pairs[matrix] = _in_order(matrix, pair, adapter, checkpoint, config)
    return pairs


def _in_order(
    matrix: str, pair: Pair, adapter: Adapter, checkpoint: Checkpoint, config: ModelConfig
) -> Pair:
    """*pair* with the rows of *matrix* in the order of *checkpoint*: GGUF has one of its own."""
    family = of_gguf(checkpoint.architecture)
    is_file = checkpoint.gguf is not None
    if adapter.is_gguf == is_file or family is None:
        return pair
    if any(isinstance(cache, State) for cache in config.caches):
        raise Unsupported(
            f"{adapter.path.name} is for a {'folder' if is_file else 'GGUF file'}, where rows of "
            f"{family.title} models have another order",
            hint="run it with the model in the same form",
        )
    order = row_order(matrix, replace(checkpoint, rope_style=family.rope_style), config)
    if order is None:
        return pair
    return pair._replace(b=pair.b[order if is_file else np.argsort(order)])
