"""Scores of pairs and classes of texts against sentence-transformers and transformers."""

import json
import warnings

import numpy as np
import pytest
from quiet_libraries import QUIET

REASON = "sentence-transformers is not installed: pip install 'bitnet-xtask[parity]'"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)
sentence_transformers = pytest.importorskip("sentence_transformers", reason=REASON)

from conversions import convert  # noqa: E402 - needs torch
from sentence_folders import TEXTS, WORDS, change_json, encoder_folder  # noqa: E402

from bitnet import load  # noqa: E402
from bitnet.base.errors import InferenceError, InvalidFormat, Unsupported  # noqa: E402
from bitnet.convert.convert_options import ConvertOptions  # noqa: E402
from bitnet.formats.containers import open_checkpoint  # noqa: E402

pytestmark = QUIET
MAX_DIFFERENCE = 2e-4  # of scores: the compiled module keeps keys and values in 16 bits
HEAD = "ForSequenceClassification"
QUERY = "dogs eating food"
DOCUMENTS = [*TEXTS, "man 2 . , é " * 12]  # the last one is longer than a pair may be
NEVER = WORDS.index("never")  # so that no token of a text is taken for padding
# Ids of special tokens in the configurations of models with rotary positions.
ROTARY = {"pad_token_id": NEVER, "bos_token_id": 2, "eos_token_id": 3}
# Prefix of the classes in transformers, and options of the configuration.
KINDS = {
    "bert": ("Bert", {}),
    "bert without types": ("Bert", {"type_vocab_size": 1}),
    "roberta": ("Roberta", {"pad_token_id": NEVER, "max_position_embeddings": 84}),
    "xlm-r": ("XLMRoberta", {"pad_token_id": 0, "max_position_embeddings": 65}),
    "distilbert": ("DistilBert", {"dim": 48, "n_heads": 4, "n_layers": 3, "hidden_dim": 96}),
    "modernbert": ("ModernBert", {"local_attention": 8, **ROTARY}),
    "modernbert mean": ("ModernBert", {"classifier_pooling": "mean", **ROTARY}),
    "eurobert": ("EuroBert", {"classifier_pooling": "bos", **ROTARY}),
    "nomic": ("NomicBert", ROTARY),
    "gte": ("Gte", ROTARY),
    "jina v3": ("JinaEmbeddingsV3", ROTARY),
}


def folder_of(path, kind, labels, **more):
    """A folder of a random encoder of *kind* that scores *labels*, and reads 40 tokens at most."""
    name, options = KINDS[kind]
    encoder_folder(path, name, HEAD, num_labels=labels, **(options | more))
    change_json(path / "tokenizer_config.json", model_max_length=40)
    if KINDS[kind][0] != "Bert":  # the tokenizers of the others have no types
        change_json(
            path / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"]
        )
    return path


