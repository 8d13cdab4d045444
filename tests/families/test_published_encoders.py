"""NeoBERT and Jina v2, whose code is beside the models, against their equations in torch."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: an extra of parity")
F = torch.nn.functional

from safetensors.torch import save_file  # noqa: E402 - needs torch

from bitnet.base.errors import Unsupported  # noqa: E402
from bitnet.formats.containers import open_checkpoint  # noqa: E402
from bitnet.kernels.kv_cache import KVCache  # noqa: E402
from bitnet.kernels.program import Segment  # noqa: E402
from bitnet.models.load import load_model  # noqa: E402

WIDTH = 48
HEADS = 4
LAYERS = 2
ROWS = 23  # of the embedding
IDS = [2, 5, 9, 13, 21, 7, 3]
MAX_DIFFERENCE = 1e-4  # both compute in float32


def random_tensors(shapes):
    """Random tensors of these *shapes* by name; weights of norms are near one."""
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.randn(shape, generator=generator) * 0.2 + float("norm.weight" in name.lower())
        for name, shape in shapes.items()
    }


def write_folder(path, config, tensors):
    """Write *config* and *tensors* as the folder *path*, and return it."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors"
    )
    return path


def hidden_states(path):
    """Hidden states of IDS, ``(T, dim)``, by the folder *path*."""
    model = load_model(open_checkpoint(path))
    cache = KVCache(model.config, 32, dtype=np.float32)
    return model.hidden([Segment(IDS, cache, "all")])[0]


def attend(q, k, v, bias=None):
    """Attention of ``(T, H, D)`` to all positions."""
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    if bias is not None:
        scores = scores + bias
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(len(q), -1)


NEOBERT = {
    "model_type": "neobert",
    "architectures": ["NeoBERT"],
    "hidden_size": WIDTH,
    "intermediate_size": 100,
    "max_length": 64,
    "norm_eps": 1e-5,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "vocab_size": ROWS,
}
# NeoBERT's networks have two thirds of ``intermediate_size``, up to a multiple of eight.
NEOBERT_FFN = 72


def neobert_tensors():
    """Random tensors of a NeoBERT with the names of its published folder."""
    shapes = {"model.encoder.weight": (ROWS, WIDTH), "model.layer_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        block = f"model.transformer_encoder.{layer}."
        shapes |= {
            f"{block}attention_norm.weight": (WIDTH,),
            f"{block}ffn_norm.weight": (WIDTH,),
            f"{block}qkv.weight": (3 * WIDTH, WIDTH),
            f"{block}wo.weight": (WIDTH, WIDTH),
            f"{block}ffn.w12.weight": (2 * NEOBERT_FFN, WIDTH),
            f"{block}ffn.w3.weight": (WIDTH, NEOBERT_FFN),
        }
    return random_tensors(shapes)


def neobert(tensors):
    """Hidden states ``(T, dim)`` by the equations of NeoBERT's published code."""

    def norm(x, name):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NEOBERT["norm_eps"])
        return x * tensors[name]

    dim = WIDTH // HEADS
    frequencies = 10000.0 ** -(torch.arange(0, dim, 2) / dim)
    angles = torch.outer(torch.arange(len(IDS)), frequencies)
    turns = torch.polar(torch.ones_like(angles), angles)[:, None]

    def rotate(x):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
        return torch.view_as_real(pairs * turns).flatten(-2)

    x = tensors["model.encoder.weight"][IDS]
    for layer in range(LAYERS):
        block = f"model.transformer_encoder.{layer}."
        qkv = norm(x, f"{block}attention_norm.weight") @ tensors[f"{block}qkv.weight"].T
        q, k, v = qkv.view(len(IDS), HEADS, 3 * dim).chunk(3, dim=-1)
        x = x + attend(rotate(q), rotate(k), v) @ tensors[f"{block}wo.weight"].T
        h = norm(x, f"{block}ffn_norm.weight") @ tensors[f"{block}ffn.w12.weight"].T
        gate, up = h.chunk(2, dim=-1)
        x = x + (F.silu(gate) * up) @ tensors[f"{block}ffn.w3.weight"].T
    return norm(x, "model.layer_norm.weight")


def test_hidden_states_of_neobert_are_those_of_its_equations(tmp_path):
    tensors = neobert_tensors()
    path = write_folder(tmp_path / "model", NEOBERT, tensors)
    np.testing.assert_allclose(hidden_states(path), neobert(tensors), atol=MAX_DIFFERENCE)


