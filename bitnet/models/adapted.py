"""Add low-rank adapters (LoRA, DoRA) to a checkpoint, as tensors or as changed weights.

    checkpoint = with_adapters(open_checkpoint(path), [(Path("adapter.gguf"), 1.0)])

The factors A and B of an adapted matrix become tensors of the checkpoint, its weights stay as they
are, and ``builder.py`` adds ``B (A x)`` behind each adapted product of a block. Changed
embeddings and heads, matrices of a DoRA and matrices that an adapter stores as a whole are computed
here once, as float32. The rules are those of PEFT 0.21: a head that is tied to the embedding keeps
the embedding's old values.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat, Unsupported, UsageError
from bitnet.base.files import exists
from bitnet.base.invocation import shell_quote
from bitnet.families.blocks import State
from bitnet.families.family import of_gguf
from bitnet.formats.adapters import MERGE, Adapter, Change, Pair, read_adapter
from bitnet.models.hidden_program import layout
from bitnet.models.load import config_from
from bitnet.models.orders import row_order
from bitnet.models.trained_folder import TrainedFolder
from bitnet.quants import registry, types

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from numpy.typing import NDArray

    from bitnet.families.blocks import ModelConfig
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.quants.weight import Weight

_EMBEDDING = "token_embd.weight"
_HEAD = "output.weight"
_TEXTS = "token_types.weight"
# Tables and head, which are read outside of the blocks: an adapter of a folder is merged into them.
_OUTER = frozenset({_EMBEDDING, _HEAD, _TEXTS})


def parse_adapter(text: str | os.PathLike[str]) -> tuple[Path, float]:
    """Path and scale of ``FILE[:SCALE]``."""
    if not os.fspath(text).strip():  # an empty path would be the current folder
        raise UsageError(
            "an adapter has no path",
            hint="name a GGUF file or a folder that PEFT saved: --lora FILE",
        )
    name, scale = split_scale(os.fspath(text))
    if scale is None:
        return Path(name), 1.0
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


def split_scale(text: str, folder: Path | None = None) -> tuple[str, str | None]:
    """Path and scale of ``PATH[:SCALE]``; the scale is None if the text has none.

    A colon may also be a part of a path, which is relative to *folder*.
    """
    path, colon, scale = text.rpartition(":")
    if not path or not colon or exists(Path(folder or "", text)):
        return text, None
    return path, scale


def split_name(text: str, folder: Path | None = None) -> tuple[str | None, str]:
    """Name of an adapter, None if it has none, and its ``PATH[:SCALE]``.

    An equals sign may also be a part of a path, which is relative to *folder*.
    """
    name, equals, rest = text.partition("=")
    if not equals or "/" in name or exists(Path(folder or "", text)):
        return None, text
    return name, rest


def split_adapters(
    texts: Iterable[str],
) -> tuple[list[tuple[Path, float]], dict[str, tuple[Path, float]]]:
    """Adapters that every answer uses, and by name those of ``NAME=FILE[:SCALE]``.

    Each adapter is a pair of path and scale, as from :func:`parse_adapter`.
    """
    always = []
    by_name = {}
    for text in texts:
        name, rest = split_name(text)
        if name is None:
            always.append(parse_adapter(rest))
            continue
        if not name or name in by_name:
            raise UsageError(f"--lora {text}: give each adapter a name of its own", field="lora")
        by_name[name] = parse_adapter(rest)
    return always, by_name


def with_adapters(checkpoint: Checkpoint, adapters: Iterable[tuple[Path, float]]) -> Checkpoint:
    """*checkpoint* with the *adapters*, each with a factor on all that it adds."""
    pairs: dict[str, list[Pair]] = {}
    changes: dict[str, NDArray[np.float32]] = {}
    for path, factor in adapters:
        adapter = read_adapter(path)
        adapter_changes = _for_model(adapter, checkpoint, factor)
        if adapter.matrices and factor != 1:
            raise UsageError(
                f"{path.name} has whole matrices, which have no factor",
                hint=f"run it as it is: --lora {shell_quote(path)}",
            )
        merged = _merge(adapter_changes, path.name, checkpoint, changes)
        changes |= merged
        for name, change in adapter_changes.items():
            if name not in merged and change.pair is not None:
                pairs.setdefault(name, []).append(change.pair)
    weights = _with_changes(checkpoint, changes)
    for name, named_pairs in pairs.items():
        # Several adapters equal one whose rank is the sum of theirs. Products with a scale are
        # checked in float64, where they do not overflow.
        a = np.concatenate([pair.a for pair in named_pairs])
        b = np.concatenate([pair.b * np.float64(pair.scale) for pair in named_pairs], axis=1)
        _check_numbers(b, name)
        for key, values in ((f"{name}.lora_a", a), (f"{name}.lora_b", b.astype(np.float32))):
            weight = registry.quantize(key, values, types.by_id(0))  # F32
            weights[key] = replace(weight, rounds_input=False)
    return replace(
        checkpoint,
        weights=weights,
        adapted=checkpoint.adapted | pairs.keys(),
        replaced=checkpoint.replaced | changes.keys(),
    )


def _merge(
    adapter_changes: Mapping[str, Change],
    adapter: str,
    checkpoint: Checkpoint,
    already_changed: Mapping[str, NDArray[np.float32]],
) -> dict[str, NDArray[np.float32]]:
    """New values of the matrices that have to be computed before the pass, by name.

    For all others the pass adds ``B (A x)``. *adapter_changes* are those of *adapter*;
    *already_changed* has the matrices that earlier adapters have changed here.
    """
    merged = {}
    for name, change in sorted(adapter_changes.items()):
        is_product = change.matrix is None and change.magnitudes is None
        if is_product and name not in _OUTER:
            continue
        if name in already_changed:
            raise Unsupported(
                f"{adapter} changes {name}, which an adapter before it changes, too",
                hint="merge the adapters into their model with PEFT, and run that",
            )
        values = change.matrix
        if values is None:
            weight = checkpoint.weights[_find_stored_name(name, checkpoint)]
            # The scale remains a factor on the changed matrix, see _with_changes.
            values = registry.dequantize(replace(weight, scale=1.0))
        with np.errstate(all="ignore"):  # the result is checked
            merged[name] = _apply(change, values)
        _check_numbers(merged[name], name)
    return merged


def _apply(change: Change, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The matrix *values* with what the *change* adds, scaled to its magnitudes."""
    pair = change.pair
    if pair is not None:
        values = values + (pair.b * np.float32(pair.scale)) @ pair.a  # (outputs, inputs)
    if change.magnitudes is not None:
        norms = np.sqrt(np.einsum("ij,ij->i", values, values, dtype=np.float64))
        factors = (change.magnitudes / norms).astype(np.float32)
        values = values * factors[:, None]
    return values


