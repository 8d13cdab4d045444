"""MPNet against transformers and sentence-transformers: tiny random models in folders and files."""

import shutil

import numpy as np
import pytest
from quiet_libraries import QUIET

REASON = "sentence-transformers is not installed: pip install 'bitnet-xtask[parity]'"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)
sentence_transformers = pytest.importorskip("sentence_transformers", reason=REASON)

from conversions import convert  # noqa: E402 - needs torch
from sentence_folders import (  # noqa: E402
    change_json,
    expected_vectors,
    mpnet_folder,
    sentence_folder,
)

from bitnet import load  # noqa: E402
from bitnet.base.errors import Unsupported  # noqa: E402
from bitnet.convert.convert_options import ConvertOptions  # noqa: E402
from bitnet.families.bert import _bucket  # noqa: E402
from bitnet.formats.containers import open_checkpoint  # noqa: E402

pytestmark = QUIET
# Both compute in float32; the compiled module keeps queries, keys and values as 16 bits.
MAX_DIFFERENCE = 2e-4
# The last text is longer than 128 tokens: all distances from 128 on share a bias.
TEXTS = ["A man is eating food.", "dogs run", "", "unknown words, 20 dogs", "a dog runs, " * 50]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of sentence-transformers with a random MPNet, for texts of up to 256 tokens."""
    base = tmp_path_factory.mktemp("mpnet")
    return sentence_folder(base / "model", mpnet_folder(base / "source"), limit=256)


def test_a_key_has_the_bias_of_its_distance_in_transformers():
    module = transformers.models.mpnet.modeling_mpnet.MPNetEncoder
    distances = torch.arange(-400, 401)
    expected = module.relative_position_bucket(distances).tolist()
    # The bucket is the same for all distances from 128 on.
    clipped = np.clip(distances.numpy(), -128, 128).tolist()
    assert [_bucket(distance) for distance in clipped] == expected


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_vectors_are_those_of_sentence_transformers(backend, folder, monkeypatch):
    monkeypatch.setenv("BITNET_BACKEND", backend)
    with load(folder) as model:
        assert model.backend.startswith(backend)
        vectors = model.embed(TEXTS)
        alone = np.concatenate([model.embed([text]) for text in TEXTS])
    np.testing.assert_allclose(vectors, expected_vectors(folder, TEXTS), atol=MAX_DIFFERENCE)
    if backend == "native":
        np.testing.assert_array_equal(vectors, alone)


def test_a_converted_file_has_the_vectors_of_its_folder(folder, tmp_path):
    file = tmp_path / "model.gguf"
    convert(folder, file, ConvertOptions("F32"))
    with load(folder) as model, load(file) as converted:
        np.testing.assert_array_equal(model.embed(TEXTS), converted.embed(TEXTS))


def test_scores_of_pairs_are_those_of_a_cross_encoder(tmp_path):
    path = mpnet_folder(tmp_path / "model", "ForSequenceClassification", num_labels=1)
    documents = ["a dog runs", "a man is eating food", "unknown"]
    theirs = sentence_transformers.CrossEncoder(str(path), device="cpu")
    expected = theirs.predict([("dogs run", document) for document in documents])
    with load(path) as model:
        np.testing.assert_allclose(model.rank("dogs run", documents), expected, atol=2e-4)


def test_another_table_of_biases_is_refused_by_name(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    change_json(copy / "config.json", relative_attention_num_buckets=64)
    with pytest.raises(Unsupported, match="relative_attention_num_buckets"):
        open_checkpoint(copy)
