"""EmbeddingGemma: Gemma 3 without a head, both directions, windows to each side, projections."""

import importlib.util

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
    encoder_folder,
    expected_vectors,
    randomize,
    sentence_folder,
)

from bitnet import load  # noqa: E402
from bitnet.convert.convert_options import ConvertOptions  # noqa: E402
from bitnet.formats.containers import open_checkpoint  # noqa: E402

pytestmark = QUIET
MAX_COSINE_DISTANCE = 1e-5  # between float32 vectors of the same equations
MAX_COSINE_DISTANCE_TO_LLAMA_CPP = 1e-4  # it adds products in another order


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of sentence-transformers: a random Gemma 3 without a head, and two dense layers."""
    path = tmp_path_factory.mktemp("gemma")
    source = encoder_folder(path / "source")
    for file in source.glob("*.safetensors"):
        file.unlink()
    torch.manual_seed(3)
    config = transformers.Gemma3TextConfig(
        vocab_size=len(WORDS),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=64,
        sliding_window=8,
        query_pre_attn_scalar=16,
        use_bidirectional_attention=True,
        pad_token_id=WORDS.index("never"),  # a word of none of the texts
    )
    model = transformers.Gemma3TextModel(config).eval()
    randomize(model)
    model.save_pretrained(source)
    identity = torch.nn.Identity()
    dense = [(96, identity, False), (48, identity, False)]  # outputs, activation, has a bias
    return sentence_folder(path / "model", source, dense=dense)


def test_vectors_of_a_folder_are_those_of_the_library(folder):
    with load(folder) as model:
        assert model.config.architecture == "gemma-embedding"
        assert not model.config.causal
        assert (
            smallest_cosine(model.embed(TEXTS), expected_vectors(folder)) > 1 - MAX_COSINE_DISTANCE
        )


def test_a_converted_file_has_the_bits_of_its_folder_and_nearly_llama_cpps_vectors(
    folder, tmp_path
):
    file = tmp_path / "model.gguf"
    convert(folder, file, ConvertOptions("F32"))
    keys = open_checkpoint(file).metadata
    assert keys["general.architecture"] == "gemma-embedding"
    assert keys["gemma-embedding.dense_2_feat_out"] == 96
    texts = [text for text in TEXTS if text]  # llama.cpp's server refuses an empty one
    with load(folder) as source, load(file) as converted:
        ours = converted.embed(texts)
        np.testing.assert_array_equal(ours, source.embed(texts))
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed: an extra of crossval")
    assert (
        smallest_cosine(ours, vectors_by_llama_cpp(file, texts))
        > 1 - MAX_COSINE_DISTANCE_TO_LLAMA_CPP
    )
