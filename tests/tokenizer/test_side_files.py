"""Keys of side files that change a tokenizer, each with what transformers 5.24 makes of it."""

import json
import shutil
from pathlib import Path

import pytest
from tekken_files import write as write_tekken
from tokenizer_folders import Folder

from bitnet.base.errors import InvalidFormat, TokenizerNotFound, Unsupported
from bitnet.tokenizer import Tokenizer, load_tokenizer, resolve_tokenizer
from bitnet.tokenizer.chat import chat_template
from bitnet.tokenizer.discover import model_facts, search
from bitnet.tokenizer.from_files import spec_from_folder
from bitnet.tokenizer.from_gguf import spec_from_metadata

FIXTURES = Path(__file__).parents[1] / "fixtures"

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
    """A byte-level ``tokenizer.json`` with *changes*."""
    document = Folder(0)._document("bytes") | {"post_processor": None, "normalizer": None}
    document["added_tokens"] = []
    steps = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    document["pre_tokenizer"] = document["decoder"] = {"type": "ByteLevel", **steps}
    return document | changes


def write(path, document, **files):
    """Write *document* as ``tokenizer.json`` in *path*, and *files* by name without ``.json``."""
    (path / "tokenizer.json").write_text(json.dumps(document))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def encode(path, text):
    """Ids of *text* by the folder *path*, without BOS and EOS."""
    return load_tokenizer(path).encode(text, add_special=False)


def token(text, **flags):
    """An entry of a special token with *flags*."""
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


def test_the_flags_of_added_tokens_decoder_replace_those_of_tokenizer_json(tmp_path):
    size = len(byte_level()["model"]["vocab"])
    document = byte_level(added_tokens=[{"id": size, **token("<x>")}])
    path = write(tmp_path, document)
    assert len(encode(path, "a <x>")) == 3
    decoder = {str(size): token("<x>", lstrip=True)}
    write(tmp_path, document, tokenizer_config={"added_tokens_decoder": decoder})
    assert len(encode(path, "a <x>")) == 2  # the token takes in the space


def test_a_token_of_added_tokens_json_is_special_only_if_a_role_or_the_new_key_names_it(tmp_path):
    files = {"added_tokens": {"<x>": 700}}
    former = {"additional_special_tokens": ["<x>"]}
    path = write(tmp_path, byte_level(), special_tokens_map=former, **files)
    (id,) = encode(path, "<x>")
    assert id not in load_tokenizer(path).special_ids
    for naming in ({"extra_special_tokens": ["<x>"]}, {"pad_token": "<x>"}):
        write(tmp_path, byte_level(), special_tokens_map=naming)
        assert id in load_tokenizer(path).special_ids


def test_a_role_keeps_the_flags_of_a_token_whose_id_another_one_takes(tmp_path):
    size = len(byte_level()["model"]["vocab"])
    document = byte_level(added_tokens=[{"id": size, **token("<y>")}])
    roles = {"bos_token": {"content": "<x>", "rstrip": True}}
    path = write(tmp_path, document, added_tokens={"<x>": size}, special_tokens_map=roles)
    assert encode(path, "<x> a") == [size + 1, *encode(path, " a")]


def test_of_two_keys_with_named_tokens_the_new_one_counts(tmp_path):
    config = {"extra_special_tokens": {"a_token": "<x>"}}
    config["additional_special_tokens"] = {"a_token": "<y>"}
    path = write(tmp_path, byte_level(), tokenizer_config=config)
    assert len(encode(path, "<x>")) == 1
    assert len(encode(path, "<y>")) > 1


def test_a_token_that_is_added_twice_and_once_normalized_is_refused(tmp_path):
    steps = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"}]}
    size = len(byte_level()["model"]["vocab"])
    entry = {"id": size, **token("<x>", normalized=True)}
    document = byte_level(added_tokens=[entry], normalizer=steps)
    decoder = {str(size): token("<x>")}
    path = write(tmp_path, document, tokenizer_config={"added_tokens_decoder": decoder})
    with pytest.raises(Unsupported, match="twice, with normalized: true"):
        load_tokenizer(path)


LLAMA = {
    "added_tokens": [],
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        ],
    },
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {
        "type": "BPE",
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "\u2581": 3, "a": 4, "\u2581\u2581": 5},
        "merges": [["\u2581", "\u2581"]],
    },
}


@pytest.mark.parametrize(
    ("version", "ids"),
    [("4.46.3", [1, 5, 4]), ("4.57.1", [1, 5, 4]), ("5.24.0", [3, 4]), (None, [3, 4])],
)
def test_a_folder_is_read_by_the_rules_of_the_version_that_wrote_it(version, ids, tmp_path):
    # transformers 5 puts no space before a text that begins with one, and adds no BOS.
    config = {"tokenizer_config": {"tokenizer_class": "LlamaTokenizer"}}
    path = write(tmp_path, LLAMA, **config, config={"transformers_version": version})
    assert load_tokenizer(path).encode(" a") == ids


