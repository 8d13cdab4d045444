"""GGUF's names of the tensors in a folder."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bitnet.families.heads import HEAD_NORM

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from bitnet.families.family import Family

_OUTER = {
    "embed_tokens.weight": "token_embd.weight",
    "embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "embedding.weight": "token_embd.weight",
    "embedding_norm.weight": "token_embd_norm.weight",
    "embeddings.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "norm.bias": "output_norm.bias",
    "final_layernorm.weight": "output_norm.weight",
    "final_layernorm.bias": "output_norm.bias",
    "lm_head.bias": "output.bias",
    "lm_head.weight": "output.weight",
    "lm_head.weight_scale": "output.scale",
    "norm_f.weight": "output_norm.weight",
    "altup_projections.weight": "altup_proj.weight",
    "altup_unembed_projections.weight": "altup_unembd_proj.weight",
    "per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
    "z_L_init": "hrm.z_l_init",
    # Names in older decoders and in encoders. They follow the usual ones: messages use the first.
    "wte.weight": "token_embd.weight",
    "wpe.weight": "position_embd.weight",
    "tokens_embed.weight": "token_embd.weight",
    "positions_embed.weight": "position_embd.weight",
    "layer_norm.weight": "output_norm.weight",
    "layer_norm.bias": "output_norm.bias",
    "output_projection.weight": "output.weight",
    "ln_f.weight": "output_norm.weight",
    "ln_f.bias": "output_norm.bias",
    "embed_in.weight": "token_embd.weight",
    "embed_out.weight": "output.weight",
    "embed_positions.weight": "position_embd.weight",
    "final_layer_norm.weight": "output_norm.weight",
    "final_layer_norm.bias": "output_norm.bias",
    "tok_embeddings.weight": "token_embd.weight",
    "token_embeddings.weight": "token_embd.weight",
    "output.weight": "output.weight",
    "output_layer.weight": "output.weight",
    "embedding.word_embeddings.weight": "token_embd.weight",
    "word_embeddings.weight": "token_embd.weight",
    "word_embeddings_layernorm.weight": "token_embd_norm.weight",
    "word_embeddings_layernorm.bias": "token_embd_norm.bias",
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias",
    "emb_ln.weight": "token_embd_norm.weight",
    "emb_ln.bias": "token_embd_norm.bias",
    "embeddings.tok_embeddings.weight": "token_embd.weight",
    "embeddings.norm.weight": "token_embd_norm.weight",
    "final_norm.weight": "output_norm.weight",
    "encoder.weight": "token_embd.weight",
    "encoder.relative_attention_bias.weight": "attn_rel_b.weight",
}
# Ends of the names of norms in folders that were converted from TensorFlow, and of today's names.
_FORMER = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_MATRICES = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
# Parts of a layer with a state.
_STATES = {
    "in_proj": "ssm_in",
    "conv1d": "ssm_conv1d",
    "dt_bias": "ssm_dt.bias",
    "A_log": "ssm_a",
    "D": "ssm_d",
    "norm": "ssm_norm",
    "out_proj": "ssm_out",
}
# Names within a block. Of several names for one tensor, the usual one is first: messages have it.
# The experts of a layer have one name, since their tensors are stacked before they get GGUF's name.
_INNER = {
    **{
        f"{module}.{part}_proj": name
        for module in ("self_attn", "mixer")
        for part, name in zip("qkvo", ("attn_q", "attn_k", "attn_v", "attn_output"), strict=True)
    },
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_norm": "attn_q_norm",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "ffn_norm": "ffn_norm",
    "layer_scalar": "layer_output_scale.weight",
    "operator_norm": "attn_norm",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_feedforward_layernorm": "post_ffw_norm",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "post_mlp_layernorm": "post_ffw_norm",
    "post_per_layer_input_norm": "post_norm",
    "post_self_attn_layernorm": "post_attention_norm",
    "pre_ff_layernorm.weight": "ffn_norm",  # llama.cpp reads this name, without ``.weight``
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "self_attn.attn_sub_norm": "attn_sub_norm",
    "self_attn.inner_attn_ln": "attn_sub_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "self_attn.key_layernorm": "attn_k_norm",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.sinks": "attn_sinks.weight",
    # Feed-forward networks.
    **{
        f"{module}.{part}": f"ffn_{name}"
        for module in ("mlp", "mixer", "feed_forward")
        for part, name in _MATRICES.items()
    },
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
    "mlp.ffn_sub_norm": "ffn_sub_norm",
    "mlp.ffn_layernorm": "ffn_sub_norm",
    "mlp.gate_up_proj": "ffn_up",
    # Experts, their router and the network beside them.
    **dict.fromkeys(
        ("mlp.gate", "mlp.router", "mixer.gate", "feed_forward.gate", "router.proj"), "ffn_gate_inp"
    ),
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.input_linear": "ffn_gate_up_exps",
    "block_sparse_moe.output_linear": "ffn_down_exps",
    "block_sparse_moe.router.layer": "ffn_gate_inp",
    "feed_forward.expert_bias": "exp_probs_b.bias",
    "mixer.fc1_latent_proj": "ffn_latent_down",
    "mixer.fc2_latent_proj": "ffn_latent_up",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "router.scale": "ffn_gate_inp.scale",
    "shared_mlp.input_linear": "ffn_gate_up_shexp",
    "shared_mlp.output_linear": "ffn_down_shexp",
    **{
        f"{module}.e_score_correction_bias": "exp_probs_b.bias"
        for module in ("mlp.gate", "mixer.gate", "mlp.moe_statics", "mlp.gate.moe_statics")
    },
    **{
        f"{module}experts.{part}": f"ffn_{name}_exps.weight"
        for module in ("mlp.", "mixer.", "feed_forward.", "block_sparse_moe.", "")
        for part, name in (
            *_MATRICES.items(),
            *(("gate_up_proj", "gate_up"), ("w1", "gate"), ("w2", "down"), ("w3", "up")),
        )
    },
    **{f"mlp.experts.{part}_bias": f"ffn_{name}_exps.bias" for part, name in _MATRICES.items()},
    **{
        f"{module}.{part}": f"ffn_{name}_shexp"
        for module in ("mlp.shared_experts", "mlp.shared_expert", "mixer.shared_experts")
        for part, name in _MATRICES.items()
    },
    # Layers with a state.
    **{
        f"{module}.{part}": name
        for module in ("linear_attn", "mamba", "mixer")
        for part, name in _STATES.items()
    },
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
}
#: Ends of the names of scales that belong to the model, and not to the encoding of another tensor.
SCALES = tuple(name for name in _INNER.values() if name.endswith(".scale"))
# Numbers have at most 9 digits: int() fails for very long ones, which a file may have.
_BLOCK = re.compile(r"^blk\.(?P<number>[0-9]{1,9})\.")
_LAYER = re.compile(
    r"(?:layers\.layers|layers|h|blocks|layer|encoder\.layer|transformer_encoder)\.(?P<number>[0-9]{1,9})\.(?P<part>.+?)(?:\.(?P<kind>weight|bias|weight_scale))?"
)
# Modules around the blocks, in the order in which names have them.
_PREFIX = re.compile(
    r"^(?:language_model\.)?(?:model\.)?(?:language_model\.)?(?:text_model\.)?(?:model\.)?(?:backbone\.)?"
    r"(?:bert\.|roberta\.|distilbert\.|mpnet\.|biogpt\.|nomic_bert\.|gte\.|new\.)?"
    r"(?:transformer\.)?(?:gpt_neox\.)?(?:decoder\.)?"
    r"(?:encoder\.(?=layers\.|final_layernorm\.))?"
)
# Tensors that text does not need: of images and sounds, of drafts, and tables that are computed.
_NOT_TEXT = re.compile(
    r"^(?:model\.)?(?:vision_tower|audio_tower|image_tower|video_tower|embed_vision|embed_audio"
    r"|visual|vision_encoder|vision_model|vision_embedder|vision_projection|merger"
    r"|multi_modal_projector|connector|projector|aligner|qformer)\."
    r"|^(?:model\.)?image_newline$|^mtp\.|rotary_(?:pos_)?emb\.inv_freq$"
    r"|\.(?:attn|attention)\.(?:masked_)?bias$|^(?:\w+\.)?embeddings\.position_ids$"
)

# Matrices of the adapters of tasks (Jina v3), and the end of the name of the matrix they adapt.
_OF_TASKS = re.compile(r"\.parametrizations\.weight\.0\.lora_[AB]$")
_BELOW_TASKS = ".parametrizations.weight.original"


def classifier_name(name: str, family: Family) -> str:
    """GGUF's name of a folder's tensor *name* if it belongs to the classifier; else empty."""
    short = _PREFIX.sub("", name)
    norm = family.classifier_norm
    layers = [(own, gguf) for own, gguf, _ in family.classifier]
    for own, gguf in (*layers, *([(norm, HEAD_NORM)] if norm else [])):
        if short in (f"{own}.weight", f"{own}.bias"):
            return f"{gguf}{short.removeprefix(own)}"
    return ""


def usual_name(name: str) -> str:
    """Name that folders usually have for the tensor that is *name* in GGUF, else *name* itself.

    For a tensor of a layer, both names are without the layer.
    """
    for own, gguf in {**_OUTER, **_INNER}.items():
        if name == gguf:
            return own
        if name.startswith(f"{gguf}."):
            return own + name.removeprefix(gguf)
    return name


def without_block(name: str) -> str:
    """GGUF's *name* of a tensor without its block and the number: ``attn_q.weight``."""
    return _BLOCK.sub("", name)


