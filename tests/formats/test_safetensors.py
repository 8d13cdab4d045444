"""Safetensors files and folders: what is read, and that damage never gets further than an error."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitnet.base.errors import InvalidFormat, NotFound, Unsupported
from bitnet.formats import safetensors
from bitnet.formats.checkpoint import Inventory
from bitnet.formats.safetensors import INDEX, recognises
from bitnet.quants.registry import dequantize

MATRIX = np.arange(6, dtype="<f4").reshape(2, 3)
BYTES = np.array([1, 2, 3, 4], dtype=np.uint8)


def file_bytes(directory, data=b""):
    """A file with *directory*, values or the bytes of its JSON, and *data*."""
    header = directory if isinstance(directory, bytes) else json.dumps(directory).encode()
    return struct.pack("<Q", len(header)) + header + data


def entry(dtype, shape, start, stop):
    """The entry of a tensor in the directory."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def read_file(path):
    return safetensors.read_file(Inventory(path.parent), path.name)


def read_folder(folder):
    return safetensors.read_folder(Inventory(folder))


def good():
    """A valid file of two tensors, and one without numbers."""
    directory = {
        "__metadata__": {"format": "pt"},
        "a": entry("F32", [2, 3], 0, 24),
        "b": entry("U8", [4], 24, 28),
        "empty": entry("F16", [0, 3], 28, 28),
    }
    return file_bytes(directory, MATRIX.tobytes() + BYTES.tobytes())


def write(path, content):
    path.write_bytes(content)
    return path


def test_tensors_are_views_with_type_and_shape(tmp_path):
    tensors = read_file(write(tmp_path / "model.safetensors", good()))
    assert list(tensors) == ["a", "b", "empty"]
    assert (tensors["a"].quant.name, tensors["a"].shape) == ("F32", (2, 3))
    np.testing.assert_array_equal(tensors["a"].data.view("<f4").reshape(2, 3), MATRIX)
    np.testing.assert_array_equal(tensors["b"].data, BYTES)
    assert tensors["empty"].data.size == 0
    assert not tensors["a"].data.flags.owndata


def test_shards_of_an_index_are_put_together(tmp_path):
    for number in (1, 2):
        directory = {f"t{number}": entry("U8", [1], 0, 1)}
        write(tmp_path / f"model-{number}.safetensors", file_bytes(directory, bytes([number])))
    index = {"weight_map": {f"t{n}": f"model-{n}.safetensors" for n in (1, 2)}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert {name: tensor.data[0] for name, tensor in read_folder(tmp_path).items()} == {
        "t1": 1,
        "t2": 2,
    }


def test_a_missing_shard_is_named(tmp_path):
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"t": "model-7.safetensors"}}))
    with pytest.raises(NotFound, match=r"model-7\.safetensors"):
        read_folder(tmp_path)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "..\\x"])
def test_an_index_cannot_name_files_elsewhere(tmp_path, name):
    folder = tmp_path / "model"
    folder.mkdir()
    write(tmp_path / "secret.safetensors", good())
    (folder / INDEX).write_text(json.dumps({"weight_map": {"t": name}}))
    with pytest.raises(NotFound, match="not in the folder"):
        read_folder(folder)


def test_the_file_called_model_wins_over_others(tmp_path):
    write(tmp_path / "model.safetensors", good())
    write(tmp_path / "consolidated.safetensors", file_bytes({"x": entry("U8", [1], 0, 1)}, b"x"))
    assert "x" not in read_folder(tmp_path)


# Files with one tensor each, t1 and t2.
TWO = {n: file_bytes({f"t{n}": entry("U8", [1], 0, 1)}, bytes([n])) for n in (1, 2)}


# Names of files (those not called 2 have t1), the index, and what is wrong.
@pytest.mark.parametrize(
    ("files", "index", "problem"),
    [
        (["1", "2"], None, "neither"),
        (["model", "1"], {"t1": "1.safetensors"}, "either may be the model"),
        (["1", "copy"], {"t1": "1.safetensors", "t": "copy.safetensors"}, "t1 is in 1"),
        (["1", "2"], {"t1": "2.safetensors", "t2": "1.safetensors"}, "it says that t1 is in 2"),
        (["1", "2"], {"t1": "1.safetensors", "t3": "2.safetensors"}, "t3 is in 2.*, it is in no"),
    ],
)
def test_files_that_do_not_agree_on_the_model_are_refused(tmp_path, files, index, problem):
    for name in files:
        write(tmp_path / f"{name}.safetensors", TWO[2 if name == "2" else 1])
    if index:
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": index}))
    with pytest.raises(InvalidFormat, match=problem):
        read_folder(tmp_path)


