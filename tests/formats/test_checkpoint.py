"""One view on GGUF files and safetensors folders: GGUF keys, GGUF names, weights still encoded."""

import hashlib
import json
import re
import struct

import numpy as np
import pytest
from builders import Tensor, i2_s, write_gguf
from tiny_keys import FAMILIES
from tiny_models import tiny

from bitnet.base.errors import InvalidFormat, NotFound, Unsupported
from bitnet.base.invocation import shell_quote
from bitnet.families.config_json import describe
from bitnet.families.family import of_gguf
from bitnet.families.tensor_names import block_number, gguf_name, without_block
from bitnet.formats.checkpoint import Inventory, parse_json
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.models.load import load_model
from bitnet.quants.registry import dequantize

CONFIG = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}


# Ternary layers of BitNet whose weights are stored packed, and such whose weights are masters.
OFFLINE = {"quant_method": "bitnet", "linear_class": "bitlinear"}
ONLINE = {
    "quant_method": "bitnet",
    "linear_class": "autobitlinear",
    "quantization_mode": "online",
}
BITNET = {
    "model_type": "bitnet",
    "hidden_act": "relu2",
    "num_key_value_heads": 1,
    "rope_theta": 5e5,
    "quantization_config": OFFLINE,
}


def folder(path, tensors, **config):
    """A safetensors folder; *tensors* maps Hugging Face names to arrays or (dtype, array)."""
    directory = {}
    data = b""
    for name, value in tensors.items():
        dtype, array = value if isinstance(value, tuple) else ("F32", value.astype("<f4"))
        shape = list(array.shape)
        offsets = [len(data), len(data) + array.nbytes]
        directory[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += array.tobytes()
    header = json.dumps(directory).encode()
    content = struct.pack("<Q", len(header)) + header + data
    path.mkdir(exist_ok=True)
    (path / "model.safetensors").write_bytes(content)
    (path / "config.json").write_text(json.dumps(CONFIG | config))
    return path


def test_a_gguf_file_gives_views_and_its_own_keys(tmp_path):
    metadata = {"general.architecture": "llama", "llama.block_count": 3}
    path = write_gguf(tmp_path / "x.bin", metadata, [i2_s("w", (2, 128), scale=0.5)])
    checkpoint = open_checkpoint(path)
    assert checkpoint.architecture == "llama"
    assert checkpoint.rope_style == "interleaved"
    assert checkpoint.integer("block_count") == 3
    weight = checkpoint.weights["w"]
    assert (weight.shape, weight.quant.name) == ((2, 128), "I2_S")
    expected = (np.arange(256) % 3 - 1).reshape(2, 128) * 0.5
    np.testing.assert_array_equal(dequantize(weight), expected)


def test_the_arm_order_is_an_explicit_choice(tmp_path):
    metadata = {"general.architecture": "bitnet-b1.58"}
    path = write_gguf(tmp_path / "x.gguf", metadata, [i2_s("w", (1, 128))])
    x86 = open_checkpoint(path)
    arm = open_checkpoint(path, i2_s_layout="arm")
    assert x86.rope_style == "half"
    first = dequantize(x86.weights["w"])
    second = dequantize(arm.weights["w"])
    assert first[0, 32] == second[0, 16]  # both are bits 5 and 4 of byte 0
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_model_gives_the_same_logits_from_a_gguf_file(tmp_path, architecture):
    memory = tiny(architecture)
    tensors = [
        Tensor(name, weight.shape, weight.quant.ggml_id, weight.data.tobytes())
        for name, weight in memory.weights.items()
    ]
    file = open_checkpoint(write_gguf(tmp_path / "x.gguf", memory.metadata, tensors))
    from_memory, from_file = (
        model.forward([1, 2, 3], KVCache(model.config, 8))
        for model in (load_model(memory), load_model(file))
    )
    # The file keeps the norm's epsilon in float32.
    np.testing.assert_allclose(from_memory, from_file, rtol=1e-4, atol=1e-5)


def test_hugging_face_names_become_gguf_names(tmp_path):
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
        "model.layers.0.self_attn.q_proj.weight": "blk.0.attn_q.weight",
        "model.layers.11.post_attention_layernorm.weight": "blk.11.ffn_norm.weight",
        "model.layers.0.unheard_of.weight": "model.layers.0.unheard_of.weight",
    }
    path = folder(tmp_path, {name: np.ones((2, 2)) for name in names})
    checkpoint = open_checkpoint(path)
    assert list(checkpoint.weights) == list(names.values())
    assert checkpoint.rope_style == "half"
    assert checkpoint.integer("attention.head_count_kv") == 1