def block_number(name: str) -> int:
    """Number of the block of a tensor by GGUF's *name*; -1 outside of all blocks."""
    block = _BLOCK.match(name)
    return int(block["number"]) if block else -1


def name_with_states(name: str, family: Family, names: Container[str]) -> str:
    """*name*, GGUF's name of a tensor, or its other name if its layer has a state.

    *names* are GGUF's names of all tensors of the model; layers with a state have an ``ssm_a``.
    """
    block, _, part = name.rpartition(".")[0].rpartition(".")
    if part in family.names_with_states and f"{block}.ssm_a" in names:
        return name.replace(part, family.names_with_states[part])
    return name


def layers_of_stack(names: Iterable[str], family: Family) -> int:
    """Number of blocks in a stack, from the *names* of a folder's tensors; 0 without stacks.

    The largest stack counts.
    """
    blocks = (_block_of_stack(_PREFIX.sub("", name), family) for name in names)
    return max((int(match["number"]) + 1 for _, match in filter(None, blocks)), default=0)


def _block_of_stack(short: str, family: Family) -> tuple[int, re.Match[str]] | None:
    """Number of the stack that has the tensor *short*, and the match of its name in the stack.

    None if it is not in a stack. *short* is the tensor's name without the prefix of the model.
    """
    for number, stack in enumerate(family.stacks):
        match = _LAYER.fullmatch(short.removeprefix(f"{stack}."))
        if short.startswith(f"{stack}.") and match is not None:
            return number, match
    return None


