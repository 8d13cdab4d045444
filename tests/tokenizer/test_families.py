"""Families of tokenizers beside language models': run as the library does, or refused by name."""

import json

import pytest
import tokenizers
from tokenizer_configurations import compare

from bitnet.base.errors import TokenizerNotFound, Unsupported
from bitnet.tokenizer.load import load_spec

LETTERS = [*"abcdefghijklmnopqrstuvwxyz'.,!0123456789"]
CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
PLAIN = {"id": 0, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def document(model, **steps):
    """A ``tokenizer.json`` with *model* and these *steps*."""
    added = [PLAIN | {"content": "<unk>", "special": True}]
    names = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    return {"version": "1.0", "added_tokens": added} | dict.fromkeys(names) | steps | {
        "model": model
    }  # fmt: skip


def clip():
    """A ``tokenizer.json`` like CLIP's: lower case, a mark at the ends of words, byte level."""
    texts = ["<unk>", *LETTERS, *(letter + "</w>" for letter in LETTERS), "ab", "ab</w>"]
    model = {
        "type": "BPE", "vocab": {text: id for id, text in enumerate(texts)},
        "merges": [["a", "b"], ["a", "b</w>"]], "unk_token": "<unk>",
        "continuing_subword_prefix": "", "end_of_word_suffix": "</w>", "fuse_unk": False,
    }  # fmt: skip
    spaces = {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}
    words = {
        "type": "Split", "pattern": {"Regex": CLIP_WORDS}, "behavior": "Removed", "invert": True
    }  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    steps = [{"type": "NFC"}, spaces, {"type": "Lowercase"}]
    return document(
        model,
        normalizer={"type": "Sequence", "normalizers": steps},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [words, level]},
        decoder=level,
    )


def words(decoder):
    """A vocabulary of whole words and *decoder*."""
    texts = ["<unk>", "|", "<pad>", *LETTERS, "the", "fox"]
    model = {"type": "WordLevel", "vocab": {text: id for id, text in enumerate(texts)}}
    return document(model | {"unk_token": "<unk>"}, decoder=decoder) | {
        "pre_tokenizer": {"type": "Whitespace"}
    }


def ctc():
    """A ``tokenizer.json`` for speech: letters, a token for the space, repeated ones read once."""
    pad = {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}
    letters = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "|"}
    return words(pad) | {"normalizer": spaces, "pre_tokenizer": letters}


def bert():
    """A ``tokenizer.json`` like BERT's: lower case, and pieces of words."""
    texts = ["<unk>", *LETTERS, *("##" + letter for letter in LETTERS), "the", "##ox"]
    model = {"type": "WordPiece", "vocab": {text: id for id, text in enumerate(texts)}}
    model |= {
        "unk_token": "<unk>", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100
    }  # fmt: skip
    normalizer = {
        "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
        "strip_accents": None, "lowercase": True,
    }  # fmt: skip
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    return document(
        model, normalizer=normalizer, pre_tokenizer={"type": "BertPreTokenizer"}, decoder=decoder
    )


@pytest.mark.parametrize(
    "make", [clip, ctc, bert, lambda: words(None)], ids=["clip", "ctc", "bert", "wordlevel"]
)
def test_families_are_run_as_the_library_runs_them(make, tmp_path):
    outcome = compare(make(), tmp_path, count=200)
    assert not outcome.differences
    assert "native" not in outcome.refusals


def test_a_vocabulary_like_clips_without_its_steps_is_refused_by_name(tmp_path):
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(clip()))
    tokenizer.model.save(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "CLIPTokenizer"}')
    with pytest.raises(Unsupported, match="like CLIP's"):
        load_spec(tmp_path)
    with pytest.raises(Unsupported, match="like CLIP's"):
        load_spec(tmp_path, pre="gpt-2")


def test_a_vocab_json_without_merges_is_not_a_tokenizer(tmp_path):
    (tmp_path / "vocab.json").write_text('{"<pad>": 0, "|": 1, "A": 2}')
    with pytest.raises(TokenizerNotFound, match="No compatible tokenizer found"):
        load_spec(tmp_path)
