"""GPT-2 and its relatives: LayerNorm with biases, and a network without a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.families.dense import ModelConfig, dense
from bitnet.families.family import LlamaCppSupport, register, register_variant
from bitnet.families.keys import HARMLESS, Config, Keys, neutral, reads

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PRODUCTS = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
_WITH_BIASES = LlamaCppSupport(tensors=("output.weight", ".bias"))
#: The usual names of GPT-2's keys.
_KEYS = {
    "activation_function": "hidden_act",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
}
#: Names of GELU by the hyperbolic tangent.
_GELU_TANH = neutral("gelu_new", "gelu_pytorch_tanh", "gelu_fast")
_GPT2_CONFIG = {
    **reads("layer_norm_epsilon n_inner"),
    "hidden_act": _GELU_TANH,
    "scale_attn_weights": neutral(None, True),
    "scale_attn_by_inverse_layer_idx": neutral(None, False),
    "reorder_and_upcast_attn": HARMLESS,  # the same in exact arithmetic
}


def layer_norms(keys: Keys, **more: Any) -> ModelConfig:
    """ModelConfig of the usual blocks with LayerNorm, with *more* of what :func:`dense` takes."""
    eps = keys.number("attention.layer_norm_epsilon")
    model = {"centered_norms": True, "norm_biases": True, "norm_eps": eps} | more.pop("model", {})
    return dense(keys, model=model, **more)


def _gpt2(keys: Keys) -> ModelConfig:
    network = {"gated": False, "activation": "gelu_tanh"}
    places = {"biases": _PRODUCTS, "positions": True}
    return layer_norms(keys, rope=None, fused=True, ffn=network, model=places)


def _gpt2_keys(config: Config) -> dict[str, Any]:
    heads, width = config["num_attention_heads"], config["hidden_size"]
    return {
        "attention.head_count_kv": heads,
        "attention.key_length": width // heads,
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "feed_forward_length": config.get("n_inner") or 4 * width,
    }


def _transpose(matrix: NDArray[Any]) -> NDArray[Any]:
    turned: NDArray[Any] = matrix.T
    return turned


_TENSORS = {
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
# The matrices of a folder have a row for each input.
_GPT2 = register(
    title="GPT-2",
    architecture="gpt2",
    activation="gelu_new",
    aliases=_KEYS,
    defaults={"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
    config_keys=_GPT2_CONFIG,
    gguf_keys=reads("attention.layer_norm_epsilon"),
    tensors=_TENSORS,
    orders=lambda _config: dict.fromkeys([f"{name}.weight" for name in _PRODUCTS], _transpose),
    biases={"": _PRODUCTS},
    rotates=False,
    llama_cpp=_WITH_BIASES,
    translate=_gpt2_keys,
    decoder=_gpt2,
)


def _starcoder_keys(config: Config) -> dict[str, Any]:
    return _gpt2_keys(config) | {"attention.head_count_kv": 1}


# All heads share their keys and values.
register_variant(
    _GPT2,
    title="StarCoder 1",
    architecture="starcoder",
    model_types=("gpt_bigcode",),
    config_keys={
        "attention_softmax_in_fp32": HARMLESS,
        "multi_query": neutral(None, True),
        "scale_attention_softmax_in_fp32": HARMLESS,
    },
    orders=lambda _config: {},
    translate=_starcoder_keys,
)