def gguf_name(name: str, family: Family, stack: int = 0) -> str:
    """GGUF's name of a folder's tensor *name*; unchanged if unknown, empty to leave it out.

    A ``weight_scale`` becomes ``<linear>.scale``. *stack* is the number of blocks in a stack, from
    :func:`layers_of_stack`.
    """
    if _NOT_TEXT.search(name) or (family.has_tasks and _OF_TASKS.search(name)):
        return ""
    short = _PREFIX.sub("", name)
    if family.has_tasks:
        short = short.replace(_BELOW_TASKS, ".weight")
    if family.unread and short.startswith(family.unread):
        return ""
    for former_end, end in _FORMER.items():
        if short.endswith(former_end):
            short = short.removesuffix(former_end) + end
    if short in _OUTER:
        return _OUTER[short]
    stack_number, match = _block_of_stack(short, family) or (0, _LAYER.fullmatch(short))
    if match is None:
        return name
    inner = match["part"]
    kind = (match["kind"] or "").removeprefix("weight_")
    parts = {**_INNER, **family.tensors}
    block = f"blk.{stack_number * stack + int(match['number'])}."
    if f"{inner}.{kind}" in parts:
        return f"{block}{parts[f'{inner}.{kind}']}"
    if inner in parts and kind:
        return f"{block}{parts[inner]}.{kind}"
    if inner in parts:
        return f"{block}{parts[inner]}"
    # The norm on the input of a matrix, in BitNet embeddings and transformers' BitLinear.
    part = parts.get(inner.removesuffix(".norm").removesuffix(".rms_norm"))
    return f"{block}{part}_norm_in.{kind}" if part and kind else name
