"""Keys that change the mathematics: transformers' logits, or refused by the key's name."""

import json
import re

import numpy as np
import pytest
from differences import relative_difference
from hf_models import (
    LONGROPE,
    MAX_RELATIVE_DIFFERENCE,
    ONLINE,
    TOKENS,
    bitnet_layers,
    eager_layers,  # noqa: F401 - a fixture
    make,
    set_config,
    torch,
)
from mixed_models import MIXED
from quiet_libraries import QUIET

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.runtime.request import Request
from bitnet.runtime.scheduler import Scheduler

pytestmark = [pytest.mark.slow, *QUIET]

# Ids of a prompt that is longer than the original contexts below.
LONG = np.random.default_rng(5).integers(3, 96, 60).tolist()


def yarn(**more):
    """Options with YaRN from 16 to 64 positions, and *more* keys of its table."""
    base = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
    return {"rope_parameters": base | {"original_max_position_embeddings": 16} | more}


def dynamic(**more):
    """Options with dynamic scaling, and *more* keys of its table."""
    return {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4} | more}


def engine(folder, **options):
    """A scheduler for a folder, on the reference backend with a cache in float32."""
    model = load_model(open_checkpoint(folder), ops=ReferenceOps())
    return Scheduler(model, cache_dtype=np.float32, **options)


def expected_logits(model, tokens):
    """Logits of *model*, of transformers, after each of *tokens*."""
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


