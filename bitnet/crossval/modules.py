"""Inputs and outputs of the modules of transformers, matched with the values of our programs.

Only modules with a weight are matched: linear layers and norms. A key names an input or output: the
GGUF name of the module's weight, without its suffix, and ``in`` or ``out``. In a LLaMA the output
of ``model.layers.0.self_attn.q_proj`` has the key ``blk.0.attn_q out`` and is ``Qcur_product-0`` in
our program; the input of ``o_proj`` is ``kqv_out-0``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.crossval.names import sources_of
from bitnet.crossval.prefix import results
from bitnet.families import config_json
from bitnet.families.tensor_names import without_block
from bitnet.kernels.instructions import Linear
from bitnet.kernels.program import Mark
from bitnet.models.hidden_program import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from numpy.typing import NDArray

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.config_json import Description
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.program import Program, Register

#: Values that do not belong to a module with a weight, by our names or prefixes of them.
EMBEDDINGS = "embed"  # input of the first block
BLOCK = "l_out-"  # output of a block, by its number
STACK = "stack_norm-"  # output of a stack of blocks, by its number
LOGITS = "result_output"
_BEFORE_GATE = "kda_normed"  # norm whose module of transformers applies a gate, too
_LAST_NORM = "result_norm"
_MERGED = "unembd_merged"  # mean of several streams, which the last norm reads
#: Methods of ``quantization_config`` whose tensors are read as they are stored.
_READ_AS_STORED = ("bitnet", "mxfp4")
#: Tensors by which the input of the first block differs from the embeddings of tokens.
_ON_EMBEDDINGS = ("position_embd.weight", "token_embd_norm.weight", "token_types.weight")


def stem(weight: str) -> str:
    """Name of the tensor *weight* without its suffix; a matrix and its bias have the same."""
    return weight.removesuffix(".weight").removesuffix(".bias").removesuffix(".scale")


def key_of_call(key: str, number: int) -> str:
    """Key of an input or output in the run *number*, from 0, of its module within one pass."""
    return f"{key} {number}" if number else key


def keys_of(
    config: ModelConfig, program: Program, checkpoint: Checkpoint
) -> dict[str, tuple[str, float]]:
    """Key and factor of each value of *program* that a module reads or returns, by our name.

    The factor is part of our tensor, but transformers applies it after the module: our value is
    the module's times the factor. Where a folder stores a tensor in another form, the output of its
    module has no key: that output is not the product with our tensor.
    """
    scales = layout(config).scales
    changed = find_changed(checkpoint)
    keys = {name: (key, 1.0) for name, key in _inputs(program, checkpoint.weights).items()}
    for name, source in sources_of(program, scales, checkpoint.weights).items():
        is_whole = not source.is_part and not source.then
        if is_whole and without_block(source.weight) not in changed:
            keys[name] = (f"{stem(source.weight)} out", source.scale)
    # The module returns the value after the gate, ours is the one before it.
    keys = {name: key for name, key in keys.items() if not name.startswith(_BEFORE_GATE)}
    keys = _in_order_of_calls(keys, program)
    keys.setdefault(_LAST_NORM, ("output in", 1.0))
    if config.streams is not None:
        keys[_MERGED] = "output_norm in", 1.0
    unscaled = {LOGITS: LOGITS, **_of_blocks(config)}
    # The first block must read the embeddings of the tokens, and nothing else.
    is_changed = any(name in checkpoint.weights for name in _ON_EMBEDDINGS)
    if not (is_changed or config.embedding_norm or config.cycles):
        unscaled[EMBEDDINGS] = EMBEDDINGS
    return keys | {name: (key, 1.0) for name, key in unscaled.items()}


def _of_blocks(config: ModelConfig) -> dict[str, str]:
    """Key of the output of each block and stack, by our name.

    A module that runs several times in a pass has several names of ours, one for each run.
    """
    calls: Counter[str] = Counter()
    modules = {
        f"{BLOCK}{layer}": f"{BLOCK}{number}"
        for layer, number in enumerate(config.block_numbers or range(config.n_layers))
    }
    if config.cycles is not None:
        layers = config.cycles.layers
        # The output of the last run is the result, which has no mark of its own.
        for first in range(0, config.n_layers - layers, layers):
            modules[f"{STACK}{first}"] = f"{STACK}{int(config.cycles.is_high(first))}"
    keys = {}
    for name, module in modules.items():
        keys[name] = key_of_call(module, calls[module])
        calls[module] += 1
    return keys


def _in_order_of_calls(
    keys: Mapping[str, tuple[str, float]], program: Program
) -> dict[str, tuple[str, float]]:
    """*keys* with a number for each further run of a module that runs several times in a pass.

    Two names of one value, such as those of the last norm of an encoder, belong to one run.
    """
    calls: Counter[str] = Counter()
    latest: dict[str, Register] = {}  # by key, the register with the output of its last run
    numbered: dict[str, tuple[str, float]] = {}
    for step in program.instructions:
        if not isinstance(step, Mark):
            # A register that is written again holds the output of another run.
            written = results(step)
            latest = {key: register for key, register in latest.items() if register not in written}
        elif step.name in keys:
            key, factor = keys[step.name]
            if latest.get(key) != step.register:
                calls[key] += 1
                latest[key] = step.register
            numbered[step.name] = key_of_call(key, calls[key] - 1), factor
    return numbered


def _inputs(program: Program, tensors: Container[str]) -> dict[str, str]:
    """Key of the input of a product, by our name of that input."""
    names: dict[Register, str] = {}
    keys: dict[str, str] = {}
    for step in program.instructions:
        if isinstance(step, Mark):
            names[step.register] = step.name
            continue
        if isinstance(step, Linear) and step.x in names:
            stems = [stem(weight) for weight in step.weights if weight in tensors]
            # A factor may be applied to the input of a product or to its result, and transformers
            # and this runtime need not choose the same.
            if stems and f"{stems[0]}.scale" not in tensors:
                keys[names[step.x]] = f"{stems[0]} in"
        for register in results(step):
            names.pop(register, None)
    return keys


def find_changed(checkpoint: Checkpoint) -> frozenset[str]:
    """Names, without ``blk.N.``, of tensors that the folder of *checkpoint* stores differently.

    Their rows are in another order there, they are parts of a larger tensor, or their values
    differ. A matrix that is only transposed does not count: the product with it is the same.
    """
    description = _describe(checkpoint)
    parts = [part for names in description.parts.values() for part in names]
    factors = [end for end, factor in description.factors.items() if factor != 1]
    orders = [
        end
        for end, order in description.orders.items()
        if not all(
            _only_transposes(order, weight.shape)
            for name, weight in checkpoint.weights.items()
            if without_block(name) == end
        )
    ]
    ends = {*description.values, *parts, *factors, *orders}
    return frozenset(ends | {f"{stem(end)}.bias" for end in ends})


def _only_transposes(order: Callable[[NDArray[Any]], NDArray[Any]], shape: tuple[int, ...]) -> bool:
    """True if *order* transposes a matrix to *shape*, and does nothing else."""
    if len(shape) != 2:
        return False
    numbers = np.arange(shape[0] * shape[1], dtype=np.uint32).reshape(shape[::-1])
    try:
        return np.array_equal(order(numbers), numbers.T)
    except (ValueError, IndexError):  # *order* expects another shape than the transposed one
        return False


def is_unpacked(checkpoint: Checkpoint) -> bool:
    """True if *checkpoint* is a quantized folder whose weights were decoded to plain numbers."""
    quantization: dict[str, Any] = (checkpoint.config or {}).get("quantization_config") or {}
    return bool(quantization) and quantization.get("quant_method") not in _READ_AS_STORED


def title_of(checkpoint: Checkpoint) -> str:
    """Title of the family of the folder of *checkpoint*."""
    return _describe(checkpoint).family.title


def _describe(checkpoint: Checkpoint) -> Description:
    return config_json.describe(
        checkpoint.config or {}, model=checkpoint.path.name, ignore=checkpoint.ignored
    )