# Ids before, between and after the texts of a pair, where 1 is BOS and 2 EOS.
@pytest.mark.parametrize(
    ("ends", "around"),
    [
        ({}, ([1], [1], [])),
        ({"add_eos_token": True}, ([1], [2, 1], [2])),
        ({"add_bos_token": False, "add_eos_token": True}, ([], [2], [2])),
    ],
)
def test_each_text_of_a_pair_has_the_ends_that_the_former_class_builds(ends, around, tmp_path):
    # As LlamaTokenizerFast of transformers 4.57.1 joins two texts.
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}
    versions = {"transformers_version": "4.57.1"}
    path = write(tmp_path, LLAMA, tokenizer_config=config | ends, config=versions)
    assert load_tokenizer(path).around_pair == around


def test_bos_of_a_byte_level_llama_class_follows_the_version(tmp_path):
    config = {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "bos_token": "<s>"}
    size = len(byte_level()["model"]["vocab"])
    document = byte_level(added_tokens=[{"id": size, **token("<s>")}])
    path = write(tmp_path, document, tokenizer_config=config, config={"model_type": "deepseek_v3"})
    assert size not in load_tokenizer(path).encode("a")
    versions = {"model_type": "deepseek_v3", "transformers_version": "4.33.1"}
    write(tmp_path, document, config=versions)
    assert load_tokenizer(path).encode("a")[0] == size


@pytest.mark.parametrize("name", ["BertTokenizer", "DistilBertTokenizer", "ElectraTokenizerFast"])
@pytest.mark.parametrize(
    ("version", "keys", "ids"),
    [
        # transformers 4 keeps the post-processor of the file, none; 5 builds one.
        ("4.46.3", {}, [5]),
        ("4.57.1", {}, [5]),
        ("4.57.1", {"do_lower_case": True}, [3]),
        ("5.24.0", {"do_lower_case": False}, [1, 5, 2]),
    ],
)
def test_an_encoders_class_of_transformers_4_sets_the_files_own_steps(
    name, version, keys, ids, tmp_path
):
    named = {"tokenizer_class": name, "do_lower_case": False, **keys}
    path = write(tmp_path, BERT, tokenizer_config=named, config={"transformers_version": version})
    assert load_tokenizer(path).encode("Cafe") == ids


@pytest.mark.parametrize(
    ("name", "is_set"), [("FunnelTokenizer", True), ("MPNetTokenizerFast", False)]
)
@pytest.mark.parametrize("version", ["4.46.3", "4.57.1"])
def test_an_encoders_class_sets_the_options_that_it_has_in_transformers_4(
    name, is_set, version, tmp_path
):
    # MPNet's class leaves alone whether the file puts spaces around ideographs.
    named = {"tokenizer_class": name, "tokenize_chinese_chars": False}
    path = write(tmp_path, BERT, tokenizer_config=named, config={"transformers_version": version})
    tokenizer = load_tokenizer(path)
    assert tokenizer.encode("cafe") == [3]
    assert tokenizer.encode("cafe\u4f60") == ([0] if is_set else [3, 6])
    names = ("<cls>", "<sep>") if is_set else ("<s>", "</s>", "<pad>", "<mask>")
    assert set(names) <= {token.text for token in spec_from_folder(path).added}


def test_the_mask_of_mpnet_takes_the_space_before_it(tmp_path):
    named = {"tokenizer_class": "MPNetTokenizer"}
    config = {"transformers_version": "4.57.1"}
    spec = spec_from_folder(write(tmp_path, BERT, tokenizer_config=named, config=config))
    (mask,) = (token for token in spec.added if token.text == "<mask>")
    assert mask.lstrip
    assert not mask.rstrip


def test_the_ends_that_mpnets_class_adds_are_not_found_in_lower_cased_text(tmp_path):
    path = write(tmp_path, BERT, tokenizer_config={"tokenizer_class": "MPNetTokenizer"})
    (end,) = encode(path, "</s>")
    assert encode(path, "a </s>")[-1] == end
    assert end not in encode(path, "a </S>")


@pytest.mark.parametrize("key", ["do_lower_case", "strip_accents", "tokenize_chinese_chars"])
def test_an_option_of_an_encoder_that_is_not_a_flag_is_refused_by_name(key, tmp_path):
    named = {"tokenizer_class": "BertTokenizer", key: "yes"}
    path = write(tmp_path, BERT, tokenizer_config=named, config={"transformers_version": "4.46.3"})
    with pytest.raises(Unsupported, match=key):
        load_tokenizer(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("add_prefix_space", True), ("extra_special_tokens", {"x_token": "<x>"})],
)
def test_a_key_that_only_some_versions_follow_is_refused_between_them(key, value, tmp_path):
    config = {"tokenizer_class": "Qwen2Tokenizer", key: value}
    path = write(tmp_path, byte_level(), tokenizer_config=config)
    # The rules of these versions are known, but not at which version between them they changed.
    for version in ("4.46.3", "4.57.1"):
        write(tmp_path, byte_level(), config={"transformers_version": version})
        load_tokenizer(path)
    write(tmp_path, byte_level(), config={"transformers_version": "4.50.0"})
    with pytest.raises(Unsupported, match=key):
        load_tokenizer(path)


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


