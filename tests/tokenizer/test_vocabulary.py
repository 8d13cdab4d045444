"""The vocabulary of a downloaded ``tokenizer.json``: complete, or refused."""

import json

import pytest

from bitnet.base.errors import InvalidFormat, VocabMismatch
from bitnet.tokenizer.tokenizer_json import check_vocabulary


def _document(**changes):
    """A ``tokenizer.json`` of four tokens with *changes*."""
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    return {
        "version": "1.0",
        "added_tokens": [{"id": 3, "content": "<s>", "special": True}],
        "normalizer": None,
        "model": model,
        **changes,
    }


def _write(path, document):
    """Write *document*, a text or JSON, at *path*, and return it."""
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_added_tokens_count_as_ids(tmp_path):
    path = _write(tmp_path / "tokenizer.json", _document())
    check_vocabulary(path, 4)


def test_a_unigram_vocabulary_is_numbered_in_its_order(tmp_path):
    model = {"type": "Unigram", "vocab": [["<unk>", 0.0], ["x", -1.0]]}
    path = _write(tmp_path / "tokenizer.json", _document(model=model, added_tokens=[]))
    check_vocabulary(path, 2)


@pytest.mark.parametrize("size", [3, 5])
def test_one_id_too_many_or_too_few_is_a_mismatch(tmp_path, size):
    path = _write(tmp_path / "tokenizer.json", _document())
    with pytest.raises(VocabMismatch, match=f"expected {size}, got 4"):
        check_vocabulary(path, size)


def test_a_hole_in_the_ids_is_a_mismatch_although_the_count_is_right(tmp_path):
    holes = _document(added_tokens=[{"id": 7, "content": "<s>"}])
    path = _write(tmp_path / "tokenizer.json", holes)
    with pytest.raises(VocabMismatch, match="first id missing is 3"):
        check_vocabulary(path, 4)


def test_invalid_json_is_placed_by_line_and_column(tmp_path):
    path = _write(tmp_path / "tokenizer.json", '{"version": "1.0", "added_tokens": [1 2]}')
    with pytest.raises(InvalidFormat, match=r"Invalid JSON in .* at line 1 column 39"):
        check_vocabulary(path, 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Downloaded tokenizer file is empty"),
        (" \n", "Downloaded tokenizer file is empty"),
        ("<html>Log in</html>", "Invalid JSON"),
        ("[]", "has no 'model'"),
        ('{"model": 3}', "has no 'model'"),
        ("[" * 100_000, "Invalid JSON"),
    ],
)
def test_a_downloaded_file_that_is_not_a_tokenizer_is_refused(tmp_path, text, said):
    with pytest.raises(InvalidFormat, match=said):
        check_vocabulary(_write(tmp_path / "tokenizer.json", text), 4)


@pytest.mark.parametrize("number", [-1, 2**32, 1.5, None])
def test_an_id_outside_32_bits_is_refused(number, tmp_path):
    odd = _document(added_tokens=[{"id": number, "content": "x"}])
    with pytest.raises(InvalidFormat, match="not a 32-bit id"):
        check_vocabulary(_write(tmp_path / "tokenizer.json", odd), 4)


def test_the_llama3_tokenizer_has_exactly_its_ids(test_data):
    check_vocabulary(test_data / "tokenizers/llama3/tokenizer.json", 128_256)
