"""Files with values of other types and sizes: each is refused with an error of this program."""

import contextlib
import json
import math

import pytest
import tekken_files
from builders import vocabulary, write_gguf
from json_places import places_in, put
from rank_files import write_ranks
from sentencepiece_writer import sentencepiece_bytes
from small_specs import pieces

from bitnet.base.errors import BitnetError, InvalidFormat, Unsupported
from bitnet.tokenizer import extract_scores, extract_tokens
from bitnet.tokenizer.discover import model_facts, search
from bitnet.tokenizer.from_files import spec_from_file, spec_from_folder
from bitnet.tokenizer.from_gguf import spec_from_metadata
from bitnet.tokenizer.spec import BYTE_TO_CHARACTER
from bitnet.tokenizer.tokenizer import Tokenizer
from bitnet.tokenizer.tokenizer_json import check_vocabulary

# Values of other types and sizes; "\u00b2" is a digit for Python and not an integer.
ODD = (
    *(None, True, -1, 1.5, 2**70, 10**13, 10**400, math.nan, math.inf),
    *("", "x", "\u00b2", "9" * 5000, [], [0], ["x"]),
    *({}, {"x": 0}, {"x": -999}, {"x": 10**13}, {"0": []}, {"\u00b2": {}}),
)  # fmt: skip
TOKEN = {"content": "<x>", "lstrip": False, "special": True}
# Side files with correct values.
SIDE = {
    "tokenizer_config.json": {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {"300": TOKEN},
        "bos_token": "<s>",
        "extra_special_tokens": ["<x>"],
        "add_bos_token": True,
        "chat_template": [{"name": "default", "template": "x"}],
    },
    "special_tokens_map.json": {"bos_token": TOKEN},
    "added_tokens.json": {"<x>": 300},
    "generation_config.json": {"eos_token_id": [2]},
    "config.json": {"model_type": "llama", "vocab_size": 300, "text_config": {}},
    "chat_template.json": {"chat_template": "x"},
}
# A SentencePiece model of four pieces.
MODEL = pieces(
    "spm",
    tokens=["<unk>", "<s>", "</s>", "a"],
    scores=[0.0] * 4,
    token_types=[2, 3, 3, 1],
    bos_id=1,
    eos_id=2,
)


def _write_json(folder, name):
    """Write a ``tokenizer.json`` of two words to *folder* as *name*."""
    words = {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1}, "unk_token": "<unk>"}
    (folder / name).write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": words}))


def _write_vocabulary(folder, name):
    """Write a byte-level vocabulary to *folder* as *name*, and merges beside it."""
    ids = {text: id for id, text in enumerate(BYTE_TO_CHARACTER)}
    (folder / name).write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("#version: 0.2\n")


# Functions that write a tokenizer file of each kind, by its name; and the ``--pre`` it needs.
KINDS = {
    "tokenizer.json": _write_json,
    "vocab.json": _write_vocabulary,
    "tekken.json": lambda folder, name: tekken_files.write(folder / name),
    "qwen.tiktoken": lambda folder, name: write_ranks(folder / name, 256),
    "tokenizer.model": lambda folder, name: (folder / name).write_bytes(sentencepiece_bytes(MODEL)),
}
PRE = {"vocab.json": "gpt-2", "qwen.tiktoken": "gpt-2"}


def _odd_forms(value):
    """*value* with each of its parts, and the whole, replaced by every odd value."""
    return (put(value, place, odd) for place in places_in(value) for odd in ODD)


@pytest.mark.parametrize("side", SIDE)
@pytest.mark.parametrize("kind", KINDS)
def test_odd_values_of_side_files_are_refused_or_without_effect(kind, side, tmp_path):
    KINDS[kind](tmp_path, kind)
    for content in _odd_forms(SIDE[side]):
        (tmp_path / side).write_text(json.dumps(content))
        with contextlib.suppress(BitnetError):
            spec_from_folder(tmp_path, pre=PRE.get(kind))
        with contextlib.suppress(BitnetError):
            assert model_facts(tmp_path).vocab_size > 0


def test_a_vocabulary_whose_ids_are_not_ids_is_refused(tmp_path):
    path = tmp_path / "vocab.json"
    _write_vocabulary(tmp_path, path.name)
    document = json.loads(path.read_text())
    for changed in ([], 7, "x", None, {}, *(document | {"<x>": value} for value in (*ODD, 256.0))):
        path.write_text(json.dumps(changed))
        with pytest.raises(InvalidFormat, match="is not a vocabulary"):
            spec_from_file(path, pre="gpt-2")
    path.write_text(json.dumps(document | {"<x>": 256}))
    assert spec_from_file(path, pre="gpt-2").vocab_size == 257


