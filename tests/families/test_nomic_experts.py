"""Nomic-BERT with experts from folders, against transformers' blocks with a mixture written here.

transformers has the attention and the norms of these models; the mixture is that of the code which
is published beside them: a softmax over all experts, whose best are not renormalised, and a bias of
the sum. llama.cpp, which leaves that bias out, computes a converted file without it.
"""

import json
import re
import shutil

import numpy as np
import pytest
from quiet_libraries import QUIET

REASON = "sentence-transformers is not installed: pip install 'bitnet-xtask[parity]'"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)
pytest.importorskip("sentence_transformers", reason=REASON)

from conversions import convert  # noqa: E402 - needs torch
from safetensors.torch import load_file, save_file  # noqa: E402
from sentence_folders import WORDS, change_json, randomize, save_tokenizer  # noqa: E402

from bitnet import load  # noqa: E402
from bitnet.base.errors import Unsupported  # noqa: E402
from bitnet.convert.convert_options import ConvertOptions  # noqa: E402
from bitnet.formats.containers import open_checkpoint  # noqa: E402

pytestmark = QUIET
MAX_DIFFERENCE = 2e-4  # of the largest entry; the compiled module keeps keys as 16 bits
EXPERTS = 6
USED = 2  # experts of each token
WIDTH = 48  # of hidden states
INNER = 96  # width of an expert, and of a dense network
IDS = [[2, 5, 6, 7, 8, 9, 10, 11, 3], [2, 13, 3], [2, *(range(5, 20)), 12, 13, 3]]


class Mixture(torch.nn.Module):
    """Experts without a gate and their router."""

    def __init__(self):
        super().__init__()
        self.router = torch.nn.Linear(WIDTH, EXPERTS, bias=False)
        self.w1 = torch.nn.Parameter(torch.randn(EXPERTS * INNER, WIDTH) * 0.2)
        self.w2 = torch.nn.Parameter(torch.randn(EXPERTS * INNER, WIDTH) * 0.2)
        self.bias = torch.nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        weights, chosen = self.router(x).softmax(dim=-1).topk(USED, dim=-1)
        up = self.w1.view(EXPERTS, INNER, WIDTH)[chosen]
        down = self.w2.view(EXPERTS, INNER, WIDTH)[chosen]
        inner = torch.nn.functional.gelu(torch.einsum("btkfd,btd->btkf", up, x))
        each = torch.einsum("btkf,btkfd->btkd", inner, down)
        return (each * weights[..., None]).sum(dim=2) + self.bias


class Network(torch.nn.Module):
    """A network without a gate, with biases."""

    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(WIDTH, INNER)
        self.fc2 = torch.nn.Linear(INNER, WIDTH)

    def forward(self, x):
        return self.fc2(torch.nn.functional.gelu(self.fc1(x)))


