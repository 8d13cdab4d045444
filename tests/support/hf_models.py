"""Tiny random models of transformers, saved as folders; modules that need them are skipped."""

import json

import numpy as np
import pytest

REASON = "transformers is not installed: pip install 'bitnet-xtask[parity]'"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)

# Both compute in float32 and differ in the order of sums only.
MAX_RELATIVE_DIFFERENCE = 1e-3

TINY = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0],
}

# quantization_config of a model with dense weights, which its layers round themselves.
ONLINE = {
    "quant_method": "bitnet",
    "linear_class": "autobitlinear",
    "quantization_mode": "online",
}
# Classes of the kinds whose class is not KIND + "ForCausalLM".
_CLASSES = {
    "GPT2": "GPT2LMHeadModel",
    "IQuestCoder": "LlamaForCausalLM",
    "InternLM3": "LlamaForCausalLM",
    "OpenAIGPT": "OpenAIGPTLMHeadModel",
    "SarvamMLA": "DeepseekV3ForCausalLM",
    "SarvamMoE": "Glm4MoeForCausalLM",
}
# Ids of a prompt.
TOKENS = np.random.default_rng(3).integers(3, 96, 24).tolist()


def random_model(kind, options, seed=0):
    """A random model of transformers: the class of *kind*, with *options* as its configuration."""
    if kind == "MiniCPM":
        return random_model("Granite", of_granite(options), seed)
    torch.manual_seed(seed)
    text = "Text" if kind in ("Gemma3", "Gemma3n", "Gemma4", "Qwen3_5", "Qwen3_5Moe") else ""
    config = getattr(transformers, f"{kind}{text}Config")(**options)
    config._attn_implementation = attention_of(kind)
    class_name = _CLASSES.get(kind, f"{kind}ForCausalLM")
    model = getattr(transformers, class_name)(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # With the initial norms of one and biases of zero, exchanged tensors would be equal.
            spread = 0.2 if "norm" in name or name.endswith("bias") else 0.1
            parameter.add_(torch.randn_like(parameter) * spread)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                buffer.add_(torch.randn_like(buffer) * 0.2)
            if name.endswith("layer_scalar"):
                buffer.fill_(0.4 + torch.rand(()))
    return model


def attention_of(kind):
    """Transformers' code of attention that is the oracle for *kind*."""
    # transformers 5.24 counts Falcon's ALiBi twice where it is eager.
    return "sdpa" if kind == "Falcon" else "eager"


def of_granite(options):
    """*options* of MiniCPM as those of Granite, which has the same equations in transformers."""
    width = options["hidden_size"]
    layers = options["num_hidden_layers"]
    own = {
        "attention_multiplier": (width // options["num_attention_heads"]) ** -0.5,
        "embedding_multiplier": options["scale_emb"],
        "residual_multiplier": options["scale_depth"] / layers**0.5,
        "logits_scaling": width / options["dim_model_base"],
    }
    of_minicpm = ("scale_emb", "scale_depth", "dim_model_base")
    return {key: value for key, value in options.items() if key not in of_minicpm} | own


def save(kind, options, model, folder):
    """*model* of random_model, saved as a folder of its *kind*."""
    model.save_pretrained(folder, safe_serialization=True)
    if kind == "MiniCPM":
        path = folder / "config.json"
        config = json.loads(path.read_text())
        for name in ("attention", "embedding", "residual"):
            del config[f"{name}_multiplier"]
        del config["logits_scaling"]
        own = {"model_type": "minicpm", "architectures": ["MiniCPMForCausalLM"]}
        path.write_text(json.dumps(config | options | own))


def make(kind, options, folder):
    """A random model of transformers, saved into *folder*."""
    model = random_model(kind, TINY | options)
    save(kind, TINY | options, model, folder)
    return model


def set_config(folder, **changes):
    """Set the keys *changes* in the config.json of *folder*."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def bitnet_layers(model, online, wanted=lambda name: "lm_head" not in name):
    """*model* with transformers' own BitNet layers: rounded weights and activations.

    Linear layers become such layers if *wanted* returns True for their name.
    """
    from transformers.integrations.bitnet import AutoBitLinear

    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and wanted(name):
            layer = AutoBitLinear(
                module.in_features, module.out_features, bias=False, online_quant=online
            )
            layer.weight = module.weight
            model.set_submodule(name, layer)
    return model


@pytest.fixture
def eager_layers(monkeypatch):
    """Run transformers' rounding functions as they are written, not compiled by torch."""
    from transformers.integrations import bitnet

    for function in (bitnet.WeightQuant, bitnet.ActQuant):
        plain = getattr(function.forward, "_torchdynamo_orig_callable", function.forward)
        monkeypatch.setattr(function, "forward", staticmethod(plain))


GLM_OPTIONS = {
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 5e5,
        "partial_rotary_factor": 0.5,
    },
}
