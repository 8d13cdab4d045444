"""Every family against transformers: tiny random models, float32, through safetensors."""

import json
import re

import numpy as np
import pytest
from conversions import convert
from dense_models import DENSE
from differences import relative_difference
from hf_models import (
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

from bitnet.base import native
from bitnet.base.errors import Unsupported
from bitnet.convert.convert_options import ConvertOptions
from bitnet.families.family import of_gguf
from bitnet.families.tensor_names import gguf_name
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.quants.registry import dequantize

pytestmark = [pytest.mark.slow, *QUIET]


CASES = DENSE | MIXED


def ours(folder, tokens=TOKENS, capacity=64, chunk=10, dtype=np.float32):
    """Logits of all positions, the prompt in parts of *chunk* ids if attention is causal."""
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


def test_a_folder_that_no_file_can_hold_is_not_converted(tmp_path):
    """Windows of Gemma 3 on both sides: in a file llama.cpp bounds them on one side only."""
    make(*CASES["gemma3-both-ways"], tmp_path / "folder")
    file = tmp_path / "model.gguf"
    message = "a GGUF file cannot hold this model: gemma3.attention.causal = false"
    with pytest.raises(Unsupported, match=re.escape(message)):
        convert(tmp_path / "folder", file, ConvertOptions("F32", no_tokenizer=True))
    assert not file.exists()


@pytest.mark.parametrize("case", sorted(CASES.keys() - {"gemma3-both-ways"}))
def test_a_converted_file_agrees_with_transformers_or_says_that_no_engine_does(case, tmp_path):
    """Files are computed as llama.cpp does: if that differs, the conversion warns of it."""
    model = make(*CASES[case], tmp_path / "folder")
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    file = tmp_path / "model.gguf"
    conversion = convert(tmp_path / "folder", file, ConvertOptions("F32", no_tokenizer=True))
    differs = any(warning.subject == "every engine" for warning in conversion.warnings)
    agrees = relative_difference(ours(file), expected) < MAX_RELATIVE_DIFFERENCE
    assert agrees != differs  # exactly one: the warning is right, and is not given in vain


def test_experts_in_mxfp4_agree_with_transformers_and_stay_so_in_a_file(tmp_path):
    from safetensors.torch import load_file, save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    options = {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 6}
    model = make("GptOss", CASES["gpt-oss"][1] | options, tmp_path / "folder")
    file = tmp_path / "folder" / "model.safetensors"
    stored = load_file(file)
    rng = np.random.default_rng(7)
    for name, parameter in model.named_parameters():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        experts, columns, rows = parameter.shape
        shape = (experts, rows, columns // 32)
        blocks = torch.from_numpy(rng.integers(0, 256, (*shape, 16), dtype=np.uint8))
        # Exponents of two, with an offset of 127.
        scales = torch.from_numpy(rng.integers(120, 125, shape, dtype=np.uint8))
        with torch.no_grad():
            parameter.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
        del stored[name]
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(stored, file)
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    set_config(tmp_path / "folder", quantization_config=quantization)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    assert relative_difference(ours(tmp_path / "folder"), expected) < MAX_RELATIVE_DIFFERENCE
    gguf = tmp_path / "model.gguf"
    request = ConvertOptions("BF16", no_tokenizer=True, allow_lossy=True)
    convert(tmp_path / "folder", gguf, request)
    name = "blk.1.ffn_up_exps.weight"
    before, after = (open_checkpoint(path).weights[name] for path in (tmp_path / "folder", gguf))
    assert after.quant.name == "MXFP4"
    np.testing.assert_array_equal(before.data, after.data)


@pytest.mark.parametrize(
    ("case", "kind", "named"),
    [("gemma4-e2b", "gemma4", "Gemma4"), ("gemma3n", "gemma3n", "Gemma3n")],
)
def test_the_text_of_a_model_of_images_and_sound_is_read_alone(case, kind, named, tmp_path):
    """Its folder has tensors of keys and values also in a layer that shares those of another."""
    from safetensors.torch import load_file, save_file

    model = make(*CASES[case], tmp_path)
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
    outer = {"model_type": kind, "architectures": [f"{named}ForConditionalGeneration"]}
    path.write_text(json.dumps(outer | {"text_config": text, "vision_config": {"hidden_size": 8}}))
    assert relative_difference(ours(tmp_path), expected) < MAX_RELATIVE_DIFFERENCE


@pytest.mark.parametrize("case", ["hrm-text", "hrm-text-other-turns"])
def test_a_prompt_in_both_directions_and_its_answer_agree_with_transformers(case, tmp_path):
    """Transformers reads a prompt in both directions where its positions are marked."""
    kind, options = CASES[case]
    model = make(kind, options | {"prefix_lm": True}, tmp_path)
    prompt = TOKENS[:17]
    answer = [[token] for token in TOKENS[17:]]
    marks = torch.tensor([[1] * len(prompt) + [0] * len(answer)])
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS]), token_type_ids=marks, use_cache=False).logits
    checkpoint = open_checkpoint(tmp_path)
    for ops in (ReferenceOps(), *([NativeOps()] if native.module() else [])):
        runner = load_model(checkpoint, ops=ops)
        cache = KVCache(runner.config, 64, dtype=np.float32)
        parts = [runner.forward(part, cache, all_positions=True) for part in (prompt, *answer)]
        assert relative_difference(np.concatenate(parts), logits[0].numpy()) < 1e-4


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


