"""Keys of side files that change a tokenizer, each with what transformers 5.24 makes of it."""

import json

import pytest
from tokenizer_folders import Folder

from bitnet.base.errors import Unsupported
from bitnet.tokenizer import load_tokenizer
from bitnet.tokenizer.chat import chat_template

WORDS = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "cafe": 3, "caf\u00e9": 4, "Cafe": 5, "\u4f60": 6}
BERT = {
    "added_tokens": [],
    "normalizer": {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": None,
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": WORDS,
    },
}


def byte_level(**changes):
    document = Folder(0)._document("bytes") | {"post_processor": None, "normalizer": None}
    document["added_tokens"] = []
    steps = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    document["pre_tokenizer"] = document["decoder"] = {"type": "ByteLevel", **steps}
    return document | changes


def write(path, document, **files):
    (path / "tokenizer.json").write_text(json.dumps(document))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def encode(path, text):
    return load_tokenizer(path).encode(text, add_special=False)


def token(text, **flags):
    plain = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    return {"content": text, "special": True, **plain, **flags}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("added_tokens_decoder", {"900": token("<|im_start|>")}),
        ("extra_special_tokens", ["<|im_start|>"]),
        ("additional_special_tokens", ["<|im_start|>"]),
        ("extra_special_tokens", {"start_token": "<|im_start|>"}),
        ("eos_token", "<|im_start|>"),
        ("image_token", "<|im_start|>"),
    ],
)
def test_a_token_that_only_a_key_declares_gets_the_next_id(key, value, tmp_path):
    document = byte_level()
    size = len(document["model"]["vocab"])
    path = write(tmp_path, document, tokenizer_config={key: value})
    tokenizer = load_tokenizer(path)
    assert tokenizer.encode("x<|im_start|>", add_special=False)[1:] == [size]
    assert size in tokenizer.special_ids


def test_added_tokens_json_counts_only_without_added_tokens_decoder(tmp_path):
    files = {"added_tokens": {"<|im_start|>": 7}}
    size = len(byte_level()["model"]["vocab"])
    path = write(tmp_path, byte_level(), **files)
    assert encode(path, "<|im_start|>") == [size]
    write(tmp_path, byte_level(), tokenizer_config={"added_tokens_decoder": {}})
    assert len(encode(path, "<|im_start|>")) > 1


def test_a_flag_that_added_tokens_decoder_changes_is_the_later_one(tmp_path):
    size = len(byte_level()["model"]["vocab"])
    document = byte_level(added_tokens=[{"id": size, **token("<x>")}])
    path = write(tmp_path, document)
    assert len(encode(path, "a <x>")) == 3
    decoder = {str(size): token("<x>", lstrip=True)}
    write(tmp_path, document, tokenizer_config={"added_tokens_decoder": decoder})
    assert len(encode(path, "a <x>")) == 2


def test_add_prefix_space_counts_for_a_class_that_builds_its_steps(tmp_path):
    config = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}
    path = write(tmp_path, byte_level(), tokenizer_config=config)
    assert encode(path, "x") == encode(path, " x")
    write(tmp_path, byte_level(), tokenizer_config=config | {"tokenizer_class": "Unheard"})
    assert encode(path, "x") != encode(path, " x")


@pytest.mark.parametrize(
    ("options", "text", "ids"),
    [
        ({}, "Caf\u00e9", [3]),
        ({"do_lower_case": False}, "Cafe", [5]),
        ({"strip_accents": False}, "Caf\u00e9", [4]),
        ({"tokenize_chinese_chars": False}, "\u4f60\u4f60", [0]),
        ({"tokenize_chinese_chars": True}, "\u4f60\u4f60", [6, 6]),
    ],
)
def test_options_of_bert_replace_those_of_the_file(options, text, ids, tmp_path):
    config = {"tokenizer_class": "BertTokenizer", **options}
    assert encode(write(tmp_path, BERT, tokenizer_config=config), text) == ids


def test_a_class_ignores_add_bos_token_beside_a_tokenizer_json(tmp_path):
    config = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>", "add_bos_token": True}
    tokenizer = load_tokenizer(write(tmp_path, byte_level(), tokenizer_config=config))
    assert tokenizer.encode("x") == tokenizer.encode("x", add_special=False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("split_special_tokens", True),
        ("fix_mistral_regex", True),
        ("fast_tokenizer_files", ["tokenizer.4.0.0.json"]),
        ("auto_map", {"AutoTokenizer": ["code.Tokenizer", None]}),
        ("added_tokens_decoder", {"3": "x"}),
        ("extra_special_tokens", "x"),
        ("eos_token", 3),
        ("tokenizer_class", "WhisperTokenizer"),
        ("tokenizer_class", "BertTokenizer"),
        ("vocab", {"a": 0}),
    ],
)
def test_a_key_whose_effect_is_not_followed_is_refused_by_its_name(key, value, tmp_path):
    path = write(tmp_path, byte_level(), tokenizer_config={key: value})
    with pytest.raises(Unsupported, match=key):
        load_tokenizer(path)


def test_templates_in_files_count_before_those_in_the_configuration(tmp_path):
    path = write(tmp_path, byte_level(), tokenizer_config={"chat_template": "configuration"})
    user, tools = [{"role": "user", "content": "x"}], [{"type": "function"}]
    assert chat_template(load_tokenizer(path)).render(user) == "configuration"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert chat_template(load_tokenizer(path)).render(user) == "file"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("for tools")
    tokenizer = load_tokenizer(path)
    assert chat_template(tokenizer).render(user) == "file"
    assert chat_template(tokenizer, tools=True).render(user, tools=tools) == "for tools"


def test_named_templates_without_a_default_are_refused_with_their_names(tmp_path):
    named = [{"name": "rag", "template": "x"}, {"name": "tool_use", "template": "y"}]
    path = write(tmp_path, byte_level(), tokenizer_config={"chat_template": named})
    tokenizer = load_tokenizer(path)
    with pytest.raises(Unsupported, match="only rag, tool_use"):
        chat_template(tokenizer)
    assert tokenizer.template_for(tools=True) == "y"


def test_templates_see_the_texts_of_all_special_tokens(tmp_path):
    config = {"pad_token": "<pad>", "unk_token": "<unk>", "image_token": "<image>"}
    config["chat_template"] = "{{ pad_token }}{{ unk_token }}{{ image_token }}{{ bos_token }}."
    tokenizer = load_tokenizer(write(tmp_path, byte_level(), tokenizer_config=config))
    assert chat_template(tokenizer).render([]) == "<pad><unk><image>."
