"""Encoders against sentence-transformers: tiny random models, texts of different lengths."""

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

from bitnet import load  # noqa: E402
from bitnet.base.errors import InferenceError, Unsupported  # noqa: E402
from bitnet.convert.convert_options import ConvertOptions  # noqa: E402
from bitnet.formats.containers import open_checkpoint  # noqa: E402

pytestmark = QUIET

# Both compute in float32; the compiled module keeps queries, keys and values as 16 bits.
MAX_DIFFERENCE = 1e-4
WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "man", "is", "eat", "##ing", "food"),
    *(".", ",", "dog", "run", "##s", "é", "2", "##0", "never"),
]
NEVER = WORDS.index("never")  # id for padding that no text of TEXTS has
TEXTS = ["A man is eating food.", "dogs run", "", "unknown words, 20 dogs", "a " * 40]
TINY = {
    "vocab_size": len(WORDS),
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
# Class of transformers and options of its configuration. RoBERTa numbers positions from
# pad_token_id + 1 on, so 64 positions need 64 + pad_token_id + 1 rows.
KINDS = {
    "bert": ("Bert", {}),
    "bert-one-text": ("Bert", {"type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "roberta": ("Roberta", {"pad_token_id": NEVER, "max_position_embeddings": 84}),
    "xlm-r": ("XLMRoberta", {"pad_token_id": 0, "max_position_embeddings": 65}),
    "distilbert": (
        "DistilBert",
        {"dim": 48, "n_heads": 4, "n_layers": 3, "hidden_dim": 96},
    ),
}


def folder_of(path, kind, options, *, pooling="mean", limit=32):
    """A folder of sentence-transformers with a random encoder of the class *kind*.

    A text has at most *limit* tokens.
    """
    torch.manual_seed(len(kind) + len(pooling))
    config = getattr(transformers, f"{kind}Config")(**(TINY | options))
    model = getattr(transformers, f"{kind}Model")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(WORDS))
    tokenizer = transformers.BertTokenizer(str(path / "vocab.txt"))
    tokenizer.save_pretrained(path)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    entries = [
        {
            "idx": number,
            "name": str(number),
            "path": subfolder,
            "type": f"sentence_transformers.models.{name}",
        }
        for number, (subfolder, name) in enumerate(modules)
    ]
    (path / "modules.json").write_text(json.dumps(entries))
    (path / "1_Pooling").mkdir()
    modes = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken"}
    pooling_modes = {f"pooling_mode_{name}": mode == pooling for mode, name in modes.items()}
    settings = {"word_embedding_dimension": TINY["hidden_size"]} | pooling_modes
    (path / "1_Pooling/config.json").write_text(json.dumps(settings))
    limits = {"max_seq_length": limit, "do_lower_case": False}
    (path / "sentence_bert_config.json").write_text(json.dumps(limits))
    return path


def expected_of(path):
    """Vectors of TEXTS by sentence-transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sentence_transformers.SentenceTransformer(str(path), device="cpu").encode(TEXTS)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_sentence_transformers(kind, tmp_path):
    path = folder_of(tmp_path / "model", *KINDS[kind])
    expected = expected_of(path)
    with load(path) as model:
        together = model.embed(TEXTS)
        alone = np.concatenate([model.embed([text]) for text in TEXTS])
    np.testing.assert_allclose(together, expected, atol=MAX_DIFFERENCE)
    np.testing.assert_array_equal(together, alone)


def test_a_text_with_the_padding_token_is_refused_where_it_would_shift_positions(tmp_path):
    """RoBERTa of transformers does not count the padding token when it numbers positions."""
    sizes = {"pad_token_id": NEVER, "max_position_embeddings": 84}
    path = folder_of(tmp_path / "model", "Roberta", sizes)
    file = tmp_path / "model.gguf"
    convert(path, file, ConvertOptions("F32", no_tokenizer=True))
    for source in (path, file):
        with (
            load(source, tokenizer=path) as model,
            pytest.raises(Unsupported, match="'never', the token of pad"),
        ):
            model.embed(["a man never eats"])
    # BERT counts every token, so the same text has a vector there.
    plain = folder_of(tmp_path / "plain", "Bert", {"pad_token_id": NEVER})
    with load(plain) as model:
        assert np.isfinite(model.embed(["a man never eats"])).all()


@pytest.mark.parametrize("pooling", ["cls", "last"])
def test_every_pooling_is_that_of_sentence_transformers(pooling, tmp_path):
    path = folder_of(tmp_path / "model", "Bert", {}, pooling=pooling)
    with load(path) as model:
        np.testing.assert_allclose(model.embed(TEXTS), expected_of(path), atol=MAX_DIFFERENCE)


def test_vectors_of_the_reference_backend_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("BITNET_BACKEND", "reference")
    path = folder_of(tmp_path / "model", "Bert", {})
    with load(path) as model:
        assert model.backend == "reference"
        np.testing.assert_allclose(model.embed(TEXTS), expected_of(path), atol=MAX_DIFFERENCE)


def test_a_text_beyond_the_limit_is_cut_or_refused(tmp_path):
    path = folder_of(tmp_path / "model", "Bert", {}, limit=8)
    with load(path) as model:
        np.testing.assert_allclose(model.embed(TEXTS), expected_of(path), atol=MAX_DIFFERENCE)
        model.embed(TEXTS[1:3], truncate=False)  # these are short enough
        with pytest.raises(InferenceError, match="9 tokens, the model reads 8") as caught:
            model.embed(TEXTS, truncate=False)
    assert "--truncate" in caught.value.hint


def test_a_converted_file_has_the_vectors_of_its_folder(tmp_path):
    path = folder_of(tmp_path / "model", "Roberta", {"pad_token_id": NEVER})
    file = tmp_path / "model.gguf"
    convert(path, file, ConvertOptions("F32", no_tokenizer=True))
    assert open_checkpoint(file).value("pooling_type") == 1  # mean
    ids = [[2, 5, 6, 7, 3], [2, 13, 3]]  # [CLS] a man is [SEP], [CLS] dog [SEP]
    with load(path) as folder, load(file, tokenizer=path) as converted:
        np.testing.assert_array_equal(folder.embed(ids), converted.embed(ids))


def test_an_encoder_generates_no_text_and_a_decoders_configuration_is_refused(tmp_path):
    path = folder_of(tmp_path / "model", "Bert", {})
    with load(path) as model, pytest.raises(Unsupported, match="does not write any"):
        model.generate("hi")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"is_decoder": True}))
    with pytest.raises(Unsupported, match="is_decoder"):
        open_checkpoint(path)
