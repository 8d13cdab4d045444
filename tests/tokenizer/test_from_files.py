"""Tokenizers in files and folders of every kind, against recorded ids and the libraries."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
from rank_files import write_ranks
from tokenizer_folders import byte_vocabulary
from tokenizers import AddedToken as LibraryToken
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from bitnet.base.errors import InvalidFormat, NotFound, TokenizerNotFound, Unsupported
from bitnet.tokenizer import load_tokenizer
from bitnet.tokenizer.from_files import (
    TOKENIZER_FILES,
    spec_from_file,
    spec_from_folder,
)
from bitnet.tokenizer.library import open_engine

SPM = Path(__file__).parents[1] / "fixtures" / "spm" / "tiny.model"
CORPUS = [
    "The quick brown fox jumps over the lazy dog, 123 times!",
    "Der große Bär läuft über die Straße; naïve café.",
    "いろはにほへと ちりぬるを",
    "def main():\n    return 'hello  world'\n",
] * 20
TEXTS = [
    "",
    " ",
    "  The dog's  fox\n\n jumps",
    "The <tool> dog <|end|> and <|end|>The",
    "<|end|>",
    "große STRASSE caf\u0065\u0301",
    "いろは123 \u2581x \U0001f600",
    "a\tb\r\nc",
]


def present(path):
    """*path*; skips the test if it is missing."""
    if not path.exists():
        pytest.skip(f"{path} is missing: not everything in BITNET_TEST_DATA is published")
    return path


def rows(test_data, name):
    """Recorded texts and ids, by the name of the recording."""
    with gzip.open(present(test_data / "expected" / f"{name}.jsonl.gz"), "rt") as lines:
        return [json.loads(line) for line in lines]


def wrong_ids(spec, recorded, *, parse_special=True, key="ids"):
    """Texts of *recorded* rows whose ids by *spec* are not those of the row's *key*."""
    engine = open_engine(spec)[0]
    before, after = spec.affixes if key == "ids_with_special" else ((), ())
    return [
        row["text"]
        for row in recorded
        if [*before, *engine.encode(row["text"], parse_special=parse_special), *after] != row[key]
    ]


@pytest.mark.parametrize("name", ["llama3", "phi3"])
@pytest.mark.parametrize("key", ["ids", "ids_with_special"])
def test_published_tokenizer_json_gives_the_recorded_ids(test_data, name, key):
    spec = spec_from_folder_json(test_data, name)
    assert wrong_ids(spec, rows(test_data, name), key=key) == []
    assert spec.chat_template


def spec_from_folder_json(test_data, name):
    """The specification of the published ``tokenizer.json`` of *name*."""
    return spec_from_file(present(test_data / "tokenizers" / name / "tokenizer.json"))


def test_meta_rank_file_gives_tiktoken_ids(test_data):
    spec = spec_from_file(test_data / "tokenizers" / "llama3" / "tokenizer.model")
    recorded = rows(test_data, "llama3_meta_ordinary")
    assert wrong_ids(spec, recorded, parse_special=False) == []
    assert wrong_ids(spec, rows(test_data, "llama3")) == []
    assert (spec.vocab_size, spec.bos_id, spec.stop_ids) == (128256, 128000, {128001, 128009})


def test_rank_file_and_tokenizer_json_of_llama3_are_the_same_vocabulary(test_data):
    folder = test_data / "tokenizers" / "llama3"
    ranks = spec_from_file(folder / "tokenizer.model")
    library = spec_from_file(folder / "tokenizer.json")
    assert list(ranks.tokens) == list(library.tokens)
    assert sorted(ranks.merges) == sorted(library.merges)


def test_llama2_sentencepiece_model_gives_the_recorded_ids(test_data):
    spec = spec_from_folder(present(test_data / "tokenizers" / "llama2"))
    recorded = rows(test_data, "llama2")
    assert wrong_ids(spec, recorded, parse_special=False) == []
    assert wrong_ids(spec, recorded, parse_special=False, key="ids_with_special") == []


def test_vocab_json_with_merges_gives_the_recorded_ids(test_data):
    spec = spec_from_folder(test_data / "tokenizers" / "gpt2")
    assert spec.pre == "gpt-2"
    assert wrong_ids(spec, rows(test_data, "gpt2")) == []