def _check_numbers(values: NDArray[np.floating[Any]], name: str) -> None:
    """Refuse *values* of the matrix *name* that a float32 cannot store."""
    if not (np.abs(values) <= np.finfo(np.float32).max).all():  # false for NaN, too
        raise InvalidFormat(
            f"an adapter changes {name} to numbers that a float32 cannot store",
            hint="fetch the adapter again, or add less of it: --lora FILE:SCALE",
        )


def _with_changes(
    checkpoint: Checkpoint, changes: Mapping[str, NDArray[np.float32]]
) -> dict[str, Weight]:
    """Tensors of *checkpoint* with the new values *changes*."""
    weights = dict(checkpoint.weights)
    if _EMBEDDING in changes and _HEAD not in weights:  # the head stays what it was
        weights[_HEAD] = replace(weights[_EMBEDDING], name=_HEAD)
    for name, values in changes.items():
        scale = checkpoint.weights[_find_stored_name(name, checkpoint)].scale
        changed = registry.quantize(name, values, types.by_id(0))  # F32
        weights[name] = replace(changed, scale=scale, rounds_input=False)
    return weights


def _find_stored_name(name: str, checkpoint: Checkpoint) -> str:
    """Name of the tensor that stores the matrix *name*: a tied head is the embedding."""
    return _EMBEDDING if name == _HEAD and _HEAD not in checkpoint.weights else name