def test_the_name_of_a_bias_ends_in_bias_in_gguf_too():
    name = "model.layers.0.self_attn.q_proj.bias"
    assert gguf_name(name, of_gguf("llama")) == "blk.0.attn_q.bias"


def test_the_file_inside_a_folder_opens_the_folder(tmp_path):
    path = folder(tmp_path, {"model.norm.weight": np.ones(8)})
    assert open_checkpoint(path / "model.safetensors").weights.keys() == {"output_norm.weight"}


def test_a_tied_head_is_left_out(tmp_path):
    both = {"lm_head.weight": np.ones((2, 8)), "model.embed_tokens.weight": np.ones((2, 8))}
    path = folder(tmp_path, both, tie_word_embeddings=True)
    assert list(open_checkpoint(path).weights) == ["token_embd.weight"]


def test_the_head_of_a_tied_model_is_its_embedding_where_that_is_left_out(tmp_path):
    path = folder(tmp_path, {"lm_head.weight": np.ones((2, 8))}, tie_word_embeddings=True)
    assert list(open_checkpoint(path).weights) == ["token_embd.weight"]


def test_a_head_that_differs_from_the_embedding_counts_in_a_tied_model_too(tmp_path, caplog):
    both = {"lm_head.weight": np.ones((2, 8)), "model.embed_tokens.weight": np.zeros((2, 8))}
    path = folder(tmp_path, both, tie_word_embeddings=True)
    with caplog.at_level("WARNING", logger="bitnet"):
        assert set(open_checkpoint(path).weights) == {"token_embd.weight", "output.weight"}
    assert "is another matrix" in caplog.text


def test_rotary_buffers_and_vision_towers_are_left_out(tmp_path):
    names = ["model.layers.0.self_attn.rotary_emb.inv_freq", "vision_tower.x.weight"]
    path = folder(tmp_path, {name: np.ones(2) for name in names})
    assert not open_checkpoint(path).weights


def test_gemma_norms_become_factors(tmp_path):
    """A folder of Gemma stores the weight of a norm less 1."""
    path = folder(
        tmp_path,
        {"model.norm.weight": np.full(8, 0.25)},
        model_type="gemma3_text",
        hidden_act="gelu_pytorch_tanh",
    )
    norm = open_checkpoint(path).weights["output_norm.weight"]
    assert dequantize(norm).tolist() == [1.25] * 8


@pytest.mark.parametrize(("linear_class", "factor"), [("autobitlinear", 4.0), ("bitlinear", 0.25)])
def test_packed_weights_take_their_scale_by_the_kind_of_layer(tmp_path, linear_class, factor):
    name = "model.layers.0.self_attn.q_proj.weight"
    # A byte is a column of four rows, the first in its lowest bits; a code is the weight plus 1.
    packed = np.array([[0b10100001, 0b00011000]], dtype=np.uint8)
    scale = np.array([0x4080], dtype="<u2")  # 4 in bfloat16
    path = folder(
        tmp_path,
        {name: ("U8", packed), f"{name}_scale": ("BF16", scale)},
        **BITNET
        | {"quantization_config": {"quant_method": "bitnet", "linear_class": linear_class}},
    )
    weight = open_checkpoint(path).weights["blk.0.attn_q.weight"]
    assert (weight.shape, weight.quant.name) == ((4, 2), "PACKED_U8")
    expected = np.array([[0, -1], [-1, 1], [1, 0], [1, -1]]) * factor
    np.testing.assert_array_equal(dequantize(weight), expected)


def test_a_short_gemma_3_configuration_is_filled_in():
    # The file has what differs from the defaults of transformers' class.
    written = {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
    }
    keys = describe(written, model="short").metadata
    assert {key.removeprefix("gemma3."): value for key, value in keys.items()} == {
        "general.architecture": "gemma3",
        "block_count": 34,
        "embedding_length": 2560,
        "feed_forward_length": 10240,
        "attention.head_count": 8,
        "attention.head_count_kv": 4,
        "attention.key_length": 256,
        "attention.scale": 1 / 16,  # 1 / sqrt(256), of the default query_pre_attn_scalar
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 1024,
        "context_length": 131072,
        "rope.dimension_count": 256,
        "attention.sliding_window_pattern": [(n + 1) % 6 != 0 for n in range(34)],
        "attn_logit_softcapping": 0.0,
        "final_logit_softcapping": 0.0,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
    }


