"""The tokenizer that a model needs, and the files that meet the need."""

import json

import pytest
from builders import f32, llama_metadata, vocabulary, write_gguf

from bitnet.base.errors import InvalidFormat, NotFound
from bitnet.formats.model_files import find_models
from bitnet.tokenizer.discover import model_facts, search

PIECES = ["<unk>", "a", "b", "ab"]
# Keys of an embedded tokenizer with these four pieces, the first of them unknown.
EMBEDDED = vocabulary(PIECES, model="llama", scores=[0.0] * 4, token_types=[2, 1, 1, 1])


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


def tokenizer_json(path, size):
    """Write a ``tokenizer.json`` of *size* tokens at *path*."""
    vocab = {f"t{number}": number for number in range(size)}
    path.write_text(
        json.dumps(
            {
                "version": "1.0",
                "model": {"type": "BPE", "vocab": vocab, "merges": []},
                "added_tokens": [],
                "normalizer": None,
                "pre_tokenizer": BYTE_LEVEL,
                "decoder": BYTE_LEVEL,
                "post_processor": None,
            }
        )
    )


def need_of(model):
    """The result of the search for the tokenizer of *model* inside, beside and above it."""
    return search(model_facts(model), places=("embedded", "sibling", "parent"))


def bare(path, rows=4):
    """A GGUF file without a tokenizer, with *rows* embeddings."""
    return write_gguf(path, llama_metadata(), [f32("token_embd.weight", (rows, 128))])


def test_an_embedded_tokenizer_is_all_a_model_needs(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {**llama_metadata(), **EMBEDDED})
    assert need_of(path).present == "embedded, 4 tokens"


@pytest.mark.parametrize("name", ["m.tokenizer.json", "tokenizer.json", "../tokenizer.json"])
def test_a_tokenizer_beside_or_above_is_enough(tmp_path, name):
    (tmp_path / "sub").mkdir()
    path = bare(tmp_path / "sub" / "m.gguf")
    tokenizer_json(tmp_path / "sub" / name, 4)
    assert "4 tokens" in need_of(path).present


def test_padded_embedding_rows_fit_and_a_larger_vocabulary_does_not(tmp_path):
    path = bare(tmp_path / "m.gguf", rows=6)
    tokenizer_json(tmp_path / "tokenizer.json", 4)
    assert need_of(path).present
    tokenizer_json(tmp_path / "tokenizer.json", 7)
    need = need_of(path)
    assert not need.present
    assert "Model: 6, Tokenizer: 7" in need.reason


def test_the_need_of_a_model_without_a_tokenizer_is_its_architecture_and_size(tmp_path):
    need = need_of(bare(tmp_path / "m.gguf", rows=9))
    assert (need.model.architecture, need.model.vocab_size) == ("llama", 9)
    assert (need.present, need.reason) == ("", "")


def test_a_damaged_file_beside_the_model_is_the_reason(tmp_path):
    path = bare(tmp_path / "m.gguf")
    (tmp_path / "tokenizer.json").write_text("{")
    assert "tokenizer.json" in need_of(path).reason


def test_an_embedded_tokenizer_that_is_not_supported_is_the_reason(tmp_path):
    unsupported = vocabulary(PIECES, model="rwkv")
    path = write_gguf(tmp_path / "m.gguf", {**llama_metadata(), **unsupported})
    assert "rwkv" in need_of(path).reason


def test_a_folder_is_read_from_its_configuration(tmp_path):
    (tmp_path / "m.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text('{"model_type": "llama", "vocab_size": 4}')
    assert need_of(tmp_path).model.vocab_size == 4
    tokenizer_json(tmp_path / "tokenizer.json", 4)
    assert need_of(tmp_path).present
    for text in ("{", "[]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(InvalidFormat, match=r"config\.json"):
            need_of(tmp_path)


def test_models_are_found_once_each_however_they_are_stored(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("m.gguf", "s-00001-of-00002.gguf", "s-00002-of-00002.gguf"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "a" / "x.safetensors").write_bytes(b"")
    (tmp_path / "a" / "config.json").write_text("{}")
    found = [str(path.relative_to(tmp_path)) for path in find_models(tmp_path)]
    assert found == ["a", "m.gguf", "s-00001-of-00002.gguf"]


def test_a_folder_without_models_is_an_error(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(NotFound):
            find_models(folder)
