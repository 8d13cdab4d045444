"""BitNet embedding models: norms before every projection, in both containers, run exactly."""

import numpy as np
import pytest
from bitnet_embeddings import CONFIGS, DIM, EPS, HEAD, HEADS, LAYERS, folder, gguf, random_weights
from conversions import convert
from hf_folders import tiny_folder

from bitnet.base import native
from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.convert.convert_options import ConvertOptions
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import NativeOps
from bitnet.kernels.program import Segment
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import config_from, load_model

KINDS = ("qwen3", "gemma3")
IDS = np.random.default_rng(3).integers(3, 60, 24).tolist()
ALIKE = 0.9999  # least cosine of hidden states by two programs in float64
# quantization_config of a folder whose norms before projections transformers' own layers apply.
ONLINE = {
    "quant_method": "bitnet",
    "linear_class": "autobitlinear",
    "quantization_mode": "online",
    "use_rms_norm": True,
}
needs_native = pytest.mark.skipif(native.module() is None, reason="the native module is not built")


def hidden(path, ops, dtype):
    """The last hidden states of IDS by the model at *path*, ``(T, dim)``."""
    model = load_model(open_checkpoint(path), ops=ops)
    cache = KVCache(model.config, len(IDS), dtype=dtype)
    return model.hidden([Segment(IDS, cache, "all")])[0]


def exact(path):
    """The last hidden states of IDS by the reference backend in float64."""
    return hidden(path, ReferenceOps(dtype=np.float64), np.float64)


def least_cosine(found, expected):
    """The least cosine of two hidden states of one position."""
    products = (found * expected).sum(axis=-1)
    lengths = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
    return (products / lengths).min()


