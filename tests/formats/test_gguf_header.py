"""The index of a GGUF file's header: positions, every fault, and the same by compiled code."""

import struct
import sys
from pathlib import Path

import pytest
from builders import Tensor, Typed, f32, gguf_bytes, i2_s, vocabulary
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.formats import gguf_header
from bitnet.formats.gguf_header import Array, Index, NeedMoreBytes

sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))
from exercise_gguf import NATIVE, exercise, walks

FILE = gguf_bytes(
    {**vocabulary(["a", "b", "ccc"], merges=["a b"], scores=[0.0, 1.0, 2.0]), "n": 7, "s": "text"},
    [f32("token_embd.weight", (3, 4)), i2_s("w", (1, 128)), Tensor("q", (2, 256), 35, bytes(132))],
)
HEADER = gguf_header.index(FILE, len(FILE), "x").end  # bytes in front of the tensors' data

needs_native = pytest.mark.skipif(NATIVE is None, reason="the compiled module is not installed")


def u64(value):
    return struct.pack("<Q", value)


def _walk(data, total=None):
    """Index of *data*, the beginning of a file of *total* bytes, or the error about it.

    Python alone and the compiled module, which skips strings, have to agree on either.
    """
    total = len(data) if total is None else total
    plain, compiled = walks(data, total)
    assert plain == compiled
    return gguf_header.index(data, total, "m.gguf")


def _key(payload, name=b"k"):
    """A file of version 3 with one key: *payload* is the type of its value and the value.

    The header has 24 bytes, the length of the name 8: with a name of one byte, *payload* begins at
    byte 33.
    """
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    return head + u64(len(name)) + name + payload + b"\0" * 64


