"""Checks of numbers and settings without an original: limits, copies, known values."""

import json
from dataclasses import replace

import numpy as np
import pytest
from builders import INT32, STRING, Typed, write_gguf
from damages import small, write_model
from hf_folders import tiny_folder
from tiny_keys import FAMILIES
from tiny_models import tiny, tiny_gguf

from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf import GGUF
from bitnet.quants.registry import PACKED_U8
from bitnet.quants.ternary import pack_u8
from bitnet.quants.weight import Weight
from bitnet.verify.vocabulary import vocabulary_anomalies
from bitnet.verify.weights import numbers_out_of_range, settings_out_of_range


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_sound_model_of_each_family_has_nothing_odd(architecture):
    checkpoint = tiny(architecture, block_count=6)
    assert list(numbers_out_of_range(checkpoint)) == []


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"])
def test_real_models_have_nothing_odd(test_models, name):
    checkpoint = open_checkpoint(test_models / name)
    assert list(settings_out_of_range(checkpoint)) == []
    assert list(numbers_out_of_range(checkpoint)) == []
    assert vocabulary_anomalies(checkpoint) == []


def test_real_vocabularies_have_nothing_odd(test_data):
    paths = sorted((test_data / "vocab").glob("*.gguf"))
    assert paths
    odd = {path.name: vocabulary_anomalies(open_checkpoint(path)) for path in paths}
    assert set(map(str, odd.values())) == {"[]"}, odd


@pytest.fixture
def model():
    return small("llama", "Q4_1")


def odd_numbers(model, tmp_path):
    """Texts about numbers of *model*, written to a file, that are out of range."""
    return list(numbers_out_of_range(open_checkpoint(write_model(model, tmp_path))))


def test_a_matrix_unlike_its_kind_is_named(model, tmp_path):
    model.matrix().scales[:] *= 30
    (text,) = odd_numbers(model, tmp_path)
    assert text.startswith("blk.3.ffn_up.weight is ")
    assert text.endswith("the size of the median ffn_up.weight of all layers")


def test_the_bytes_of_another_layer_are_named(model, tmp_path):
    model.matrix("attn_q", 4).raw = model.matrix("attn_q", 1).raw.copy()
    assert odd_numbers(model, tmp_path) == [
        "blk.4.attn_q.weight has the bytes of blk.1.attn_q.weight"
    ]


def test_a_copy_is_named_also_if_another_matrix_begins_with_the_same_bytes(model, tmp_path):
    copied = model.matrix("attn_q", 1).raw
    first = copied.copy()
    first.reshape(-1)[-1] ^= 1
    model.matrix("attn_q", 0).raw = first
    model.matrix("attn_q", 4).raw = copied.copy()
    assert "blk.4.attn_q.weight has the bytes of blk.1.attn_q.weight" in odd_numbers(
        model, tmp_path
    )


def test_packed_ternary_weights_are_judged_by_their_own_rows_and_codes():
    checkpoint = tiny("llama")
    codes = np.random.default_rng(0).integers(-1, 2, (64, 1024)).astype(np.int8)
    name = "blk.0.ffn_up.weight"

    def texts(codes):
        weights = {name: Weight(name, codes.shape, PACKED_U8, pack_u8(codes).reshape(-1))}
        return list(numbers_out_of_range(replace(checkpoint, weights=weights)))

    assert texts(codes) == []
    codes[::16] = 0  # four rows whose codes are in the same bytes
    assert texts(codes) == []
    codes[::16] = -1
    assert texts(codes) == [f"{name}: 4 stretches of 256 bytes are one byte throughout"]


def test_a_row_that_occurs_twice_is_named(model, tmp_path):
    rows = model.matrix().rows
    rows[7] = rows[8]
    assert odd_numbers(model, tmp_path) == ["blk.3.ffn_up.weight: 2 rows occur twice"]


def test_a_norm_of_negative_numbers_is_named(model, tmp_path):
    model.tensors["output_norm.weight"].scales[:] *= -1
    (text,) = odd_numbers(model, tmp_path)
    assert text == "output_norm.weight: 100% of its numbers are negative"