@pytest.mark.parametrize("kind", ["vocab.json", "qwen.tiktoken", "tokenizer.model"])
@pytest.mark.parametrize(
    ("added", "message"),
    [
        ({"<x>": 10**13}, "has ids from .* to 10000000000000"),
        ({"<x>": -999}, "has ids from -999"),
        ({"<x>": "5"}, "added_tokens.json has the id '5' of '<x>'"),
        ({"<x>": True}, "added_tokens.json has the id True"),
        ({"<x>": 300.0}, "added_tokens.json has the id 300.0"),
    ],
)
def test_ids_of_added_tokens_that_no_vocabulary_has_are_refused(kind, added, message, tmp_path):
    KINDS[kind](tmp_path, kind)
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    with pytest.raises(InvalidFormat, match=message) as caught:
        spec_from_folder(tmp_path, pre=PRE.get(kind))
    assert "fetch the file again" in caught.value.hint


@pytest.mark.parametrize("kind", ["vocab.json", "qwen.tiktoken", "tokenizer.model"])
@pytest.mark.parametrize(
    "decoder",
    [{"\u00b2": TOKEN}, {"9" * 5000: TOKEN}, {"-1": TOKEN}, {"x": TOKEN}, {"5": 7}, ["<x>"], None],
    ids=["superscript", "long", "negative", "text", "number", "list", "null"],
)
def test_entries_of_added_tokens_decoder_that_are_not_tokens_are_refused(kind, decoder, tmp_path):
    KINDS[kind](tmp_path, kind)
    config = {"added_tokens_decoder": decoder}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidFormat, match="added_tokens_decoder"):
        spec_from_folder(tmp_path, pre=PRE.get(kind))


@pytest.mark.parametrize("content", ['{"<old>": 257}', "[]"])
@pytest.mark.parametrize("kind", ["vocab.json", "qwen.tiktoken"])
def test_added_tokens_json_does_not_count_beside_added_tokens_decoder(kind, content, tmp_path):
    """As in transformers."""
    KINDS[kind](tmp_path, kind)
    config = {"added_tokens_decoder": {"256": TOKEN}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "added_tokens.json").write_text(content)
    spec = spec_from_folder(tmp_path, pre="gpt-2")
    assert [token.text for token in spec.added] == ["<x>"]


@pytest.mark.parametrize("name", [*SIDE])
@pytest.mark.parametrize("content", ["[]", "7", "null", '"x"'])
def test_a_side_file_that_is_not_an_object_is_refused(name, content, tmp_path):
    _write_json(tmp_path, "tokenizer.json")
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidFormat, match=f"{name} holds .*, expected a JSON object"):
        spec_from_folder(tmp_path)


@pytest.mark.parametrize("value", [5, "abc", True])
def test_extra_special_tokens_that_are_not_a_list_are_refused_by_name(value, tmp_path):
    KINDS["tokenizer.model"](tmp_path, "tokenizer.model")
    config = {"tokenizer_class": "LlamaTokenizer", "extra_special_tokens": value}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(Unsupported, match=r"extra_special_tokens.*is not a list"):
        spec_from_folder(tmp_path)


