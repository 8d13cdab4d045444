"""Encoders as GGUF, with their tokenizer: read back, and by llama.cpp."""

import importlib
import importlib.util

import numpy as np
import pytest
from quiet_libraries import QUIET

REASON = "sentence-transformers is not installed: pip install 'bitnet-xtask[parity]'"
torch = pytest.importorskip("torch", reason=REASON)
pytest.importorskip("transformers", reason=REASON)
pytest.importorskip("sentence_transformers", reason=REASON)

from conversions import convert  # noqa: E402 - needs torch
from engine_vectors import smallest_cosine, vectors_by_llama_cpp  # noqa: E402
from sentence_folders import (  # noqa: E402
    TEXTS,
    change_json,
    encoder_folder,
    sentence_folder,
)

from bitnet import load  # noqa: E402
from bitnet.base.errors import Unsupported  # noqa: E402
from bitnet.convert.convert_options import ConvertOptions  # noqa: E402
from bitnet.convert.engines import differences  # noqa: E402
from bitnet.formats.containers import open_checkpoint  # noqa: E402
from bitnet.models.load import config_from  # noqa: E402
from bitnet.tokenizer.from_gguf import spec_from_gguf  # noqa: E402

pytestmark = QUIET
# llama.cpp computes GELU of BERT by the hyperbolic tangent.
MAX_COSINE_DISTANCE = 1e-3
POOLINGS = {"mean": 1, "cls": 2, "lasttoken": 3}  # llama.cpp's numbers, under the key pooling_type


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return encoder_folder(tmp_path_factory.mktemp("encoder") / "bert")


def test_a_converted_encoder_has_its_tokenizer_and_the_same_bits(encoder, tmp_path):
    dense = [(24, torch.nn.Tanh(), True), (16, torch.nn.Identity(), False)]
    source = sentence_folder(tmp_path / "model", encoder, dense=dense)
    file = tmp_path / "model.gguf"
    convert(source, file, ConvertOptions("F32"))
    with load(source) as folder, load(file) as converted:
        assert converted.tokenizer.source.startswith("embedded")
        np.testing.assert_array_equal(folder.embed(TEXTS), converted.embed(TEXTS))


def test_prompts_and_a_limit_that_the_file_loses_are_named(encoder, tmp_path):
    prompts = {"query": "query : ", "dogs": "dog ", "plain": ""}
    source = sentence_folder(
        tmp_path / "model", encoder, prompts=prompts, default_prompt_name="dogs", limit=8
    )
    file = tmp_path / "model.gguf"
    warnings = {
        warning.subject: warning.text
        for warning in convert(source, file, ConvertOptions("F32")).warnings
    }
    assert "the folder has 'dogs', 'query', and 'dogs' without asking" in warnings["prompts"]
    assert "cuts a text to 8 tokens; 64 are read" in warnings["max_seq_length"]
    again = convert(file, tmp_path / "again.gguf", ConvertOptions("F16"))  # it has lost them
    plain = convert(encoder, tmp_path / "plain.gguf", ConvertOptions("F32"))  # it had none
    for done in (again, plain):
        subjects = {warning.subject for warning in done.warnings}
        assert not subjects & {"prompts", "max_seq_length"}


def test_words_have_phantom_spaces_as_llama_cpp_writes_them(encoder, tmp_path):
    file = tmp_path / "model.gguf"
    convert(encoder, file, ConvertOptions("F32"))
    keys = open_checkpoint(file).metadata
    tokens = list(keys["tokenizer.ggml.tokens"])
    assert tokens[:7] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2581a", "\u2581man"]
    assert tokens[9] == "ing"  # "##ing" in vocab.txt: a piece that continues a word has no mark
    names = {"bos": 2, "eos": 3, "seperator": 3, "padding": 0, "mask": 4, "unknown": 1}
    assert {name: keys[f"tokenizer.ggml.{name}_token_id"] for name in names} == names
    assert keys["tokenizer.ggml.token_type_count"] == 2
    assert keys["bert.attention.causal"] is False


def test_special_tokens_are_those_that_the_types_say():
    spell = importlib.import_module("bitnet.tokenizer.from_gguf")._bert_spelling
    tokens = ["[PAD]", "\u2581[x]", "[x]", "\u2581word", "<mask>", "s"]
    expected = ["[PAD]", "[x]", "##[x]", "word", "<mask>", "##s"]
    # GGUF's types of tokens: 3 is a control token, 1 an ordinary one, whatever its brackets.
    assert spell(tokens, [3, 1, 1, 1, 3, 1]) == expected


@pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None,
    reason="xllamacpp is not installed: an extra of crossval",
)
@pytest.mark.parametrize(
    "pooling", ["cls", *(pytest.param(it, marks=pytest.mark.slow) for it in ("mean", "lasttoken"))]
)
def test_llama_cpp_computes_the_same_vectors_of_a_converted_encoder(pooling, encoder, tmp_path):
    source = sentence_folder(tmp_path / "model", encoder, pooling=pooling)
    file = tmp_path / "model.gguf"
    convert(source, file, ConvertOptions("F32"))
    assert open_checkpoint(file).value("pooling_type") == POOLINGS[pooling]
    texts = [text for text in TEXTS if text]  # its server refuses an empty one
    with load(file) as model:
        ours = model.embed(texts)
    assert smallest_cosine(ours, vectors_by_llama_cpp(file, texts)) > 1 - MAX_COSINE_DISTANCE


@pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None,
    reason="xllamacpp is not installed: an extra of crossval",
)
def test_llama_cpp_computes_with_quantized_encoders(tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4}
    file = tmp_path / "model.gguf"
    convert(encoder_folder(tmp_path / "bert", **sizes), file, ConvertOptions("Q8_0"))
    types = {name: weight.quant.name for name, weight in open_checkpoint(file).weights.items()}
    assert types["blk.0.ffn_up.weight"] == "Q8_0"
    # llama.cpp aborts if it has to add quantized rows, as those of positions and types are.
    assert types["position_embd.weight"] == types["token_types.weight"] == "F32"
    texts = [text for text in TEXTS if text]
    with load(file) as model:
        ours = model.embed(texts)
    # It also rounds activations to eight bits, hence the wider bound.
    assert smallest_cosine(ours, vectors_by_llama_cpp(file, texts)) > 0.99


def test_the_tokenizer_of_a_converted_encoder_reads_every_text_alike(encoder, tmp_path):
    file = tmp_path / "model.gguf"
    convert(encoder, file, ConvertOptions("F32"))
    spec = spec_from_gguf(open_checkpoint(file).gguf)
    assert spec.model == "wordpiece"
    assert spec.tokens[9] == "##ing"
    with load(encoder) as folder, load(file) as converted:
        for text in (*TEXTS, "ÉATING dogs, 2000! [MASK] a\tb", "食 a-dog [SEP]"):
            assert folder.tokenizer.encode(text) == converted.tokenizer.encode(text)


@pytest.mark.parametrize(
    ("kind", "options", "warned"),
    [
        ("Bert", {}, ["second text of a pair"]),
        ("Bert", {"type_vocab_size": 1}, []),
        (
            "DistilBert",
            {"dim": 48, "n_heads": 4, "n_layers": 3, "hidden_dim": 96},
            ["instead of relu"],
        ),
        ("NomicBert", {}, ["does not load classifiers of nomic-bert models"]),
        ("ModernBert", {"local_attention": 8}, []),
    ],
)
def test_parts_of_a_classifier_that_llama_cpp_computes_otherwise_are_named(
    kind, options, warned, tmp_path
):
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    path = encoder_folder(
        tmp_path / "model", kind, "ForSequenceClassification", num_labels=1, **(special | options)
    )
    checkpoint = open_checkpoint(path)
    config = config_from(checkpoint)
    texts = [
        finding.text
        for finding in differences(checkpoint, config, [])
        if finding.subject == "llama.cpp"
    ]
    about_classifiers = [text for text in texts if "classifier" in text or "pair" in text]
    assert len(about_classifiers) == len(warned)
    for part, text in zip(warned, about_classifiers, strict=True):
        assert part in text


def test_a_reranker_is_not_converted_if_its_second_text_would_get_another_type(tmp_path):
    path = encoder_folder(tmp_path / "model", "Bert", "ForSequenceClassification", num_labels=1)
    convert(path, tmp_path / "with types.gguf", ConvertOptions("F32"))
    change_json(path / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
    with pytest.raises(Unsupported, match="type of a second text is 0, and would be 1"):
        convert(path, tmp_path / "without.gguf", ConvertOptions("F32"))