def _tensor(payload):
    """A file with one tensor ``t``: *payload* is its rank, dimensions, type and offset."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0)
    return head + u64(1) + b"t" + payload + b"\0" * 64


def test_an_index_says_where_everything_lies():
    index = _walk(FILE)
    assert isinstance(index, Index)
    assert [key.name for key in index.keys][-2:] == [b"n", b"s"]
    text = index.keys[-1]
    assert FILE[text.at : text.end] == u64(4) + b"text"
    tokens = index.keys[1]
    assert (tokens.type, tokens.item_type, tokens.length) == (9, 8, 3)  # an array of 3 strings
    assert FILE[tokens.at : tokens.end] == b"".join(u64(len(t)) + t for t in (b"a", b"b", b"ccc"))
    assert [tensor.shape for tensor in index.tensors] == [(3, 4), (1, 128), (2, 256)]
    assert [tensor.offset for tensor in index.tensors] == [0, 64, 128]


# A header is the version and the numbers of tensors and keys. A value is its type, and of an array
# (9) also the type and the number of its items; 4 is uint32, 8 a string, with its length first.
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), f"header at byte 16: {2**63:,} metadata keys"),
        (b"GGUF" + struct.pack("<IQQ", 3, 65537, 0), "header at byte 8: 65,537 tensors"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 10, 100),
            "header needs bytes 24..1,564, the file ends at 24",
        ),
        (_key(b"", b"x" * 65536), "key 0 at byte 24: a name of 65,536 bytes"),
        (_key(struct.pack("<I", 13)), r"key 0 \('k'\) at byte 33: value type 13"),
        (_key(struct.pack("<II", 9, 99)), r"key 0 \('k'\) at byte 37: value type 99"),
        (_key(struct.pack("<IIQ", 9, 9, 1)), r"key 0 \('k'\) at byte 37 is an array of arrays"),
        (_key(struct.pack("<IIQ", 9, 4, 2**62)), f"needs bytes 49..{49 + 2**64 - 1:,}"),
        (_key(struct.pack("<IIQ", 9, 4, 2**61)), f"needs bytes 49..{49 + 2**63:,}"),
        (_key(struct.pack("<IIQ", 9, 8, 2**61)), f"needs bytes 49..{49 + 2**64 - 1:,}"),
        (_key(struct.pack("<IIQ", 9, 8, 50)), f"needs bytes 49..{49 + 50 * 8}"),
        (_key(struct.pack("<IQ", 8, 2**64 - 1)), f"needs bytes 45..{45 + 2**64 - 1:,}"),
        (_tensor(struct.pack("<I", 5)), r"tensor 0 \('t'\) at byte 33: 5 dimensions"),
        (_tensor(struct.pack("<IQQ", 2, 4, 0)), "tensor 0 .* at byte 45: dimension 1 is 0"),
        (_tensor(struct.pack("<IQ", 1, 2**63)), f"tensor 0 .*dimension {2**63:,} .*overflow"),
        (_tensor(struct.pack("<IQQQ", 3, 2**31, 2**31, 4)), "tensor 0 .*dimension 4 .*overflow"),
    ],
)
def test_every_fault_is_found_before_anything_is_used(data, text):
    error = Unsupported if "arrays" in text else InvalidFormat
    with pytest.raises(error, match=text) as raised:
        _walk(data)
    assert raised.value.hint


def test_the_largest_dimension_and_a_tensor_without_dimensions_pass():
    assert isinstance(_walk(_tensor(struct.pack("<IQIQ", 1, 2**63 - 1, 0, 0))), Index)
    assert _walk(_tensor(struct.pack("<IIQ", 0, 0, 0))).tensors[0].shape == ()


def test_every_prefix_of_a_file_gives_the_same_answer_in_both_walks():
    for end in range(HEADER):
        with pytest.raises(InvalidFormat, match=f"the file ends at {end}\n"):
            _walk(FILE[:end])
        with pytest.raises(NeedMoreBytes):
            _walk(FILE[:end], len(FILE))
    assert _walk(FILE[:HEADER]) == _walk(FILE)


@needs_native
def test_the_compiled_functions_refuse_what_makes_no_sense():
    with pytest.raises(ValueError, match="behind the end"):
        NATIVE.gguf_skip_strings(FILE, len(FILE) + 1, 1)
    with pytest.raises(TypeError):
        NATIVE.gguf_skip_strings("text", 0, 1)
    assert NATIVE.gguf_string_starts(u64(5) + b"abcd", 1) is None
    assert NATIVE.gguf_strings(u64(5) + b"abcd", 1) is None
    assert NATIVE.gguf_string_starts(b"", 2**63) is None
    assert NATIVE.gguf_strings(u64(0), 2) is None


@pytest.mark.parametrize("module", [pytest.param(NATIVE, marks=needs_native), None])
@pytest.mark.parametrize(
    "read", [list, Array.strings, lambda array: array.bytes_at(1), lambda array: array[1]]
)
def test_an_array_of_strings_whose_file_was_cut_meanwhile_is_refused(read, module, monkeypatch):
    monkeypatch.setattr(gguf_header.native, "module", lambda: module)
    for cut in (b"", u64(0)[:7], u64(5) + b"abcd"):  # in place of the second string
        array = Array(memoryview(u64(1) + b"a" + cut), gguf_header.STRING, 2)
        with pytest.raises(InvalidFormat, match="changed while it was being read"):
            read(array)


@needs_native
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.text(st.characters(codec="utf-8"), max_size=20).map(str.encode),
            st.text(st.characters(codec="utf-8", max_codepoint=0x7FF)).map(str.encode),
            st.text(st.characters(max_codepoint=0xFF)).map(str.encode),
        ),
        max_size=20,
    )
)
def test_the_compiled_decoder_gives_what_python_gives(texts):
    raw = b"".join(u64(len(text)) + text for text in texts)
    assert NATIVE.gguf_strings(raw, len(texts)) == [
        text.decode("utf-8", "surrogateescape") for text in texts
    ]


@needs_native
def test_the_compiled_decoder_knows_every_two_byte_sequence():
    texts = [bytes([a, b]) for a in range(0x80, 0x100) for b in range(0x100)] + [b"a\xc4"]
    raw = b"".join(u64(len(text)) + text for text in texts)
    assert NATIVE.gguf_strings(raw, len(texts)) == [
        text.decode("utf-8", "surrogateescape") for text in texts
    ]


names = st.text(max_size=12)
scalars = st.one_of(
    st.integers(0, 2**32 - 1), st.booleans(), st.text(max_size=20), st.floats(width=32)
)
arrays = st.one_of(
    st.lists(st.binary(max_size=12), max_size=6).map(lambda items: Typed(8, items)),
    st.lists(st.integers(-128, 127), max_size=6).map(lambda items: Typed(1, items)),
    st.lists(st.booleans(), max_size=6).map(lambda items: Typed(7, items)),
)
tensors = st.lists(
    st.builds(
        Tensor,
        names,
        st.lists(st.integers(1, 300), max_size=4).map(tuple),
        # ggml's numbers of types: floats, blocks, ternary ones also of forks, and unknown ones.
        st.sampled_from([0, 1, 2, 12, 34, 35, 36, 38, 39, 40, 77, 135, 335]),
        st.binary(max_size=64),
    ),
    max_size=4,
)
files = st.builds(
    gguf_bytes, st.dictionaries(names, st.one_of(scalars, arrays), max_size=6), tensors
)
# Counts and lengths at which arithmetic of 8, 16, 32 or 64 bits wraps.
edges = st.sampled_from([0, 1, 8, 9, 13, 255, 2**16, 2**31, 2**32 - 1, 2**61, 2**63, 2**64 - 1])


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(files, st.data())
def test_damaged_files_end_in_our_errors_only(raw, data):
    """Replaces eight bytes by one, four or eight of an edge value, cuts the file, reads it all."""
    damaged = bytearray(raw)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(4, max(4, len(damaged) - 8)))
        damaged[at : at + 8] = u64(data.draw(edges))[: data.draw(st.sampled_from([1, 4, 8]))]
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(damaged))) :]
    exercise(bytes(damaged))


@given(st.binary(max_size=200))
def test_noise_ends_in_our_errors_only(noise):
    exercise(noise)
    exercise(b"GGUF\x03\0\0\0" + noise)
