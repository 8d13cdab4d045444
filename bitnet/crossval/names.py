"""Names of llama.cpp's intermediates, in terms of our own.

llama.cpp names the values of its graphs, family by family, and one name has different values in
some of them. What a family computes follows from its blocks, so the translation does too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet.families.blocks import Experts, ShortConvolution

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from bitnet.families.blocks import ModelConfig

# Names in the graphs of llama.cpp of what :meth:`Model.trace` calls otherwise, in every family.
_EVERYWHERE = {
    "embd": "embed",
    "inp_embd": "embed",
    "inp_scaled": "embed",
    "model.embed_tokens": "embed",
    "model.input_embed": "embed",
    "bqkv": "wqkv",
    "wqkv_b": "wqkv",
    "ffn_up_b": "ffn_up",
    "ffn_gate_b": "ffn_gate",
    "ffn_gelu": "ffn_act",
    "ffn_relu": "ffn_act",
    "ffn_sqr(relu)": "ffn_act",
    "Qcur_norm": "Qcur",
    "Kcur_norm": "Kcur",
    "Qcur_attn_temp_scaled": "Qcur",
    "Qcur-post-rope": "Qcur",
    "Kcur-post-rope": "Kcur",
    "Vcur-post-rope": "Vcur",
    "ssm_out": "mamba_out",
    "nemotron_h_block_out": "l_out",
    "ffn_swiglu": "ffn_act",
    "ffn_geglu": "ffn_act",
    "ffn_up_gate": "ffn_act",
    "ffn_moe_logits_biased": "ffn_moe_logits",
}
# Where a norm follows, these are taken before it, in some families; else the norm is that of the
# next branch.
_POST_NORMS = {
    "attn_out": "",
    "ffn_out": "",
    "attn_post_norm": "attn_out",
    "ffn_post_norm": "ffn_out",
}
# LFM2 has names of transformers' modules; its norms of queries and keys come before their rotation,
# whose result has no name.
_LFM2 = {
    "model.layers.{}.operator_norm": "attn_norm",
    "model.layers.{}.conv.out_proj": "attn_out",
    "model.layers.{}.self_attn.out_proj": "attn_out",
    "model.layers.{}.ffn_out": "ffn_norm",
    "model.layers.{}.self_attn.q_layernorm": "Qcur_normed",
    "model.layers.{}.self_attn.k_layernorm": "Kcur_normed",
    "Qcur": "Qcur_product",
    "Kcur": "Kcur_product",
}
# Taken before the factor on the result of a branch.
_BEFORE_SCALE = ("attn_out", "ffn_out", "ffn_moe_out", "ffn_shexp", "mamba_out")
# Families whose queries have the factor of scores.
_SCALED_QUERIES = ("phi3",)


@dataclass(frozen=True)
class Names:
    """Translation of the intermediates of one model."""

    ours: Mapping[str, str]  # our name of each that differs; empty: it is another value
    scales: Mapping[str, float]  # factors on values, by our name

    def whole(self, names: Iterable[str]) -> list[str]:
        """Beginnings of llama.cpp's names of the intermediates that we call *names*."""
        operations = {name.rpartition("-")[0] for name in names}
        theirs = (name for name, ours in self.ours.items() if ours in operations)
        return sorted({*operations, *theirs})

    def translate(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """*arrays* by our names; one that has another name there replaces one of the same name."""
        by_our_name: dict[str, NDArray[Any]] = {}
        for name in sorted(arrays, key=self._is_renamed):
            operation, dash, layer = name.rpartition("-")
            operation, layer = (operation, layer) if dash else (layer, "")
            ours = self.ours.get(operation, operation)
            if ours:
                scale = self.scales.get(ours, 1.0)
                by_our_name[f"{ours}{dash}{layer}"] = arrays[name] * scale
        return by_our_name

    def _is_renamed(self, name: str) -> tuple[bool, int]:
        """Order in which names replace each other: later ones in the tables are later values."""
        operation = name.rpartition("-")[0] or name
        places = list(self.ours)
        is_renamed = operation in self.ours
        return is_renamed, places.index(operation) if is_renamed else 0


def names_for(config: ModelConfig, more: Mapping[str, str]) -> Names:
    """Names in llama.cpp's graph of a model of *config*; *more* are those of a fork of it."""
    names = {**_EVERYWHERE, **dict(_of_blocks(config)), **more}
    branches = [branch for block in config.blocks for branch in block]
    factors: dict[str, float] = {}
    results = {branch.scale for branch in branches}
    if len(results) == 1:
        factors = dict.fromkeys(_BEFORE_SCALE, results.pop())
    if config.architecture in _SCALED_QUERIES:
        factors["Qcur"] = 1 / config.attentions[0].scale
    return Names(names, factors)


def _of_blocks(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Names that follow from the blocks of *config*."""
    branches = [branch for block in config.blocks for branch in block]
    if any(branch.post_norm for branch in branches):
        yield from _POST_NORMS.items()
    else:
        yield "attn_post_norm", "ffn_norm"
    if any(branch.parallel for branch in branches):
        yield "ffn_out", ""  # with the input of the block
    mixers = tuple(config.mixers())
    if any(isinstance(mixer, ShortConvolution) for mixer in mixers):
        yield from _LFM2.items()
    for mixer in mixers:
        if isinstance(mixer, Experts):
            if mixer.biased and mixer.routing.gating == "softmax_chosen":
                yield "ffn_moe_probs", "ffn_moe_logits"  # with its bias
            if mixer.shared_gated:
                yield "ffn_shexp_gated", "ffn_shexp"
