"""Low-rank adapters against PEFT: random adapters of random models of transformers, in float32."""

import numpy as np
import pytest
from dense_models import DENSE, GEMMA3N
from differences import relative_difference
from hf_models import MAX_RELATIVE_DIFFERENCE, TOKENS, make, torch
from mixed_models import MIXED
from quiet_libraries import QUIET

from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.adapted import with_adapters
from bitnet.models.load import load_model

peft = pytest.importorskip(
    "peft", reason="peft is not installed: pip install 'bitnet-xtask[parity]'"
)

pytestmark = [pytest.mark.slow, *QUIET]

OF_ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# Class of transformers, options of its configuration, and options of the adapter.
CASES = {
    "llama": ("Llama", {}, {}),
    "llama-rslora": ("Llama", {}, {"use_rslora": True}),
    "llama-patterns": (
        "Llama",
        {},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.mlp.up_proj": 32}},
    ),
    "qwen3": ("Qwen3", {"head_dim": 32}, {}),
    "gemma3": ("Gemma3", {"head_dim": 16, "sliding_window": 8}, {}),
    "phi3": (
        "Phi3",
        {},
        {"target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]},
    ),
    "gemma3n": (
        "Gemma3n",
        GEMMA3N,
        {"target_modules": [*ALL, "linear_left", "linear_right", "per_layer_projection"]},
    ),
    "nanochat": ("NanoChat", {}, {"target_modules": [*OF_ATTENTION, "fc1", "fc2"]}),
    "olmo-hybrid": (
        *MIXED["olmo-hybrid"],
        {"target_modules": [*ALL, "a_proj", "b_proj", "g_proj"]},
    ),
    "jamba": (
        *MIXED["jamba"],
        {"target_modules": [*OF_ATTENTION, "in_proj", "x_proj", "out_proj"]},
    ),
    "mamba": (*MIXED["mamba"], {"target_modules": ["in_proj", "x_proj"]}),
    "falcon-mamba": (
        *MIXED["falcon-mamba"],
        {"target_modules": ["in_proj", "x_proj"]},
    ),
    "laguna": (*MIXED["laguna"], {"target_modules": [*OF_ATTENTION, "g_proj"]}),
    "kimi-linear": (*MIXED["kimi-linear"], {"target_modules": ["q_proj", "v_proj", "o_proj"]}),
    "hrm-text": (*DENSE["hrm-text"], {"target_modules": ALL}),
    "gptneox": (
        *DENSE["gptneox"],
        {"target_modules": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]},
    ),
    "bloom": (*DENSE["bloom"], {"target_modules": ["query_key_value", "dense_h_to_4h"]}),
    "falcon": (*DENSE["falcon-40b"], {"target_modules": ["query_key_value", "dense"]}),
    "granite": ("Granite", {"residual_multiplier": 0.5}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_peft(case, tmp_path):
    kind, options, config = CASES[case]
    model = make(kind, options, tmp_path / "model")
    config = {"r": 4, "lora_alpha": 6, "target_modules": ALL, "task_type": "CAUSAL_LM"} | config
    adapted = peft.get_peft_model(model, peft.LoraConfig(**config)).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:  # B is zero at first
                parameter.copy_(torch.randn_like(parameter) * 0.1)
        expected = adapted(torch.tensor([TOKENS])).logits[0].float().numpy()
        with adapted.disable_adapter():
            plain = adapted(torch.tensor([TOKENS])).logits[0].float().numpy()
    adapted.save_pretrained(tmp_path / "adapter")
    checkpoint = with_adapters(open_checkpoint(tmp_path / "model"), [(tmp_path / "adapter", 1.0)])
    adapted_model = load_model(checkpoint, ops=ReferenceOps())
    actual = adapted_model.forward(TOKENS, KVCache(adapted_model.config, 64), all_positions=True)
    assert relative_difference(actual, expected) < MAX_RELATIVE_DIFFERENCE
    # The adapter has an effect.
    assert relative_difference(np.asarray(plain), expected) > 10 * MAX_RELATIVE_DIFFERENCE