def published_names(tensors, model):
    """*tensors* of the *model* by the names of the published files."""
    named = {}
    for name, value in tensors.items():
        published = re.sub(r"^layers\.", "encoder.layers.", name)
        published = published.replace("post_attention_layernorm", "norm1")
        published = published.replace("post_mlp_layernorm", "norm2")
        published = published.replace("self_attn.o_proj", "attn.out_proj")
        published = published.replace("embeddings.LayerNorm", "emb_ln").replace(
            "mlp.router", "mlp.router.layer"
        )
        published = re.sub(r"mlp\.(w[12])$", r"mlp.experts.mlp.\1", published)
        published = re.sub(r"mlp\.bias$", "mlp.experts.bias", published)
        named[published] = value
    for layer in range(model.config.num_hidden_layers):
        for kind in ("weight", "bias"):
            block = f"encoder.layers.{layer}."
            parts = [named.pop(f"{block}self_attn.{part}_proj.{kind}") for part in "qkv"]
            named[f"{block}attn.Wqkv.{kind}"] = torch.cat(parts)
    return {name: value.contiguous() for name, value in named.items()}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder with published names, and the model of transformers with the same weights."""
    path = tmp_path_factory.mktemp("nomic")
    torch.manual_seed(7)
    config = transformers.NomicBertConfig(
        vocab_size=len(WORDS),
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=64,
        type_vocab_size=1,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    model = transformers.NomicBertModel(config, add_pooling_layer=False).float().eval()
    for number, layer in enumerate(model.layers):
        layer.mlp = Mixture() if number % 2 else Network()
        for part in "qkvo":
            setattr(layer.self_attn, f"{part}_proj", torch.nn.Linear(WIDTH, WIDTH))
    randomize(model)
    save_file(published_names(model.state_dict(), model), path / "model.safetensors")
    save_tokenizer(path)
    config_keys = {
        "model_type": "nomic_bert",
        "architectures": ["NomicBertModel"],
        "auto_map": {"AutoModel": "modeling_hf_nomic_bert.NomicBertModel"},
        "activation_function": "gelu",
        "causal": False,
        "expert_choice_router": False,
        "ffn_div": 1,
        "layer_norm_epsilon": config.layer_norm_eps,
        "max_trained_positions": 2048,
        "mlp_fc1_bias": True,
        "mlp_fc2_bias": True,
        "moe_every_n_layers": 2,
        "moe_impl": "megablocks",
        "moe_normalize_expert_weights": False,
        "moe_top_k": USED,
        "n_embd": WIDTH,
        "n_head": 4,
        "n_inner": INNER,
        "n_layer": 4,
        "n_positions": 64,
        "num_experts": EXPERTS,
        "num_shared_experts": 0,
        "prenorm": False,
        "qkv_proj_bias": True,
        "rotary_emb_base": 10000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "type_vocab_size": 1,
        "use_rms_norm": None,
        "vocab_size": len(WORDS),
    }
    (path / "config.json").write_text(json.dumps(config_keys))
    return path, model


def means_of(model):
    """Means of hidden states of each text, ``(N, dim)``."""
    with torch.no_grad():
        states = [model(torch.tensor([ids])).last_hidden_state[0].mean(0) for ids in IDS]
    return torch.stack(states).numpy()


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_vectors_are_those_of_the_equations(backend, published, monkeypatch):
    monkeypatch.setenv("BITNET_BACKEND", backend)
    path, model = published
    with load(path) as running:
        assert running.backend.startswith(backend)
        vectors = running.embed(IDS, normalize=False)
        alone = np.concatenate([running.embed([ids], normalize=False) for ids in IDS])
    expected = means_of(model)
    np.testing.assert_allclose(vectors, expected, atol=MAX_DIFFERENCE * np.abs(expected).max())
    if backend == "native":
        np.testing.assert_array_equal(vectors, alone)


def test_a_converted_file_has_the_same_bits(published, tmp_path):
    path, _ = published
    file = tmp_path / "model.gguf"
    convert(path, file, ConvertOptions("F32"))
    assert open_checkpoint(file).architecture == "nomic-bert-moe"
    with load(path) as folder, load(file) as converted:
        np.testing.assert_array_equal(folder.embed(IDS), converted.embed(IDS))


def test_llama_cpp_agrees_where_the_sum_has_no_bias(published, tmp_path):
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: an extra of crossval")
    from engine_vectors import smallest_cosine, vectors_by_llama_cpp

    path = tmp_path / "model"
    shutil.copytree(published[0], path)
    tensors = load_file(path / "model.safetensors")
    without_bias = {
        name: value for name, value in tensors.items() if not name.endswith("experts.bias")
    }
    assert len(without_bias) == len(tensors) - 2  # two of the four layers have experts
    save_file(without_bias, path / "model.safetensors")
    file = tmp_path / "model.gguf"
    convert(path, file, ConvertOptions("F32"))
    texts = ["a man is eating food.", "dogs run", "unknown words, 20 dogs"]
    with load(file) as model:
        vectors = model.embed(texts)
    # llama.cpp adds products in another order.
    assert smallest_cosine(vectors, vectors_by_llama_cpp(file, texts)) > 1 - 1e-4


@pytest.mark.parametrize(
    "changes",
    [
        {"activation_function": "swiglu"},
        {"moe_normalize_expert_weights": True},
        {"expert_choice_router": True},
        {"num_shared_experts": 1},
        {"mlp_fc1_bias": False},
        {"use_rms_norm": True},
    ],
)
def test_a_kind_of_experts_that_is_not_computed_is_refused_by_its_key(changes, published, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(published[0], path)
    change_json(path / "config.json", **changes)
    with pytest.raises(Unsupported, match=next(iter(changes))):
        open_checkpoint(path)