@pytest.mark.parametrize("scale", [0.0, np.nan, np.inf, -1.0])
def test_a_senseless_weight_scale_is_refused(tmp_path, scale):
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors = {name: ("U8", np.zeros((1, 2), np.uint8)), f"{name}_scale": np.array([scale])}
    with pytest.raises(InvalidFormat, match="weight_scale"):
        open_checkpoint(folder(tmp_path, tensors, **BITNET))


def test_packed_weights_need_their_scale(tmp_path):
    tensors = {"model.layers.0.mlp.up_proj.weight": ("U8", np.zeros((1, 2), np.uint8))}
    with pytest.raises(InvalidFormat, match="without a weight_scale"):
        open_checkpoint(folder(tmp_path, tensors, **BITNET))


def test_master_weights_become_ternary(tmp_path):
    values = np.array([[0.1, -0.3], [0.15, 1.0], [0, 0], [0.7, -0.9]])
    path = folder(
        tmp_path,
        {"model.layers.0.mlp.up_proj.weight": values, "model.embed_tokens.weight": values},
        **BITNET | {"quantization_config": ONLINE, "tie_word_embeddings": True},
    )
    weights = open_checkpoint(path).weights
    assert weights["token_embd.weight"].quant.name == "F32"
    # BitNet b1.58 divides by the mean of the absolute values, and rounds to -1, 0 and 1.
    mean = np.abs(values).mean()
    expected = np.clip(np.rint(values / mean), -1, 1) * mean
    np.testing.assert_allclose(dequantize(weights["blk.0.ffn_up.weight"]), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "other"}, "Unsupported architecture: other. Supported: .*llama"),
        ({"model_type": None}, "Unsupported architecture"),
        ({"hidden_act": "gelu"}, 'hidden_act = "gelu"'),
    ],
)
def test_an_architecture_or_activation_that_does_not_run_here_is_named(tmp_path, changed, said):
    with pytest.raises(Unsupported, match=said):
        open_checkpoint(folder(tmp_path, {"model.norm.weight": np.ones(8)}, **changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"num_attention_heads": 0},
        {"hidden_size": "wide"},
        {"rope_scaling": "long"},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
    ],
)
def test_a_senseless_configuration_is_an_invalid_format(tmp_path, changed):
    with pytest.raises(InvalidFormat, match=r"config\.json"):
        open_checkpoint(folder(tmp_path, {"model.norm.weight": np.ones(8)}, **changed))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 0},
        {"rope_parameters": {"rope_theta": 0.0}},
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "attention_factor": 0}},
        {"rope_scaling": {"type": "linear", "rope_type": "default", "factor": 4.0}},
        {
            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}},
            "model_type": "gemma3_text",
            "rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 8.0},
        },
    ],
)
def test_zero_is_not_taken_for_unset_nor_one_kind_of_rope_for_another(rope):
    with pytest.raises(InvalidFormat):
        describe(CONFIG | rope, model="m")


def test_the_kind_of_scaling_may_have_its_earlier_name():
    """``type`` for ``rope_type``."""
    by_name = [
        describe(
            CONFIG | {"model_type": "gemma3_text", "hidden_act": "gelu_pytorch_tanh", "head_dim": 4}
            | {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}}
            | {"rope_scaling": {name: "linear", "factor": 8.0}},
            model="m",
        ).metadata
        for name in ("type", "rope_type")
    ]  # fmt: skip
    assert by_name[0] == by_name[1]
    assert by_name[0]["gemma3.rope.scaling.factor"] == 8


def test_two_names_of_one_part_are_refused(tmp_path):
    tensors = {"model.norm.weight": np.ones(8), "norm.weight": np.zeros(8)}
    with pytest.raises(InvalidFormat, match="the same part"):
        open_checkpoint(folder(tmp_path, tensors))


def test_a_file_that_is_not_of_the_model_beside_it_is_refused(tmp_path):
    folder(tmp_path, {"model.norm.weight": np.ones(8)})
    other = tmp_path / "other.safetensors"
    other.write_bytes((tmp_path / "model.safetensors").read_bytes())
    with pytest.raises(InvalidFormat, match="not one of the files") as caught:
        open_checkpoint(other)
    assert caught.value.hint == f"name the folder: {shell_quote(tmp_path)}"


def test_a_folder_without_configuration_is_not_found(tmp_path):
    path = folder(tmp_path, {"model.norm.weight": np.ones(8)})
    (path / "config.json").unlink()
    with pytest.raises(NotFound, match=r"config\.json"):
        open_checkpoint(path)


