"""BitNets as their makers publish them: each file that is made of one gives the same logits."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hf_folders import bf16, save_tensors

from bitnet import native
from bitnet.convert import Request, convert
from bitnet.errors import InvalidFormat, Unsupported
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf_checkpoint import INPUTS
from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.runtime.kv_cache import KVCache

DIM, HEADS, KV_HEADS, HEAD, FFN, LAYERS, VOCAB = 256, 4, 2, 64, 512, 2, 64
IDS = np.random.default_rng(3).integers(3, 60, 16).tolist()
SAME = 1e-9  # of the range of the logits, in float64
# As a GGUF file keeps them: with a little more or less, an activation may round to another int8.
EPS_5, EPS_6 = float(np.float32(1e-5)), float(np.float32(1e-6))

_SIZES = {
    "hidden_size": DIM,
    "intermediate_size": FFN,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "model_type": "llama",
    "pretraining_tp": 1,
    "rope_scaling": None,
    "use_cache": True,
}
# huggingface.co/1bitLLM/bitnet_b1_58-large, but for the sizes; -3B has the same.
ONE_BIT = _SIZES | {
    "_name_or_path": "1bitLLM/bitnet_b1_58-large",
    "architectures": ["BitnetForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "input_bits": 8,
    "num_key_value_heads": HEADS,
    "pad_token_id": 63,
    "rms_norm_eps": EPS_5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float16",
    "weight_bits": 1,
}
_PACKED = _SIZES | {
    "architectures": ["LlamaForCausalLM"],
    "is_bitnet_config": True,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
# huggingface.co/HF1BitLLM/Llama3-8B-1.58-100B-tokens; the file has quantization_config twice.
LLAMA3 = _PACKED | {
    "rms_norm_eps": EPS_5,
    "rope_interleaved": False,
    "rope_theta": 500000.0,
    "quantization_config": {"modules_to_not_convert": None, "quant_method": "bitnet"},
}
LLAMA3_TEXT = json.dumps(LLAMA3)[:-1] + ', "quantization_config": {"quant_method": "bitnet"}}'
# huggingface.co/tiiuae/Falcon3-7B-Base-1.58bit
_FALCON = "tiiuae/falcon3-7B--"
FALCON3 = _PACKED | {
    "activation": "swiglu",
    "auto_map": {
        "AutoConfig": f"{_FALCON}configuration_llama.LlamaConfig",
        "AutoModel": f"{_FALCON}modeling_llama.LlamaModel",
        "AutoModelForCausalLM": f"{_FALCON}modeling_llama.LlamaForCausalLM",
        "AutoModelForQuestionAnswering": f"{_FALCON}modeling_llama.LlamaForQuestionAnswering",
    },
    "bos_token_id": 11,
    "eos_token_id": 11,
    "head_dim": HEAD,
    "parallel_attn": False,
    "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "bitnet"},
    "rms_norm_eps": EPS_6,
    "rope_theta": 1000042,
}
# What transformers writes of layers whose scale multiplies, as onebitllms makes them.
MULTIPLIES = LLAMA3 | {
    "quantization_config": {
        "linear_class": "autobitlinear",
        "modules_to_not_convert": None,
        "quant_method": "bitnet",
        "quantization_mode": "offline",
    }
}
# A TriLM: ternary weights, and inputs that were floats in training. Its folder holds plain numbers.
PLAIN = _PACKED | {"is_bitnet_config": False, "rms_norm_eps": EPS_5, "rope_theta": 10000.0}
CONFIGS = {
    "bitnet_b1_58-large": ONE_BIT,
    "Llama3-8B-1.58": LLAMA3,
    "Falcon3-7B-1.58bit": FALCON3,
    "autobitlinear": MULTIPLIES,
}
SCALE = 16.0  # a power of two, which every encoding of a scale holds


def weights(config):
    """Tensors as they are stored, and the dense float64 matrices that they stand for."""
    rng = np.random.default_rng(6)
    stored, dense = {}, {}
    kv = config["num_key_value_heads"] * HEAD
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for part, shape in {
            "self_attn.q_proj": (DIM, DIM),
            "self_attn.k_proj": (kv, DIM),
            "self_attn.v_proj": (kv, DIM),
            "self_attn.o_proj": (DIM, DIM),
            "mlp.gate_proj": (FFN, DIM),
            "mlp.up_proj": (FFN, DIM),
            "mlp.down_proj": (DIM, FFN),
        }.items():
            _add_matrix(config, f"{at}{part}.weight", shape, rng, stored, dense)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            stored[f"{at}{norm}.weight"] = _halves(rng, DIM)
        if config is ONE_BIT:
            stored[f"{at}self_attn.inner_attn_ln.weight"] = _halves(rng, DIM)
            stored[f"{at}mlp.ffn_layernorm.weight"] = _halves(rng, FFN)
    stored["model.norm.weight"] = _halves(rng, DIM)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if not (name.startswith("lm_head") and config["tie_word_embeddings"]):
            stored[name] = _halves(rng, (VOCAB, DIM)) * rng.choice([-0.5, 0.5], (VOCAB, DIM))
    return stored, dense


def _halves(rng, shape):
    """Numbers from 0.5 to 1.5 that bfloat16 and float16 hold; products of them are rarely ties."""
    values = (0.5 + rng.random(shape)).astype("<f4")
    return (values.view("<u4") >> 16 << 16).view("<f4").astype(np.float64)


def _add_matrix(config, name, shape, rng, stored, dense):
    codes = rng.integers(-1, 2, shape)
    if config is ONE_BIT:
        # Masters; half of them are zeros, so that the mean of their sizes is a power of two.
        codes = rng.permutation(np.resize([-1, 0, 1, 0], codes.size)).reshape(shape)
        stored[name] = codes / 8
        dense[name] = codes / 16
        return
    packed = np.zeros((shape[0] // 4, shape[1]), np.uint8)
    for part, rows in enumerate(np.split(codes + 1, 4)):
        packed |= (rows << (2 * part)).astype(np.uint8)
    stored[name] = ("U8", packed)
    multiplies = "linear_class" in config["quantization_config"]
    stored[f"{name}_scale"] = bf16([1 / SCALE if multiplies else SCALE])
    dense[name] = codes / SCALE


def published(path, name):
    path.mkdir()
    stored = weights(CONFIGS[name])[0]
    save_tensors(
        path / "model.safetensors",
        {key: one if isinstance(one, tuple) else bf16(one) for key, one in stored.items()},
    )
    text = LLAMA3_TEXT if name == "Llama3-8B-1.58" else json.dumps(CONFIGS[name])
    (path / "config.json").write_text(text)
    return path


def without_rounding(path, *, outlier=1.0):
    """A folder of ternary weights in BF16; an input of every layer is *outlier* times as large."""
    path.mkdir()
    stored, dense = weights(LLAMA3)
    stored = {key: one for key, one in stored.items() if not isinstance(one, tuple)}
    plain = {key: one for key, one in (stored | dense).items() if not key.endswith("_scale")}
    for key, one in plain.items():
        if key.endswith("layernorm.weight"):
            one[7] *= outlier
    save_tensors(path / "model.safetensors", {key: bf16(one) for key, one in plain.items()})
    (path / "config.json").write_text(json.dumps(PLAIN))
    return path


def logits(path, *, ops=None, ignore_keys=()):
    ops = ops or ReferenceOps(dtype=np.float64)
    model = load_model(open_checkpoint(path, ignore_keys=ignore_keys), ops=ops)
    cache = KVCache(model.config, len(IDS), dtype=getattr(ops, "dtype", np.float32))
    return model.forward(IDS, cache, all_positions=True)


def apart(found, expected):
    return np.abs(found - expected).max() / np.ptp(expected)


@pytest.mark.parametrize("encoding", ["I2_S", "TQ1_0", "TQ2_0", "IQ2_BN"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_encoding_gives_the_logits_of_the_folder(name, encoding, tmp_path):
    folder, file = published(tmp_path / "model", name), tmp_path / "model.gguf"
    done = convert(folder, file, Request(encoding, no_tokenizer=True))
    assert done.exact
    assert {one.after for one in done.tensors if "attn_q." in one.name} == {encoding}
    assert apart(logits(file), logits(folder)) < SAME


@pytest.mark.parametrize("encoding", ["TQ1_0", "TQ2_0"])
def test_ternary_weights_of_no_bitnet_take_floats(encoding, tmp_path):
    folder, file = without_rounding(tmp_path / "model", outlier=128), tmp_path / "model.gguf"
    done = convert(folder, file, Request(encoding, no_tokenizer=True))
    assert done.exact
    assert not any("int8 per token" in one.text for one in done.warnings)
    checkpoint = open_checkpoint(file)
    assert not checkpoint.rounds_inputs
    expected = logits(folder)
    assert apart(logits(file), expected) < SAME
    bitnet = {name: replace(one, rounds_input=True) for name, one in checkpoint.weights.items()}
    rounded = load_model(replace(checkpoint, weights=bitnet), ops=ReferenceOps(dtype=np.float64))
    cache = KVCache(rounded.config, len(IDS), dtype=np.float64)
    lost = apart(rounded.forward(IDS, cache, all_positions=True), expected)
    if native.module() is not None:
        assert apart(logits(file, ops=NativeOps()), expected) < lost / 4
    assert lost > 1e-3  # a test that rounding could pass would prove nothing


def test_weights_of_no_bitnet_round_where_the_encoding_says_so(tmp_path):
    folder, file = without_rounding(tmp_path / "model"), tmp_path / "model.gguf"
    done = convert(folder, file, Request("I2_S", no_tokenizer=True))
    assert any("rounds what 14 matrices" in one.text for one in done.warnings)


def test_a_key_tells_bitnets_of_other_architectures_from_other_models(tmp_path):
    folder, file = published(tmp_path / "model", "Llama3-8B-1.58"), tmp_path / "model.gguf"
    convert(folder, file, Request("TQ2_0", no_tokenizer=True))
    key, per_token = INPUTS
    assert open_checkpoint(file).metadata[key] == per_token
    assert apart(logits(file, ignore_keys=[key]), logits(folder)) > 1e-4
    again = tmp_path / "again.gguf"
    convert(file, again, Request("TQ1_0", no_tokenizer=True))
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
    config, eps = CONFIGS[name], CONFIGS[name]["rms_norm_eps"]
    stored, dense = weights(config)

    class BitLinear(torch.nn.Linear):
        norm = None

        def forward(self, x):
            if self.norm is not None:
                x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * self.norm
            scale = 127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
            rounded = (x * scale).round().clamp(-128, 127) / scale
            return torch.nn.functional.linear(rounded, self.weight)

    known = {"head_dim": HEAD, "rope_theta": config["rope_theta"], "rms_norm_eps": eps}
    said = transformers.LlamaConfig(**{key: config[key] for key in _SIZES} | known)
    said.tie_word_embeddings = config["tie_word_embeddings"]
    said._attn_implementation = "eager"
    model = transformers.LlamaForCausalLM(said).double().eval()
    state = {key: one for key, one in {**stored, **dense}.items() if not isinstance(one, tuple)}
    own = ("inner_attn_ln", "ffn_layernorm")
    state = {key: torch.tensor(one) for key, one in state.items() if key.split(".")[-2] not in own}
    for key, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and key != "lm_head":
            layer = BitLinear(module.in_features, module.out_features, bias=False).double()
            before = {"o_proj": "inner_attn_ln", "down_proj": "ffn_layernorm"}
            place, _, part = key.rpartition(".")
            norm = stored.get(f"{place}.{before.get(part)}.weight")
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
    assert apart(logits(published(tmp_path / "model", name)), expected) < 1e-6


def test_one_bit_models_with_other_bits_are_refused(tmp_path):
    path = published(tmp_path / "model", "bitnet_b1_58-large")
    (path / "config.json").write_text(json.dumps(ONE_BIT | {"weight_bits": 2}))
    with pytest.raises(Unsupported, match="weight_bits = 2"):
        open_checkpoint(path)


def test_code_of_another_model_is_still_refused(tmp_path):
    path = published(tmp_path / "model", "Falcon3-7B-1.58bit")
    other = FALCON3["auto_map"] | {"AutoModelForCausalLM": "modeling_x.OtherForCausalLM"}
    (path / "config.json").write_text(json.dumps(FALCON3 | {"auto_map": other}))
    with pytest.raises(Unsupported, match="brings custom code"):
        open_checkpoint(path)


def test_a_sub_norm_that_is_missing_is_named(tmp_path):
    path = published(tmp_path / "model", "bitnet_b1_58-large")
    checkpoint = open_checkpoint(path)
    del checkpoint.weights["blk.1.ffn_sub_norm.weight"]
    with pytest.raises(InvalidFormat, match=r"blk\.1\.ffn_sub_norm\.weight .* is missing"):
        load_model(checkpoint)
