"""Folders that sentence-transformers saves, with its own vectors as the oracle."""

import json

import numpy as np
import pytest
from quiet_libraries import QUIET

REASON = "sentence-transformers is not installed: pip install 'bitnet-xtask[parity]'"
torch = pytest.importorskip("torch", reason=REASON)
pytest.importorskip("transformers", reason=REASON)
pytest.importorskip("sentence_transformers", reason=REASON)

from engine_vectors import smallest_cosine  # noqa: E402
from sentence_folders import (  # noqa: E402 - needs torch
    TEXTS,
    change_json,
    encoder_folder,
    expected_vectors,
    sentence_folder,
)

from bitnet import load  # noqa: E402
from bitnet.base.errors import InferenceError, InvalidFormat, NotFound, Unsupported  # noqa: E402
from bitnet.formats.containers import open_checkpoint  # noqa: E402

pytestmark = QUIET

MAX_COSINE_DISTANCE = 1e-5  # both compute in float32
PROMPTS = {"query": "query: ", "passage": "passage: "}
# Options of sentence_folder: pooling, projections (width, activation, bias), most tokens of a text.
CHAINS = {
    "mean": {},
    "cls": {"pooling": "cls"},
    "last": {"pooling": "lasttoken"},
    "not normalized": {"normalize": False},
    "cut": {"limit": 8},
    "cut to two": {"limit": 2},
    "one projection": {"dense": [(24, torch.nn.Tanh(), True)]},
    "two projections": {
        "dense": [(96, torch.nn.Identity(), False), (48, torch.nn.Identity(), False)]
    },
    "every activation": {
        "dense": [
            (32, torch.nn.GELU(), True),
            (32, torch.nn.SiLU(), False),
            (32, torch.nn.ReLU(), True),
            (16, torch.nn.Sigmoid(), True),
        ]
    },
    "last, projected, cut": {
        "pooling": "lasttoken",
        "dense": [(8, torch.nn.Identity(), True)],
        "limit": 6,
    },
}

_CHEAP = "last, projected, cut"  # the one that runs without --slow


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return encoder_folder(tmp_path_factory.mktemp("encoder") / "bert")


@pytest.mark.parametrize(
    "chain",
    [_CHEAP, *(pytest.param(name, marks=pytest.mark.slow) for name in CHAINS if name != _CHEAP)],
)
def test_vectors_are_those_of_the_library(chain, encoder, tmp_path):
    path = sentence_folder(tmp_path / "model", encoder, prompts=PROMPTS, **CHAINS[chain])
    with load(path) as model:
        for name in (None, "query", "passage"):
            expected = expected_vectors(path, prompt_name=name)
            vectors = model.embed(TEXTS, prompt_name=name)
            assert vectors.shape == expected.shape
            assert smallest_cosine(vectors, expected) > 1 - MAX_COSINE_DISTANCE


def test_vectors_that_are_not_normalized_have_the_lengths_of_the_library(encoder, tmp_path):
    path = sentence_folder(tmp_path / "model", encoder, normalize=False)
    with load(path) as model:
        vectors = model.embed(TEXTS, normalize=False)
    expected = expected_vectors(path)
    lengths = np.linalg.norm(vectors, axis=1)  # which cosines do not compare
    np.testing.assert_allclose(lengths, np.linalg.norm(expected, axis=1), rtol=1e-4)


def test_the_default_prompt_stands_before_each_text(encoder, tmp_path):
    path = sentence_folder(
        tmp_path / "model", encoder, prompts=PROMPTS, default_prompt_name="query"
    )
    with load(path) as model:
        vectors = model.embed(TEXTS)
        assert smallest_cosine(vectors, expected_vectors(path)) > 1 - MAX_COSINE_DISTANCE
        np.testing.assert_array_equal(vectors, model.embed(TEXTS, prompt_name="query"))


def test_a_folder_without_modules_is_pooled_and_cut_as_the_library_does(encoder):
    with load(encoder) as model:
        vectors = model.embed([*TEXTS, "dog " * 100])  # longer than its 64 positions
    expected = expected_vectors(encoder, [*TEXTS, "dog " * 100])
    assert smallest_cosine(vectors, expected) > 1 - MAX_COSINE_DISTANCE


def test_settings_in_a_folder_without_modules_are_not_read(encoder, tmp_path):
    path = sentence_folder(
        tmp_path / "model", encoder, limit=8, prompts=PROMPTS, default_prompt_name="query"
    )
    (path / "modules.json").unlink()
    change_json(path / "tokenizer_config.json", model_max_length=40)
    change_json(path / "sentence_bert_config.json", max_seq_length=8)
    with load(path) as model:
        assert model.text_limit == 40
        vectors = model.embed([*TEXTS, "dog " * 100])
    expected = expected_vectors(path, [*TEXTS, "dog " * 100])
    assert smallest_cosine(vectors, expected) > 1 - MAX_COSINE_DISTANCE


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pooling_mode_cls_token": False},
        {"pooling_mode_cls_token": True},
        {"pooling_mode": ["mean"]},
        {"pooling_mode": ["cls"], "pooling_mode_lasttoken": True},
        {"pooling_mode": "lasttoken", "pooling_mode_mean_tokens": True},
    ],
)
def test_the_pooling_is_that_of_the_library(settings, encoder, tmp_path):
    path = sentence_folder(tmp_path / "model", encoder)
    settings = {"word_embedding_dimension": 48} | settings  # the width of the encoder
    (path / "1_Pooling/config.json").write_text(json.dumps(settings))
    with load(path) as model:
        vectors = model.embed(TEXTS)
    assert smallest_cosine(vectors, expected_vectors(path)) > 1 - MAX_COSINE_DISTANCE


