"""The types of a quantized file's tensors, as llama-quantize chooses; importance matrices.

A mix such as Q4_K_M gives most matrices one type and a few that suffer most from rounding a
larger one: the output head, the values of the attention, and the down projections of some blocks.
The rules are those of llama.cpp's ``src/llama-quant.cpp`` (b11434); what they depend on, and which
tensors they leave alone, is the same, so that files have the same types.

An importance matrix has the mean square of each input of each matrix, in the GGUF files of
llama-imatrix as the tensors ``NAME.in_sum2`` and ``NAME.counts``.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bitnet.base.errors import InvalidFormat, NotFound
from bitnet.convert.convert_options import MIXES
from bitnet.formats.gguf import GGUF
from bitnet.quants import types
from bitnet.quants.registry import dequantize

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from pathlib import Path

    from bitnet.convert.convert_options import ConvertOptions
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.quants.types import QuantType
    from bitnet.quants.weight import Weight

    _Rule = str | Callable[["_TensorPosition"], str | None]


# A type whose blocks do not fit into the rows, and the one with smaller blocks instead of it.
_NARROW = {
    "Q2_K": "Q4_0",
    "Q3_K": "Q4_0",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
    "IQ4_XS": "IQ4_NL",
}

# Matrices that are not quantized, by a part of their name: small, or not the factor of a product.
_KEPT = (
    *("_norm.weight", "ffn_gate_inp.weight", "altup", "laurel", "per_layer_model_proj"),
    *("ssm_conv1d", "shortconv.conv.weight"),
    # Tables whose rows are added to embeddings: llama.cpp cannot add quantized ones.
    *("position_embd.weight", "token_types.weight"),
)
_ROLES = {
    "output.weight": "output",
    "token_embd.weight": "embedding",
    "per_layer_token_embd.weight": "embedding",
}
_PARTS = {
    "attn_qkv.weight": "values",
    "attn_kv_b.weight": "values",
    "attn_v.weight": "values",
    "attn_k.weight": "keys",
    "attn_q.weight": "queries",
    "attn_output.weight": "attention output",
    "ffn_up": "up",
    "ffn_gate": "gate",
    "ffn_down": "down",
}


# The type of a role's tensors in a mix; None: that of most matrices.
_VALUES: Mapping[str, _Rule] = {
    "Q2_K": lambda tensor: "Q4_K" if tensor.sharing >= 4 else "Q3_K",
    "Q2_K_S": lambda tensor: "Q4_K" if tensor.sharing >= 4 else None,
    "Q3_K_M": lambda tensor: "Q5_K" if tensor.layer < 2 else "Q4_K",
    "Q3_K_L": "Q5_K",
    "Q4_K_S": lambda tensor: "Q5_K" if tensor.layer < 4 else None,
    "Q4_K_M": lambda tensor: "Q6_K" if tensor.is_sensitive else None,
    "Q5_K_M": lambda tensor: "Q6_K" if tensor.is_sensitive else None,
    "IQ4_NL": lambda tensor: "Q5_K" if tensor.sharing >= 4 else None,
    "IQ4_XS": lambda tensor: "Q5_K" if tensor.sharing >= 4 else None,
}
_DOWN: Mapping[str, _Rule] = {
    "Q2_K": "Q3_K",
    "Q2_K_S": lambda tensor: "Q4_K" if tensor.is_early else None,
    "Q3_K_M": lambda tensor: "Q5_K" if tensor.layer < tensor.layers // 16 else "Q4_K",
    "Q3_K_L": "Q5_K",
    "Q4_K_S": lambda tensor: "Q5_K" if tensor.is_early else None,
    "Q4_K_M": lambda tensor: "Q6_K" if tensor.is_sensitive else None,
    "Q5_K_M": lambda tensor: "Q6_K" if tensor.is_sensitive else None,
    "IQ4_NL": lambda tensor: "Q5_K" if tensor.is_early and not tensor.has_importance else None,
    "IQ4_XS": lambda tensor: "Q5_K" if tensor.is_early and not tensor.has_importance else None,
    "Q4_0": lambda tensor: "Q4_1" if tensor.is_early and tensor.has_importance else None,
    "Q5_0": lambda tensor: "Q5_1" if tensor.is_early and tensor.has_importance else None,
}
# Falcon's, where they are others.
_FALCON_DOWN: Mapping[str, _Rule | None] = {
    "Q3_K_M": lambda tensor: tensor.by_depth("Q5_K", "Q4_K", "Q3_K"),
    "Q3_K_L": "Q4_K",
    "Q4_K_S": None,
    "Q4_K_M": lambda tensor: tensor.by_depth("Q6_K", "Q5_K", "Q4_K"),
}
_ATTENTION_OUTPUT = {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}
_FALCON_ATTENTION_OUTPUT = {"Q3_K_L": "Q4_K"}
# Mixes that give the attention output Q5_K in models of eight experts.
_EIGHT_EXPERTS_OUTPUT = frozenset(
    {"Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ4_XS"}
)

# Number of blocks of the models of an architecture that llama.cpp calls LLM_TYPE_70B.
_BLOCKS_OF_70B = {"llama": 80, "llama-embed": 80, "qwen2": 80, "olmo": 80, "jais2": 68}

_SUMS = ".in_sum2"
_COUNTS = ".counts"


@dataclass(frozen=True)
class _TensorPosition:
    """A tensor as the rules see it."""

    layer: int  # its number among the tensors of its role; for `down` of experts, that of its block
    layers: int  # number of tensors of its role; for `down`, of the blocks times `num_loops`
    sharing: int  # query heads per key head in the first block
    has_importance: bool  # there is an importance matrix

    @property
    def is_early(self) -> bool:
        return self.layer < self.layers // 8

    @property
    def is_sensitive(self) -> bool:
        """True for the first and the last eighth of the blocks, and every third of the others."""
        first = self.layers // 8
        late = self.layer >= 7 * self.layers // 8
        return self.is_early or late or (self.layer - first) % 3 == 2

    def by_depth(self, first: str, sensitive: str, other: str) -> str:
        """A type for the first sixteenth, one for other sensitive tensors, and one for the rest."""
        if self.layer < self.layers // 16:
            return first
        return sensitive if self.is_sensitive else other


def types_of_mix(
    checkpoint: Checkpoint, request: ConvertOptions, vectors: Container[str]
) -> dict[str, QuantType]:
    """Type of each matrix of *checkpoint* that the mix ``request.type`` quantizes.

    *vectors* names tensors that take part in no product.
    """
    rules = _Assignment(checkpoint, request)
    weights = checkpoint.weights
    matrices = [
        weights[name]
        for name in sorted(weights, key=lambda name: (_block(name), name))
        if math.prod(weights[name].shape[:-1]) > 1
        and name.endswith("weight")
        and not any(part in name for part in _KEPT)
        and name not in vectors
    ]
    return {weight.name: rules.type_of(weight) for weight in matrices}


class _Assignment:
    """Types of the tensors of one model, asked in llama.cpp's order: by block, then by name."""

    def __init__(self, checkpoint: Checkpoint, request: ConvertOptions) -> None:
        self.mix = request.type
        self.default = MIXES[request.type].type
        self.has_importance = bool(request.imatrix)
        self.weights = checkpoint.weights
        self.architecture = checkpoint.architecture
        self.blocks = checkpoint.integer("block_count")
        # Blocks that run several times count as often.
        self.layers = self.blocks * checkpoint.integer("num_loops", 1)
        self.experts = checkpoint.integer("expert_count", 0)
        counts = [checkpoint.value(f"attention.head_count{suffix}", None) for suffix in ("", "_kv")]
        # The number of the first block, where each block has its own.
        heads, kv_heads = (
            next(iter(value), None) if hasattr(value, "__len__") else value for value in counts
        )
        kv_heads = heads if kv_heads is None else kv_heads
        self.sharing = int(heads or 0) // int(kv_heads) if kv_heads else 0
        self.is_70b = self.blocks == _BLOCKS_OF_70B.get(self.architecture)
        if self.architecture in ("llama", "llama-embed") and heads == kv_heads:
            self.is_70b = False
        self.values = sum(_role(name) == "values" for name in self.weights)
        self.counts: Counter[str] = Counter()  # tensors that the rules were applied to, by role

    def type_of(self, weight: Weight) -> QuantType:
        """Type of *weight*; each matrix is asked about once, in order, because they are counted."""
        name = self._choose(weight, _role(weight.name))
        columns = weight.shape[-1]
        if columns % types.by_name(name).block_size:
            name = _NARROW.get(name, name)
        return types.by_name("F16" if columns % types.by_name(name).block_size else name)

    def _choose(self, weight: Weight, role: str) -> str:
        """Name of the type of *weight* by the rules, whether or not its blocks fit the rows."""
        default = self.default
        is_head = role == "output" or (role == "embedding" and "output.weight" not in self.weights)
        if self.mix == "MXFP4_MOE":
            is_expert = len(weight.shape) > 2 and weight.shape[0] > 1
            # Of this architecture, matrices of the latent attention are stored for each head.
            if self.architecture == "bailingmoe3":
                is_expert = is_expert and role in ("up", "gate", "down")
            return "MXFP4" if is_expert and not is_head else "Q8_0"
        if is_head:
            remainder = weight.shape[-1] % types.by_name(default).block_size
            is_large = remainder or default == "Q8_0" or self.architecture == "falcon"
            return "Q8_0" if is_large else "Q6_K"
        has_eight_experts = self.experts == 8
        if role == "values":
            type_ = self._apply(_VALUES, weight.name, role, self.values)
            if self.is_70b and type_ in ("Q3_K", "Q4_K"):
                type_ = "Q5_K"
            return "Q8_0" if has_eight_experts else type_
        if role == "keys" and has_eight_experts:
            return "Q8_0"
        if role == "down":
            rules = _DOWN if self.architecture != "falcon" else {**_DOWN, **_FALCON_DOWN}
            return self._apply(rules, weight.name, role, self.layers)
        if role == "attention output":
            if self.architecture == "falcon":
                return _FALCON_ATTENTION_OUTPUT.get(self.mix, default)
            if has_eight_experts:
                return "Q5_K" if self.mix in _EIGHT_EXPERTS_OUTPUT else default
            return _ATTENTION_OUTPUT.get(self.mix, default)
        return default

    def _apply(self, rules: Mapping[str, _Rule | None], name: str, role: str, layers: int) -> str:
        """Name of the type that *rules* give the tensor *name*, which is then counted."""
        by_block = role == "down" and self.experts > 1
        tensor = _TensorPosition(
            _block(name) if by_block else self.counts[role],
            layers,
            self.sharing,
            self.has_importance,
        )
        self.counts[role] += 1
        rule = rules.get(self.mix)
        type_ = rule(tensor) if callable(rule) else rule
        return type_ or self.default