def _for_model(adapter: Adapter, checkpoint: Checkpoint, factor: float) -> dict[str, Change]:
    """Changes of *adapter*, by GGUF name, with rows as *checkpoint* has them.

    What the adapter adds is multiplied by *factor*.
    """
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
    folder = None if adapter.is_gguf else TrainedFolder.of(adapter, checkpoint)
    changes = {}
    for key in dict.fromkeys((*adapter.pairs, *adapter.matrices)):
        change = adapter.change(key)
        own_changes = {key: change} if folder is None else folder.changes(key, change)
        for matrix, own_change in own_changes.items():
            weight = _weight_to_change(matrix, own_change, key, adapter, checkpoint, products)
            order = _order_of(matrix, adapter, checkpoint, config, folder)
            if order is not None:
                own_change = own_change.take(order)
            # In the trained model a factor on the matrix also multiplies what the adapter adds. A
            # merged matrix keeps its factor; a product beside the matrix gets it here.
            is_merged = matrix in _OUTER or own_change.magnitudes is not None
            own_factor = 1.0 if adapter.is_gguf or is_merged else weight.scale
            changes[matrix] = own_change.scale(own_factor).scale(factor)
    return changes


def _weight_to_change(
    matrix: str,
    change: Change,
    key: str,
    adapter: Adapter,
    checkpoint: Checkpoint,
    products: Collection[str],
) -> Weight:
    """The tensor *matrix* of *checkpoint*, which *change* fits; *adapter* calls it *key*.

    *products* are the matrices that adapters may add to.
    """
    name = adapter.path.name
    model = checkpoint.path.name
    is_whole = change.matrix is not None
    is_outer = matrix in _OUTER and not adapter.is_gguf
    weight = checkpoint.weights.get(_find_stored_name(matrix, checkpoint))
    if weight is None or not (is_outer or (matrix in products and not is_whole)):
        raise Unsupported(
            f"{name} changes {key}, which is not a matrix in a product of {model}'s blocks"
            f"{', or is saved whole' if is_whole else ''}",
            hint="train it for the matrices of attention and feed-forward network, the "
            "embedding and the head only",
        )
    if registry.rounds_activations(weight):
        raise Unsupported(
            f"{name} changes {key}, whose products round their inputs in {model}",
            hint="run it without --lora",
        )
    for shape in change.shapes():
        if weight.shape != shape:
            raise InvalidFormat(
                f"{name}: {key} is for a matrix of shape {shape}, that of {model} has "
                f"{weight.shape}",
                hint="use the model that the adapter was trained on",
            )
    of_rows = change.magnitudes
    if of_rows is not None and (of_rows.shape != weight.shape[:1] or matrix == _EMBEDDING):
        raise Unsupported(
            f"{name}: magnitudes of shape {of_rows.shape} for {key}; only those of the rows of a "
            "product are computed",
            hint=MERGE,
        )
    return weight


def _order_of(
    matrix: str,
    adapter: Adapter,
    checkpoint: Checkpoint,
    config: ModelConfig,
    folder: TrainedFolder | None,
) -> NDArray[np.intp] | None:
    """Order of the rows of *matrix* in *checkpoint*, if it is not that of *adapter*.

    *folder* is the one that an adapter of PEFT was trained on.
    """
    family = of_gguf(checkpoint.architecture)
    is_file = checkpoint.gguf is not None
    folder_order = None if folder is None else folder.order_of(matrix)
    if adapter.is_gguf == is_file or family is None:
        return folder_order
    if any(isinstance(cache, State) for cache in config.caches):
        raise Unsupported(
            f"{adapter.path.name} is for a {'folder' if is_file else 'GGUF file'}, where rows of "
            f"{family.title} models have another order",
            hint="run it with the model in the same form",
        )
    # row_order() goes from a folder to its file, so that it needs the style of the folder's rows,
    # also if the checkpoint is the file.
    order = row_order(matrix, replace(checkpoint, rope_style=family.rope_style), config)
    if order is None:
        return folder_order
    # A GGUF adapter has no folder, so its own order is None, and the order of the file is undone.
    if not is_file:
        return np.argsort(order)
    return order if folder_order is None else folder_order[order]