def save(tokenizer, path):
    """Add a special token and another one to *tokenizer*, save it at *path* and return it."""
    tokenizer.add_special_tokens([LibraryToken("<|end|>", rstrip=True, normalized=False)])
    tokenizer.add_tokens([LibraryToken("<tool>", normalized=True)])
    tokenizer.save(str(path))
    return tokenizer


def byte_level():
    """A trained byte-level BPE of the library."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def metaspace(scheme):
    """A trained BPE with BOS, whose spaces become U+2581 by *scheme*."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", "<s>"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def unigram():
    """A trained Unigram that normalizes texts."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace("  ", " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, unk_token="<unk>", special_tokens=["<unk>", "</s>"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def wordpiece():
    """A trained WordPiece with BERT's steps and ends."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return tokenizer


@pytest.mark.parametrize(
    "make",
    [
        byte_level,
        lambda: metaspace("first"),
        lambda: metaspace("always"),
        lambda: metaspace("never"),
        unigram,
        wordpiece,
    ],
    ids=["byte-level", "metaspace-first", "metaspace-always", "metaspace-never", "unigram", "bert"],
)
def test_any_tokenizer_json_gives_the_ids_of_the_library(make, tmp_path):
    oracle = save(make(), tmp_path / "tokenizer.json")
    spec = spec_from_file(tmp_path / "tokenizer.json")
    engine = open_engine(spec)[0]
    before, after = spec.affixes
    for text in TEXTS + CORPUS[:4]:
        assert engine.encode(text) == oracle.encode(text, add_special_tokens=False).ids, text
        assert [*before, *engine.encode(text), *after] == oracle.encode(text).ids, text


def test_files_beside_a_tokenizer_json_name_its_stop_ids_and_chat_template(tmp_path):
    save(byte_level(), tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "<|end|>"}, "chat_template": "{{ messages }}"})
    )
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    spec = spec_from_folder(tmp_path)
    assert spec.eos_id == list(spec.tokens).index("<|end|>")
    assert spec.stop_ids == {7, 9, spec.eos_id}
    assert spec.chat_template == "{{ messages }}"


def test_of_named_chat_templates_the_default_one_is_taken(tmp_path):
    save(byte_level(), tmp_path / "tokenizer.json")
    named = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert spec_from_folder(tmp_path).chat_template == "D"


