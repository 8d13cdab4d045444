"""Folders of models whose code is not in transformers, made from models with the same equations."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_models import GLM_OPTIONS, TINY, make, torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, Any]
_QKV = re.compile(r"(.*)\.self_attn\.q_proj\.(weight|bias)")


@dataclass(frozen=True)
class Remote:
    """A family, and the one of transformers with the same equations."""

    kind: str  # the family of transformers
    options: dict[str, Any]  # arguments of its configuration
    config: dict[str, Any]  # other keys of ``config.json``; None: the key is removed
    names: dict[str, str] = field(default_factory=dict)  # replacements of patterns in names
    join: Callable[[list[Any], dict[str, Any]], Any] | None = None  # joins query, key and value
    joined: str = ""  # name of the joined matrix


def write(remote: Remote, folder: Path) -> Any:
    """Write a random model into *folder* in the form of *remote*; return transformers' model."""
    model = make(remote.kind, remote.options, folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config = {key: value for key, value in (config | remote.config).items() if value is not None}
    path.write_text(json.dumps(config))
    file = folder / "model.safetensors"
    tensors = _with_joined(load_file(file), remote, TINY | remote.options)
    renamed = {_renamed(name, remote.names): value for name, value in tensors.items()}
    assert renamed.keys() != load_file(file).keys() or not remote.names
    save_file({name: value.contiguous() for name, value in renamed.items()}, file)
    return model


def _renamed(name: str, names: dict[str, str]) -> str:
    """*name* with each pattern of *names* replaced."""
    for pattern, text in names.items():
        name = re.sub(pattern, text, name)
    return name


def _with_joined(tensors: Tensors, remote: Remote, options: dict[str, Any]) -> Tensors:
    """*tensors* with queries, keys and values joined as in *remote*."""
    for name in list(tensors):
        match = _QKV.fullmatch(name)
        if match and remote.join:
            block, kind = match.groups()
            parts = [tensors.pop(f"{block}.self_attn.{part}_proj.{kind}") for part in "qkv"]
            tensors[f"{block}.{remote.joined}.{kind}"] = remote.join(parts, options)
    return tensors


def one_behind_the_other(parts: list[Any], _options: dict[str, Any]) -> Any:
    """Matrix with the rows of all queries, then those of all keys, then those of all values."""
    return torch.cat(parts)


def by_key_head(parts: list[Any], options: dict[str, Any]) -> Any:
    """Matrix with the rows of each key head together: those of its queries, key and value."""
    groups = options["num_key_value_heads"]
    by_group = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
    return torch.cat(by_group, dim=1).reshape(-1, *parts[0].shape[1:])


_GPT_NAMES = {
    r"^model\.embed_tokens": "transformer.wte",
    r"^model\.layers": "transformer.h",
    r"^model\.norm": "transformer.ln_f",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
}
_KEY_HEAD_EACH = {"num_key_value_heads": 4}
_NO_ROPE_PARAMETERS = {"rope_parameters": None}
REMOTE = {
    "internlm2": Remote(
        "Llama",
        {},
        {"model_type": "internlm2", "architectures": ["InternLM2ForCausalLM"], "bias": False},
        {
            "embed_tokens": "tok_embeddings",
            r"^lm_head": "output",
            "self_attn.o_proj": "attention.wo",
            "input_layernorm": "attention_norm",
            "post_attention_layernorm": "ffn_norm",
            "mlp.gate_proj": "feed_forward.w1",
            "mlp.down_proj": "feed_forward.w2",
            "mlp.up_proj": "feed_forward.w3",
        },
        by_key_head,
        "attention.wqkv",
    ),
    "baichuan-7b": Remote(
        "Llama",
        _KEY_HEAD_EACH,
        {"model_type": "baichuan", "architectures": ["BaichuanForCausalLM"]},
        {},
        one_behind_the_other,
        "self_attn.W_pack",
    ),
    "orion": Remote(
        "StableLm",
        {"partial_rotary_factor": 1.0},
        {
            "model_type": "orion",
            "architectures": ["OrionForCausalLM"],
            "rms_norm_eps": 1e-5,
            "layer_norm_eps": None,
            **_NO_ROPE_PARAMETERS,
        },
    ),
    "xverse": Remote("Llama", _KEY_HEAD_EACH, {"model_type": "xverse"}),
    "qwen": Remote(
        "Qwen2",
        _KEY_HEAD_EACH,
        {
            "model_type": "qwen",
            "architectures": ["QWenLMHeadModel"],
            "auto_map": {
                "AutoConfig": "configuration_qwen.QWenConfig",
                "AutoModelForCausalLM": "modeling_qwen.QWenLMHeadModel",
            },
            "intermediate_size": 2 * TINY["intermediate_size"],
            "layer_norm_epsilon": 1e-6,
            "rms_norm_eps": None,
            "num_key_value_heads": None,
            "rotary_emb_base": 10000.0,
            "rotary_pct": 1.0,
            "kv_channels": 16,
            "no_bias": True,
            "seq_length": 64,
            "use_dynamic_ntk": True,
            "use_logn_attn": True,
            "use_sliding_window": None,
            "layer_types": None,
            **_NO_ROPE_PARAMETERS,
        },
        {
            **_GPT_NAMES,
            "self_attn.o_proj": "attn.c_proj",
            "mlp.gate_proj": "mlp.w2",
            "mlp.up_proj": "mlp.w1",
            "mlp.down_proj": "mlp.c_proj",
        },
        one_behind_the_other,
        "attn.c_attn",
    ),
    "codeshell": Remote(
        "Starcoder2",
        {"tie_word_embeddings": False},
        {
            "model_type": "codeshell",
            "architectures": ["CodeShellForCausalLM"],
            "n_embd": 64,
            "n_head": 4,
            "n_layer": 3,
            "n_positions": 64,
            "n_inner": 128,
            "num_query_groups": 2,
            "group_query_attention": True,
            "position_embedding_type": "rope",
            "layer_norm_epsilon": 1e-5,
            "activation_function": "gelu_pytorch_tanh",
            "use_bias": None,
            "layer_types": None,
            **_NO_ROPE_PARAMETERS,
        },
        {**_GPT_NAMES, "self_attn.o_proj": "attn.c_proj"},
        one_behind_the_other,
        "attn.c_attn",
    ),
    "exaone": Remote(
        "Llama",
        {},
        {
            "model_type": "exaone",
            "architectures": ["ExaoneForCausalLM"],
            "num_layers": 3,
            "num_hidden_layers": None,
            "layer_norm_epsilon": 1e-6,
            "rms_norm_eps": None,
            "activation_function": "silu",
            "hidden_act": None,
        },
        {
            **_GPT_NAMES,
            r"self_attn\.o_proj": "attn.attention.out_proj",
            r"self_attn\.": "attn.attention.",
            "mlp.gate_proj": "mlp.c_fc_0",
            "mlp.up_proj": "mlp.c_fc_1",
            "mlp.down_proj": "mlp.c_proj",
        },
    ),
    "chatglm": Remote(
        "Glm",
        GLM_OPTIONS,
        {
            "model_type": "chatglm",
            "architectures": ["ChatGLMModel"],
            "auto_map": {"AutoModel": "modeling_chatglm.ChatGLMForConditionalGeneration"},
            "num_layers": 3,
            "ffn_hidden_size": 128,
            "kv_channels": 16,
            "layernorm_epsilon": 1e-5,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "padded_vocab_size": 96,
            "seq_length": 64,
            "add_qkv_bias": True,
            "add_bias_linear": False,
            "rope_ratio": 50,
            "attention_bias": None,
            "head_dim": None,
            "num_key_value_heads": None,
            "vocab_size": None,
            **_NO_ROPE_PARAMETERS,
        },
        {
            r"^model\.embed_tokens": "transformer.embedding.word_embeddings",
            r"^model\.norm": "transformer.encoder.final_layernorm",
            r"^model\.": "transformer.encoder.",
            r"^lm_head": "transformer.output_layer",
            "self_attn.o_proj": "self_attention.dense",
            "mlp.gate_up_proj": "mlp.dense_h_to_4h",
            "mlp.down_proj": "mlp.dense_4h_to_h",
        },
        one_behind_the_other,
        "self_attention.query_key_value",
    ),
}
