"""Tokenizers of folders that come with code of their own: read as that code reads them."""

import json
import re
import unicodedata

import pytest
import sentencepiece
import tiktoken
from rank_files import PUBLISHED, rank_line

from bitnet.base.errors import Unsupported
from bitnet.tokenizer import tiktoken_file
from bitnet.tokenizer.from_files import spec_from_folder
from bitnet.tokenizer.load import load_tokenizer

TEXTS = (
    "Hello world",
    " two  spaces ",
    "a\tb\nc\n\n d",
    "1234.5 e\u0301t\u00e9",
    "\u4f60\u597d\uff0c\u4e16\u754c",
    "don't I'LL \U0001f600",
    "",
)


def write_class(folder, name, **more):
    """Write a tokenizer_config.json that names code of the folder and the class *name*."""
    config = {"auto_map": {"AutoTokenizer": ["tokenization.X", None]}, "tokenizer_class": name}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | more))


@pytest.fixture
def pieces(test_data, tmp_path):
    """A folder with a SentencePiece BPE of byte fallback, as InternLM 2 and Baichuan have."""
    data = (test_data / "tokenizers/llama2/tokenizer.model").read_bytes()
    (tmp_path / "tokenizer.model").write_bytes(data)
    return tmp_path


@pytest.mark.parametrize("name", ["InternLM2Tokenizer", "BaichuanTokenizer"])
@pytest.mark.parametrize(("more", "adds_bos"), [({}, True), ({"add_bos_token": False}, False)])
def test_a_model_of_sentencepiece_is_encoded_as_its_class_does(name, more, adds_bos, pieces):
    """The class calls the library, and puts BOS before a text unless its options say otherwise."""
    write_class(pieces, name, **more)
    tokenizer = load_tokenizer(pieces)
    oracle = sentencepiece.SentencePieceProcessor(str(pieces / "tokenizer.model"))
    bos = [oracle.bos_id()] if adds_bos else []
    for text in TEXTS:
        assert tokenizer.encode(text) == bos + oracle.encode(text)
        assert tokenizer.decode(oracle.encode(text)) == oracle.decode(oracle.encode(text))


def listed(texts, first):
    """``added_tokens_decoder`` of *texts*, whose ids begin with *first*."""
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False)
    entries = {str(first + at): {"content": text, **flags} for at, text in enumerate(texts)}
    return {"added_tokens_decoder": entries}


def cut_at(tokens, text):
    """Parts of *text*: the texts of *tokens* in it, and what is between them."""
    pattern = "(" + "|".join(map(re.escape, tokens)) + ")"
    return [part for part in re.split(pattern, text) if part]


# Special tokens of the two classes, in the order of their ids.
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
OF_CHATGLM3 = ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", *ROLES)
OF_GLM4 = ("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", *ROLES)


def test_chatglm_3_puts_two_tokens_before_a_text_and_cuts_it_at_the_listed_ones(pieces):
    oracle = sentencepiece.SentencePieceProcessor(str(pieces / "tokenizer.model"))
    first = oracle.vocab_size()
    write_class(pieces, "ChatGLMTokenizer", **listed(OF_CHATGLM3, first))
    tokenizer = load_tokenizer(pieces)
    ids = {text: first + at for at, text in enumerate(OF_CHATGLM3)}
    prefix = [ids["[gMASK]"], ids["sop"]]

    def cut(text):
        """Parts of *text*: tokens of the code, and ids of what is between them."""
        parts = cut_at(OF_CHATGLM3, text)
        return [part if part in ids else oracle.encode(part) for part in parts]

    chat = "[gMASK]sop<|user|>\n two  words<|assistant|>\n"
    for text in (*TEXTS, chat, "aesop <eop>"):
        expected = []
        for part in cut(text):
            expected += part if isinstance(part, list) else [ids[part]]
        has_prefix = expected[:2] == prefix  # a chat template writes the prefix itself: not twice
        assert tokenizer.encode(text) == ([] if has_prefix else prefix) + expected
        assert tokenizer.encode(text, add_special=False) == expected
        parts = [oracle.decode(part) if isinstance(part, list) else part for part in cut(text)]
        assert tokenizer.decode(expected) == "".join(parts)
    assert tokenizer.decode([oracle.bos_id(), *oracle.encode("a"), oracle.eos_id()]) == "a"
    assert oracle.eos_id() in tokenizer.stop_ids