JINA2 = {
    "model_type": "bert",
    "architectures": ["JinaBertForMaskedLM"],
    "feed_forward_type": "geglu",
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "position_embedding_type": "alibi",
    "type_vocab_size": 2,
    "vocab_size": ROWS,
}


def jina2_tensors(*, for_code):
    """Random tensors of a Jina v2, or of its variant *for_code*, with published names."""
    shapes = {
        "embeddings.word_embeddings.weight": (ROWS, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "embeddings.LayerNorm.weight": (WIDTH,),
        "embeddings.LayerNorm.bias": (WIDTH,),
    }
    up = "gated_layers"
    down = "wo"
    last_norm = "mlp.layernorm"
    if for_code:
        up = "up_gated_layer"
        down = "down_layer"
        last_norm = "layer_norm_2"
    for layer in range(LAYERS):
        block = f"encoder.layer.{layer}."
        norms = ["attention.output.LayerNorm", last_norm]
        if for_code:
            norms += ["layer_norm_1", "attention.self.layer_norm_q", "attention.self.layer_norm_k"]
        products = [f"attention.self.{part}" for part in ("query", "key", "value")]
        for name in (*products, "attention.output.dense"):
            shapes |= {f"{block}{name}.weight": (WIDTH, WIDTH), f"{block}{name}.bias": (WIDTH,)}
        for name in norms:
            shapes |= {f"{block}{name}.weight": (WIDTH,), f"{block}{name}.bias": (WIDTH,)}
        shapes |= {
            f"{block}mlp.{up}.weight": (192, WIDTH),
            f"{block}mlp.{down}.weight": (WIDTH, 96),
            f"{block}mlp.{down}.bias": (WIDTH,),
        }
    return random_tensors(shapes)


def jina2(tensors, *, for_code):
    """Hidden states ``(T, dim)`` by the equations of Jina's published code."""

    def linear(x, name):
        return F.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    def norm(x, name):
        weight = tensors[f"{name}.weight"]
        bias = tensors[f"{name}.bias"]
        return F.layer_norm(x, (WIDTH,), weight, bias, JINA2["layer_norm_eps"])

    places = torch.arange(len(IDS))
    distances = (places[:, None] - places[None]).abs()
    slopes = torch.tensor([2.0 ** -(8 * (head + 1) / HEADS) for head in range(HEADS)])
    bias = -slopes[:, None, None] * distances
    types = tensors["embeddings.token_type_embeddings.weight"][0]
    x = norm(tensors["embeddings.word_embeddings.weight"][IDS] + types, "embeddings.LayerNorm")
    for layer in range(LAYERS):
        block = f"encoder.layer.{layer}."
        q, k, v = (linear(x, f"{block}attention.self.{name}") for name in ("query", "key", "value"))
        if for_code:
            q = norm(q, f"{block}attention.self.layer_norm_q")
            k = norm(k, f"{block}attention.self.layer_norm_k")
        heads = [part.view(len(IDS), HEADS, -1) for part in (q, k, v)]
        y = linear(attend(*heads, bias), f"{block}attention.output.dense")
        h = norm(x + y, f"{block}attention.output.LayerNorm")
        if for_code:
            h = norm(x + h, f"{block}layer_norm_1")
            up, gate = linear(h, f"{block}mlp.up_gated_layer").chunk(2, dim=-1)
            y = linear(up * F.gelu(gate), f"{block}mlp.down_layer")
            x = norm(h + y, f"{block}layer_norm_2")
        else:
            gate, up = linear(h, f"{block}mlp.gated_layers").chunk(2, dim=-1)
            x = norm(h + linear(F.gelu(gate) * up, f"{block}mlp.wo"), f"{block}mlp.layernorm")
    return x


@pytest.mark.parametrize("for_code", [False, True])
def test_hidden_states_of_jina_v2_are_those_of_its_equations(for_code, tmp_path):
    tensors = jina2_tensors(for_code=for_code)
    path = write_folder(tmp_path / "model", JINA2, tensors)
    expected = jina2(tensors, for_code=for_code)
    np.testing.assert_allclose(hidden_states(path), expected, atol=MAX_DIFFERENCE)


@pytest.mark.parametrize(
    "changes", [{"feed_forward_type": "original"}, {"position_embedding_type": "absolute"}]
)
def test_a_jina_v2_with_another_network_or_position_embedding_is_refused_by_its_key(
    changes, tmp_path
):
    path = write_folder(tmp_path / "model", JINA2 | changes, jina2_tensors(for_code=False))
    with pytest.raises(Unsupported, match=next(iter(changes))):
        open_checkpoint(path)
