"""Every family against transformers: tiny random models, float32, through safetensors."""

import json

import numpy as np
import pytest
from hf_models import (
    LONGROPE,
    MAX_RELATIVE_DIFFERENCE,
    ONLINE,
    TOKENS,
    bitnet_layers,
    eager_layers,  # noqa: F401 - a fixture
    make,
    relative_difference,
    say,
    torch,
)

from bitnet.convert import ConversionRequest, convert
from bitnet.families.config_json import gguf_name
from bitnet.families.family import of_gguf
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.quants.registry import dequantize
from bitnet.runtime.kv_cache import KVCache

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MINISTRAL3 = {
    "rope_type": "yarn",
    "type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.3,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2}
DELTA_NET = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
}
FALCON_H1 = {
    "mamba_d_ssm": 48,
    "mamba_n_heads": 6,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mlp_multipliers": [0.7, 1.4],
    "key_multiplier": 0.4,
    "attention_in_multiplier": 1.7,
    "attention_out_multiplier": 0.6,
    "ssm_in_multiplier": 0.8,
    "ssm_out_multiplier": 1.3,
    "ssm_multipliers": [0.5, 1.5, 2.0, 0.7, 1.2],
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.3,
}
GRANITE_HYBRID = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "num_local_experts": 0,
    "shared_intermediate_size": 96,
    "attention_multiplier": 0.1,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 5.0,
}
NEMOTRON_H = {
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
    "mamba_num_heads": 6,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "head_dim": 32,
    "time_step_min": 1e-30,  # as the models were trained, and as transformers decodes
}
GEMMA4 = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 5,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 96,
}
CASES = {
    "gemma4-e2b": (
        "Gemma4",
        {
            **GEMMA4,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma4-31b": (
        "Gemma4",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
        },
    ),
    "gemma4-other-ropes": (
        "Gemma4",
        {
            **GEMMA4,
            "layer_types": None,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3-rope": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-linear-rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    ),
    "llama-yarn-rope": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 16,
            }
        },
    ),
    "mistral-window": ("Mistral", {"sliding_window": 7}),
    "mistral-head-dim": ("Mistral", {"head_dim": 32, "sliding_window": None}),
    "phi3": ("Phi3", {"sliding_window": 9}),
    "phi3-longrope": (
        "Phi3",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 16},
    ),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen2-window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "gemma2": ("Gemma2", {"head_dim": 32, "sliding_window": 5, "query_pre_attn_scalar": 24}),
    "gemma3": (
        "Gemma3",
        {"head_dim": 32, "sliding_window": 5, "num_hidden_layers": 7, "query_pre_attn_scalar": 24},
    ),
    "gemma3-both-ways": (
        "Gemma3",
        {
            "head_dim": 32,
            "sliding_window": 9,
            "num_hidden_layers": 7,
            "use_bidirectional_attention": True,
        },
    ),
    "qwen2-both-ways": ("Qwen2", {"is_causal": False}),
    "gemma1": ("Gemma", {"head_dim": 32}),
    "olmo2": ("Olmo2", {}),
    "olmo2-biases": ("Olmo2", {"attention_bias": True}),
    "exaone4-windows": ("Exaone4", {"num_hidden_layers": 5, "sliding_window": 6}),
    "exaone4": ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5}),
    "smollm3-biases": ("SmolLM3", {"num_hidden_layers": 4, "attention_bias": True}),
    "ernie4.5": ("Ernie4_5", {"head_dim": 16}),
    "ernie4.5-biases": ("Ernie4_5", {"head_dim": 32, "use_bias": True}),
    "helium": ("Helium", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "granite": (
        "Granite",
        {
            "attention_multiplier": 0.1,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 5.0,
        },
    ),
    "granite-biases": ("Granite", {"residual_multiplier": 0.5, "attention_bias": True}),
    "arcee": ("Arcee", {}),
    "arcee-biases": ("Arcee", {"head_dim": 32, "attention_bias": True, "mlp_bias": True}),
    "ministral3": ("Ministral3", {"head_dim": 32, "rope_parameters": MINISTRAL3}),
    "ministral3-window": (
        "Ministral3",
        {
            "head_dim": 16,
            "sliding_window": 5,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "original_max_position_embeddings": 8,
                "llama_4_scaling_beta": 0.3,
            },
        },
    ),
    "seed-oss": ("SeedOss", {"head_dim": 32}),
    "seed-oss-other-biases": (
        "SeedOss",
        {"head_dim": 16, "attention_bias": False, "attention_out_bias": True, "mlp_bias": True},
    ),
    "olmo3": ("Olmo3", {"num_hidden_layers": 5, "sliding_window": 6}),
    "olmo3-yarn": (
        "Olmo3",
        {
            "num_hidden_layers": 4,
            "sliding_window": 5,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "rope_theta": 1e4,
                    "original_max_position_embeddings": 16,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "hunyuan": ("HunYuanDenseV1", {"head_dim": 32}),
    "hunyuan-alpha": (
        "HunYuanDenseV1",
        {
            "head_dim": 32,
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 1e4,
                "alpha": 1000.0,
                "factor": 1.0,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 0.0,
            },
        },
    ),
    "command-r7b": ("Cohere2", {"num_hidden_layers": 5, "sliding_window": 6, "logit_scale": 0.25}),
    "minicpm": ("MiniCPM", {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16}),
    "glm4": ("Glm4", {"head_dim": 32}),
    "glm4-without-biases": ("Glm4", {"head_dim": 16, "attention_bias": False}),
    "qwen3.5": ("Qwen3_5", {"num_hidden_layers": 5, "head_dim": 32, **DELTA_NET}),
    "qwen3.5-biases": (
        "Qwen3_5",
        {
            "num_hidden_layers": 2,
            "head_dim": 16,
            "attention_bias": True,
            "layer_types": ["full_attention", "linear_attention"],
            "rope_parameters": {"rope_theta": 1e5, "partial_rotary_factor": 0.5},
            **DELTA_NET,
        },
    ),
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention", "conv"]}),
    "lfm2-biases": (
        "Lfm2",
        {
            "full_attn_idxs": [1],
            "conv_bias": True,
            "conv_L_cache": 4,
            "tie_word_embeddings": False,
            "block_auto_adjust_ff_dim": False,
            "norm_eps": 1e-3,
        },
    ),
    "qwen3moe": (
        "Qwen3Moe",
        {"head_dim": 32, "moe_intermediate_size": 48, "norm_topk_prob": True, **EXPERTS},
    ),
    "qwen3.5moe": (
        "Qwen3_5Moe",
        {
            "num_hidden_layers": 5,
            "head_dim": 32,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 40,
            **EXPERTS,
            **DELTA_NET,
        },
    ),
    "ernie4.5-moe": (
        "Ernie4_5_Moe",
        {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 48},
    ),
    "ernie4.5-moe-without-shared": (
        "Ernie4_5_Moe",
        {
            "moe_num_experts": 6,
            "moe_k": 3,
            "moe_intermediate_size": 48,
            "moe_num_shared_experts": 0,
            "moe_layer_start_index": 2,
        },
    ),
    "glm4moe": (
        "Glm4Moe",
        {
            "head_dim": 32,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "use_qk_norm": True,
            "attention_bias": True,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.7,
        },
    ),
    "glm4moe-plain": (
        "Glm4Moe",
        {
            "head_dim": 16,
            "n_routed_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "norm_topk_prob": False,
            "n_shared_experts": 2,
            "first_k_dense_replace": 2,
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 32}),
    "olmoe": ("Olmoe", {"norm_topk_prob": False, **EXPERTS, "num_experts_per_tok": 3}),
    "gpt-oss": (
        "GptOss",
        {"head_dim": 32, "sliding_window": 6, "num_local_experts": 6, "num_experts_per_tok": 3},
    ),
    "gpt-oss-without-biases": (
        "GptOss",
        {
            "head_dim": 16,
            "attention_bias": False,
            "sliding_window": 5,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "granitemoe": (
        "GraniteMoe",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 5.0,
        },
    ),
    "granitemoe-shared": (
        "GraniteMoeShared",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 3,
            "attention_bias": True,
            "residual_multiplier": 0.4,
            "shared_intermediate_size": 40,
        },
    ),
    "lfm2moe": (
        "Lfm2Moe",
        {
            "layer_types": ["conv", "full_attention", "conv"],
            "num_dense_layers": 1,
            "moe_intermediate_size": 48,
            **EXPERTS,
        },
    ),
    "falcon-h1": ("FalconH1", FALCON_H1),
    "falcon-h1-tied-biases": (
        "FalconH1",
        {
            **FALCON_H1,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mamba_proj_bias": True,
            "mlp_bias": True,
            "projectors_bias": True,
        },
    ),
    "falcon-h1-norm": (
        "FalconH1",
        {**FALCON_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "falcon-h1-norm-first": ("FalconH1", {**FALCON_H1, "mamba_rms_norm": True}),
    "granitehybrid": ("GraniteMoeHybrid", GRANITE_HYBRID),
    "granitehybrid-rope": (
        "GraniteMoeHybrid",
        {**GRANITE_HYBRID, "position_embedding_type": "rope", "attention_bias": True},
    ),
    "granitehybrid-experts": (
        "GraniteMoeHybrid",
        {**GRANITE_HYBRID, "num_local_experts": 5, "num_experts_per_tok": 2},
    ),
    "nemotron-h": ("NemotronH", NEMOTRON_H),
    "nemotron-h-biases": (
        "NemotronH",
        {**NEMOTRON_H, "use_bias": True, "mlp_bias": True, "use_conv_bias": False},
    ),
    "gemma3-linear-rope": (
        "Gemma3",
        {
            "head_dim": 32,
            "sliding_window": 5,
            "num_hidden_layers": 7,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
}


def ours(folder, tokens=TOKENS, capacity=64, chunk=10, dtype=np.float32):
    """All-position logits, the prompt in chunks where positions do not see those behind them."""
    model = load_model(open_checkpoint(folder), ops=ReferenceOps(dtype=dtype))
    chunk = chunk if model.config.causal else len(tokens)
    cache = KVCache(model.config, capacity, dtype=dtype)
    parts = [tokens[start : start + chunk] for start in range(0, len(tokens), chunk)]
    return np.concatenate([model.forward(part, cache, all_positions=True) for part in parts])


@pytest.mark.parametrize("case", CASES)
def test_logits_agree_with_transformers(case, tmp_path):
    model = make(*CASES[case], tmp_path)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    assert relative_difference(ours(tmp_path), expected) < MAX_RELATIVE_DIFFERENCE


@pytest.mark.parametrize("case", CASES)
def test_a_converted_file_agrees_with_transformers_or_says_that_no_engine_does(case, tmp_path):
    """A file that llama.cpp computes otherwise is computed so here; the conversion says that."""
    model = make(*CASES[case], tmp_path / "folder")
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    file = tmp_path / "model.gguf"
    done = convert(tmp_path / "folder", file, ConversionRequest("F32", no_tokenizer=True))
    differs = any(warning.subject == "every engine" for warning in done.warnings)
    agrees = relative_difference(ours(file), expected) < MAX_RELATIVE_DIFFERENCE
    assert agrees != differs


def test_experts_in_mxfp4_agree_with_transformers_and_stay_so_in_a_file(tmp_path):
    from safetensors.torch import load_file, save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    options = {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 6}
    model = make("GptOss", CASES["gpt-oss"][1] | options, tmp_path / "folder")
    file = tmp_path / "folder" / "model.safetensors"
    stored, rng = load_file(file), np.random.default_rng(7)
    for name, parameter in model.named_parameters():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        experts, columns, rows = parameter.shape
        shape = (experts, rows, columns // 32)
        blocks = torch.from_numpy(rng.integers(0, 256, (*shape, 16), dtype=np.uint8))
        scales = torch.from_numpy(rng.integers(120, 125, shape, dtype=np.uint8))
        with torch.no_grad():
            parameter.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
        del stored[name]
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(stored, file)
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    say(tmp_path / "folder", quantization_config=quantization)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    assert relative_difference(ours(tmp_path / "folder"), expected) < MAX_RELATIVE_DIFFERENCE
    gguf = tmp_path / "model.gguf"
    request = ConversionRequest("BF16", no_tokenizer=True, allow_lossy=True)
    convert(tmp_path / "folder", gguf, request)
    name = "blk.1.ffn_up_exps.weight"
    before, after = (open_checkpoint(path).weights[name] for path in (tmp_path / "folder", gguf))
    assert after.quant.name == "MXFP4"
    np.testing.assert_array_equal(before.data, after.data)


def test_the_text_of_a_model_of_images_and_sound_is_read_alone(tmp_path):
    """Also with tensors of keys and values in layers that share those of others."""
    from safetensors.torch import load_file, save_file

    model = make(*CASES["gemma4-e2b"], tmp_path)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    file = tmp_path / "model.safetensors"
    tensors = {
        name.replace("model.", "model.language_model."): tensor
        for name, tensor in load_file(file).items()
    }
    prefix = "model.language_model.layers.5.self_attn."
    unread = {
        f"{prefix}k_proj.weight": torch.ones(64, 64),
        f"{prefix}k_norm.weight": torch.ones(32),
    }
    others = ("vision_tower.encoder.x", "audio_tower.layers.0.x", "embed_vision.x", "embed_audio.x")
    unread |= {f"model.{name}.weight": torch.ones(3) for name in others}
    save_file(tensors | unread, file)
    path = tmp_path / "config.json"
    text = json.loads(path.read_text())
    named = {"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"]}
    path.write_text(json.dumps(named | {"text_config": text, "vision_config": {"hidden_size": 8}}))
    assert relative_difference(ours(tmp_path), expected) < MAX_RELATIVE_DIFFERENCE


def test_phi3_uses_short_factors_within_the_original_context(tmp_path):
    model = make(*CASES["phi3-longrope"], tmp_path)
    tokens = TOKENS[:12]
    with torch.no_grad():
        expected = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    assert relative_difference(ours(tmp_path, tokens, capacity=16), expected) < (
        MAX_RELATIVE_DIFFERENCE
    )


def test_dynamic_scaling_agrees_when_the_context_is_the_prompt(tmp_path):
    # transformers stretches by the length so far, we by the length the context may reach.
    parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    options = {"rope_parameters": parameters, "max_position_embeddings": 16}
    model = make("Llama", options, tmp_path)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    assert relative_difference(ours(tmp_path, capacity=24), expected) < MAX_RELATIVE_DIFFERENCE


def test_a_window_changes_the_logits(tmp_path):
    make("Mistral", {"sliding_window": 7}, tmp_path / "narrow")
    make("Mistral", {"sliding_window": None}, tmp_path / "wide")
    narrow, wide = ours(tmp_path / "narrow"), ours(tmp_path / "wide")
    np.testing.assert_allclose(narrow[:7], wide[:7], rtol=1e-4, atol=1e-4)
    assert relative_difference(narrow[7:], wide[7:]) > 0.01


def test_bitnet_agrees_with_transformers_activation_rounding(
    tmp_path,
    eager_layers,  # noqa: F811
    monkeypatch,
):
    model = make("BitNet", {"num_hidden_layers": 2}, tmp_path)
    say(tmp_path, quantization_config=ONLINE)
    # In float32 a sum in another order now and then rounds an activation to the next int8, which
    # moves logits by far more than the bound; in float64 it does not.
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    tokens = TOKENS[:8]
    with torch.no_grad():
        model = bitnet_layers(model, online=True).double()
        expected = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    found = ours(tmp_path, tokens, dtype=np.float64)
    assert relative_difference(found, expected) < MAX_RELATIVE_DIFFERENCE


@pytest.mark.parametrize("linear_class", ["autobitlinear", "bitlinear"])
def test_packed_bitnet_weights_decode_to_what_was_packed(tmp_path, linear_class):
    from safetensors.torch import load_file, save_file
    from transformers.integrations.bitnet import pack_weights

    make("BitNet", {}, tmp_path)
    stored, expected = {}, {}
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        stored[name] = tensor
        if "proj" in name:
            codes = (tensor / tensor.abs().mean()).round().clamp(-1, 1)
            stored[name] = pack_weights(codes.clone())
            scale = 0.25 if linear_class == "autobitlinear" else 4.0
            stored[f"{name}_scale"] = torch.tensor([scale])
            expected[gguf_name(name, of_gguf("bitnet-b1.58"))] = codes.numpy() * 0.25
    save_file(stored, tmp_path / "model.safetensors")
    say(tmp_path, quantization_config={"quant_method": "bitnet", "linear_class": linear_class})
    weights = open_checkpoint(tmp_path).weights
    assert len(expected) == 3 * 7
    for name, values in expected.items():
        np.testing.assert_array_equal(dequantize(weights[name]), values)
