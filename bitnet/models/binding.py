"""Tensors that a configuration needs, and the check that a checkpoint has exactly these."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bitnet.errors import InvalidFormat
from bitnet.families.foreign import what_it_is

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.ops import Ops, Prepared
    from bitnet.models.config import TransformerConfig

__all__ = ["bind", "differences", "expected_tensors"]

# Read by the configuration.
_READ_ELSEWHERE = frozenset(
    {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
)

# Projections whose outputs are added to the residual stream.
_ADDED = (".attn_output", ".ffn_down")


@dataclass
class _Expected:
    """Shapes by tensor name."""

    input_norms: bool
    required: dict[str, tuple[int, ...]] = field(default_factory=dict)
    optional: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool = False) -> None:
        self.required[f"{name}.weight"] = (outputs, inputs)
        (self.required if bias else self.optional)[f"{name}.bias"] = (outputs,)
        # llama.cpp's converter stores BitNet's scale as a tensor of its own.
        self.optional[f"{name}.scale"] = (1,)
        self.norm(f"{name}_norm_in", inputs, present=self.input_norms)

    def norm(self, name: str, width: int, *, present: bool = True) -> None:
        if present:
            self.required[f"{name}.weight"] = (width,)


def expected_tensors(
    config: TransformerConfig,
) -> tuple[Mapping[str, tuple[int, ...]], Mapping[str, tuple[int, ...]]]:
    """Shapes of the required tensors and of the optional ones, by GGUF name."""
    expected = _Expected(config.input_norms)
    expected.required["token_embd.weight"] = (config.vocab_size, config.dim)
    expected.norm("output_norm", config.dim)
    expected.optional["output.weight"] = (config.vocab_size, config.dim)
    expected.optional["output.bias"] = (config.vocab_size,)
    for layer in range(config.n_layers):
        _expect_block(expected, config, f"blk.{layer}")
    return expected.required, expected.optional


def _expect_block(expected: _Expected, config: TransformerConfig, block: str) -> None:
    dim, heads = config.dim, config.n_heads * config.head_dim
    kv = config.n_kv_heads * config.head_dim
    expected.norm(f"{block}.attn_norm", dim, present=config.pre_norms)
    expected.norm(f"{block}.{config.ffn_norm}", dim, present=config.pre_norms)
    if config.fused:
        expected.linear(f"{block}.attn_qkv", heads + 2 * kv, dim, bias=config.qkv_bias)
        expected.linear(f"{block}.ffn_up", 2 * config.ffn_dim, dim)
    else:
        expected.linear(f"{block}.attn_q", heads, dim, bias=config.qkv_bias)
        expected.linear(f"{block}.attn_k", kv, dim, bias=config.qkv_bias)
        expected.linear(f"{block}.attn_v", kv, dim, bias=config.qkv_bias)
        if config.gated:
            expected.linear(f"{block}.ffn_gate", config.ffn_dim, dim)
        expected.linear(f"{block}.ffn_up", config.ffn_dim, dim)
    expected.linear(f"{block}.attn_output", dim, heads)
    expected.linear(f"{block}.ffn_down", dim, config.ffn_dim)
    q_norm, k_norm = (heads, kv) if config.wide_qk_norm else (config.head_dim, config.head_dim)
    qk_norm = config.qk_norm or config.wide_qk_norm
    expected.norm(f"{block}.attn_q_norm", q_norm, present=qk_norm)
    expected.norm(f"{block}.attn_k_norm", k_norm, present=qk_norm)
    expected.norm(f"{block}.attn_sub_norm", heads, present=config.sub_norms)
    expected.norm(f"{block}.ffn_sub_norm", config.ffn_dim, present=config.sub_norms)
    expected.norm(f"{block}.post_attention_norm", dim, present=config.post_norms)
    expected.norm(f"{block}.post_ffw_norm", dim, present=config.post_norms)


def bind(
    checkpoint: Checkpoint,
    config: TransformerConfig,
    ops: Ops,
    *,
    by_row: Collection[str] = (),
) -> dict[str, Prepared]:
    """Every tensor of *checkpoint*, prepared by *ops*, by GGUF name.

    Args:
        checkpoint: the model.
        config: its configuration.
        ops: the backend.
        by_row: names of matrices from which single rows are read, mostly.

    Raises:
        InvalidFormat: tensors are missing, unexpected or of the wrong shape; the error lists all.
        Unsupported: *ops* has no kernel for an encoding.
    """
    required, optional = expected_tensors(config)
    wrong = list(differences(checkpoint, required, optional))
    if wrong:
        found = what_it_is(checkpoint.weights)
        kind = f"; this is {found}" if found else ""
        raise InvalidFormat(
            f"{checkpoint.path.name}: {len(wrong)} tensors do not fit a model of architecture "
            f"{config.architecture}{kind}:\n  " + "\n  ".join(wrong),
            hint="the file is incomplete or was converted for another architecture",
        )
    ops.expect(checkpoint.weights.values())
    prepared = {}
    for name, weight in checkpoint.weights.items():
        if name in _READ_ELSEWHERE or name.endswith(".scale"):
            continue
        scale = checkpoint.numbers(name.removesuffix("weight") + "scale", (1,))
        if scale is not None and name.endswith(".weight"):
            weight = replace(weight, scale=weight.scale * float(scale[0]))
        if name.rpartition(".")[0].endswith(_ADDED) and config.residual_scale != 1:
            weight = replace(weight, scale=weight.scale * config.residual_scale)
        looked_up = name in by_row or (
            name == "token_embd.weight" and "output.weight" in checkpoint.weights
        )
        prepared[name] = ops.prepare(weight, looked_up=looked_up)
    return prepared


def differences(
    checkpoint: Checkpoint,
    required: Mapping[str, tuple[int, ...]],
    optional: Mapping[str, tuple[int, ...]],
) -> Iterator[str]:
    """Missing, unexpected and misshapen tensors, one line for each.

    Args:
        checkpoint: the model.
        required: shapes by name, from :func:`expected_tensors`.
        optional: the same for tensors that may be absent.
    """
    for name, shape in required.items():
        if name not in checkpoint.weights:
            yield f"{name} {shape} is missing"
    for name, weight in checkpoint.weights.items():
        expected = required.get(name) or optional.get(name)
        if expected is None:
            if name not in _READ_ELSEWHERE:
                yield f"{name} {weight.shape} is unexpected"
        elif weight.shape != expected:
            yield f"{name} has shape {weight.shape}, expected {expected}"