PHI = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 16}
GEMMA3 = {"head_dim": 32, "sliding_window": 5, "num_hidden_layers": 7, "query_pre_attn_scalar": 24}
# Class of transformers, options of its configuration, and ids of a prompt.
EXACT = {
    "longrope-short-prompt": ("Phi3", PHI, TOKENS[:12]),
    "longrope-at-the-border": ("Phi3", PHI, TOKENS[:16]),
    "longrope-beyond-the-border": ("Phi3", PHI, TOKENS[:17]),
    "longrope-factor": ("Phi3", {**PHI, "rope_parameters": LONGROPE | {"factor": 2.0}}, TOKENS),
    "longrope-attention-factor": (
        "Phi3",
        {**PHI, "rope_parameters": LONGROPE | {"attention_factor": 1.7}},
        TOKENS,
    ),
    "yarn-betas": ("Llama", yarn(beta_fast=4.0, beta_slow=0.5), LONG),
    "yarn-not-truncated": ("Llama", yarn(truncate=False), LONG),
    "yarn-not-truncated-betas": ("Qwen2", yarn(truncate=False, beta_fast=8.0), LONG),
    "yarn-mscale": ("Llama", yarn(mscale=1.2, mscale_all_dim=0.4), LONG),
    "yarn-attention-factor": ("Llama", yarn(attention_factor=1.4), LONG),
    "dynamic-within": ("Llama", dynamic(), TOKENS),
    "dynamic-beyond": ("Llama", {**dynamic(), "max_position_embeddings": 16}, TOKENS),
    "dynamic-with-an-original-context": (
        "Llama",
        {**dynamic(original_max_position_embeddings=8), "max_position_embeddings": 32},
        LONG,
    ),
    "gemma3-final-soft-cap": ("Gemma3", {**GEMMA3, "final_logit_softcapping": 2.0}, TOKENS),
    "gemma3-layer-types": (
        "Gemma3",
        {**GEMMA3, "layer_types": ["full_attention", *["sliding_attention"] * 6]},
        TOKENS,
    ),
    "gemma2-layer-types": (
        "Gemma2",
        {
            "head_dim": 32,
            "sliding_window": 5,
            "layer_types": ["full_attention", "full_attention", "sliding_attention"],
        },
        TOKENS,
    ),
    "gemma2-no-soft-caps": (
        "Gemma2",
        {"head_dim": 32, "attn_logit_softcapping": None, "final_logit_softcapping": None},
        TOKENS,
    ),
    "qwen3-biases": ("Qwen3", {"head_dim": 32, "attention_bias": True}, TOKENS),
    "qwen3-layer-types": (
        "Qwen3",
        {
            "head_dim": 32,
            "use_sliding_window": True,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        TOKENS,
    ),
    "phi3-partial-rotation": (
        "Phi3",
        {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        TOKENS,
    ),
    "bitnet-without-quantization": ("BitNet", {}, TOKENS),
    "bitnet-biases": ("BitNet", {"attention_bias": True}, TOKENS),
}


@pytest.mark.parametrize("case", EXACT)
def test_a_key_that_is_computed_gives_the_logits_of_transformers(case, tmp_path):
    kind, options, tokens = EXACT[case]
    model = make(kind, options, tmp_path)
    exceeds_context = len(tokens) > options.get("max_position_embeddings", 64)
    actual = engine(tmp_path, context=len(tokens) if exceeds_context else None).logits(tokens)
    assert relative_difference(actual, expected_logits(model, tokens)) < MAX_RELATIVE_DIFFERENCE


@pytest.mark.parametrize(
    "kept", [["lm_head"], ["lm_head", "mlp"], [r"model.layers.\d.mlp", "o_proj"]]
)
def test_modules_not_to_convert_are_not_rounded(kept, tmp_path, eager_layers, monkeypatch):  # noqa: F811
    from transformers.quantizers.quantizers_utils import should_convert_module

    model = make("BitNet", {"num_hidden_layers": 2}, tmp_path)
    set_config(tmp_path, quantization_config=ONLINE | {"modules_to_not_convert": kept})
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    with torch.no_grad():
        rounding_model = bitnet_layers(
            model, online=True, wanted=lambda name: should_convert_module(name, kept)
        )
        expected = (
            rounding_model.double()(torch.tensor([TOKENS[:8]]), use_cache=False).logits[0].numpy()
        )
    ours = load_model(open_checkpoint(tmp_path), ops=ReferenceOps(dtype=np.float64))
    actual = Scheduler(ours, cache_dtype=np.float64).logits(TOKENS[:8])
    assert relative_difference(actual, expected) < MAX_RELATIVE_DIFFERENCE


def test_a_longrope_answer_beyond_the_original_context_is_that_of_a_prompt_so_long(tmp_path):
    model = make("Phi3", PHI, tmp_path)
    ours = engine(tmp_path)
    pieces = ours.generate(TOKENS[:12], Request(max_tokens=12))
    answer = [piece.token for piece in pieces if piece.token is not None]
    ids = TOKENS[:12] + answer
    for length in range(12, 24):
        expected = expected_logits(model, ids[:length])[-1]
        assert answer[length - 12] == expected.argmax(), length


def test_dynamic_frequencies_grow_with_every_token_as_in_transformers(tmp_path):
    model = make("Llama", {**dynamic(), "max_position_embeddings": 16}, tmp_path)
    ours = engine(tmp_path, context=40)
    pieces = ours.generate(TOKENS[:12], Request(max_tokens=16))
    answer = [piece.token for piece in pieces if piece.token is not None]
    ids = torch.tensor([TOKENS[:12]])
    with torch.no_grad():
        theirs = model.generate(ids, max_new_tokens=16, do_sample=False, eos_token_id=None)
    assert answer == theirs[0, 12:].tolist()


# Class of transformers, options of its configuration, and keys that config.json then gets.
REFUSED = {
    # transformers reads this key and ignores it.
    "soft-caps-of-gemma-3": ("Gemma3", GEMMA3, {"attn_logit_softcapping": 50.0}),
    "ahead-within-windows": ("Mistral", {"sliding_window": 7}, {"is_causal": False}),
    "foreign-code": (
        "Llama",
        {},
        {"auto_map": {"AutoModelForCausalLM": "modeling_x.LlamaBidirectionalForCausalLM"}},
    ),
    "partial-rotation": ("Llama", {}, {"partial_rotary_factor": 0.5}),
    "unknown-rope-parameter": ("Llama", {}, {"rope_parameters": {"rope_theta": 1e4, "bend": 2}}),
    "another-rope": ("Llama", {}, {"rope_parameters": {"rope_type": "spiral"}}),
    "unknown-quantization-key": (
        "BitNet",
        {},
        {"quantization_config": ONLINE | {"group_size": 64}},
    ),
    "other-quantization": ("Llama", {}, {"quantization_config": {"quant_method": "hqq"}}),
    "norms-before-projections": (
        "BitNet",
        {},
        {"quantization_config": ONLINE | {"use_rms_norm": True}},
    ),
    "logit-scale": ("Llama", {}, {"logit_scale": 0.1}),
    "residual-multiplier": ("Llama", {}, {"residual_multiplier": 0.5}),
    "window-llama-does-not-have": ("Llama", {}, {"sliding_window": 5}),
    "chunks": ("Llama", {}, {"layer_types": ["chunked_attention"] * 3}),
    "no-rope-layers": ("Llama", {}, {"no_rope_layers": [1, 0, 1]}),
    "other-no-rope-layers": (
        "SmolLM3",
        {"num_hidden_layers": 4},
        {"no_rope_layers": [1, 0, 1, 0]},
    ),
    "scaled-windows": (
        "Gemma3",
        GEMMA3,
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
            }
        },
    ),
    "activation": ("Llama", {}, {"hidden_act": "gelu"}),
    "experts": ("Llama", {}, {"num_local_experts": 8}),
    "experts-before-others": (
        *MIXED["glm4.7-flash"],
        {"mlp_layer_types": ["sparse", "dense", "sparse"]},
    ),
    "halves-that-rotate": (*MIXED["glm4.7-flash"], {"rope_interleave": False}),
    "halves-by-null": (*MIXED["deepseek3"], {"rope_interleave": None}),
    "no-positions": (*MIXED["granitemoe"], {"position_embedding_type": "nope"}),
    "no-positions-by-null": (*MIXED["granitemoe"], {"position_embedding_type": None}),
    "networks-with-and-without-experts": (
        *MIXED["nemotron-h"],
        {"layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"]},
    ),
}

