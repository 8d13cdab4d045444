"""GGUF files: their values and tensors, and every way in which a file can be wrong."""

import contextlib
import logging
import os
import re
import struct
import tracemalloc

import numpy as np
import pytest
from builders import (
    BOOL,
    FLOAT32,
    INT32,
    UINT64,
    Tensor,
    Typed,
    f32,
    gguf_bytes,
    i2_s,
    llama_metadata,
    vocabulary,
    write_gguf,
)

from bitnet.base.errors import InvalidFormat, NotFound, PermissionDenied, Unsupported
from bitnet.formats.gguf import GGUF
from bitnet.formats.gguf_header import NeedMoreBytes


@pytest.fixture(params=["auto", "reference"])
def backend(request, monkeypatch):
    """Run the test with the compiled module, if it is there, and without it."""
    monkeypatch.setenv("BITNET_BACKEND", request.param)
    return request.param


# The largest or smallest value of each type, with GGUF's number of the type.
EVERY_TYPE = {
    "t.uint8": Typed(0, 255),
    "t.int8": Typed(1, -128),
    "t.uint16": Typed(2, 65535),
    "t.int16": Typed(3, -32768),
    "t.uint32": Typed(4, 2**32 - 1),
    "t.int32": Typed(5, -(2**31)),
    "t.float32": Typed(6, 0.5),
    "t.bool": Typed(7, True),
    "t.string": "Zürich \u0120 \N{GRINNING FACE}",
    "t.uint64": Typed(10, 2**64 - 1),
    "t.int64": Typed(11, -(2**63)),
    "t.float64": Typed(12, 0.1),
}


def test_every_scalar_type_is_decoded(backend):
    gguf = GGUF.parse(gguf_bytes(EVERY_TYPE))
    assert dict(gguf.metadata) == {
        key: value.value if isinstance(value, Typed) else value for key, value in EVERY_TYPE.items()
    }


# GGUF's numbers of types without 8, a string, and 9, an array.
@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12])
def test_numeric_arrays_read_as_lists_and_as_numpy(backend, kind):
    values = [True, False, True] if kind == BOOL else [1, 0, 3]
    array = GGUF.parse(gguf_bytes({"a": Typed(kind, values)})).metadata["a"]
    assert list(array) == values
    assert array[1] == values[1]
    assert array[-1] == values[2]
    assert len(array) == array.length == 3
    numbers = array.numpy()
    assert numbers.tolist() == values
    assert not numbers.flags.writeable or kind == BOOL  # a view of the file, or a copy as bools


def test_string_arrays_give_texts_bytes_and_offsets(backend):
    texts = ["", "a", "Ġhello", "\N{GRINNING FACE}" * 3, "x" * 1000]
    array = GGUF.parse(gguf_bytes({"a": texts})).metadata["a"]
    assert array.item_type == "string"
    assert array.strings() == list(array) == texts
    assert [array[i] for i in range(5)] == texts
    assert array.bytes_at(2) == "Ġhello".encode()
    assert bytes(array.raw) == b"".join(
        struct.pack("<Q", len(t.encode())) + t.encode() for t in texts
    )
    starts = list(array.starts)  # offsets into `raw`, one more than strings
    assert starts[0] == 0
    assert starts[-1] == len(array.raw)
    assert bytes(array.raw[starts[1] + 8 : starts[2]]) == b"a"  # behind its length of 8 bytes


def test_strings_that_are_not_utf8_survive_a_round_trip(backend):
    array = GGUF.parse(gguf_bytes({"a": [b"\xff\xfe", b"ok"], "s": b"\x80"})).metadata["a"]
    assert [text.encode("utf-8", "surrogateescape") for text in array.strings()] == [
        b"\xff\xfe",
        b"ok",
    ]