def test_several_tokens_around_a_text_are_kept(tmp_path):
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["[gMASK]", "<sop>"])
    mask, sop = (tokenizer.token_to_id(text) for text in ("[gMASK]", "<sop>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[gMASK] <sop> $A", special_tokens=[("[gMASK]", mask), ("<sop>", sop)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert spec_from_folder(tmp_path).affixes == ((mask, sop), ())


def test_the_fingerprint_covers_the_configuration(tmp_path):
    save(byte_level(), tmp_path / "tokenizer.json")
    before = spec_from_folder(tmp_path).fingerprint
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    assert spec_from_folder(tmp_path).fingerprint != before


def test_of_an_empty_folder_every_file_that_is_looked_for_is_named(tmp_path):
    with pytest.raises(TokenizerNotFound) as caught:
        spec_from_folder(tmp_path)
    assert str(caught.value).startswith(
        "No compatible tokenizer found. Looked for:\n"
        " - tokenizer.model (SentencePiece)\n"
        " - tokenizer.json (HuggingFace format)"
    )
    assert all(f" - {name}" in str(caught.value) for name in TOKENIZER_FILES)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"model": {"type": "BPE"}}',
        '{"model": {"type": "BPE", "vocab": {}, "merges": []}}',
        '{"model": {"type": "BPE", "vocab": {"a": 99999999}, "merges": []}}',
        '{"model": {"type": "BPE", "vocab": {"a": "b"}, "merges": []}}',
        '{"model": {"type": "Unigram", "vocab": [["a"]]}}',
    ],
)
def test_a_damaged_tokenizer_json_is_refused(content, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(InvalidFormat):
        spec_from_file(path)


def test_invalid_json_says_where(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model":\n  {"a" 1}}')
    with pytest.raises(InvalidFormat, match="at line 2 column 8"):
        spec_from_file(path)


def test_options_that_change_ids_are_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    model = {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.1}
    path.write_text(json.dumps({"model": model}))
    with pytest.raises(Unsupported, match="dropout"):
        spec_from_file(path)
    path.write_text(json.dumps({"model": {"type": "CTC", "vocab": {"a": 0}}}))
    with pytest.raises(Unsupported, match="CTC"):
        spec_from_file(path)


def test_a_missing_file_is_not_found(tmp_path):
    with pytest.raises(NotFound):
        spec_from_file(tmp_path / "tokenizer.json")


def test_a_file_of_no_known_kind_is_refused_by_its_first_bytes(tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(InvalidFormat, match="a Git LFS pointer"):
        spec_from_file(path)


def test_the_kind_of_a_file_follows_from_its_content_and_not_its_name(tmp_path):
    save(byte_level(), tmp_path / "renamed.bin")
    assert spec_from_file(tmp_path / "renamed.bin").model == "bpe"
    assert spec_from_file(write_ranks(tmp_path / "x.txt", 256), pre="gpt-2").byte_level


@pytest.mark.parametrize(
    ("name", "keys", "ids"),
    [
        # Ids of transformers 5.24 for " the<s>the".
        ("GPT2Tokenizer", {}, [268, 66, 121, 68, 263]),
        ("GPT2Tokenizer", {"add_bos_token": True, "bos_token": "<s>"}, [0, 268, 0, 263]),
        ("GPTNeoXTokenizer", {}, [268, 66, 121, 68, 263]),
        ("GPTNeoXTokenizer", {"add_bos_token": True, "bos_token": "<s>"}, [0, 268, 0, 263]),
        ("GPTNeoXTokenizer", {"add_eos_token": True}, [268, 66, 121, 68, 263, 5]),
        ("RobertaTokenizer", {}, [0, 268, 0, 263, 2]),
        ("BartTokenizerFast", {}, [0, 268, 0, 263, 2]),
        ("Qwen2Tokenizer", {"add_prefix_space": True}, [268, 38, 66, 121, 38, 68, 263]),
    ],
)
def test_a_vocabulary_of_a_class_is_cut_and_ended_as_the_class_does(name, keys, ids, tmp_path):
    vocabulary_of_a_class(tmp_path, name, keys)
    assert load_tokenizer(tmp_path).encode(" the<s>the") == ids


def test_a_key_that_would_change_the_ends_of_a_class_is_refused_by_its_name(tmp_path):
    vocabulary_of_a_class(tmp_path, "RobertaTokenizer", {"add_bos_token": True})
    with pytest.raises(Unsupported, match="add_bos_token"):
        load_tokenizer(tmp_path)


# For " <mask>" between BOS, 0, and EOS, 2: with lstrip the mask, 4, takes in the space, 38.
@pytest.mark.parametrize(("version", "ids"), [("4.46.3", [0, 4, 2]), ("5.24.0", [0, 38, 4, 2])])
def test_the_mask_of_a_vocabulary_has_the_flags_of_the_version_that_wrote_it(
    version, ids, tmp_path
):
    vocabulary_of_a_class(tmp_path, "RobertaTokenizer", {})
    (tmp_path / "config.json").write_text(json.dumps({"transformers_version": version}))
    assert load_tokenizer(tmp_path).encode(" <mask>") == ids


def test_a_vocabulary_of_a_class_that_versions_build_differently_is_refused(tmp_path):
    vocabulary_of_a_class(tmp_path, "BlenderbotTokenizer", {})
    assert load_tokenizer(tmp_path).encode("the")
    (tmp_path / "config.json").write_text(json.dumps({"transformers_version": "4.57.1"}))
    with pytest.raises(Unsupported, match="transformers_version"):
        load_tokenizer(tmp_path)


def test_the_class_of_a_vocabulary_of_transformers_4_counts_whatever_the_model_is(tmp_path):
    """In transformers 5 a generic class takes its place for these models."""
    vocabulary_of_a_class(tmp_path, "GPT2TokenizerFast", {})
    expected = load_tokenizer(tmp_path).encode("the man")
    config = {"model_type": "phi3", "transformers_version": "4.57.1"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_tokenizer(tmp_path).encode("the man") == expected


@pytest.mark.parametrize(
    ("name", "version", "reason"),
    [
        ("LlamaTokenizer", None, None),
        ("LlamaTokenizerFast", "4.57.1", None),
        ("InternLM2Tokenizer", "5.1.0", None),
        ("PreTrainedTokenizerFast", None, None),
        ("LlamaTokenizer", "5.1.0", None),
        ("XLMRobertaTokenizer", "4.57.1", "not known"),
        ("NllbTokenizer", None, "a template of its own"),
        ("DebertaV2Tokenizer", None, "not known"),
    ],
)
def test_a_sentencepiece_model_whose_class_reads_it_in_another_way_is_refused(
    name, version, reason, tmp_path
):
    shutil.copy(SPM, tmp_path / "tokenizer.model")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    (tmp_path / "config.json").write_text(json.dumps({"transformers_version": version}))
    if reason is None:
        assert load_tokenizer(tmp_path).encode("the")
        return
    for path in (tmp_path, tmp_path / "tokenizer.model"):
        with pytest.raises(Unsupported, match=f"{name}.*{reason}") as refused:
            load_tokenizer(path)
        assert "AutoTokenizer.from_pretrained" in refused.value.hint


def model_with(folder, **files):
    """A folder with the tiny SentencePiece model, and *files* by name without ``.json``."""
    shutil.copy(SPM, folder / "tokenizer.model")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


HELLO = [849, 921, 850, 437, 853, 301, 262, 543]  # "Hello world" by the tiny model


@pytest.mark.parametrize(
    ("config", "ids"),
    [
        ({"add_eos_token": True}, [*HELLO, 2]),
        ({"add_bos_token": True}, [1, *HELLO]),
        ({"add_bos_token": True, "add_eos_token": True}, [1, *HELLO, 2]),
        ({}, HELLO),
    ],
)
def test_without_a_class_the_keys_alone_put_tokens_around_a_text(config, ids, tmp_path):
    """These are the ids of transformers 5.24; the file alone says BOS, as for llama.cpp."""
    assert (
        load_tokenizer(model_with(tmp_path, tokenizer_config=config)).encode("Hello world") == ids
    )
    for path in tmp_path.glob("*.json"):
        path.unlink()
    assert load_tokenizer(tmp_path).encode("Hello world") == [1, *HELLO]


@pytest.mark.parametrize(
    ("files", "key"),
    [
        ({"tokenizer_config": {"legacy": False}}, "legacy is False"),
        ({"tokenizer_config": {"pad_token": "[PAD]"}}, r"pad_token is '\[PAD\]'"),
        ({"tokenizer_config": {"eos_token": None}}, "eos_token is None"),
        ({"tokenizer_config": {"extra_special_tokens": ["<x>"]}}, "extra_special_tokens is '<x>'"),
        ({"added_tokens": {"<x>": 2000}}, "added_tokens.json is '<x>'"),
        ({"config": {"model_type": "t5"}}, "T5Tokenizer"),
        ({"config": {"model_type": "xlm-roberta"}}, "XLMRobertaTokenizer"),
        (
            {"config": {"model_type": "xlm-roberta", "transformers_version": "4.57.1"}},
            "XLMRobertaTokenizer",
        ),
    ],
)
def test_a_key_that_changes_the_pieces_of_a_model_is_refused_by_its_name(files, key, tmp_path):
    with pytest.raises(Unsupported, match=key):
        load_tokenizer(model_with(tmp_path, **files))


@pytest.mark.parametrize("version", ["4.57.1", "5.24.0"])
def test_an_added_token_that_is_not_special_is_decoded_with_skip_special(version, tmp_path):
    entry = {"content": "<call>", "lstrip": False, "rstrip": False, "normalized": False}
    config = {"added_tokens_decoder": {"1000": entry | {"special": False}}}
    files = {"tokenizer_config": config, "config": {"transformers_version": version}}
    tokenizer = load_tokenizer(model_with(tmp_path, **files))
    ids = tokenizer.encode("Hello<call>", add_special=False)
    assert ids[-1] == 1000
    assert tokenizer.decode(ids, skip_special=True) == "Hello<call>"


def test_a_rank_file_of_a_class_that_reads_no_ranks_is_refused(tmp_path):
    path = write_ranks(tmp_path / "tokenizer.model", 256)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    with pytest.raises(Unsupported, match="tokenizer_class is BertTokenizer"):
        load_tokenizer(path, pre="gpt-2")


def vocabulary_of_a_class(folder, name, keys):
    """``vocab.json`` and ``merges.txt`` of no known tokenizer, and *keys* of the class *name*."""
    tokens, merges = byte_vocabulary()
    texts = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>", *tokens]
    files = {
        "vocab.json": json.dumps({text: id for id, text in enumerate(texts)}),
        "merges.txt": "\n".join(" ".join(pair) for pair in merges),
        "tokenizer_config.json": json.dumps({"tokenizer_class": name, **keys}),
    }
    for file, content in files.items():
        (folder / file).write_text(content, encoding="utf-8")
