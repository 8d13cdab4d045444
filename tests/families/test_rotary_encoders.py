"""ModernBERT, EuroBERT, Nomic-BERT, GTE and Jina v3 against transformers, in folders and files.

Logits of their GGUF files are compared in ``tests/crossval/test_families_against_llama_cpp.py``.
"""

import importlib.util
import json
import shutil

import numpy as np
import pytest
from quiet_libraries import QUIET

REASON = "sentence-transformers is not installed: pip install 'bitnet-xtask[parity]'"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)
pytest.importorskip("sentence_transformers", reason=REASON)

from conversions import convert  # noqa: E402 - needs torch
from engine_vectors import smallest_cosine, vectors_by_llama_cpp  # noqa: E402
from sentence_folders import (  # noqa: E402
    TEXTS,
    WORDS,
    change_json,
    encoder_folder,
    expected_vectors,
    sentence_folder,
)

from bitnet import load  # noqa: E402
from bitnet.base.errors import Unsupported  # noqa: E402
from bitnet.convert.convert_options import ConvertOptions  # noqa: E402
from bitnet.formats.containers import open_checkpoint  # noqa: E402

pytestmark = QUIET
# Both compute in float32; the compiled module keeps queries, keys and values as 16 bits.
MAX_DIFFERENCE = 2e-4
MAX_COSINE_DISTANCE_TO_LLAMA_CPP = 1e-4  # its GELU of these models is the tanh approximation
# Ids of the tiny vocabulary; "never" is a word of none of the texts.
SPECIAL = {"pad_token_id": WORDS.index("never"), "bos_token_id": 2, "eos_token_id": 3}
OF_MODERN = {"cls_token_id": 2, "sep_token_id": 3}
# Class of transformers and options of its configuration.
KINDS = {
    "modernbert": ("ModernBert", OF_MODERN | {"local_attention": 8}),
    "modernbert-odd-window": (
        "ModernBert",
        OF_MODERN | {"local_attention": 7, "hidden_activation": "silu", "num_hidden_layers": 5},
    ),
    "eurobert": ("EuroBert", {"num_key_value_heads": 2, "mask_token_id": 4}),
    "nomic": ("NomicBert", {}),
    "gte": ("Gte", {}),
    "gte-without-types": ("Gte", {"type_vocab_size": 0}),
    "jina-v3": ("JinaEmbeddingsV3", {}),
}
# One kind is fast enough for every run.
_SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "modernbert"]
EVERY = ["modernbert", *_SLOW]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A function that returns the folder of a kind, written once."""
    written = {}

    def folder(kind):
        if kind not in written:
            base = tmp_path_factory.mktemp("encoders")
            name, options = KINDS[kind]
            source = encoder_folder(base / "source", name, **(SPECIAL | options))
            written[kind] = sentence_folder(base / "model", source)
        return written[kind]

    return folder


@pytest.mark.parametrize("kind", EVERY)
def test_vectors_are_those_of_sentence_transformers(kind, folders):
    path = folders(kind)
    with load(path) as model:
        vectors = model.embed(TEXTS)
        alone = np.concatenate([model.embed([text]) for text in TEXTS])
    np.testing.assert_allclose(vectors, expected_vectors(path), atol=MAX_DIFFERENCE)
    np.testing.assert_array_equal(vectors, alone)


@pytest.mark.parametrize("kind", EVERY)
def test_vectors_of_the_reference_backend_are_those_of_sentence_transformers(
    kind, folders, monkeypatch
):
    monkeypatch.setenv("BITNET_BACKEND", "reference")
    path = folders(kind)
    with load(path) as model:
        assert model.backend == "reference"
        vectors = model.embed(TEXTS)
    np.testing.assert_allclose(vectors, expected_vectors(path), atol=MAX_DIFFERENCE)


@pytest.mark.parametrize("kind", EVERY)
def test_a_converted_file_has_the_bits_of_its_folder_and_nearly_llama_cpps_vectors(
    kind, folders, tmp_path
):
    path = folders(kind)
    file = tmp_path / "model.gguf"
    convert(path, file, ConvertOptions("F32"))
    texts = [text for text in TEXTS if text]  # llama.cpp's server refuses an empty one
    with load(path) as folder, load(file) as converted:
        vectors = converted.embed(texts)
        np.testing.assert_array_equal(vectors, folder.embed(texts))
    if kind.startswith("gte"):
        return  # llama.cpp does not know GTE
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed: an extra of crossval")
    theirs = vectors_by_llama_cpp(file, texts)
    assert smallest_cosine(vectors, theirs) > 1 - MAX_COSINE_DISTANCE_TO_LLAMA_CPP


def test_former_names_of_the_keys_of_modernbert_are_read(folders, tmp_path):
    path = folders("modernbert")
    copy = tmp_path / "model"
    shutil.copytree(path, copy)
    config = json.loads((copy / "config.json").read_text())
    del config["rope_parameters"], config["layer_types"]
    former = {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    (copy / "config.json").write_text(
        json.dumps(config | former | {"global_attn_every_n_layers": 3})
    )
    with load(path) as model, load(copy) as other:
        ids = [[2, 5, 6, 7, 8, 9, 10, 11, 3] * 4]
        np.testing.assert_array_equal(
            model.embed(ids, normalize=False), other.embed(ids, normalize=False)
        )


def test_published_names_of_the_keys_of_nomic_bert_are_read(folders):
    path = folders("nomic")
    file = path / "config.json"
    config = json.loads(file.read_text())
    renamed = {
        "n_embd": "hidden_size",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "n_layer": "num_hidden_layers",
        "layer_norm_epsilon": "layer_norm_eps",
    }
    published = {
        **{name: value for name, value in config.items() if name not in renamed.values()},
        **{name: config[usual] for name, usual in renamed.items()},
        "activation_function": "swiglu",
        "prenorm": False,
        "qkv_proj_bias": False,
        "n_positions": 8192,
        "max_trained_positions": 2048,
        "rotary_emb_base": 1000.0,
    }
    for name in ("rope_parameters", "head_dim", "max_position_embeddings", "hidden_act"):
        del published[name]
    with load(path) as model:
        expected = model.embed(TEXTS)
    try:
        file.write_text(json.dumps(published))
        with load(path) as model:
            assert model.config.context_length == 2048  # max_trained_positions, not n_positions
            np.testing.assert_array_equal(model.embed(TEXTS), expected)
    finally:
        file.write_text(json.dumps(config))


def test_the_published_frequencies_of_gte_are_those_of_its_code(folders):
    """``NTKScalingRotaryEmbedding``: ``(theta * factor) ** (-2i / d) / factor ** (2 / d)``."""
    path = folders("gte")
    file = path / "config.json"
    config = json.loads(file.read_text())
    published = {name: value for name, value in config.items() if name != "rope_parameters"}
    published |= {"model_type": "new", "architectures": ["NewModel"], "rope_theta": 20000.0}
    published |= {"rope_scaling": {"type": "ntk", "factor": 8.0}, "pack_qkv": True}
    try:
        file.write_text(json.dumps(published))
        with load(path) as model:
            (rope,) = model.config.ropes
            frequencies, factor = rope.frequencies(64)
    finally:
        file.write_text(json.dumps(config))
    pairs = np.arange(0, rope.dims, 2) / rope.dims
    # theta * factor is 20,000 * 8.
    np.testing.assert_allclose(frequencies, 160000.0**-pairs / 8 ** (2 / rope.dims))
    assert factor == 1


def test_ntk_scaling_is_refused_in_other_families(folders):
    path = folders("nomic")
    config = (path / "config.json").read_text()
    try:
        change_json(path / "config.json", rope_scaling={"type": "ntk", "factor": 8.0})
        with pytest.raises(Unsupported, match='rope_type = "ntk"'):
            open_checkpoint(path)
    finally:
        (path / "config.json").write_text(config)


@pytest.mark.parametrize(
    ("kind", "changes", "key"),
    [
        ("modernbert", {"norm_bias": True}, "norm_bias"),
        ("modernbert", {"hidden_activation": "relu"}, "relu"),
        ("nomic", {"activation_function": "gelu"}, "activation_function"),
        ("nomic", {"prenorm": True}, "prenorm"),
        ("gte", {"logn_attention_scale": True}, "logn_attention_scale"),
        ("gte", {"layer_norm_type": "rms_norm"}, "layer_norm_type"),
    ],
)
def test_a_kind_of_encoder_that_is_not_computed_is_refused_by_its_key(kind, changes, key, folders):
    path = folders(kind)
    config = (path / "config.json").read_text()
    try:
        change_json(path / "config.json", **changes)
        with pytest.raises(Unsupported, match=key):
            open_checkpoint(path)
    finally:
        (path / "config.json").write_text(config)
