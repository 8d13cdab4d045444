"""BitNets as their makers publish them: each file that is made of one gives the same logits."""

import json
from dataclasses import replace

import numpy as np
import pytest
from conversions import convert
from differences import relative_difference
from hf_folders import bf16, save_tensors
from published_bitnets import (
    CONFIGS,
    FALCON3,
    HEAD,
    LLAMA3,
    ONE_BIT,
    PLAIN,
    SIZES,
    published,
    weights,
)

from bitnet.base import native
from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.convert.convert_options import ConvertOptions
from bitnet.formats.containers import ROUNDED_INPUTS, open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model

IDS = np.random.default_rng(3).integers(3, 60, 16).tolist()
SAME = 1e-9  # of the range of the logits, in float64


def without_rounding(path, *, outlier=1.0):
    """A folder of ternary weights in BF16; an input of every layer is *outlier* times as large."""
    path.mkdir()
    stored, dense = weights(LLAMA3)
    stored = {name: values for name, values in stored.items() if not isinstance(values, tuple)}
    plain = {
        name: values for name, values in (stored | dense).items() if not name.endswith("_scale")
    }
    for name, values in plain.items():
        if name.endswith("layernorm.weight"):
            values[7] *= outlier
    save_tensors(path / "model.safetensors", {name: bf16(values) for name, values in plain.items()})
    (path / "config.json").write_text(json.dumps(PLAIN))
    return path


def logits(path, *, ops=None, ignore_keys=()):
    """Logits of all of IDS by the model at *path*; by default in float64."""
    ops = ops or ReferenceOps(dtype=np.float64)
    model = load_model(open_checkpoint(path, ignore_keys=ignore_keys), ops=ops)
    cache = KVCache(model.config, len(IDS), dtype=getattr(ops, "dtype", np.float32))
    return model.forward(IDS, cache, all_positions=True)


