"""The verdict on a model and a tokenizer."""

import json

import pytest
from builders import Tensor, vocabulary, write_gguf

from bitnet.tokenizer.comparison import compatibility
from bitnet.tokenizer.load import extract_tokenizer_from_gguf, load_tokenizer

TOKENS = ["a", "b", "c", "ab", "<end>"]
TYPES = [1, 1, 1, 1, 3]  # in GGUF 1 is a normal token, 3 a control token


def model(path, tokens=TOKENS, *, rows=None, merges=("a b",), **more):
    """A GGUF file with these *tokens*, those beyond five unused, and *rows* embeddings."""
    metadata = {"general.architecture": "gpt2"} | vocabulary(
        tokens,
        merges=merges,
        token_types=[*TYPES, *[5] * 9][: len(tokens)],
        **({"eos_token_id": 4, "pre": "gpt-2"} | more),
    )
    rows = rows or len(tokens)
    return write_gguf(path, metadata, [Tensor("token_embd.weight", (rows, 1), 0, bytes(4 * rows))])


def tokenizer_json(path, tokens):
    """The tokenizer of a ``tokenizer.json`` with these *tokens*, saved at *path*."""
    vocab = {token: id for id, token in enumerate(tokens)}
    merges = [["a", "b"]] if "ab" in tokens else []
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    document = {
        "version": "1.0",
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
        "pre_tokenizer": byte_level | {"trim_offsets": True},
        "added_tokens": [{"id": 4, "content": tokens[4], "special": True}],
    }
    path.write_text(json.dumps(document))
    return load_tokenizer(path)


def test_a_model_and_its_own_tokenizer_are_compatible(tmp_path):
    path = model(tmp_path / "m.gguf")
    report = compatibility(path, extract_tokenizer_from_gguf(path))
    assert report.compatible
    assert report.verdict.endswith("m.gguf: 5 tokens, token by token")
    assert report.findings == ()


def test_the_same_vocabulary_from_another_file_is_compatible(tmp_path):
    path = model(tmp_path / "m.gguf")
    assert compatibility(path, tokenizer_json(tmp_path / "tokenizer.json", TOKENS)).compatible


def test_a_vocabulary_of_another_size_is_named_with_both_numbers(tmp_path):
    path = model(tmp_path / "m.gguf")
    report = compatibility(path, tokenizer_json(tmp_path / "tokenizer.json", [*TOKENS, "d"]))
    assert not report.compatible
    assert "vocabulary size differs (Model: 5, Tokenizer: 6)" in report.verdict


def test_a_vocabulary_of_the_same_size_with_another_token_is_not_compatible(tmp_path):
    path = model(tmp_path / "m.gguf")
    other = tokenizer_json(tmp_path / "tokenizer.json", ["a", "b", "d", "ab", "<end>"])
    report = compatibility(path, other)
    assert not report.compatible
    assert "1 of 5 tokens differ, first id 2: b'c' and b'd'" in report.verdict


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ("abc", "5 tokens, token by token"),
        ("xyz", "3 of 5 tokens differ, first id 1: b'a' and b'x'"),
    ],
)
def test_an_added_token_without_a_row_does_not_hide_another_vocabulary(tmp_path, words, verdict):
    def folder(words):
        path = tmp_path / words
        path.mkdir(exist_ok=True)
        vocab = {token: id for id, token in enumerate(["[UNK]", *words])}
        document = {
            "version": "1.0",
            "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": vocab},
            "added_tokens": [{"id": 4, "content": "[PAD]", "special": True}],
        }
        (path / "tokenizer.json").write_text(json.dumps(document))
        return path

    model = folder("abc")
    (model / "config.json").write_text('{"model_type": "llama", "vocab_size": 4}')
    report = compatibility(model, load_tokenizer(folder(words)))
    assert verdict in report.verdict
    assert report.compatible == (words == "abc")
    assert report.findings[0] == "1 added token without a row: a prompt with such a one is refused"


def test_ids_are_compared_beside_an_added_token_without_a_row(tmp_path):
    document = {
        "version": "1.0",
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
        "added_tokens": [{"id": 3, "content": "[PAD]", "special": True}],
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    (tmp_path / "config.json").write_text('{"model_type": "llama", "vocab_size": 3}')
    document["model"]["merges"] = []  # the same tokens, but "ab" becomes two of them
    (tmp_path / "other.json").write_text(json.dumps(document))
    report = compatibility(tmp_path, load_tokenizer(tmp_path / "other.json"))
    assert report.compatible
    assert "other ids than" in report.findings[1]


def test_padded_rows_are_allowed_and_declared(tmp_path):
    path = model(tmp_path / "m.gguf", rows=64)
    report = compatibility(path, extract_tokenizer_from_gguf(path))
    assert (report.compatible, report.padded_rows) == (True, 59)
    assert report.findings == ("59 embedding rows beyond the vocabulary (padding, below 1024)",)


def test_too_many_spare_rows_are_not_padding(tmp_path):
    path = model(tmp_path / "m.gguf", rows=5 + 1024)
    assert not compatibility(path, extract_tokenizer_from_gguf(path)).compatible


def test_padding_tokens_at_the_end_of_the_model_do_not_count(tmp_path):
    path = model(tmp_path / "m.gguf", [*TOKENS, "[PAD5]", "[PAD6]"])
    assert compatibility(path, tokenizer_json(tmp_path / "tokenizer.json", TOKENS)).compatible


@pytest.mark.parametrize(
    ("template", "finding"),
    [("{{ messages[0].content }}", ()), ("{% if %}", ("the chat template cannot be rendered",))],
)
def test_a_chat_template_that_cannot_be_rendered_is_a_finding(tmp_path, template, finding):
    path = model(tmp_path / "m.gguf")
    tokenizer = extract_tokenizer_from_gguf(path)
    tokenizer.chat_template = template
    report = compatibility(path, tokenizer)
    assert report.compatible
    assert len(report.findings) == len(finding)
    assert all(text in report.findings[0] for text in finding)


def test_an_embedded_tokenizer_that_cannot_be_rebuilt_is_a_finding(tmp_path):
    # Its merges name a token that is not in the vocabulary.
    path = model(tmp_path / "m.gguf", merges=["a x"])
    report = compatibility(path, tokenizer_json(tmp_path / "tokenizer.json", TOKENS))
    assert report.compatible
    assert "the embedded tokenizer cannot be rebuilt" in report.findings[0]
    assert "by vocabulary size" in report.verdict


def test_tokens_are_compared_even_if_the_pre_tokenizer_is_unknown(tmp_path):
    path = model(tmp_path / "m.gguf", pre="nobody-knows-this-one")
    same = compatibility(path, tokenizer_json(tmp_path / "tokenizer.json", TOKENS))
    assert "the embedded tokenizer cannot be rebuilt" in same.findings[0]
    assert "token by token" in same.verdict
    other = compatibility(path, tokenizer_json(tmp_path / "o.json", ["a", "b", "x", "d", "<end>"]))
    assert "first id 2: b'c' and b'x'" in other.verdict
