"""Tokenizers that a conversion embeds in its file."""

import json
from dataclasses import replace

import pytest
from builders import vocabulary
from conversions import convert
from hf_folders import tiny_folder, tokenizer_folder
from sentencepiece_writer import sentencepiece_bytes
from small_specs import pieces
from tiny_models import TOKENS, tiny_gguf

import bitnet
from bitnet.base.errors import TokenizerNotFound, Unsupported, UsageError, VocabMismatch
from bitnet.convert.convert_options import ConvertOptions
from bitnet.formats.gguf import GGUF
from bitnet.tokenizer import load_tokenizer


def test_the_tokenizer_is_embedded_with_its_pre_tokenizer_and_template(tmp_path):
    folder = tokenizer_folder(tiny_folder(tmp_path / "model", "llama"), TOKENS)
    convert(folder, tmp_path / "out.gguf", ConvertOptions("F16"))
    original = load_tokenizer(folder)
    copy = load_tokenizer(tmp_path / "out.gguf")
    for text in ("ab", "Hello  World!\n", "<s>a</s> b", "日é"):
        assert copy.encode(text) == original.encode(text)
    assert copy.stop_ids == original.stop_ids == {1}  # the end token of tokenizer_folder
    assert copy.chat_template == "{{ messages[0].content }}"
    with GGUF.open(tmp_path / "out.gguf") as file:
        assert file.metadata["tokenizer.ggml.pre"] == "gpt-2"
    with bitnet.load(folder) as first, bitnet.load(tmp_path / "out.gguf") as second:
        assert first.generate("ab", max_tokens=4) == second.generate("ab", max_tokens=4)


def test_fewer_tokens_than_rows_are_padded_and_more_are_refused(tmp_path):
    folder = tokenizer_folder(tiny_folder(tmp_path / "model", "llama"), TOKENS[:-2])
    convert(folder, tmp_path / "out.gguf", ConvertOptions("F16"))
    with GGUF.open(tmp_path / "out.gguf") as file:
        assert list(file.metadata["tokenizer.ggml.tokens"])[-2:] == ["[PAD62]", "[PAD63]"]
    tokenizer_folder(folder, [*TOKENS, "x1"])
    with pytest.raises(VocabMismatch, match="65 tokens, the model has 64"):
        convert(folder, tmp_path / "more.gguf", ConvertOptions("F16"))


def test_a_model_without_tokenizer_is_refused_with_the_option_that_allows_it(tmp_path):
    folder = tiny_folder(tmp_path / "model", "llama")
    with pytest.raises(TokenizerNotFound) as error:
        convert(folder, tmp_path / "out.gguf", ConvertOptions("F16"))
    assert "--no-tokenizer" in error.value.hint
    assert not list(tmp_path.glob("*out*"))  # not even a draft of the file


def test_a_named_pre_tokenizer_is_written_or_a_warning_says_that_it_is_not(tmp_path, caplog):
    options = ConvertOptions("F16", pre="gpt-2")
    folder = tokenizer_folder(tiny_folder(tmp_path / "model", "llama"), TOKENS)
    convert(folder, tmp_path / "out.gguf", options)
    assert "pre-tokenizer" not in caplog.text
    with GGUF.open(tmp_path / "out.gguf") as file:
        assert file.metadata["tokenizer.ggml.pre"] == "gpt-2"

    path = tmp_path / "tokenizer.model"
    path.write_bytes(sentencepiece_bytes(pieces("spm", bos_id=1, eos_id=2)))
    convert(folder, tmp_path / "pieces.gguf", replace(options, tokenizer=str(path)))
    assert "the pre-tokenizer gpt-2 is not written" in caplog.text


def test_a_file_that_says_how_text_is_cut_keeps_its_pre_tokenizer(tmp_path):
    source = tiny_gguf(tmp_path / "m.gguf")
    with GGUF.open(source) as file:
        stated = file.metadata["tokenizer.ggml.pre"]
    convert(source, tmp_path / "same.gguf", ConvertOptions("F16", pre=stated))
    for name in ("llama-bpe", "nonsense"):
        with pytest.raises(UsageError, match=f"--pre is '{name}', and m.gguf says itself"):
            convert(source, tmp_path / "out.gguf", ConvertOptions("F16", pre=name))
    nameless = tmp_path / "nameless.gguf"
    raw = source.read_bytes()
    nameless.write_bytes(raw.replace(b"tokenizer.ggml.pre\x08", b"tokenizer.ggml.prx\x08"))
    with pytest.raises(Unsupported, match="nonsense"):
        convert(nameless, tmp_path / "out.gguf", ConvertOptions("F16", pre="nonsense"))
    convert(nameless, tmp_path / "out.gguf", ConvertOptions("F16", pre="llama-bpe"))
    with GGUF.open(tmp_path / "out.gguf") as file:
        assert file.metadata["tokenizer.ggml.pre"] == "llama-bpe"


def test_a_pre_tokenizer_without_a_name_in_gguf_is_refused(tmp_path):
    folder = tokenizer_folder(tiny_folder(tmp_path / "model", "llama"), TOKENS)
    document = json.loads((folder / "tokenizer.json").read_text())
    # Text is cut around digits, and then like GPT-2's: GGUF has no name for both.
    digits = {"type": "Digits", "individual_digits": False}
    document["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [digits, document["pre_tokenizer"]],
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(Unsupported, match="no name"):
        convert(folder, tmp_path / "out.gguf", ConvertOptions("F16"))


def test_another_tokenizer_can_be_embedded_into_a_gguf_file(tmp_path):
    source = tiny_gguf(tmp_path / "in.gguf", **vocabulary(["old"], merges=[]))
    words = tmp_path / "words"
    words.mkdir()
    tokenizer_folder(words, TOKENS)
    convert(source, tmp_path / "out.gguf", ConvertOptions("F16", tokenizer=words))
    with GGUF.open(tmp_path / "out.gguf") as file:
        assert list(file.metadata["tokenizer.ggml.tokens"]) == list(TOKENS)
        assert file.metadata["tokenizer.ggml.pre"] == "gpt-2"
    convert(source, tmp_path / "bare.gguf", ConvertOptions("F16", no_tokenizer=True))
    with GGUF.open(tmp_path / "bare.gguf") as file:
        assert not [key for key in file.metadata if key.startswith("tokenizer.")]