def test_templates_in_files_replace_those_in_the_configuration(tmp_path):
    path = write(tmp_path, byte_level(), tokenizer_config={"chat_template": "configuration"})
    user = [{"role": "user", "content": "x"}]
    tools = [{"type": "function"}]
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


def test_a_tokenizer_json_counts_before_a_tokenizer_model(tmp_path):
    shutil.copy(FIXTURES / "spm" / "tiny.model", tmp_path / "tokenizer.model")
    path = write(tmp_path, byte_level(), tokenizer_config={"eos_token": "<|im_end|>"})
    tokenizer = load_tokenizer(path)
    assert tokenizer.source.endswith("tokenizer.json")
    assert len(tokenizer.encode("<|im_end|>", add_special=False)) == 1


def test_a_search_chooses_tokenizer_json_and_not_tokenizer_model(tmp_path):
    shutil.copy(FIXTURES / "spm" / "tiny.model", tmp_path / "tokenizer.model")
    document = byte_level()
    write(tmp_path, document, config={"vocab_size": len(document["model"]["vocab"])})
    outcome = search(model_facts(tmp_path), exhaustive=True)
    verdicts = {row.path.name: row.verdict for row in outcome.candidates[:2]}
    assert verdicts["tokenizer.json"] == "chosen"
    assert verdicts["tokenizer.model"] != "chosen"


def test_a_file_that_transformers_does_not_read_never_replaces_one_that_is_refused(tmp_path):
    shutil.copy(FIXTURES / "spm" / "tiny.model", tmp_path / "tokenizer.model")
    size = load_tokenizer(tmp_path / "tokenizer.model").vocab_size
    config = {"tokenizer_config": {"split_special_tokens": True}, "config": {"vocab_size": size}}
    write(tmp_path, byte_level(), **config)
    with pytest.raises(TokenizerNotFound, match=r"transformers reads tokenizer\.json"):
        resolve_tokenizer(tmp_path)


def test_tokenizer_model_beside_tekken_json_is_refused_if_nothing_chooses(tmp_path):
    shutil.copy(FIXTURES / "spm" / "tiny.model", tmp_path / "tokenizer.model")
    write_tekken(tmp_path / "tekken.json")
    with pytest.raises(Unsupported, match=r"tokenizer.model and tekken.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "mistral"}')
    assert load_tokenizer(tmp_path).source.endswith("tekken.json")


def test_templates_of_a_gguf_file_have_names_and_see_the_texts_of_special_tokens():
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "<pad>", "a"],
        "tokenizer.ggml.scores": [0.0] * 5,
        "tokenizer.ggml.token_type": [2, 3, 3, 3, 1],
        "tokenizer.ggml.padding_token_id": 3,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": "{{ pad_token }}{{ unk_token }}{{ bos_token }}",
        "tokenizer.chat_template.tool_use": "for tools",
    }
    tokenizer = Tokenizer.from_spec(spec_from_metadata(metadata))
    assert chat_template(tokenizer).render([]) == "<pad><unk><s>"
    assert chat_template(tokenizer, tools=True).render([], tools=[{}]) == "for tools"


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("value", ["2", 2.0, True, [2, "3"], [[2]], {}])
def test_an_eos_token_id_that_is_not_an_id_is_refused_by_its_key(name, value, tmp_path):
    path = write(tmp_path, byte_level(), **{name.removesuffix(".json"): {"eos_token_id": value}})
    with pytest.raises(InvalidFormat, match=rf"{name}: eos_token_id is .*, expected a token id"):
        load_tokenizer(path)


def test_stop_ids_are_those_of_both_configurations_and_of_text_config(tmp_path):
    """transformers 5.24 takes ``text_config`` if there is no ``generation_config.json``."""
    inner = {"text_config": {"eos_token_id": [5, None]}, "eos_token_id": None}
    files = {"config": inner, "generation_config": {"eos_token_id": 7}}
    assert {5, 7} <= load_tokenizer(write(tmp_path, byte_level(), **files)).stop_ids


@pytest.mark.parametrize("name", ["chat_template.jinja", "additional_chat_templates/rag.jinja"])
def test_a_template_that_is_not_utf_8_is_refused(name, tmp_path):
    """transformers 5.24 does not read such a folder either."""
    path = write(tmp_path, byte_level())
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes("é{{ messages }}".encode("latin-1"))
    with pytest.raises(InvalidFormat, match=rf"{name} is not UTF-8"):
        load_tokenizer(path)
