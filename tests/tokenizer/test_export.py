"""Exporting a tokenizer: what is written gives the same ids, or nothing is written."""

import json

import pytest
from tokenizers import Tokenizer as Library

from bitnet.errors import UsageError
from bitnet.tokenizer.export import export_tokenizer
from bitnet.tokenizer.load import load_spec, load_tokenizer
from bitnet.tokenizer.probes import probe_texts

VOCABULARIES = ["bert-bge", "deepseek-llm", "gpt-2", "llama-spm", "phi-3", "starcoder"]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_the_exported_file_gives_the_same_ids(test_data, tmp_path, name):
    original = test_data / "vocab" / f"ggml-vocab-{name}.gguf"
    spec = load_spec(original)
    written = export_tokenizer(spec, tmp_path / "out")
    library = Library.from_file(str(written[0]))
    ours, again = load_tokenizer(original), load_tokenizer(tmp_path / "out")
    for text in probe_texts():
        ids = ours.encode(text, add_special=False)
        assert library.encode(text, add_special_tokens=False).ids == ids
        assert again.encode(text, add_special=False) == ids
    assert library.encode("Hello").ids == ours.encode("Hello") == again.encode("Hello")
    assert again.stop_ids == ours.stop_ids
    assert again.vocab_size == ours.vocab_size


def test_files_that_are_there_are_kept(test_data, tmp_path):
    spec = load_spec(test_data / "vocab" / "ggml-vocab-llama-spm.gguf")
    (tmp_path / "tokenizer_config.json").write_text("mine")
    with pytest.raises(UsageError, match=r"tokenizer_config\.json exists already"):
        export_tokenizer(spec, tmp_path)
    assert (tmp_path / "tokenizer_config.json").read_text() == "mine"
    export_tokenizer(spec, tmp_path, force=True)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["bos_token"] == "<s>"