def _block(name: str) -> int:
    """Number of the block of the tensor *name*, -1 if it is in none."""
    match = re.match(r"blk\.(\d+)\.", name)
    return int(match[1]) if match else -1


def _role(name: str) -> str:
    """Role of the tensor *name* in the rules; empty if it has none."""
    if name in _ROLES:
        return _ROLES[name]
    return next((role for part, role in _PARTS.items() if part in name), "")


Importance = Mapping[str, NDArray[np.float32]]  # a weight for each input of a matrix, by its name


def importance_of(importance: Importance, weight: Weight) -> NDArray[np.float32] | None:
    """Weights of the inputs of *weight*, ``(columns,)`` or ``(experts, columns)``; None: none."""
    values = importance.get(weight.name)
    if values is None:
        return None
    shape = (*weight.shape[:-2], weight.shape[-1])
    if values.size == math.prod(shape):
        return values.reshape(shape)
    if weight.name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return None  # the values are those of the head, which shares the tensor
    raise InvalidFormat(
        f"--imatrix has {values.size:,} numbers for {weight.name}, expected {math.prod(shape):,}",
        hint="use the importance matrix of this model",
    )


def read_importance(path: Path) -> Importance:
    """The importance matrix in the GGUF file *path*."""
    if path.is_dir():
        raise NotFound(
            f"{path} is a folder, expected a GGUF file with an importance matrix",
            hint="name the file itself: --imatrix FILE",
        )
    if not path.exists():
        raise NotFound(f"{path} does not exist", hint="compute one with llama-imatrix")
    with GGUF.open(path) as file:
        tensors = {
            name: dequantize(file.weight(name))
            for name in file.tensors
            if name.endswith((_SUMS, _COUNTS))
        }
    importance = {}
    for name in {tensor_name.removesuffix(_SUMS).removesuffix(_COUNTS) for tensor_name in tensors}:
        sums = tensors.get(name + _SUMS)
        counts = tensors.get(name + _COUNTS)
        if sums is None or counts is None or counts.size == 0 or sums.size % counts.size:
            raise _invalid(path, f"sums and counts of {name} do not belong together")
        # Tokens of each matrix as whole numbers; all inputs of one that saw none weigh the same.
        calls = np.floor(counts + np.float32(0.5)).reshape(-1, 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            means = sums.reshape(calls.size, -1) / calls
        means = np.where(calls > 0, means, np.float32(1)).astype(np.float32)
        if not np.isfinite(means).all():
            raise _invalid(path, f"the numbers for {name} are not all finite")
        importance[name] = means.reshape(-1)
    if not importance:
        raise _invalid(path, "it has no sums")
    return importance


def _invalid(path: Path, why: str) -> InvalidFormat:
    return InvalidFormat(
        f"{path.name}: {why}", hint="compute the importance matrix with llama-imatrix"
    )