def test_glm_4_puts_two_tokens_before_a_text_and_cuts_it_at_the_listed_ones(tmp_path):
    ranks = {bytes([byte]): byte for byte in range(256)}
    ranks |= {text: 256 + at for at, text in enumerate((b"he", b"ll", b"hell", b"hello", b" w"))}
    lines = (rank_line(text, rank) for text, rank in ranks.items())
    (tmp_path / "tokenizer.model").write_bytes(b"".join(lines))
    write_class(tmp_path, "ChatGLM4Tokenizer", **listed(OF_GLM4, len(ranks)))
    tokenizer = load_tokenizer(tmp_path)
    ids = {text: len(ranks) + at for at, text in enumerate(OF_GLM4)}
    pattern, _, _ = PUBLISHED["llama3"]
    oracle = tiktoken.Encoding("glm", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    prefix = [ids["[gMASK]"], ids["<sop>"]]
    for text in (*TEXTS, "[gMASK]<sop><|user|>\nhello world<|assistant|>", "12345 <eop>"):
        expected = []
        for part in cut_at(OF_GLM4, text):
            expected += [ids[part]] if part in ids else oracle.encode(part)
        has_prefix = expected[:2] == prefix
        assert tokenizer.encode(text) == ([] if has_prefix else prefix) + expected
        assert tokenizer.decode(oracle.encode(text)) == text
    assert tokenizer.stop_ids >= {ids["<|endoftext|>"]}


@pytest.mark.parametrize("name", ["ChatGLMTokenizer", "ChatGLM4Tokenizer"])
@pytest.mark.parametrize(
    "texts", [(), OF_CHATGLM3[:5], ("<|user|>", *OF_CHATGLM3)], ids=["none", "some", "others"]
)
def test_a_class_with_special_tokens_that_no_file_lists_is_refused(name, texts, pieces):
    write_class(pieces, name, **listed(texts, 32000))
    # The first token whose id no file has, 32000 or one of the next.
    with pytest.raises(Unsupported, match=f"{name}, code of the folder that gives .* the id 3200"):
        spec_from_folder(pieces)


def test_ranks_of_chatglm_4_without_listed_tokens_are_refused_even_with_a_pre_tokenizer(tmp_path):
    ranks = b"".join(rank_line(bytes([rank]), rank) for rank in range(256))
    (tmp_path / "tokenizer.model").write_bytes(ranks)
    write_class(tmp_path, "ChatGLM4Tokenizer")
    with pytest.raises(Unsupported, match=r"ChatGLM4Tokenizer.*<\|endoftext\|> the id 256"):
        spec_from_folder(tmp_path, pre="chatglm-bpe")


def test_the_first_qwen_is_read_from_its_ranks_with_the_special_tokens_of_its_code(
    tmp_path, monkeypatch
):
    """The published file is recognised by a hash of its ranks; a few ranks take its place here."""
    texts = [bytes([byte]) for byte in range(256)]
    texts += [b"he", b"ll", b"hell", b"hello", b" w", " é".encode()]
    (tmp_path / "qwen.tiktoken").write_bytes(b"".join(map(rank_line, texts, range(len(texts)))))
    write_class(tmp_path, "QWenTokenizer")
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    special += [f"<|extra_{number}|>" for number in range(205)]
    ids = {text: len(texts) + at for at, text in enumerate(special)}
    (published,) = [
        row for row in tiktoken_file._read_published().values() if row["name"] == "Qwen"
    ]
    assert [*published["special"].values()] == special
    row = published | {"special": {id: text for text, id in ids.items()}}
    monkeypatch.setattr(tiktoken_file, "_digest_of_ranks", lambda _ranks: "these")
    monkeypatch.setattr(tiktoken_file, "_read_published", lambda: {"these": row})
    tokenizer = load_tokenizer(tmp_path)
    pattern, _, _ = PUBLISHED["qwen"]
    ranks = {text: rank for rank, text in enumerate(texts)}
    oracle = tiktoken.Encoding("qwen", pat_str=pattern, mergeable_ranks=ranks, special_tokens=ids)
    for text in (*TEXTS, "<|im_start|>user\nhello<|im_end|>\n", "hello<|extra_204|>hello"):
        normal = unicodedata.normalize("NFC", text)
        assert tokenizer.encode(text) == oracle.encode(normal, allowed_special="all")