def expected_scores(path, query=QUERY, documents=DOCUMENTS):
    """Scores of sentence-transformers, ``(N,)``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = sentence_transformers.CrossEncoder(str(path), device="cpu")
        return model.predict([(query, document) for document in documents])


@pytest.mark.parametrize(
    "kind", ["bert", *(pytest.param(it, marks=pytest.mark.slow) for it in KINDS if it != "bert")]
)
def test_scores_are_those_of_the_cross_encoder(kind, tmp_path):
    path = folder_of(tmp_path / "model", kind, 1)
    if kind == "bert without types":
        change_json(
            path / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"]
        )
    with load(path) as model:
        scores = model.rank(QUERY, DOCUMENTS)
        # The same bits as in a batch of all documents.
        alone = np.concatenate([model.rank(QUERY, [document]) for document in DOCUMENTS])
        long = model.rank("a man " * 30, DOCUMENTS)
    np.testing.assert_allclose(scores, expected_scores(path), atol=MAX_DIFFERENCE)
    np.testing.assert_array_equal(scores, alone)
    np.testing.assert_allclose(long, expected_scores(path, "a man " * 30), atol=MAX_DIFFERENCE)


def test_token_types_tell_the_texts_of_a_pair_apart(tmp_path):
    path = folder_of(tmp_path / "model", "bert", 1)
    with load(path) as model:
        pairs = model.rank(QUERY, ["dogs run"])
        model.tokenizer.second_type = 0  # as if both texts were the first one
        assert abs(pairs - model.rank(QUERY, ["dogs run"])) > 10 * MAX_DIFFERENCE


def test_scores_on_the_reference_backend_are_those_of_the_cross_encoder(tmp_path, monkeypatch):
    monkeypatch.setenv("BITNET_BACKEND", "reference")
    path = folder_of(tmp_path / "model", "bert", 1)
    with load(path) as model:
        assert model.backend == "reference"
        scores = model.rank(QUERY, DOCUMENTS)
    np.testing.assert_allclose(scores, expected_scores(path), atol=MAX_DIFFERENCE)


@pytest.mark.parametrize(
    "name", ["torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"]
)
def test_the_activation_of_a_score_is_that_of_the_settings(name, tmp_path):
    path = folder_of(tmp_path / "model", "bert", 1)
    change_json(path / "config.json", sentence_transformers={"activation_fn": name})
    with load(path) as model:
        scores = model.rank(QUERY, DOCUMENTS)
    # Logits, without a sigmoid, differ by more than probabilities.
    np.testing.assert_allclose(scores, expected_scores(path), atol=5 * MAX_DIFFERENCE)


@pytest.fixture
def prompted(tmp_path):
    """A folder of the library with two prompts, of which the second is the default."""
    source = folder_of(tmp_path / "source", "bert", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        encoder = sentence_transformers.CrossEncoder(
            str(source),
            device="cpu",
            prompts={"web": "query : ", "dogs": "dog dog "},
            default_prompt_name="dogs",
            max_length=12,
        )
        encoder.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    return tmp_path / "model"


def test_the_default_prompt_stands_before_the_query(prompted):
    with load(prompted) as model:
        scores = model.rank(QUERY, DOCUMENTS)
        labels = model.classify(TEXTS)
    np.testing.assert_allclose(scores, expected_scores(prompted), atol=MAX_DIFFERENCE)
    change_json(prompted / "config_sentence_transformers.json", default_prompt_name=None)
    with load(prompted) as model:
        assert np.abs(model.rank(QUERY, DOCUMENTS) - scores).max() > 10 * MAX_DIFFERENCE
        prefixed = model.classify([f"dog dog {text}" for text in TEXTS])
    np.testing.assert_array_equal(labels, prefixed)


@pytest.mark.parametrize("change", ["another class", "no class", "no modules"])
def test_settings_that_the_library_does_not_read_are_without_effect(change, prompted):
    settings = prompted / "config_sentence_transformers.json"
    if change == "another class":
        change_json(settings, model_type="SentenceTransformer")
    elif change == "no class":
        content = json.loads(settings.read_text())
        del content["model_type"]
        settings.write_text(json.dumps(content))
    else:
        (prompted / "modules.json").unlink()
    # Of both limits, the library reads only the tokenizer's.
    change_json(prompted / "sentence_bert_config.json", max_seq_length=6)
    with load(prompted) as model:
        assert model.text_limit == 12
        assert not model.prompts.texts
        scores = model.rank(QUERY, DOCUMENTS)
    np.testing.assert_allclose(scores, expected_scores(prompted), atol=MAX_DIFFERENCE)


def test_an_unknown_activation_of_scores_is_refused(tmp_path):
    path = folder_of(tmp_path / "model", "bert", 1)
    change_json(path / "config.json", sbert_ce_default_activation_function="mine.Function")
    with pytest.raises(Unsupported, match=r"mine\.Function"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("bert", None),
        pytest.param("roberta", "multi_label_classification", marks=pytest.mark.slow),
        pytest.param("distilbert", "regression", marks=pytest.mark.slow),
        pytest.param("bert", "single_label_classification", marks=pytest.mark.slow),
    ],
)
def test_probabilities_of_labels_are_those_of_the_pipeline(kind, problem, tmp_path):
    labels = {0: "sad", 1: "neutral", 2: "glad"}
    path = folder_of(tmp_path / "model", kind, 3, id2label=labels, problem_type=problem)
    pipeline = transformers.pipeline(
        "text-classification", model=str(path), top_k=None, device="cpu", truncation=True
    )
    with load(path) as model:
        assert model.config.classifier.labels == tuple(labels.values())
        rows = model.classify(TEXTS)
    for text, row in zip(TEXTS, rows, strict=True):
        expected = {entry["label"]: entry["score"] for entry in pipeline([text])[0]}
        for label, probability in zip(labels.values(), row, strict=True):
            assert probability == pytest.approx(expected[label], abs=1e-3)


def test_a_decoder_scores_the_state_of_the_last_token(tmp_path):
    torch.manual_seed(1)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16}
    config = transformers.Qwen3Config(
        vocab_size=len(WORDS),
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        num_labels=3,
        pad_token_id=NEVER,
        **sizes,
    )
    theirs = transformers.Qwen3ForSequenceClassification(config).eval()
    path = encoder_folder(tmp_path / "model")
    for file in path.glob("*.safetensors"):
        file.unlink()
    theirs.save_pretrained(path)
    ids = [2, 5, 6, 7, 8, 3]
    with torch.no_grad():
        logits = theirs(torch.tensor([ids])).logits[0].numpy()
    weights = np.exp(logits - logits.max())
    with load(path) as model:
        assert model.tokenizer.encode("a man is eat") == ids
        probabilities = model.classify(["a man is eat"])[0]
    np.testing.assert_allclose(probabilities, weights / weights.sum(), atol=MAX_DIFFERENCE)


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_a_converted_file_has_the_scores_of_its_folder(kind, tmp_path):
    path = folder_of(tmp_path / "model", kind, 1)
    change_json(path / "tokenizer_config.json", model_max_length=64)
    file = tmp_path / "model.gguf"
    convert(path, file, ConvertOptions("F32"))
    assert open_checkpoint(file).value("pooling_type") == 4  # llama.cpp's number of "rank"
    with load(path) as folder, load(file) as converted:
        expected = folder.rank(QUERY, DOCUMENTS[:3])
        np.testing.assert_array_equal(converted.rank(QUERY, DOCUMENTS[:3]), expected)


def test_a_model_refuses_tasks_for_which_it_has_no_head(tmp_path):
    ranker = folder_of(tmp_path / "ranker", "bert", 1)
    classes = folder_of(tmp_path / "classes", "bert", 3)
    plain = encoder_folder(tmp_path / "plain")
    with load(ranker) as model:
        with pytest.raises(Unsupported, match="makes no vectors"):
            model.embed(TEXTS)
        with pytest.raises(
            InferenceError, match=r"the model reads 40(.|\n)*cut: truncate="
        ) as caught:
            model.rank(QUERY, DOCUMENTS, truncate=False)
        assert caught.value.hint == "cut the text, or have it cut: --truncate"
        model.text_limit = None  # only the context, which never cuts a text
        with pytest.raises(InferenceError, match="tokens, the model reads") as caught:
            model.rank(QUERY, [document * 20 for document in DOCUMENTS])
        assert caught.value.hint == "cut the text"
    with load(classes) as model, pytest.raises(Unsupported, match="3 labels apart"):
        model.rank(QUERY, DOCUMENTS)
    with load(plain) as model:
        for score in (lambda: model.rank(QUERY, DOCUMENTS), lambda: model.classify(TEXTS)):
            with pytest.raises(Unsupported, match="no head that scores"):
                score()


def test_a_classifier_without_a_layer_or_with_other_labels_is_damaged(tmp_path):
    path = folder_of(tmp_path / "model", "bert", 3)
    change_json(path / "config.json", id2label={"0": "a", "1": "b"})
    with pytest.raises(InvalidFormat, match="names 2 labels, the classifier scores 3"):
        open_checkpoint(path)
    plain = encoder_folder(tmp_path / "plain")
    named = json.loads((plain / "config.json").read_text())["architectures"]
    assert named == ["BertModel"]
    change_json(plain / "config.json", architectures=[f"Bert{HEAD}"])
    with pytest.raises(InvalidFormat, match="a layer of the classifier, is missing"):
        open_checkpoint(plain)
