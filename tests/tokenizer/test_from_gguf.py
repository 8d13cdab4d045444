"""Tokenizers in GGUF files, against ids that llama.cpp and the original libraries gave."""

import gzip
import json
import logging
import struct

import pytest
from builders import write_gguf

from bitnet.base import native
from bitnet.base.errors import InvalidFormat, TokenizerNotFound, Unsupported
from bitnet.formats.gguf import GGUF
from bitnet.tokenizer import Tokenizer
from bitnet.tokenizer.from_gguf import spec_from_gguf, spec_from_metadata
from bitnet.tokenizer.library import open_engine
from bitnet.tokenizer.load import load_spec
from bitnet.tokenizer.spec import BYTE_TO_CHARACTER
from bitnet.tokenizer.vocabularies import PRE_TOKENIZERS, KnownVocabulary, spec_key

VOCABULARIES = [
    "bert-bge",
    "deepseek-llm",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "phi-3",
    "qwen2",
    "starcoder",
    "command-r",
    "deepseek-coder",
    "falcon",
    "gemma-4",
    "mpt",
    "refact",
]

# Ids recorded with the original library, by vocabulary: name of the recording, and True if special
# tokens were parsed.
ORACLES = {
    "bert-bge": ("bert", True),
    "gpt-2": ("gpt2", True),
    "llama-bpe": ("llama3", True),
    "llama-spm": ("llama2", False),
    "phi-3": ("phi3", True),
}


def open_vocabulary(test_data, name):
    """The GGUF file of the vocabulary *name*; skips the test if it is missing."""
    path = test_data / "vocab" / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip(f"{path.name} is not in BITNET_TEST_DATA; `inv test-data` fetches it")
    return GGUF.open(path)


@pytest.fixture(scope="module", params=VOCABULARIES)
def vocabulary(request, test_data):
    """Name, path and engine of each vocabulary."""
    with open_vocabulary(test_data, request.param) as gguf:
        try:
            engine = open_engine(spec_from_gguf(gguf))[0]
        except Unsupported as error:  # patterns that the library takes quadratic time for
            if native.module() is not None:
                raise
            pytest.skip(f"without the compiled module: {error.message}")
        yield request.param, gguf.path, engine


def test_ids_are_those_recorded_with_llama_cpp(vocabulary):
    _, path, engine = vocabulary
    inputs = path.with_name(path.name + ".inp").read_bytes().decode()
    texts = inputs.split("\n__ggml_vocab_test__\n")
    lines = path.with_name(path.name + ".out").read_text().split("\n")
    assert len(texts) > 40
    wrong = [
        text
        for text, line in zip(texts, lines, strict=True)
        if engine.encode(text) != [int(id) for id in line.split()]
    ]
    assert wrong == []