def definition(kind):
    """The pass in float64, written from the published guide alone."""
    weights = {name: w.astype(np.float64) for name, w in random_weights(kind).items()}
    config = CONFIGS[kind]
    gemma = kind == "gemma3"

    def norm(x, weight):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS) * weight

    def norm_weight(name):
        return weights[f"{name}.weight"] + (1 if gemma else 0)

    def bit_linear(x, name):
        w = weights[f"{name}.weight"]
        mean = np.abs(w).mean()
        ternary = np.clip(np.round(w / mean), -1, 1) * mean
        x = norm(x, weights[f"{name}.norm.weight"])
        scale = 127 / np.abs(x).max(axis=-1, keepdims=True)
        return np.clip(np.round(x * scale), -128, 127) / scale @ ternary.T

    turns = np.arange(len(IDS))[:, None] * config["rope_theta"] ** (-np.arange(0, HEAD, 2) / HEAD)

    def rotate(x):  # (T, heads, HEAD)
        a = x[..., : HEAD // 2]
        b = x[..., HEAD // 2 :]
        cos = np.cos(turns)[:, None]
        sin = np.sin(turns)[:, None]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def activation(x):
        if not gemma:
            return x / (1 + np.exp(-x))
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    x = weights["embed_tokens.weight"][IDS] * (np.sqrt(DIM) if gemma else 1)
    future = np.triu(np.ones((len(IDS), len(IDS)), bool), 1)
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        h = norm(x, norm_weight(f"{at}input_layernorm"))
        q, k, v = (
            bit_linear(h, f"{at}self_attn.{part}_proj").reshape(len(IDS), -1, HEAD)
            for part in "qkv"
        )
        q, k = (
            rotate(norm(y, norm_weight(f"{at}self_attn.{n}_norm"))) for n, y in (("q", q), ("k", k))
        )
        k, v = (np.repeat(y, HEADS // y.shape[1], axis=1) for y in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(HEAD)
        scores[:, future] = -np.inf
        share = np.exp(scores - scores.max(axis=-1, keepdims=True))
        share /= share.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", share, v).reshape(len(IDS), -1)
        h = bit_linear(mixed, f"{at}self_attn.o_proj")
        x = x + (norm(h, norm_weight(f"{at}post_attention_layernorm")) if gemma else h)
        before = "pre_feedforward_layernorm" if gemma else "post_attention_layernorm"
        h = norm(x, norm_weight(at + before))
        h = activation(bit_linear(h, f"{at}mlp.gate_proj")) * bit_linear(h, f"{at}mlp.up_proj")
        h = bit_linear(h, f"{at}mlp.down_proj")
        x = x + (norm(h, norm_weight(f"{at}post_feedforward_layernorm")) if gemma else h)
    return norm(x, norm_weight("norm"))


@pytest.mark.parametrize("kind", KINDS)
def test_both_containers_give_the_states_of_the_definition(kind, tmp_path):
    expected = definition(kind)
    for path in (folder(tmp_path / "model", kind), gguf(tmp_path / "model.gguf", kind)):
        assert least_cosine(exact(path), expected) > ALIKE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ops", [ReferenceOps, pytest.param(NativeOps, marks=needs_native)])
def test_the_folder_and_the_file_give_the_same_bits(kind, ops, tmp_path):
    of_folder = hidden(folder(tmp_path / "model", kind), ops(), np.int16)
    of_file = hidden(gguf(tmp_path / "model.gguf", kind), ops(), np.int16)
    np.testing.assert_array_equal(of_folder, of_file)


@pytest.mark.parametrize("kind", KINDS)
def test_converted_matrices_are_microsofts_byte_for_byte(kind, tmp_path):
    source = folder(tmp_path / "model", kind)
    ours = tmp_path / "ours.gguf"
    assert convert(source, ours, ConvertOptions("I2_S")).exact
    theirs = open_checkpoint(gguf(tmp_path / "theirs.gguf", kind)).weights
    matrices = [name for name, weight in theirs.items() if weight.quant.name == "I2_S"]
    assert len(matrices) == 7 * LAYERS  # of q, k, v, output, gate, up and down
    converted = open_checkpoint(ours)
    for name in matrices:
        assert converted.weights[name].data.tobytes() == theirs[name].data.tobytes()
    assert converted.value("pooling_type") == 3  # the last token
    assert least_cosine(exact(ours), exact(source)) > ALIKE


@needs_native
@pytest.mark.parametrize("kind", KINDS)
def test_the_native_backend_agrees(kind, tmp_path):
    path = gguf(tmp_path / "model.gguf", kind)
    # Keys are stored with 16 bits, and the rounding of one may move an activation to the next int8;
    # one such step changes a hidden state by 3e-4.
    assert least_cosine(hidden(path, NativeOps(), np.int16), exact(path)) > 0.9995


@needs_native
def test_the_embedding_stays_in_the_file_where_no_head_is_read(tmp_path):
    checkpoint = open_checkpoint(gguf(tmp_path / "model.gguf", "qwen3"))
    model = load_model(checkpoint, ops=NativeOps(), exact_head="on")
    assert model.head.copy is None
    (read,) = model.ops.reads(model._weights["token_embd.weight"])
    # The rows of tokens are read from the mapped file: nothing was repacked.
    assert np.shares_memory(read, checkpoint.weights["token_embd.weight"].data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_norm_that_is_missing_is_named(kind, tmp_path):
    checkpoint = open_checkpoint(gguf(tmp_path / "model.gguf", kind))
    del checkpoint.weights["blk.1.ffn_down_norm_in.weight"]
    with pytest.raises(InvalidFormat, match=r"blk\.1\.ffn_down_norm_in\.weight .* is missing"):
        load_model(checkpoint)


def test_gemma_3_whose_layers_are_all_full_has_no_window(tmp_path):
    config = config_from(open_checkpoint(gguf(tmp_path / "model.gguf", "gemma3")))
    assert [attention.window for attention in config.attentions] == [0] * LAYERS
    assert [rope.theta for rope in config.ropes] == [10000]


def test_the_norms_of_transformers_own_layers_are_read(tmp_path):
    path = folder(tmp_path / "model", "qwen3", quantization_config=ONLINE)
    assert least_cosine(exact(path), definition("qwen3")) > ALIKE


def test_norms_of_transformers_layers_with_another_epsilon_are_refused(tmp_path):
    quantization = ONLINE | {"rms_norm_eps": 1e-5}
    path = folder(tmp_path / "model", "qwen3", quantization_config=quantization)
    with pytest.raises(Unsupported, match=r"quantization_config\.rms_norm_eps = 1e-05"):
        open_checkpoint(path)


def test_norms_that_the_configuration_promises_and_no_tensor_has_are_missed(tmp_path):
    quantization = ONLINE | {"rms_norm_eps": 1e-5}  # the tiny model's own
    path = tiny_folder(tmp_path / "model", "qwen3", quantization_config=quantization)
    with pytest.raises(InvalidFormat, match="there are none"):
        open_checkpoint(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_with_bit_linear_layers_gives_the_same_states(kind, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path = folder(tmp_path / "model", kind)
    for name in ("float", "type_as"):  # so that float64 is not rounded on the way
        monkeypatch.setattr(torch.Tensor, name, lambda x, *_: x)

    class BitLinear(torch.nn.Linear):
        def forward(self, x):
            x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.norm
            scale = 127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
            mean = self.weight.abs().mean()
            ternary = (self.weight / mean).round().clamp(-1, 1) * mean
            rounded = (x * scale).round().clamp(-128, 127) / scale
            return torch.nn.functional.linear(rounded, ternary)

    config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    config._attn_implementation = "eager"
    model = transformers.AutoModel.from_config(config).double().eval()
    stored = {name: torch.tensor(w).double() for name, w in random_weights(kind).items()}
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear):
            layer = BitLinear(module.in_features, module.out_features, bias=False).double()
            layer.norm = stored.pop(f"{name}.norm.weight")
            model.set_submodule(name, layer)
    model.load_state_dict(stored)
    with torch.no_grad():
        expected = model(torch.tensor([IDS]), use_cache=False).last_hidden_state[0].numpy()
    assert least_cosine(exact(path), expected) > ALIKE