@pytest.mark.parametrize("mode", [None, [], ["mean", "cls"], ["mean", "mean"], [["mean"]], "max"])
def test_a_pooling_that_is_not_one_of_ours_is_refused(mode, encoder, tmp_path):
    path = sentence_folder(tmp_path / "model", encoder)
    change_json(path / "1_Pooling/config.json", pooling_mode=mode)
    with pytest.raises(Unsupported, match="one of mean, cls and last is computed"):
        open_checkpoint(path)


def test_a_longer_text_is_refused_where_it_may_not_be_cut(encoder, tmp_path):
    path = sentence_folder(tmp_path / "model", encoder, limit=8)
    with load(path) as model:
        with pytest.raises(InferenceError, match="9 tokens, the model reads 8") as caught:
            model.embed(TEXTS, truncate=False)
        assert "--truncate" in caught.value.hint
        model.embed(["dogs run"], truncate=False)


def test_dimensions_are_those_behind_the_projections(encoder, tmp_path):
    dense = [(24, torch.nn.Tanh(), True)]
    path = sentence_folder(tmp_path / "model", encoder, dense=dense)
    with load(path) as model:
        whole = model.embed(TEXTS, normalize=False)
        beginnings = model.embed(TEXTS, normalize=False, dimensions=5)
        assert whole.shape[1] == model.config.vector_dim == 24
    np.testing.assert_array_equal(beginnings, whole[:, :5])


WITH_DENSE = {"dense": [(24, torch.nn.Tanh(), True)]}


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("2_Dense/config.json", {"use_residual": True}, "use_residual"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "module_input_name"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.Hardtanh"}, "activation"),
        ("2_Dense/config.json", {"activation_function": "custom.Act"}, "activation"),
        ("2_Dense/config.json", {"scale": 2}, "scale"),
    ],
)
def test_a_projection_that_computes_something_else_is_refused(
    file, changes, words, encoder, tmp_path
):
    path = sentence_folder(tmp_path / "model", encoder, **WITH_DENSE)
    change_json(path / file, **changes)
    with pytest.raises(Unsupported, match=words):
        open_checkpoint(path)


def test_a_projection_of_other_sizes_or_without_weights_is_damaged(encoder, tmp_path):
    path = sentence_folder(tmp_path / "model", encoder, **WITH_DENSE)
    change_json(path / "2_Dense/config.json", out_features=25)
    with pytest.raises(InvalidFormat, match=r"dense_2\.weight has shape"):
        load(path)
    change_json(path / "2_Dense/config.json", out_features=24, bias=False)
    with pytest.raises(InvalidFormat, match=r"linear\.bias is there"):
        load(path)
    change_json(path / "2_Dense/config.json", in_features=47, bias=True)
    with pytest.raises(InvalidFormat, match="reads vectors of 47 numbers"):
        load(path)
    (path / "2_Dense/model.safetensors").unlink()
    with pytest.raises(NotFound, match="the weights of a projection"):
        load(path)


def test_a_projection_behind_normalization_is_refused(encoder, tmp_path):
    path = sentence_folder(tmp_path / "model", encoder, **WITH_DENSE)
    modules = path / "modules.json"
    text = modules.read_text()
    assert "2_Dense" in text
    content = json.loads(text)
    content[2], content[3] = content[3], content[2]  # the projection and the normalization
    modules.write_text(json.dumps(content))
    with pytest.raises(Unsupported, match="before they are normalized"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {}}}, "processing_kwargs"),
        ("sentence_bert_config.json", {"model_args": {"scale": 2}}, r"model_args\.scale"),
        ("sentence_bert_config.json", {"module_output_name": "sentence_embedding"}, "module_out"),
        ("sentence_bert_config.json", {"unknown": 1}, "unknown"),
        ("sentence_bert_config.json", {"modality_config": {"message": {}}}, "chat template"),
        ("config_sentence_transformers.json", {"truncate_dim": 16}, "truncate_dim"),
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder"}, "model_type"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "model_type"),
    ],
)
def test_settings_of_the_library_that_change_vectors_are_refused(
    file, changes, words, encoder, tmp_path
):
    path = sentence_folder(tmp_path / "model", encoder)
    open_checkpoint(path)
    change_json(path / file, **changes)
    with pytest.raises(Unsupported, match=words):
        open_checkpoint(path)


def test_hidden_states_without_a_pooling_are_refused(encoder, tmp_path):
    path = sentence_folder(tmp_path / "model", encoder)
    modules = path / "modules.json"
    modules.write_text(json.dumps(json.loads(modules.read_text())[:1]))
    with pytest.raises(Unsupported, match="Pooling is expected"):
        open_checkpoint(path)


def test_a_former_name_of_the_settings_is_read(encoder, tmp_path):
    path = sentence_folder(tmp_path / "model", encoder)
    (path / "sentence_bert_config.json").unlink()
    former = path / "sentence_roberta_config.json"
    former.write_text('{"max_seq_length": 8}')
    assert open_checkpoint(path).text_limit == 8
    former.write_text('{"do_lower_case": true}')
    with pytest.raises(Unsupported, match=r"sentence_roberta_config\.json: do_lower_case"):
        open_checkpoint(path)
