"""Exporting a tokenizer: what is written gives the same ids, or nothing is written."""

import json

import pytest
from small_specs import byte_level
from tokenizers import Tokenizer as Library

from bitnet.base.errors import Unsupported, UsageError
from bitnet.tokenizer import Tokenizer
from bitnet.tokenizer.comparison import compare
from bitnet.tokenizer.export import export_tokenizer, gguf_keys
from bitnet.tokenizer.from_gguf import spec_from_metadata
from bitnet.tokenizer.load import load_spec, load_tokenizer
from bitnet.tokenizer.probes import probe_texts

MORE = ["deepseek-llm", "llama-bpe", "qwen2"]  # for the slow tests
VOCABULARIES = ["bert-bge", "gpt-2", "llama-spm", "phi-3", "starcoder"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# Exports that are refused, by form and file, with part of the reason; all others are equal.
REFUSED = {("files", "vocab/ggml-vocab-deepseek-llm.gguf"): "would be"}


@pytest.fixture(autouse=True)
def fewer_texts(request, monkeypatch):
    """Copies are compared on fewer texts; the slow tests, of real tokenizers, draw all of them."""
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr("bitnet.tokenizer.export._DRAWN", 500)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_the_exported_file_gives_the_same_ids(test_data, tmp_path, name):
    original = test_data / "vocab" / f"ggml-vocab-{name}.gguf"
    spec = load_spec(original)
    written = export_tokenizer(spec, tmp_path / "out")
    library = Library.from_file(str(written[0]))
    ours = load_tokenizer(original)
    again = load_tokenizer(tmp_path / "out")
    for text in probe_texts():
        ids = ours.encode(text, add_special=False)
        assert library.encode(text, add_special_tokens=False).ids == ids
        assert again.encode(text, add_special=False) == ids
    assert library.encode("Hello").ids == ours.encode("Hello") == again.encode("Hello")
    assert again.stop_ids == ours.stop_ids
    assert again.vocab_size == ours.vocab_size


def real_tokenizers():
    """Files and folders of the real tokenizers that tests can have."""
    names = (f"vocab/ggml-vocab-{name}.gguf" for name in (*VOCABULARIES, *MORE))
    return [*names, *(f"tokenizers/{name}" for name in ("gpt2", "llama2", "llama3", "phi3"))]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["files", "gguf"])
@pytest.mark.parametrize("name", real_tokenizers())
def test_each_real_tokenizer_has_an_equal_copy_or_is_refused_with_the_difference(
    name, form, test_data, tmp_path
):
    spec = load_spec(test_data / name)
    problem = ""
    try:
        if form == "files":
            export_tokenizer(spec, tmp_path)
            copied = load_spec(tmp_path)
        else:
            copied = spec_from_metadata(gguf_keys(spec, rows=spec.vocab_size))
    except Unsupported as error:
        problem = error.message
    if (form, name) in REFUSED:
        assert REFUSED[form, name] in problem
        return
    assert not problem
    original = Tokenizer.from_spec(spec)
    copy = Tokenizer.from_spec(copied)
    for text in probe_texts()[::9]:
        assert copy.encode(text) == original.encode(text)
        ids = [
            id for id in original.encode(text) if id != spec.unknown_id
        ]  # an unknown text is lost
        assert copy.decode(ids) == original.decode(ids)
        stream = copy.stream()
        assert "".join(map(stream.push, ids)) + stream.finish() == original.decode(ids)
    assert copy.stop_ids == original.stop_ids


def test_a_tokenizer_json_that_would_not_be_exact_is_not_written(test_data, tmp_path):
    spec = load_spec(test_data / "vocab" / "ggml-vocab-deepseek-llm.gguf")
    with pytest.raises(Unsupported, match=r"cannot be written exactly as tokenizer\.json"):
        export_tokenizer(spec, tmp_path)
    assert not any(tmp_path.iterdir())


def test_existing_files_are_kept_unless_the_export_is_forced(test_data, tmp_path):
    spec = load_spec(test_data / "vocab" / "ggml-vocab-llama-spm.gguf")
    (tmp_path / "tokenizer_config.json").write_text("mine")
    with pytest.raises(UsageError, match=r"tokenizer_config\.json exists already"):
        export_tokenizer(spec, tmp_path)
    assert (tmp_path / "tokenizer_config.json").read_text() == "mine"
    export_tokenizer(spec, tmp_path, force=True)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["bos_token"] == "<s>"


def test_user_defined_runs_of_spaces_are_exported(tmp_path):
    """As in Gemma's GGUF files: runs of U+2581 are user-defined, and written as spaces."""
    texts = ["<unk>", "<s>", "</s>", "  ", "   ", *BYTES, "\u2581", "a", "b", "ab", "\u2581a"]
    types = [2, 3, 3, 4, 4, *[6] * 256, *[1] * 5]
    scores = [0.0] * 261 + [-5.0, -5.0, -5.0, -1.0, -2.0]  # 261 that are not normal pieces
    keys = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.add_space_prefix": False,
    }
    spec = spec_from_metadata(keys)
    export_tokenizer(spec, tmp_path)
    exported = load_spec(tmp_path)
    assert compare(spec, exported, ["a  b", "   a", " ab\u2581\u2581"]).complete


@pytest.mark.slow
def test_gemma_3_is_not_exported_where_the_copy_would_give_other_ids(test_models, tmp_path):
    spec = load_spec(test_models / "gemma-3-270m-q4_k_m.gguf")
    with pytest.raises(
        Unsupported, match=r"cannot be written exactly as tokenizer\.json.*would be"
    ):
        export_tokenizer(spec, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("prefix", "suffix"), [("##", ""), ("", "</w>"), ("##", "</w>")])
def test_a_bpe_with_affixes_of_words_has_an_equal_copy(prefix, suffix, tmp_path):
    vocabulary = [
        "<unk>",
        "a",
        "b",
        f"{prefix}b",
        f"a{suffix}",
        f"{prefix}b{suffix}",
        f"ab{suffix}",
    ]
    vocabulary = list(dict.fromkeys(vocabulary))
    document = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "continuing_subword_prefix": prefix or None,
            "end_of_word_suffix": suffix or None,
            "vocab": {text: id for id, text in enumerate(vocabulary)},
            "merges": [["a", f"{prefix}b{suffix}"]],
        },
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    spec = load_spec(tmp_path / "tokenizer.json")
    written = export_tokenizer(spec, tmp_path / "out")
    model = json.loads(written[0].read_text())["model"]
    assert model["continuing_subword_prefix"] == (prefix or None)
    assert model["end_of_word_suffix"] == (suffix or None)
    library = Library.from_file(str(written[0]))
    ours = load_tokenizer(tmp_path / "tokenizer.json")
    for text in ("ab", "a b", "ba ab a", "abab c"):
        assert library.encode(text).ids == ours.encode(text)


def test_half_a_surrogate_pair_in_a_template_is_written_as_an_escape(tmp_path):
    spec = byte_level(chat_template="é{{ '\udc00' }}😀\\", fingerprint="")
    export_tokenizer(spec, tmp_path)
    text = (tmp_path / "tokenizer_config.json").read_text("utf-8")
    assert "é{{ '\\udc00' }}😀" in text
    assert load_tokenizer(tmp_path).chat_template == spec.chat_template
