"""Options of a conversion, and the types of a quantized file's tensors, as llama-quantize chooses.

A mixture such as Q4_K_M gives most matrices one type and a few that suffer most from rounding a
larger one: the output head, the values of the attention, and the down projections of some blocks.
The rules are those of llama.cpp's ``src/llama-quant.cpp`` (b11434); what they depend on, and which
tensors they leave alone, is the same, so that files have the same types.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bitnet.base.errors import Unsupported, UsageError
from bitnet.quants import types

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping
    from pathlib import Path

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.formats.containers import I2SLayout
    from bitnet.quants.types import QuantType
    from bitnet.quants.weight import Weight

    _Rule = str | Callable[["_Place"], str | None]


class Mixture(NamedTuple):
    """A kind of quantized file: the type of most matrices, and its ``general.file_type``."""

    type: str
    file_type: int


#: Kinds of quantized files, by llama-quantize's names.
MIXTURES = {
    "Q8_0": Mixture("Q8_0", 7),
    "Q6_K": Mixture("Q6_K", 18),
    "Q5_K_M": Mixture("Q5_K", 17),
    "Q5_K_S": Mixture("Q5_K", 16),
    "Q5_1": Mixture("Q5_1", 9),
    "Q5_0": Mixture("Q5_0", 8),
    "Q4_K_M": Mixture("Q4_K", 15),
    "Q4_K_S": Mixture("Q4_K", 14),
    "IQ4_NL": Mixture("IQ4_NL", 25),
    "IQ4_XS": Mixture("IQ4_XS", 30),
    "Q4_1": Mixture("Q4_1", 3),
    "Q4_0": Mixture("Q4_0", 2),
    "MXFP4_MOE": Mixture("MXFP4", 38),
    "Q3_K_L": Mixture("Q3_K", 13),
    "Q3_K_M": Mixture("Q3_K", 12),
    "Q3_K_S": Mixture("Q3_K", 11),
    "Q2_K": Mixture("Q2_K", 10),
    "Q2_K_S": Mixture("Q2_K", 21),
}

TERNARY = ("I2_S", "TQ1_0", "TQ2_0", "IQ2_BN", "Q1_0", "Q2_0", "PQ2_0", "PTQ1_0")
FLOATS = ("F32", "F16", "BF16")
BLOCKS = (  # types of rounded numbers, as a tensor may have them
    *("Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "IQ4_NL", "IQ4_XS", "Q4_1", "Q4_0"),
    *("MXFP4", "Q3_K", "Q2_K"),
)
ROUNDED = ("F16", "BF16", *BLOCKS)
ENCODINGS = (*FLOATS, *MIXTURES, *TERNARY)


@dataclass(frozen=True)
class ConversionRequest:
    """Options of the new file."""

    # type of the matrices, one of ``ENCODINGS``. A mixture gives some matrices larger types. A
    # ternary one applies to those of the blocks, while an embedding and a head that are not ternary
    # are unchanged, or become F16.
    type: str
    # file or folder with the tokenizer; by default the one of the source
    tokenizer: Path | None = None
    no_tokenizer: bool = False  # leave the tokenizer out
    pre: str | None = None  # name of the pre-tokenizer, if it cannot be determined
    allow_lossy: bool = False  # allow a loss beyond the rounding of floats
    i2_s_layout: I2SLayout = "x86"  # processor that wrote the I2_S weights of the source
    # metadata keys of the source to ignore; the new file lacks them
    ignore_keys: tuple[str, ...] = ()
    pure: bool = False  # give every matrix of a mixture the same type
    output_tensor_type: str | None = None  # type of the output head in a mixture
    token_embedding_type: str | None = None  # type of the embedding in a mixture
    imatrix: Path | None = None  # file with an importance matrix, for a mixture

    def __post_init__(self) -> None:
        if self.type not in ENCODINGS:
            raise UsageError(f"--type is {self.type!r}, expected one of {', '.join(ENCODINGS)}")
        if self.no_tokenizer and (self.tokenizer or self.pre):
            raise UsageError("--no-tokenizer goes with neither --tokenizer nor --pre")
        self._check_mixture()

    def _check_mixture(self) -> None:
        own = {
            "--pure": self.pure,
            "--imatrix": self.imatrix,
            "--output-tensor-type": self.output_tensor_type,
            "--token-embedding-type": self.token_embedding_type,
        }
        if self.type == "Q2_K_S" and self.imatrix is None:
            raise UsageError(
                "Q2_K_S needs an importance matrix", hint="name one: --imatrix FILE; or choose Q2_K"
            )
        for option, value in own.items():
            if value and self.type not in MIXTURES:
                raise UsageError(
                    f"{option} goes with quantized types such as Q4_K_M, not with {self.type}"
                )
            if option.endswith("-type") and value and value not in (*FLOATS, *BLOCKS):
                raise UsageError(
                    f"{option} is {value!r}, expected one of {', '.join((*FLOATS, *BLOCKS))}"
                )


# A type whose blocks do not fit into the rows, and the one with smaller blocks instead of it.
_NARROW = {
    "Q2_K": "Q4_0",
    "Q3_K": "Q4_0",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
    "IQ4_XS": "IQ4_NL",
}

# Matrices that are kept, by a part of their name: small, or not the factor of a product.
_KEPT = (
    *("_norm.weight", "ffn_gate_inp.weight", "altup", "laurel", "per_layer_model_proj"),
    *("ssm_conv1d", "shortconv.conv.weight"),
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


@dataclass(frozen=True)
class _Place:
    """A tensor as the rules see it."""

    layer: int  # number among *layers* tensors of its role, or its block's
    layers: int
    sharing: int  # query heads per key head in the first block
    weighted: bool  # there is an importance matrix

    @property
    def is_early(self) -> bool:
        return self.layer < self.layers // 8

    @property
    def is_sensitive(self) -> bool:
        """True for the first and the last eighth of the blocks, and every third of the others."""
        first = self.layers // 8
        late = self.layer >= 7 * self.layers // 8
        return self.is_early or late or (self.layer - first) % 3 == 2


# The type of a role's tensors in a mixture; None: that of most matrices.
_VALUES: Mapping[str, _Rule] = {
    "Q2_K": lambda its: "Q4_K" if its.sharing >= 4 else "Q3_K",
    "Q2_K_S": lambda its: "Q4_K" if its.sharing >= 4 else None,
    "Q3_K_M": lambda its: "Q5_K" if its.layer < 2 else "Q4_K",
    "Q3_K_L": "Q5_K",
    "Q4_K_S": lambda its: "Q5_K" if its.layer < 4 else None,
    "Q4_K_M": lambda its: "Q6_K" if its.is_sensitive else None,
    "Q5_K_M": lambda its: "Q6_K" if its.is_sensitive else None,
    "IQ4_NL": lambda its: "Q5_K" if its.sharing >= 4 else None,
    "IQ4_XS": lambda its: "Q5_K" if its.sharing >= 4 else None,
}
_DOWN: Mapping[str, _Rule] = {
    "Q2_K": "Q3_K",
    "Q2_K_S": lambda its: "Q4_K" if its.is_early else None,
    "Q3_K_M": lambda its: "Q5_K" if its.layer < its.layers // 16 else "Q4_K",
    "Q3_K_L": "Q5_K",
    "Q4_K_S": lambda its: "Q5_K" if its.is_early else None,
    "Q4_K_M": lambda its: "Q6_K" if its.is_sensitive else None,
    "Q5_K_M": lambda its: "Q6_K" if its.is_sensitive else None,
    "IQ4_NL": lambda its: "Q5_K" if its.is_early and not its.weighted else None,
    "IQ4_XS": lambda its: "Q5_K" if its.is_early and not its.weighted else None,
    "Q4_0": lambda its: "Q4_1" if its.is_early and its.weighted else None,
    "Q5_0": lambda its: "Q5_1" if its.is_early and its.weighted else None,
}
_ATTENTION_OUTPUT = {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}
_EIGHT_EXPERTS_OUTPUT = frozenset(
    {"Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ4_XS"}
)


def mixture_types(
    checkpoint: Checkpoint, request: ConversionRequest, vectors: Container[str]
) -> dict[str, QuantType]:
    """Type of each matrix of *checkpoint* that the mixture ``request.type`` quantizes.

    *vectors* names tensors that take part in no product.
    """
    return _Assignment(checkpoint, request, vectors).types()


class _Assignment:
    """Types of the tensors of one model, in llama.cpp's order: by block, then by name."""

    def __init__(
        self, checkpoint: Checkpoint, request: ConversionRequest, vectors: Container[str]
    ) -> None:
        self.request = request
        self.mixture = MIXTURES[request.type]
        self.weights = checkpoint.weights
        self.matrices = [
            checkpoint.weights[name]
            for name in sorted(checkpoint.weights, key=lambda name: (_block(name), name))
            if _is_quantized(checkpoint.weights[name]) and name not in vectors
        ]
        self.architecture = checkpoint.architecture
        self.blocks = checkpoint.integer("block_count")
        self.experts = checkpoint.integer("expert_count", 0)
        heads, kv_heads = (_first(checkpoint, f"attention.head_count{its}") for its in ("", "_kv"))
        kv_heads = heads if kv_heads is None else kv_heads
        self.sharing = (heads or 0) // kv_heads if kv_heads else 0
        self.values = sum(_role(name) == "values" for name in self.weights)
        self.counts: Counter[str] = Counter()

    def types(self) -> dict[str, QuantType]:
        return {weight.name: self._type(weight) for weight in self.matrices}

    def _type(self, weight: Weight) -> QuantType:
        role, request = _role(weight.name), self.request
        if request.token_embedding_type and role == "embedding":
            return self._check_width(weight, request.token_embedding_type)
        if request.output_tensor_type and role == "output":
            return self._check_width(weight, request.output_tensor_type)
        name = self.mixture.type if request.pure else self._choose(weight, role)
        if weight.shape[-1] % types.by_name(name).block_size:
            name = _NARROW.get(name, name)
        return types.by_name("F16" if weight.shape[-1] % types.by_name(name).block_size else name)

    def _choose(self, weight: Weight, role: str) -> str:
        default, request = self.mixture.type, self.request
        is_head = role == "output" or (role == "embedding" and "output.weight" not in self.weights)
        if is_head and request.output_tensor_type:
            return request.output_tensor_type
        if request.type == "MXFP4_MOE":
            experts = len(weight.shape) > 2 and weight.shape[0] > 1
            return "MXFP4" if experts and not is_head else "Q8_0"
        if is_head:
            wide = weight.shape[-1] % types.by_name(default).block_size
            return "Q8_0" if wide or default == "Q8_0" else "Q6_K"
        return self._by_role(weight.name, role) or default

    def _by_role(self, name: str, role: str) -> str | None:
        eight = self.experts == 8
        if role == "values":
            place = self._place(name, role, self.values)
            found = self._apply(_VALUES, place)
            if self._is_70b and (found or self.mixture.type) in ("Q3_K", "Q4_K"):
                found = "Q5_K"
            return "Q8_0" if eight else found
        if role == "keys" and eight:
            return "Q8_0"
        if role == "down":
            place = self._place(name, role, self.blocks, by_block=self.experts > 1)
            return self._apply(_DOWN, place)
        if role == "attention output":
            if eight:
                return "Q5_K" if self.request.type in _EIGHT_EXPERTS_OUTPUT else None
            return _ATTENTION_OUTPUT.get(self.request.type)
        return None

    def _apply(self, rules: Mapping[str, _Rule], place: _Place) -> str | None:
        rule = rules.get(self.request.type)
        return rule(place) if callable(rule) else rule

    def _place(self, name: str, role: str, layers: int, *, by_block: bool = False) -> _Place:
        layer = _block(name) if by_block else self.counts[role]
        self.counts[role] += 1
        weighted = self.request.imatrix is not None
        return _Place(layer, layers, self.sharing, weighted)

    @property
    def _is_70b(self) -> bool:
        """True for what llama.cpp takes for a model of 70 billion parameters."""
        if self.architecture == "llama" and self.sharing == 1:
            return False
        return self.blocks == 80 and self.architecture in ("llama", "qwen2", "olmo")

    def _check_width(self, weight: Weight, name: str) -> QuantType:
        quant = types.by_name(name)
        if weight.shape[-1] % quant.block_size:
            raise Unsupported(
                f"{weight.name} has rows of {weight.shape[-1]:,} weights, and {name} blocks of "
                f"{quant.block_size}",
                hint="choose Q8_0 or F16 for it",
            )
        return quant


def _block(name: str) -> int:
    """Number of the block of the tensor *name*, -1 if it is in none."""
    match = re.match(r"blk\.(\d+)\.", name)
    return int(match[1]) if match else -1


def _role(name: str) -> str:
    if name in _ROLES:
        return _ROLES[name]
    return next((role for part, role in _PARTS.items() if part in name), "")


def _is_quantized(weight: Weight) -> bool:
    """True if llama-quantize changes the type of *weight*."""
    matrix = math.prod(weight.shape[:-1]) > 1
    return matrix and weight.name.endswith("weight") and not any(k in weight.name for k in _KEPT)


def _first(checkpoint: Checkpoint, key: str) -> int | None:
    """The number of the first block under *key*."""
    value = checkpoint.value(key, None)
    if value is None or isinstance(value, int):
        return value
    values = list(value)
    return int(values[0]) if values else None