@pytest.mark.parametrize("name", ORACLES)
def test_ids_are_those_of_the_original_tokenizer(name, test_data):
    recorded, parse_special = ORACLES[name]
    with open_vocabulary(test_data, name) as gguf:
        engine = open_engine(spec_from_gguf(gguf))[0]
    path = test_data / "expected" / f"{recorded}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not in BITNET_TEST_DATA; it is not published")
    with gzip.open(path, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    assert len(rows) >= 2000
    wrong = [
        row["text"]
        for row in rows
        if engine.encode(row["text"], parse_special=parse_special) != row["ids"]
    ]
    assert wrong == []


def metadata_of(test_data, name, **changes):
    """Metadata of the vocabulary *name* with *changes*; a key of None is left out."""
    with open_vocabulary(test_data, name) as gguf:
        metadata = dict(gguf.metadata)
    for key, value in changes.items():
        metadata[f"tokenizer.ggml.{key}"] = value
    return {key: value for key, value in metadata.items() if value is not None}


@pytest.mark.parametrize("pre", [None, "default", "gpt-2", "no-such-name"])
def test_llama3_is_recognised_whatever_the_file_calls_its_pre_tokenizer(test_data, pre):
    spec = spec_from_metadata(metadata_of(test_data, "llama-bpe", pre=pre))
    assert spec.pre == "llama-bpe"
    assert spec.ignore_merges
    assert spec.add_bos
    assert spec.stop_ids >= {128001, 128009}  # <|end_of_text|> and <|eot_id|>


def test_a_wrong_pre_tokenizer_is_a_warning_that_names_the_vocabulary(test_data, caplog):
    with caplog.at_level(logging.WARNING):
        spec_from_metadata(metadata_of(test_data, "llama-bpe", pre="gpt-2"))
    assert "LLaMA-3" in caplog.text


def test_the_caller_overrides_what_the_vocabulary_says(test_data):
    spec = spec_from_metadata(metadata_of(test_data, "llama-bpe"), pre="qwen2")
    assert spec.pre == "qwen2"


def test_renamed_special_tokens_do_not_hide_a_known_vocabulary(test_data):
    metadata = metadata_of(test_data, "llama-bpe", pre=None)
    tokens = list(metadata["tokenizer.ggml.tokens"])
    tokens[128255] = "<|my_own_token|>"
    metadata["tokenizer.ggml.tokens"] = tokens
    assert spec_from_metadata(metadata).pre == "llama-bpe"


@pytest.mark.parametrize(("pre", "warned"), [("gpt-2", True), ("llama3", False)])
def test_known_merges_with_other_tokens_keep_the_stated_pre_tokenizer_with_a_warning(
    test_data, caplog, pre, warned
):
    metadata = metadata_of(test_data, "llama-bpe", pre=pre)
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "<|my_own|>"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 3]
    assert spec_from_metadata(metadata).pre == pre
    assert ("--pre llama-bpe" in caplog.text) == warned


def test_another_pre_tokenizer_that_a_known_vocabulary_may_have_is_kept(test_data):
    assert spec_from_metadata(metadata_of(test_data, "qwen2", pre="qwen35")).pre == "qwen35"


def test_phi3_special_tokens_swallow_the_space_behind_them(test_data):
    spec = spec_from_metadata(metadata_of(test_data, "phi-3"))
    flags = {token.text: token.rstrip for token in spec.added}
    assert flags["<|user|>"]
    assert flags["</s>"]
    assert not flags["<s>"]
    assert not any(text.startswith("[PAD") for text in flags)


def tiny_bpe(**changes):
    """Metadata of a byte-level vocabulary of five tokens, with *changes*."""
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "ab", "<|endoftext|>", "<|im_end|>"],
        "tokenizer.ggml.token_type": [1, 1, 1, 3, 3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 3,
    }
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def tiny_spm(**changes):
    """Metadata of a SentencePiece vocabulary of eight tokens, with *changes*."""
    tokens = ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "\u2581a", "ab"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0],
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 1, 1],
    }
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


class _Int32(list):
    """An int32 array with its bytes, as the GGUF reader gives it."""

    item_type = "int32"

    @property
    def raw(self):
        return memoryview(struct.pack(f"<{len(self)}i", *self))


def test_stop_ids_are_the_declared_one_and_those_of_known_names():
    assert spec_from_metadata(tiny_bpe()).stop_ids == {3, 4}


def test_defaults_of_a_sentencepiece_vocabulary_are_those_of_llama_cpp():
    spec = spec_from_metadata(tiny_spm())
    assert (spec.bos_id, spec.eos_id, spec.unknown_id) == (1, 2, 0)
    assert (spec.add_bos, spec.add_eos, spec.add_space_prefix) == (True, False, True)


def test_defaults_of_a_byte_level_vocabulary_depend_on_its_pre_tokenizer():
    assert not spec_from_metadata(tiny_bpe(bos_token_id=3)).add_bos
    assert spec_from_metadata(tiny_bpe(pre="tekken", bos_token_id=3)).add_bos
    assert spec_from_metadata(tiny_bpe()).bos_id is None