def test_a_path_that_does_not_exist_is_not_found(tmp_path):
    with pytest.raises(NotFound, match="no such file or folder"):
        open_checkpoint(tmp_path / "absent.gguf")


@pytest.mark.parametrize("content", [b"", b"GGU"])
def test_a_file_that_ends_within_its_first_bytes_is_damaged(tmp_path, content):
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(InvalidFormat, match=r"is empty|ends after 3 bytes"):
        open_checkpoint(tmp_path / "model.gguf")


def test_a_name_that_no_file_can_have_is_not_found(tmp_path):
    with pytest.raises(NotFound, match="too long"):
        open_checkpoint(tmp_path / ("a" * 5000))


@pytest.mark.parametrize("content", [b"PK\x03\x04 a zip file", b"text"])
def test_another_kind_of_file_is_not_a_model(tmp_path, content):
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(InvalidFormat, match="neither a GGUF file nor safetensors"):
        open_checkpoint(tmp_path / "model.gguf")


def test_an_empty_folder_holds_no_model(tmp_path):
    with pytest.raises(NotFound, match="no model in"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("place", [".", "..", "inner/.."])
@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"model_type": "llama", "head_dim": "x"}'])
def test_a_model_in_the_working_folder_has_a_name_in_messages(
    place, content, tmp_path, monkeypatch
):
    model = folder(tmp_path / "model", {"a": ("F32", np.zeros(1, "<f4"))})
    (model / "config.json").write_text(content)
    (model / "inner").mkdir()
    monkeypatch.chdir(model / "inner" if place == ".." else model)
    with pytest.raises((InvalidFormat, Unsupported), match=r"model(/config\.json)?: "):
        open_checkpoint(place)
    monkeypatch.chdir(model)
    with pytest.raises((InvalidFormat, Unsupported), match=r"model(/config\.json)?: "):
        open_checkpoint("model.safetensors")


def test_the_digest_of_an_inventory_is_that_of_all_files_read_so_far(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    files = Inventory(tmp_path)
    files.read("a")
    assert [*files.sha256] == ["a"]
    assert files.digest == hashlib.sha256(b"a").hexdigest()
    files.read("b")
    at_once = Inventory(tmp_path)
    at_once.read("b")
    at_once.read("a")
    assert files.sha256 == at_once.sha256
    assert files.digest == at_once.digest


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "../a", "/a", ""])
def test_a_name_that_no_file_of_a_folder_has_is_refused(name, tmp_path):
    for read in (Inventory(tmp_path).read, Inventory(tmp_path).__contains__):
        with pytest.raises(InvalidFormat, match=r"name of a file|outside of the folder"):
            read(name)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_json_of_more_levels_than_any_file_has_is_refused(opening, tmp_path):
    closing = "]" if opening == "[" else "}"
    # The bound is 100; at 900 and more, Python's recursion could end the parser instead.
    for levels, is_read in ((100, True), (101, False), (900, False), (50_000, False)):
        text = (opening * (levels - 1) + opening[0] + closing + closing * (levels - 1)).encode()
        kind = list if opening == "[" else dict
        if is_read:
            assert isinstance(parse_json(text, tmp_path / "a", kind), kind)
        else:
            with pytest.raises(InvalidFormat, match="not valid JSON"):
                parse_json(text, tmp_path / "a", kind)


@pytest.mark.parametrize(
    ("name", "number", "rest"),
    [
        ("blk.12.attn_q.weight", 12, "attn_q.weight"),
        ("output.weight", -1, "output.weight"),
        ("blk.x.weight", -1, "blk.x.weight"),
        ("blk.weight", -1, "blk.weight"),
        ("blk.0", -1, "blk.0"),
        ("blk", -1, "blk"),
        (f"blk.{'9' * 5000}.weight", -1, f"blk.{'9' * 5000}.weight"),
    ],
)
def test_any_name_of_a_tensor_has_a_number_and_a_rest(name, number, rest):
    assert (block_number(name), without_block(name)) == (number, rest)


@pytest.mark.parametrize("name", ["blk.x", "blk", "blk.weight", "model.layers.²", "layers.x.mlp"])
def test_a_name_like_that_of_a_layer_is_named_as_it_is(name, tmp_path):
    embedding = {"model.embed_tokens.weight": np.zeros((8, 4))}
    odd = {f"{name}.weight": np.zeros((4, 4)), f"{name}.bias": np.ones(4)}
    path = folder(tmp_path / "m", embedding | odd, tie_word_embeddings=True)
    with pytest.raises(InvalidFormat, match=re.escape(f"m: {name}.bias is there, and")):
        open_checkpoint(path)