def test_a_window_changes_the_logits_of_positions_beyond_it_only(tmp_path):
    make("Mistral", {"sliding_window": 7}, tmp_path / "narrow")
    make("Mistral", {"sliding_window": None}, tmp_path / "wide")
    narrow = ours(tmp_path / "narrow")
    wide = ours(tmp_path / "wide")
    # The first seven positions see all before them, with the window of seven or without.
    np.testing.assert_allclose(narrow[:7], wide[:7], rtol=1e-4, atol=1e-4)
    assert relative_difference(narrow[7:], wide[7:]) > 0.01


def test_bitnet_agrees_with_transformers_activation_rounding(
    tmp_path,
    eager_layers,  # noqa: F811
    monkeypatch,
):
    model = make("BitNet", {"num_hidden_layers": 2}, tmp_path)
    set_config(tmp_path, quantization_config=ONLINE)
    # In float32 a sum in another order now and then rounds an activation to the next int8, which
    # moves logits by far more than the bound; in float64 it does not.
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    tokens = TOKENS[:8]
    with torch.no_grad():
        model = bitnet_layers(model, online=True).double()
        expected = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    actual = ours(tmp_path, tokens, dtype=np.float64)
    assert relative_difference(actual, expected) < MAX_RELATIVE_DIFFERENCE


@pytest.mark.parametrize("linear_class", ["autobitlinear", "bitlinear"])
def test_packed_bitnet_weights_decode_to_what_was_packed(tmp_path, linear_class):
    from safetensors.torch import load_file, save_file
    from transformers.integrations.bitnet import pack_weights

    make("BitNet", {}, tmp_path)
    stored = {}
    expected = {}
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        stored[name] = tensor
        if "proj" in name:
            codes = (tensor / tensor.abs().mean()).round().clamp(-1, 1)
            stored[name] = pack_weights(codes.clone())
            # AutoBitLinear multiplies by the stored scale, BitLinear divides by it.
            scale = 0.25 if linear_class == "autobitlinear" else 4.0
            stored[f"{name}_scale"] = torch.tensor([scale])
            expected[gguf_name(name, of_gguf("bitnet-b1.58"))] = codes.numpy() * 0.25
    save_file(stored, tmp_path / "model.safetensors")
    set_config(
        tmp_path, quantization_config={"quant_method": "bitnet", "linear_class": linear_class}
    )
    weights = open_checkpoint(tmp_path).weights
    assert len(expected) == 3 * 7  # layers, and matrices of each
    for name, values in expected.items():
        np.testing.assert_array_equal(dequantize(weights[name]), values)