# Ids 0 and 1 are the letters, and 2 is "ab".
@pytest.mark.parametrize(("pre", "whole"), [("chatglm-bpe", False), ("glm4", True), ("glm5", True)])
def test_a_piece_of_glm_that_is_a_token_is_taken_before_it_is_merged(pre, whole):
    spec = spec_from_metadata(tiny_bpe(pre=pre, merges=[]))
    for tokenizer in (Tokenizer.from_spec(spec), open_engine(spec)[0]):
        assert tokenizer.encode("ab") == ([2] if whole else [0, 1])
    assert spec.bos_id is None


def test_a_space_in_a_token_survives_because_merges_split_at_the_first_space_only():
    metadata = tiny_bpe(tokens=["a", "b c", "ab c"], token_type=[1, 1, 1], merges=["a b c"])
    metadata.pop("tokenizer.ggml.eos_token_id")
    assert list(spec_from_metadata(metadata).merges) == [(0, 1)]


def test_a_merge_of_unknown_tokens_is_refused_by_name():
    spec = spec_from_metadata(tiny_bpe(merges=["a z"]))
    with pytest.raises(InvalidFormat, match="'z'"):
        list(spec.merges)


def test_an_unknown_vocabulary_without_pre_is_refused_with_the_option_that_helps():
    with pytest.raises(TokenizerNotFound) as caught:
        spec_from_metadata(tiny_bpe(pre=None))
    assert "--pre NAME" in caught.value.hint
    assert spec_from_metadata(tiny_bpe(pre=None), pre="qwen2").pre == "qwen2"


def test_an_unknown_pre_is_refused_by_name():
    with pytest.raises(Unsupported, match="'brand-new'"):
        spec_from_metadata(tiny_bpe(pre="brand-new"))


@pytest.mark.parametrize("model", ["rwkv", "plamo2", "hybriddna", "whitespace", "surprise"])
def test_other_kinds_of_tokenizer_are_refused_by_name(model):
    with pytest.raises(Unsupported, match=repr(model)):
        spec_from_metadata(tiny_bpe(model=model))


@pytest.mark.parametrize("model", [None, "none", "no_vocab"])
def test_a_file_without_a_tokenizer_is_refused_by_the_missing_key(model):
    with pytest.raises(TokenizerNotFound, match=r"tokenizer\.ggml\.model"):
        spec_from_metadata(tiny_bpe(model=model))


def test_missing_tokens_are_named_by_their_key():
    with pytest.raises(TokenizerNotFound, match=r"Missing tokenizer\.ggml\.tokens"):
        spec_from_metadata(tiny_spm(tokens=None))


def test_missing_merges_are_named_by_their_key():
    with pytest.raises(TokenizerNotFound, match=r"tokenizer\.ggml\.merges"):
        spec_from_metadata(tiny_bpe(merges=None))


def test_missing_scores_are_named_by_their_key_with_another_tokenizer_as_the_hint():
    with pytest.raises(TokenizerNotFound, match=r"tokenizer\.ggml\.scores") as error:
        spec_from_metadata(tiny_spm(scores=None))
    assert "--tokenizer FILE" in error.value.hint
    # Published files of XVERSE have no scores, so they are not damaged.
    assert "fetch the file again" not in error.value.hint


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": [0.0]},
        {"token_type": [1]},
        {"scores": "high"},
        {"tokens": [1, 2, 3, 4, 5, 6, 7, 8]},
        {"bos_token_id": "one"},
        {"add_bos_token": 1},
        {"model": 3},
        # There is no BOS: 99 is outside of the vocabulary, and so is 1, the default.
        {"add_bos_token": True, "bos_token_id": 99, "tokens": ["a"], "scores": [0.0]},
    ],
)
def test_contradictory_keys_are_a_damaged_file(changes):
    with pytest.raises(InvalidFormat):
        list(spec_from_metadata(tiny_spm(**changes)).tokens)


def test_the_fingerprint_changes_with_anything_that_changes_ids(tmp_path):
    variants = [
        tiny_spm(),
        tiny_spm(add_space_prefix=False),
        tiny_spm(scores=[0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0]),
        tiny_spm(token_type=[2, 3, 3, 1, 1, 1, 1, 4]),
        tiny_spm(tokens=["<unk>", "<s>", "</s>", "\u2581", "a", "b", "\u2581a", "ba"]),
    ]
    files = [
        write_gguf(tmp_path / f"{number}.gguf", metadata)
        for number, metadata in enumerate(variants)
    ]
    assert len({load_spec(file).fingerprint for file in files}) == 5