@pytest.mark.parametrize("encoding", ["I2_S", "TQ1_0", "TQ2_0", "IQ2_BN"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_encoding_gives_the_logits_of_the_folder(name, encoding, tmp_path):
    folder = published(tmp_path / "model", name)
    file = tmp_path / "model.gguf"
    conversion = convert(folder, file, ConvertOptions(encoding, no_tokenizer=True))
    assert conversion.exact
    assert {tensor.after for tensor in conversion.tensors if "attn_q." in tensor.name} == {encoding}
    assert relative_difference(logits(file), logits(folder)) < SAME


@pytest.mark.parametrize("encoding", ["TQ1_0", "TQ2_0"])
def test_ternary_weights_of_other_models_are_multiplied_without_rounding_inputs(encoding, tmp_path):
    folder = without_rounding(tmp_path / "model", outlier=128)
    file = tmp_path / "model.gguf"
    conversion = convert(folder, file, ConvertOptions(encoding, no_tokenizer=True))
    assert conversion.exact
    assert not any("int8 per token" in warning.text for warning in conversion.warnings)
    checkpoint = open_checkpoint(file)
    assert not checkpoint.rounds_inputs
    expected = logits(folder)
    assert relative_difference(logits(file), expected) < SAME
    rounding_weights = {
        name: replace(weight, rounds_input=True) for name, weight in checkpoint.weights.items()
    }
    rounded = load_model(
        replace(checkpoint, weights=rounding_weights), ops=ReferenceOps(dtype=np.float64)
    )
    cache = KVCache(rounded.config, len(IDS), dtype=np.float64)
    rounding_error = relative_difference(rounded.forward(IDS, cache, all_positions=True), expected)
    if native.module() is not None:
        # Its int8 in groups of 16 leaves a quarter of that error: 0.0335 to 0.0343 of 0.137.
        assert relative_difference(logits(file, ops=NativeOps()), expected) < rounding_error / 3
    assert rounding_error > 1e-3  # rounding would be seen


def test_a_conversion_to_i2_s_warns_that_inputs_will_be_rounded(tmp_path):
    folder = without_rounding(tmp_path / "model")
    file = tmp_path / "model.gguf"
    conversion = convert(folder, file, ConvertOptions("I2_S", no_tokenizer=True))
    # Seven matrices in each of two layers.
    assert any(
        "rounds the inputs of 14 matrices" in warning.text for warning in conversion.warnings
    )


def test_a_key_says_that_a_model_of_another_architecture_is_a_bitnet(tmp_path):
    folder = published(tmp_path / "model", "Llama3-8B-1.58")
    file = tmp_path / "model.gguf"
    convert(folder, file, ConvertOptions("TQ2_0", no_tokenizer=True))
    key, per_token = ROUNDED_INPUTS
    assert open_checkpoint(file).metadata[key] == per_token
    assert relative_difference(logits(file, ignore_keys=[key]), logits(folder)) > 1e-4
    again = tmp_path / "again.gguf"
    convert(file, again, ConvertOptions("TQ1_0", no_tokenizer=True))
    assert open_checkpoint(again).rounds_inputs
    damaged = file.read_bytes().replace(per_token.encode(), b"int4 per token")
    file.write_bytes(damaged)
    with pytest.raises(Unsupported, match=r"is 'int4 per token', expected 'int8 per token'"):
        open_checkpoint(file)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_with_rounded_inputs_gives_the_same(name, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = CONFIGS[name]
    eps = CONFIGS[name]["rms_norm_eps"]
    stored, dense = weights(config)

    class BitLinear(torch.nn.Linear):
        norm = None

        def forward(self, x):
            if self.norm is not None:
                x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * self.norm
            scale = 127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
            rounded = (x * scale).round().clamp(-128, 127) / scale
            return torch.nn.functional.linear(rounded, self.weight)

    shared_keys = {"head_dim": HEAD, "rope_theta": config["rope_theta"], "rms_norm_eps": eps}
    llama_config = transformers.LlamaConfig(**{key: config[key] for key in SIZES} | shared_keys)
    llama_config.tie_word_embeddings = config["tie_word_embeddings"]
    llama_config._attn_implementation = "eager"
    model = transformers.LlamaForCausalLM(llama_config).double().eval()
    state = {
        key: values for key, values in {**stored, **dense}.items() if not isinstance(values, tuple)
    }
    extra_norms = ("inner_attn_ln", "ffn_layernorm")
    state = {
        key: torch.tensor(values)
        for key, values in state.items()
        if key.split(".")[-2] not in extra_norms
    }
    for key, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and key != "lm_head":
            layer = BitLinear(module.in_features, module.out_features, bias=False).double()
            norm_of_module = {"o_proj": "inner_attn_ln", "down_proj": "ffn_layernorm"}
            parent, _, part = key.rpartition(".")
            norm = stored.get(f"{parent}.{norm_of_module.get(part)}.weight")
            layer.norm = None if norm is None else torch.tensor(norm)
            model.set_submodule(key, layer)
    if config["tie_word_embeddings"]:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    turns = config["rope_theta"] ** (-torch.arange(0, HEAD, 2).double() / HEAD)
    model.model.rotary_emb.inv_freq = turns  # which are float32 otherwise
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch, "float32", torch.float64)
    with torch.no_grad():
        expected = model(torch.tensor([IDS]), use_cache=False).logits[0].numpy()
    assert relative_difference(logits(published(tmp_path / "model", name)), expected) < 1e-6


def test_one_bit_models_with_other_bits_are_refused(tmp_path):
    path = published(tmp_path / "model", "bitnet_b1_58-large")
    (path / "config.json").write_text(json.dumps(ONE_BIT | {"weight_bits": 2}))
    with pytest.raises(Unsupported, match="weight_bits = 2"):
        open_checkpoint(path)


def test_a_bitnet_folder_that_names_code_of_another_model_is_refused(tmp_path):
    path = published(tmp_path / "model", "Falcon3-7B-1.58bit")
    other = FALCON3["auto_map"] | {"AutoModelForCausalLM": "modeling_x.OtherForCausalLM"}
    (path / "config.json").write_text(json.dumps(FALCON3 | {"auto_map": other}))
    with pytest.raises(Unsupported, match="brings custom code"):
        open_checkpoint(path)


def test_a_sub_norm_that_is_missing_is_named(tmp_path):
    path = published(tmp_path / "model", "bitnet_b1_58-large")
    checkpoint = open_checkpoint(path)
    del checkpoint.weights["blk.1.ffn_sub_norm.weight"]
    with pytest.raises(InvalidFormat, match=r"layers\.1\.mlp\.ffn_layernorm\.weight .* is missing"):
        load_model(checkpoint)