@pytest.mark.parametrize("role", ["bos_id", "eos_id"])
def test_a_model_file_whose_ends_are_not_pieces_is_refused(role, tmp_path):
    path = tmp_path / "tokenizer.model"
    data = sentencepiece_bytes(MODEL)
    # Protobuf tags of the trainer's fields bos_id, 41, and eos_id, 42, and the ids in the file.
    tag = {"bos_id": b"\xc8\x02", "eos_id": b"\xd0\x02"}[role]
    own = {"bos_id": b"\x01", "eos_id": b"\x02"}[role]
    assert data.count(tag + own) == 1
    path.write_bytes(data.replace(tag + own, tag + b"\x7f"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidFormat, match="BOS or EOS is the id 127 of 4 pieces"):
        spec_from_folder(tmp_path)


@pytest.mark.parametrize("model_type", [["x"], {"a": 1}, 5, None])
def test_a_model_type_that_is_not_a_text_does_not_choose_the_tokenizer(model_type, tmp_path):
    _write_json(tmp_path, "tokenizer.json")
    tekken_files.write(tmp_path / "tekken.json")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert spec_from_folder(tmp_path).source.endswith("tokenizer.json")


GGUF = {"general.architecture": "llama"} | vocabulary(
    MODEL.tokens, model="llama", scores=MODEL.scores, token_types=MODEL.token_types
)
GGUF_ODD = (*ODD, [math.nan] * 4, [math.inf] * 4, [1.5] * 4, [10**400] * 4, ["x"] * 4, [None] * 4)


@pytest.mark.parametrize("model", ["llama", "gpt2", "bert", "t5", "gemma4"])
def test_odd_values_of_gguf_keys_are_refused_or_without_effect(model):
    """Arrays are lists, also of mixed types, which :mod:`bitnet.formats.gguf` would refuse."""
    keys = {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": MODEL.tokens,
        "tokenizer.ggml.scores": MODEL.scores,
        "tokenizer.ggml.token_type": MODEL.token_types,
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.merges": ["a b"],
        **{f"tokenizer.ggml.{name}_token_id": 1 for name in ("bos", "eos", "padding", "mask")},
        **{f"tokenizer.ggml.add_{name}_token": True for name in ("bos", "eos", "sep")},
        "tokenizer.chat_template": "x",
        "tokenizer.chat_template.tool_use": "x",
        "tokenizer.ggml.precompiled_charsmap": [0],
    }
    for key in keys:
        for odd in GGUF_ODD:
            with contextlib.suppress(BitnetError):
                Tokenizer.from_spec(spec_from_metadata(keys | {key: odd}))


@pytest.mark.parametrize("types", [[1.0] * 4, [math.nan] * 4, [math.inf] * 4, [True] * 4])
def test_types_of_tokens_that_are_not_whole_numbers_are_refused(types):
    keys = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": MODEL.tokens}
    keys["tokenizer.ggml.scores"] = MODEL.scores
    with pytest.raises(InvalidFormat, match="token_type should be an array of whole numbers"):
        spec_from_metadata(keys | {"tokenizer.ggml.token_type": types})


@pytest.mark.parametrize("tokens", [7, "abc", [1, 2, 3, 4], 1.5, True])
def test_a_list_of_tokens_that_is_something_else_is_refused_by_its_key(tokens, tmp_path):
    path = write_gguf(tmp_path / "m.gguf", GGUF | {"tokenizer.ggml.tokens": tokens})
    message = r"tokenizer\.ggml\.tokens should be an array of strings"
    for read in (model_facts, extract_tokens):
        with pytest.raises(InvalidFormat, match=message):
            read(path)


@pytest.mark.parametrize("scores", [7, "abc", ["a", "b", "c", "d"]])
def test_scores_that_are_something_else_are_refused_by_their_key(scores, tmp_path):
    path = write_gguf(tmp_path / "m.gguf", GGUF | {"tokenizer.ggml.scores": scores})
    with pytest.raises(InvalidFormat, match=r"tokenizer\.ggml\.scores should be an array of num"):
        extract_scores(path)


def test_another_key_that_is_not_a_list_of_texts_is_refused_by_its_name(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", GGUF)
    with pytest.raises(InvalidFormat, match=r"general\.architecture should be an array"):
        extract_tokens(path, "general.architecture")


DOCUMENT = {
    "model": {"vocab": {"a": 0, "b": 1}},
    "added_tokens": [{"id": 2, "content": "<x>"}],
}


def test_odd_values_of_a_downloaded_file_are_refused_or_without_effect(tmp_path):
    path = tmp_path / "tokenizer.json"
    for document in (DOCUMENT, DOCUMENT | {"model": {"vocab": [["a", 0.0], ["b", 0.0]]}}):
        path.write_text(json.dumps(document))
        check_vocabulary(path, 3)
        for changed in _odd_forms(document):
            path.write_text(json.dumps(changed))
            with contextlib.suppress(BitnetError):
                check_vocabulary(path, 3)


@pytest.mark.parametrize(
    "document",
    [
        {"model": {"vocab": 5}},
        {"model": {"vocab": [1]}},
        {"model": {"vocab": [[]]}},
        {"model": {"vocab": {}}, "added_tokens": ["x"]},
        {"model": {"vocab": {}}, "added_tokens": {"x": 1}},
    ],
)
def test_a_downloaded_file_without_a_list_of_tokens_says_so(document, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidFormat, match="its tokens are not listed by their ids") as caught:
        check_vocabulary(path, 3)
    assert "--force" in caught.value.hint


@pytest.mark.parametrize(
    "config", [{}, {"vocab_size": None}, {"vocab_size": "x"}, {"vocab_size": True}]
)
def test_a_folder_without_a_vocabulary_size_names_its_configuration(config, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"} | config))
    with pytest.raises(InvalidFormat, match=r"config\.json has no vocab_size") as caught:
        search(model_facts(tmp_path))
    assert "gguf" not in caught.value.hint


@pytest.mark.parametrize("value", [None, 7, ["a"]])
def test_a_folder_whose_origin_is_not_a_text_has_none(value, tmp_path):
    config = {"model_type": value, "_name_or_path": value, "vocab_size": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = model_facts(tmp_path)
    assert (facts.architecture, facts.repository) == ("unknown", "")


def test_a_value_that_is_nested_too_deep_to_print_is_refused(tmp_path):
    _write_json(tmp_path, "tokenizer.json")
    for key in ("vocab", "tokenizer_class", "added_tokens_decoder", "bos_token"):
        text = json.dumps({key: "?"}).replace('"?"', "[" * 900 + "]" * 900)
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(BitnetError):
            spec_from_folder(tmp_path)