# 3e4 is a number between those of released models.
@pytest.mark.parametrize("value", [3e4, 0.0, float("nan"), float("inf"), True])
def test_a_setting_that_no_released_model_has_is_named(value):
    checkpoint = tiny("llama")
    keys = checkpoint.metadata | {"llama.rope.freq_base": value}
    texts = list(settings_out_of_range(replace(checkpoint, metadata=keys)))
    assert len(texts) == 1
    assert texts[0].endswith("1e+09")  # the last of the values that released LLaMAs have


def odd_vocabulary(model, tmp_path):
    """Texts about anomalies in the vocabulary of *model*, written to a file."""
    return vocabulary_anomalies(open_checkpoint(write_model(model, tmp_path)))


def test_types_behind_the_last_token_are_not_judged(tmp_path):
    """Another check names the length; this one must not end in an error."""
    source = tiny_gguf(tmp_path / "m.gguf")
    with GGUF.open(source) as file:
        types = [*file.metadata["tokenizer.ggml.token_type"], 3]
    key = {"tokenizer.ggml.token_type": Typed(INT32, types)}
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "odd.gguf", **key))
    assert not vocabulary_anomalies(checkpoint)


def test_tokens_out_of_the_order_of_their_merges_are_named(model, tmp_path):
    model.tokens[40], model.tokens[47] = model.tokens[47], model.tokens[40]
    (text,) = odd_vocabulary(model, tmp_path)
    assert repr(model.tokens[40]) in text
    assert text.startswith("tokens are not in the order of their merges")


def test_a_token_without_a_merge_is_named(model, tmp_path):
    dropped = model.merges.pop(17)
    (text,) = odd_vocabulary(model, tmp_path)
    assert text.endswith(repr(dropped.replace(" ", "")))


@pytest.mark.parametrize(
    ("id", "said"), [(35, "an ordinary token"), (0, "a token that begins one")]
)
def test_an_end_id_that_is_not_an_end_token_is_named(model, tmp_path, id, said):
    model.values["eos"] = id
    (text,) = odd_vocabulary(model, tmp_path)
    assert text == f"{id} {model.tokens[id]!r} ends a text and is {said}"


def test_the_tokens_of_a_known_model_are_recognised_but_for_one(test_models, tmp_path):
    source = open_checkpoint(test_models / "SmolLM2-135M-Instruct.Q4_1.gguf")
    keys = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2"}
    for part in ("tokens", "merges"):
        name = f"tokenizer.ggml.{part}"
        keys[name] = Typed(STRING, list(source.metadata[name]))
    keys["tokenizer.ggml.tokens"].value[1234] = "renamed"
    checkpoint = open_checkpoint(write_gguf(tmp_path / "v.gguf", keys))
    assert vocabulary_anomalies(checkpoint) == [
        "tokenizer.ggml.tokens is that of smollm2-135m but for: item: 1,234 'renamed'"
    ]


def test_a_row_much_larger_than_the_median_one_is_named():
    checkpoint = tiny("llama")
    weight = checkpoint.weights["blk.0.ffn_up.weight"]
    values = weight.data.view("<f4").reshape(weight.shape).copy()
    values[3] *= 1000
    assert np.isfinite(values).all()
    checkpoint.weights[weight.name] = type(weight)(
        weight.name, weight.shape, weight.quant, values.reshape(-1).view(np.uint8)
    )
    (text,) = numbers_out_of_range(checkpoint)
    assert text.startswith("blk.0.ffn_up.weight: a row is ")


@pytest.mark.parametrize("prefix", ["", "##"])
def test_merges_of_tokens_with_a_prefix_are_judged_as_others(tmp_path, prefix):
    letters = [chr(ord("a") + number) for number in range(26)]
    tokens = [*letters, *(prefix + letter for letter in letters if prefix)]
    merges = [[letter, f"{prefix}b"] for letter in letters[:20]]
    tokens += [f"{letter}b" for letter in letters[:20]]
    tokens[-1], tokens[-2] = tokens[-2], tokens[-1]
    folder = tiny_folder(tmp_path / "model", "llama")
    affix = {"continuing_subword_prefix": prefix} if prefix else {}
    model = {"type": "BPE", "vocab": {token: id for id, token in enumerate(tokens)}, **affix}
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    parts = {"pre_tokenizer": step, "decoder": step, "added_tokens": []}
    document = parts | {"model": model | {"merges": merges}}
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (text,) = vocabulary_anomalies(open_checkpoint(folder))
    assert text.startswith("tokens are not in the order of their merges")