def test_a_tensor_of_a_shard_that_the_index_does_not_list_is_read(tmp_path):
    both = {"t1": entry("U8", [1], 0, 1), "t2": entry("U8", [1], 1, 2)}
    write(tmp_path / "1.safetensors", file_bytes(both, b"ab"))
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"t1": "1.safetensors"}}))
    assert read_folder(tmp_path).keys() == both.keys()


def test_an_empty_folder_is_not_found(tmp_path):
    with pytest.raises(NotFound, match="no safetensors"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 50) + b"{}",
        file_bytes(b"[1, 2]"),
        file_bytes(b"{'a': 1}"),
        file_bytes(b"[" * 100_000),
        file_bytes(b'{"\xff": 1}'),
        file_bytes({"a": 3}),
        file_bytes({"a": entry("F32", [2], 0, 4)}, bytes(8)),
        file_bytes({"a": entry("F32", [2], 4, 12)}, bytes(8)),
        file_bytes({"a": entry("F32", [-2], 0, -8)}, bytes(8)),
        file_bytes({"a": entry("F32", [True], 0, 4)}, bytes(8)),
        file_bytes({"a": entry("F32", ["2"], 0, 8)}, bytes(8)),
        file_bytes({"a": entry("F32", ["3", 1_500_000_000], 0, 8)}, bytes(8)),
        file_bytes({"a": entry("F32", [2**62] * 100_000, 0, 8)}, bytes(8)),
        file_bytes({"a": entry("F32", {"2": 1}, 0, 8)}, bytes(8)),
        file_bytes({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)}, bytes(4)),
        file_bytes({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 2, 6)}, bytes(6)),
        file_bytes({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, bytes(12)),
        file_bytes({"a": entry("F32", [1], 4, 8)}, bytes(8)),
        file_bytes({"a": entry("F32", [1], 0, 4)}, bytes(8)),
        file_bytes(b'{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "a": 3}', b"x"),
        file_bytes({"a": entry("f32", [2], 0, 8)}, bytes(8)),
        file_bytes({"a": entry("F4", [3], 0, 1)}, bytes(1)),
        file_bytes({"a": entry("F32", [2], -8, 0)}, bytes(8)),
        file_bytes({"a": entry("F32", [2], 0, 8.0)}, bytes(8)),
        file_bytes({"a": {"dtype": "F32", "shape": None, "data_offsets": [0, 8]}}, bytes(8)),
        file_bytes({"a": {"dtype": [], "shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
    ],
)
def test_damaged_files_are_invalid_formats(tmp_path, content):
    with pytest.raises(InvalidFormat, match=r"model\.safetensors"):
        read_file(write(tmp_path / "model.safetensors", content))


# Bits of one number, as safetensors 0.8 counts them.
NEWER_TYPES = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "C64": 64}


@pytest.mark.parametrize("dtype", NEWER_TYPES)
def test_a_type_without_a_decoder_is_read_and_named_when_it_is_used(tmp_path, dtype):
    size = 8 * NEWER_TYPES[dtype] // 8  # bytes of eight numbers
    content = file_bytes({"a": entry(dtype, [2, 4], 0, size)}, bytes(size))
    tensor = read_file(write(tmp_path / "model.safetensors", content))["a"]
    assert (tensor.shape, tensor.data.size) == ((2, 4), size)
    with pytest.raises(Unsupported, match=f"a: no decoder for encoding {dtype}"):
        dequantize(tensor)


def test_a_type_that_no_library_has_yet_is_named(tmp_path):
    content = file_bytes({"a": entry("F2_E1M0", [4], 0, 1)}, bytes(1))
    with pytest.raises(Unsupported, match="the tensor a is F2_E1M0, a type that is not known"):
        read_file(write(tmp_path / "model.safetensors", content))


@given(st.integers(0, len(good()) - 1), st.integers(0, 255))
def test_any_changed_byte_is_read_or_refused(tmp_path_factory, at, value):
    content = bytearray(good())
    content[at] = value
    path = write(tmp_path_factory.mktemp("fuzz") / "model.safetensors", bytes(content))
    try:
        tensors = read_file(path)
    except (InvalidFormat, Unsupported):
        return
    assert sum(tensor.data.size for tensor in tensors.values()) <= len(content)


@given(st.integers(0, len(good()) - 1))
def test_any_truncation_is_refused(tmp_path_factory, length):
    path = write(tmp_path_factory.mktemp("cut") / "model.safetensors", good()[:length])
    with pytest.raises(InvalidFormat):
        read_file(path)


def test_recognition_looks_at_the_content(tmp_path):
    assert recognises(write(tmp_path / "weights.bin", good()))
    assert recognises(tmp_path) is False
    write(tmp_path / "model.safetensors", good())
    assert recognises(tmp_path)
    assert not recognises(write(tmp_path / "model.gguf", b"GGUF" + bytes(20)))