# The key within a table that is refused, by case; in other cases it is the changed key itself.
NESTED = {
    "unknown-rope-parameter": "rope_parameters.bend",
    "another-rope": "rope_parameters.rope_type",
    "unknown-quantization-key": "quantization_config.group_size",
    "other-quantization": "quantization_config.quant_method",
    "norms-before-projections": "quantization_config.rms_norm_eps",
    "scaled-windows": "rope_parameters.sliding_attention",
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_key_that_is_not_computed_is_refused_by_name(case, tmp_path):
    kind, options, changes = REFUSED[case]
    make(kind, options, tmp_path)
    set_config(tmp_path, **changes)
    (key,) = changes
    with pytest.raises(Unsupported, match=rf"\b{re.escape(NESTED.get(case, key))} = "):
        engine(tmp_path)


def test_an_original_context_in_the_rope_table_alone_does_not_count_for_phi3(tmp_path):
    from transformers import AutoModelForCausalLM

    make("Phi3", PHI | {"max_position_embeddings": 8192}, tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["original_max_position_embeddings"]
    config["rope_parameters"]["original_max_position_embeddings"] = 16
    path.write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_pretrained(tmp_path).float().eval()
    actual = engine(tmp_path).logits(TOKENS)
    assert relative_difference(actual, expected_logits(model, TOKENS)) < MAX_RELATIVE_DIFFERENCE


def test_a_folder_with_ignored_keys_gives_the_logits_without_them(tmp_path):
    model = make("Llama", {}, tmp_path)
    set_config(tmp_path, logit_scale=0.1, residual_multiplier=0.5)
    checkpoint = open_checkpoint(tmp_path, ignore_keys=["logit_scale", "residual_multiplier"])
    assert checkpoint.ignored == {"logit_scale": 0.1, "residual_multiplier": 0.5}
    actual = Scheduler(load_model(checkpoint), cache_dtype=np.float32).logits(TOKENS)
    assert relative_difference(actual, expected_logits(model, TOKENS)) < MAX_RELATIVE_DIFFERENCE


def test_a_head_that_is_missing_is_not_taken_for_a_tied_one(tmp_path):
    from safetensors.torch import load_file, save_file

    make("Llama", {}, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InvalidFormat, match=r"lm_head\.weight is missing"):
        open_checkpoint(tmp_path)


def test_biases_that_the_configuration_denies_are_refused(tmp_path):
    make("Llama", {"attention_bias": True}, tmp_path)
    set_config(tmp_path, attention_bias=False)
    with pytest.raises(InvalidFormat, match=r"bias is there, and attention_bias in config\.json"):
        open_checkpoint(tmp_path)


def test_a_vocabulary_of_another_size_is_refused(tmp_path):
    make("Llama", {}, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": 95}))
    with pytest.raises(InvalidFormat, match="the embedding has 96"):
        open_checkpoint(tmp_path)