def test_an_empty_array_has_no_elements(backend):
    gguf = GGUF.parse(gguf_bytes({"s": Typed(8, []), "i": Typed(INT32, [])}))
    assert gguf.metadata["s"].strings() == []
    assert list(gguf.metadata["s"].starts) == [0]
    assert gguf.metadata["i"].numpy().shape == (0,)
    with pytest.raises(IndexError):
        gguf.metadata["i"][0]


def test_a_file_that_changes_while_it_is_open_is_an_error(backend, tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"a": ["text", "more"]})
    with GGUF.open(path) as gguf:
        with path.open("r+b") as file:
            file.seek(path.read_bytes().index(b"text") - 8)  # the length of the first string
            file.write(b"\xff" * 8)
        array = gguf.metadata["a"]
        with pytest.raises(InvalidFormat, match="was changed"):
            array.strings()
        with pytest.raises(InvalidFormat, match="was changed"):
            array.bytes_at(0)


def test_files_and_arrays_have_a_repr_that_says_what_they_are(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama", "a": ["x", "y"]})
    with GGUF.open(path) as gguf:
        assert repr(gguf) == "<GGUF m.gguf: llama, 0 tensors>"
        assert repr(gguf.metadata["a"]) == "<Array of 2 string>"
        assert gguf.paths == [path]


def test_the_wrong_kind_of_array_is_refused_by_name(backend):
    gguf = GGUF.parse(gguf_bytes({"s": ["a"], "i": Typed(FLOAT32, [1.0])}))
    with pytest.raises(InvalidFormat, match="float32 where strings"):
        gguf.metadata["i"].strings()
    with pytest.raises(InvalidFormat, match="strings where numbers"):
        gguf.metadata["s"].numpy()


def test_tensors_have_rows_first_and_are_views(backend, tmp_path):
    path = write_gguf(
        tmp_path / "m.gguf",
        llama_metadata("bitnet-b1.58"),
        [f32("token_embd.weight", (3, 128), 2.0), i2_s("blk.0.attn_q.weight", (4, 128), scale=0.5)],
    )
    with GGUF.open(path) as gguf:
        assert gguf.architecture == "bitnet-b1.58"
        assert gguf.dialect == "bitnet.cpp"
        assert (gguf.version, gguf.alignment, gguf.size) == (3, 32, path.stat().st_size)
        embedding = gguf.tensors["token_embd.weight"]
        assert embedding.shape == (3, 128)
        assert embedding.offset == gguf.data_offset
        values = np.frombuffer(gguf.tensor_bytes("token_embd.weight"), "<f4")
        assert values.tolist() == [2.0] * 384
        ternary = gguf.tensors["blk.0.attn_q.weight"]
        # Four codes in a byte, then 32 bytes that begin with the scale.
        assert (ternary.type.name, ternary.size_bytes) == ("I2_S", 4 * 128 // 4 + 32)
        tail = gguf.tensor_bytes("blk.0.attn_q.weight")[128:132]
        assert struct.unpack("<f", tail) == (0.5,)
    assert values[0] == 2.0  # the view outlives the file object
    with pytest.raises(InvalidFormat, match="closed"):
        gguf.tensor_bytes("token_embd.weight")


def test_a_tensor_that_is_not_there_is_not_found(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {}, [f32("a", (1,))])
    with GGUF.open(path) as gguf, pytest.raises(NotFound, match="no tensor 'b'"):
        gguf.tensor_bytes("b")


def test_version_2_is_read(backend):
    assert GGUF.parse(gguf_bytes({"k": 1}, version=2)).version == 2


@pytest.mark.parametrize(
    ("head", "error", "text"),
    [
        (b"GGUF\x00\x00\x00\x03" + bytes(16), Unsupported, "big-endian"),
        (b"GGUF\x01\x00\x00\x00" + bytes(16), Unsupported, "version 1"),
        (b"GGUF\x04\x00\x00\x00" + bytes(16), Unsupported, "version 4"),
        (b"GGUF\x00\x00\x00\x00" + bytes(16), Unsupported, "version 0"),
        (b"GGU", InvalidFormat, "ends after 3 bytes"),
        (b"lmgg" + bytes(20), InvalidFormat, "before GGUF"),
        (b"PK\x03\x04" + bytes(20), InvalidFormat, "zip"),
        (b"<!DOCTYPE html>", InvalidFormat, "HTML"),
        (b"version https://git-lfs.github.com/spec/v1", InvalidFormat, "LFS pointer"),
        (b"\x00" * 32, InvalidFormat, "starts with"),
        (
            b"\x08" + bytes(7) + b'{"w": {}}',
            InvalidFormat,
            "is a safetensors file, expected a GGUF",
        ),
    ],
)
def test_a_file_of_another_format_is_refused_by_its_name(tmp_path, head, error, text):
    path = tmp_path / "m.gguf"
    path.write_bytes(head)
    with pytest.raises(error, match=text):
        GGUF.open(path)


def test_missing_empty_and_odd_paths_have_their_own_texts(tmp_path):
    with pytest.raises(NotFound, match="no such file or folder"):
        GGUF.open(tmp_path / "none.gguf")
    with pytest.raises(NotFound, match="no model in"):
        GGUF.open(tmp_path)
    empty = tmp_path / "empty.gguf"
    empty.touch()
    with pytest.raises(InvalidFormat, match="is empty"):
        GGUF.open(empty)
    if os.name == "posix":
        pipe = tmp_path / "pipe.gguf"
        os.mkfifo(pipe)
        with pytest.raises(InvalidFormat, match="not a regular file"):
            GGUF.open(pipe)
    if os.name == "posix" and os.getuid():
        empty.chmod(0)
        with pytest.raises(PermissionDenied):
            GGUF.open(empty)


@pytest.mark.parametrize("value", [0, 3, 2**31, Typed(INT32, -32), "32", Typed(7, True), 0.5])
def test_an_odd_alignment_is_refused(value):
    with pytest.raises(InvalidFormat, match=r"general\.alignment"):
        GGUF.parse(gguf_bytes({"general.alignment": value}))


def test_another_alignment_is_used():
    tensors = [f32("a", (3,)), f32("b", (3,), 5.0)]
    raw = gguf_bytes({"general.alignment": Typed(UINT64, 64)}, tensors, alignment=64)
    gguf = GGUF.parse(raw)
    assert gguf.data_offset % 64 == 0
    assert bytes(gguf.tensor_bytes("b")) == struct.pack("<3f", 5, 5, 5)


def test_a_prefix_of_a_file_asks_for_more_bytes_but_never_beyond_the_header(backend):
    raw = gguf_bytes({**vocabulary(["a", "b", "cc"]), "n": 1}, [f32("w", (4, 4))])
    data_offset = GGUF.parse(raw).data_offset
    end = 0
    n_attempts = 0
    while (needed := _needed(raw[:end], len(raw))) is not None:
        assert end < needed <= data_offset
        end, n_attempts = needed, n_attempts + 1
    assert n_attempts > 3
    gguf = GGUF.parse(raw[:end], size=len(raw))
    assert list(gguf.tensors) == ["w"]
    with pytest.raises(InvalidFormat, match="tensor w needs bytes"):
        gguf.tensor_bytes("w")


def _needed(prefix, size):
    """Bytes that the reader needs of a file of *size*, or None if *prefix* is enough."""
    try:
        GGUF.parse(prefix, size=size)
    except NeedMoreBytes as error:
        return error.needs
    return None


def test_every_truncation_is_reported_and_the_tensor_named(backend, tmp_path):
    raw = gguf_bytes({"n": 1}, [f32("first", (64,)), f32("second", (64,))])
    end = len(raw)  # the data of the second tensor, 256 bytes, ends the file
    path = tmp_path / "cut.gguf"
    for size in (5, 23, 30, 60, 100, 200, end - 300, end - 1):
        path.write_bytes(raw[:size])
        with pytest.raises(InvalidFormat) as caught:
            GGUF.open(path)
        assert re.search(rf"\b{size:,}\b", str(caught.value))
    assert "tensor second needs bytes" in str(caught.value)  # the file that lacks one byte
    with GGUF.open(path, check_layout=False) as gguf:
        assert len(gguf.tensor_bytes("first")) == 256


def test_a_key_or_tensor_twice_is_refused(backend):
    raw = gguf_bytes({"aa": 1, "ab": 2})
    with pytest.raises(InvalidFormat, match="'aa' is there twice"):
        GGUF.parse(raw.replace(b"ab", b"aa"))
    raw = gguf_bytes({}, [f32("t0", (1,)), f32("t1", (1,))])
    with pytest.raises(InvalidFormat, match="'t0' is there twice"):
        GGUF.parse(raw.replace(b"t1", b"t0"))


def test_names_that_are_not_utf8_are_refused(backend):
    with pytest.raises(InvalidFormat, match="key is not UTF-8"):
        GGUF.parse(gguf_bytes({b"\xff".decode("latin-1"): 1}).replace("ÿ".encode(), b"\xff\xff"))


def test_a_shape_that_does_not_go_with_its_encoding_is_refused():
    with pytest.raises(InvalidFormat, match="multiple of 256"):
        GGUF.parse(gguf_bytes({}, [Tensor("w", (2, 100), 12, bytes(288))]))  # 12 is Q4_K


def test_an_unknown_encoding_can_be_listed_and_copied(tmp_path):
    # ggml has no type 77; its bytes are those up to the next tensor.
    path = write_gguf(tmp_path / "m.gguf", {}, [Tensor("w", (8,), 77, b"x" * 64), f32("n", (1,))])
    with GGUF.open(path) as gguf:
        assert gguf.tensors["w"].type.name == "UNKNOWN_77"
        assert not gguf.tensors["w"].type.known
        assert bytes(gguf.tensor_bytes("w")) == b"x" * 64


def test_a_name_in_an_error_does_nothing_to_the_terminal(tmp_path):
    raw = gguf_bytes({}, [f32("\x1b[2J", (64,))])  # the sequence that clears a terminal
    path = tmp_path / "m.gguf"
    path.write_bytes(raw[:-64])
    with pytest.raises(InvalidFormat, match=r"tensor \\x1b\[2J needs bytes") as caught:
        GGUF.open(path)
    assert caught.value.message.isprintable()


def _split(folder, count=3, **changes):
    """Write a model in *count* parts, one tensor ``wN`` each, and return the first part.

    Of *changes*, ``partN`` are further metadata of part N, from 0 on, and ``same`` is a number that
    the tensors of all parts have in their names.
    """
    for number in range(count):
        metadata = {"split.no": Typed(2, number), "split.count": Typed(2, count)}
        metadata["split.tensors.count"] = Typed(INT32, count)
        if not number:
            metadata["general.architecture"] = "llama"
        metadata |= changes.get(f"part{number}", {})
        tensor = f32(f"w{changes.get('same', number)}", (2,), float(number))
        write_gguf(folder / f"m-{number + 1:05d}-of-{count:05d}.gguf", metadata, [tensor])
    return folder / f"m-00001-of-{count:05d}.gguf"


def test_each_part_has_an_alignment_of_its_own(tmp_path):
    """llama-gguf-split copies the key into the first part only."""
    first = _split(tmp_path, count=2)
    alignment = {"general.alignment": 64, "general.architecture": "llama"}
    numbers = {"split.no": Typed(2, 0), "split.count": Typed(2, 2)}
    tensors = [f32("a", (2,)), f32("b", (2,))]
    write_gguf(first, alignment | numbers, tensors, alignment=64)
    second = tmp_path / "m-00002-of-00002.gguf"
    write_gguf(
        second,
        {"split.no": Typed(2, 1), "split.count": Typed(2, 2)},
        [f32("c", (2,)), f32("d", (2,))],
    )
    with GGUF.open(first) as gguf:
        assert (gguf.alignment, gguf.part_alignments) == (64, [64, 32])
        assert struct.unpack("<2f", gguf.tensor_bytes("d")) == (1.0, 1.0)


def test_any_part_opens_the_whole_split_model(backend, tmp_path):
    first = _split(tmp_path)
    for path in (first, tmp_path / "m-00003-of-00003.gguf"):
        with GGUF.open(path) as gguf:
            assert gguf.architecture == "llama"
            assert list(gguf.tensors) == ["w0", "w1", "w2"]
            assert struct.unpack("<2f", gguf.tensor_bytes("w2")) == (2.0, 2.0)
            assert gguf.paths[0] == first
            assert gguf.size == sum(part.stat().st_size for part in gguf.paths)


def test_a_missing_part_is_named(tmp_path):
    first = _split(tmp_path)
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(NotFound, match=r"1 of them missing: m-00002-of-00003\.gguf"):
        GGUF.open(first)


def test_parts_that_do_not_belong_together_are_refused(tmp_path):
    with pytest.raises(InvalidFormat, match="says it is part 2"):
        GGUF.open(_split(tmp_path, part1={"split.no": Typed(2, 2)}))
    with pytest.raises(InvalidFormat, match="of 5"):
        GGUF.open(_split(tmp_path, part1={"split.count": Typed(2, 5)}))
    with pytest.raises(InvalidFormat, match="there twice"):
        GGUF.open(_split(tmp_path, same=7))
    with pytest.raises(InvalidFormat, match="9 tensors announced"):
        GGUF.open(_split(tmp_path, part0={"split.tensors.count": Typed(INT32, 9)}))


def test_a_renamed_part_is_recognised(tmp_path):
    path = _split(tmp_path).rename(tmp_path / "renamed.gguf")
    with pytest.raises(InvalidFormat, match="of 3, its name says 0 of 1"):
        GGUF.open(path)


def test_the_real_vocabularies_are_read(backend, test_data):
    with GGUF.open(test_data / "vocab" / "ggml-vocab-llama-bpe.gguf") as gguf:
        tokens = gguf.metadata["tokenizer.ggml.tokens"].strings()
        merges = gguf.metadata["tokenizer.ggml.merges"].strings()
    assert (len(tokens), len(merges)) == (128_256, 280_147)
    assert tokens[128_000] == "<|begin_of_text|>"
    assert merges[0] == "Ġ Ġ"


def _peak_bytes(raw):
    """Most memory that Python allocates while it reads the file *raw*."""
    tracemalloc.start()
    try:
        with contextlib.suppress(InvalidFormat):
            GGUF.parse(raw, size=len(raw))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_stays_in_proportion_to_the_file(backend):
    # An array that claims 2**40 items of uint8, or strings, is refused before it takes memory.
    for item_type in (0, 8):
        array = gguf_bytes({"a": Typed(item_type, [])}) + bytes(1000)
        promise = array.replace(
            struct.pack("<IQ", item_type, 0), struct.pack("<IQ", item_type, 2**40)
        )
        assert promise != array
        assert _peak_bytes(promise) < 100_000
    strings = gguf_bytes({"a": [""] * 50_000})
    assert _peak_bytes(strings) < 100_000
    keys = gguf_bytes({f"{i:x}": 1 for i in range(5_000)})
    assert _peak_bytes(keys) < 40 * len(keys)


def test_opening_a_file_logs_its_model_type_and_dialect(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("bitnet"), "propagate", True)
    caplog.set_level(logging.DEBUG, logger="bitnet.formats")
    GGUF.open(write_gguf(tmp_path / "m.gguf", llama_metadata())).close()
    assert "m.gguf: model type llama, dialect llama.cpp, 0 tensors in 1 files" in caplog.text