def test_gemma_runs_of_spaces_are_found_in_normalized_text():
    metadata = tiny_spm(
        tokens=["<unk>", "<s>", "</s>", "\u2581", "a", "b", "\u2581a", "  "],
        token_type=[2, 3, 3, 1, 1, 1, 1, 4],
        add_space_prefix=False,
    )
    engine = open_engine(spec_from_metadata(metadata))[0]
    assert engine.encode("a  b") == [4, 7, 5]
    assert engine.encode("a \u2581b") == [4, 7, 5]
    # A literal run is found before spaces have become U+2581.
    assert engine.encode(" \u2581\u2581a") == [3, 7, 4]


def test_tokens_with_the_names_of_special_ones_are_special_without_types():
    spec = spec_from_metadata(tiny_spm(token_type=None))
    assert {token.text for token in spec.added if token.special} == {"<unk>", "<s>", "</s>"}
    assert open_engine(spec)[0].encode("<s>a") == [1, 6]
    assert open_engine(spec)[0].encode("<s>", parse_special=False) != [1]


@pytest.mark.parametrize("form", [list, lambda types: _Int32(types)])
def test_types_beyond_a_byte_are_not_taken_for_their_lowest_byte(form):
    types = form([2, 3, 3, 1, 257, 0x10003, -255, 1])
    spec = spec_from_metadata(tiny_spm(token_type=types))
    assert [token.id for token in spec.added] == [0, 1, 2]


def test_bert_words_get_their_own_spelling_back():
    spec = spec_from_metadata(
        {
            "tokenizer.ggml.model": "bert",
            "tokenizer.ggml.tokens": ["[UNK]", "[CLS]", "[SEP]", "\u2581play", "ing"],
            "tokenizer.ggml.token_type": [3, 3, 3, 1, 1],
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.cls_token_id": 1,
            "tokenizer.ggml.seperator_token_id": 2,
        }
    )
    assert list(spec.tokens) == ["[UNK]", "[CLS]", "[SEP]", "play", "##ing"]
    assert (spec.bos_id, spec.eos_id, spec.add_bos, spec.add_eos) == (1, 2, True, True)
    assert open_engine(spec)[0].encode("Playing xyz") == [3, 4, 0]


ENCODER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": [*BYTE_TO_CHARACTER, "<s>", "</s>", "<mask>", "[MASK]"],
    "tokenizer.ggml.token_type": [1] * 256 + [3] * 4,
    "tokenizer.ggml.merges": [],
    "tokenizer.ggml.bos_token_id": 256,
    "tokenizer.ggml.eos_token_id": 257,
    "tokenizer.ggml.seperator_token_id": 257,
    "tokenizer.ggml.mask_token_id": 258,
}


def test_a_pre_tokenizer_means_the_same_from_the_file_and_from_the_caller():
    """Also for what is between two texts and around a mask, in place of another name or of none."""
    for name in PRE_TOKENIZERS.keys() - {"default"}:
        named = spec_key(spec_from_metadata({**ENCODER, "tokenizer.ggml.pre": name}))
        for other in ({}, {"tokenizer.ggml.pre": "qwen2"}, {"tokenizer.ggml.pre": "roberta-bpe"}):
            assert spec_key(spec_from_metadata({**ENCODER, **other}, pre=name)) == named, name


def test_a_recognised_pre_tokenizer_replaces_the_name_in_the_file_everywhere(monkeypatch):
    known = KnownVocabulary("RoBERTa", "roberta-bpe", 260, 0)
    monkeypatch.setattr("bitnet.tokenizer.vocabularies.identify", lambda *_: known)
    for other in ({}, {"tokenizer.ggml.pre": "llama-bpe"}):
        spec = spec_from_metadata({**ENCODER, **other})
        assert spec.middle_ids == (257, 257)
        assert [token.text for token in spec.added if token.lstrip] == ["<mask>"]
