"""Copies of GGUF files with changed metadata, and new files: exact, atomic, and checked."""

import errno
import hashlib
import os

import pytest
from builders import (
    FLOAT32,
    UINT16,
    Tensor,
    Typed,
    f32,
    gguf_bytes,
    i2_s,
    llama_metadata,
    vocabulary,
    write_gguf,
)
from gguf import GGUFReader

from bitnet.base.errors import (
    IntegrityError,
    InvalidFormat,
    NotFound,
    PermissionDenied,
    Unsupported,
    UsageError,
)
from bitnet.formats.gguf import GGUF
from bitnet.formats.gguf_write import encode_value, parse_change, write_copy, write_new

METADATA = {
    **llama_metadata("bitnet-b1.58"),
    **vocabulary(["a", "b", "c"], merges=["a b"], scores=[0.5, -1.0, float("nan")]),
    "tokenizer.ggml.eos_token_id": 2,
    "x.u16": Typed(UINT16, 7),
    "x.f32": Typed(FLOAT32, 0.5),
    "x.flag": False,
}
TENSORS = [
    f32("token_embd.weight", (3, 5)),
    i2_s("w", (2, 128)),
    Tensor("odd", (7,), 24, b"1234567"),  # of int8, and not a multiple of the alignment
]


@pytest.fixture
def source(tmp_path):
    return write_gguf(tmp_path / "in.gguf", METADATA, TENSORS)


def _plain(gguf):
    """Metadata of *gguf* with arrays as the bytes of their items."""
    return {
        key: bytes(value.raw) if hasattr(value, "raw") else value
        for key, value in gguf.metadata.items()
    }


def test_a_copy_differs_in_what_was_asked_for_and_nothing_else(source, tmp_path):
    output = tmp_path / "out.gguf"
    seen = []
    changes = write_copy(
        source,
        output,
        changes=["tokenizer.ggml.pre:string=llama-bpe", "tokenizer.ggml.eos_token_id=1"],
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert [(change.key, change.value, change.old) for change in changes] == [
        ("tokenizer.ggml.pre", "llama-bpe", None),
        ("tokenizer.ggml.eos_token_id", 1, 2),
    ]
    with GGUF.open(source) as old, GGUF.open(output) as new:
        wanted = _plain(old) | {"tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.pre": "llama-bpe"}
        assert _plain(new) == wanted
        assert list(new.tensors) == list(old.tensors)
        for name in old.tensors:
            assert bytes(new.tensor_bytes(name)) == bytes(old.tensor_bytes(name))
        assert bytes(new.file_view()[new.data_offset :]) == bytes(
            old.file_view()[old.data_offset :]
        )
    assert seen[-1] == (output.stat().st_size, output.stat().st_size)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.gguf", "out.gguf"]


def test_gguf_py_reads_the_copy(tmp_path):
    source = write_gguf(tmp_path / "in.gguf", METADATA, [TENSORS[0]])
    write_copy(source, tmp_path / "out.gguf", changes=["general.name=fixed"])
    reader = GGUFReader(tmp_path / "out.gguf")
    assert reader.get_field("general.name").contents() == "fixed"
    assert reader.get_field("tokenizer.ggml.tokens").contents() == ["a", "b", "c"]
    assert reader.tensors[0].data.tolist() == [[1.0] * 5] * 3


def test_another_alignment_and_a_file_without_tensors_are_copied(tmp_path):
    metadata = {"general.alignment": 128}
    source = write_gguf(tmp_path / "in.gguf", metadata, TENSORS, alignment=128)
    write_copy(source, tmp_path / "out.gguf", changes=["a=1"])
    with GGUF.open(tmp_path / "out.gguf") as new:
        assert new.alignment == 128
        assert bytes(new.tensor_bytes("odd")) == b"1234567"
    source = write_gguf(tmp_path / "vocab.gguf", vocabulary(["a"]))
    write_copy(source, tmp_path / "vocab2.gguf", changes=["a=1"])
    with GGUF.open(tmp_path / "vocab2.gguf") as new:
        assert new.metadata["a"] == 1


def test_an_existing_file_is_never_overwritten(source, tmp_path):
    output = tmp_path / "out.gguf"
    output.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists and is not overwritten"):
        write_copy(source, output, changes=["a=1"])
    with pytest.raises(UsageError, match="exists and is not overwritten"):
        write_copy(source, source, changes=["a=1"])
    assert output.read_bytes() == b"mine"


def test_a_file_that_appears_meanwhile_is_not_overwritten_either(source, tmp_path):
    output = tmp_path / "out.gguf"
    with pytest.raises(UsageError, match="exists"):
        write_copy(
            source, output, changes=["a=1"], on_progress=lambda done, total: output.write_text("me")
        )
    assert output.read_text() == "me"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("where", ["header", "data"])
def test_a_copy_that_reads_back_wrong_is_not_published(source, tmp_path, where):
    output = tmp_path / "out.gguf"

    def damage(done, total):
        (partial,) = tmp_path.glob(".out.gguf.*.partial")
        with partial.open("r+b") as file:
            file.seek(40 if where == "header" else done - 33)  # `done` bytes were written so far
            file.write(b"\xff" * 33)

    with pytest.raises(IntegrityError, match=r"^out\.gguf: ") as raised:
        write_copy(source, output, changes=["a=1"], on_progress=damage)
    assert "partial" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


def test_a_copy_is_written_on_a_file_system_without_hard_links(source, tmp_path, monkeypatch):
    def link(*_paths):
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", link)
    write_copy(source, tmp_path / "out.gguf", changes=["a=1"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.gguf", "out.gguf"]


def test_damaged_split_and_missing_sources_are_refused(tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf_bytes({}, TENSORS)[:-64])
    with pytest.raises(InvalidFormat, match="needs bytes"):
        write_copy(cut, tmp_path / "o.gguf", changes=["a=1"])
    for number in (0, 1):
        write_gguf(
            tmp_path / f"m-0000{number + 1}-of-00002.gguf",
            {"split.no": Typed(UINT16, number), "split.count": Typed(UINT16, 2)},
            [f32(f"w{number}", (1,))],
        )
    with pytest.raises(Unsupported, match="one of 2 parts"):
        write_copy(tmp_path / "m-00001-of-00002.gguf", tmp_path / "o.gguf", changes=["a=1"])
    with pytest.raises(NotFound):
        write_copy(tmp_path / "none.gguf", tmp_path / "o.gguf", changes=["a=1"])


def test_a_folder_that_does_not_exist_or_may_not_be_written_is_named(source, tmp_path):
    with pytest.raises(NotFound, match="os error 2"):
        write_copy(source, tmp_path / "none" / "o.gguf", changes=["a=1"])
    if os.name == "posix" and os.getuid():
        folder = tmp_path / "locked"
        folder.mkdir(mode=0o500)
        with pytest.raises(PermissionDenied):
            write_copy(source, folder / "o.gguf", changes=["a=1"])


# A change of a key that the file has gets the type of that key; only plain decimal numbers are
# numbers in a new one.
@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("x.u16=65535", "uint16", 65535),
        ("x.f32=1", "float32", 1.0),
        ("x.flag=true", "bool", True),
        ("new=true", "bool", True),
        ("new=12", "uint32", 12),
        ("new=-12", "int32", -12),
        ("new=1.5", "float32", 1.5),
        ("new=a=b", "string", "a=b"),
        ("new:string=12", "string", "12"),
        ("new:float64=1e300", "float64", 1e300),
        ("new=", "string", ""),
        *((f"new={text}", "string", text) for text in ("1_7", "1_0.5", " 17", "1.5 ", "007")),
        *((f"new={text}", "string", text) for text in ("nan", "-Infinity", "inf", "00.5", "١٧")),
        *((f"new={text}", "string", text) for text in ("1.2.3", "1e", ".", "+", "0x1F")),
        ("new=0", "uint32", 0),
        ("new=+5", "uint32", 5),
        ("new=-.5", "float32", -0.5),
        ("new=0.5e-3", "float32", 0.0005),
        ("x.f32=-inf", "float32", float("-inf")),
        ("general.architecture=12", "string", "12"),
    ],
)
def test_a_change_gets_the_type_of_the_key_or_of_its_value(text, kind, value):
    types = {"x.u16": "uint16", "x.f32": "float32", "x.flag": "bool"}
    types["general.architecture"] = "string"
    change = parse_change(text, dict.fromkeys(types, 0), types)
    assert (change.type, change.value) == (kind, value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("novalue", "expects key=value"),
        ("=1", "expects key=value"),
        ("bad key=1", "not a metadata key"),
        ("general.alignment=64", "laid out"),
        ("split.count=1", "laid out"),
        ("list=1", "no single value has the type 'array'"),
        ("new:array=1", "no single value"),
        ("new:int9=1", "the type 'int9'"),
        ("x.u16=many", "'many' is not a valid uint16"),
        ("x.u16=65536", "'65536' is not a valid uint16"),
        ("x.u16=-1", "is not a valid"),
        ("new:bool=maybe", "is not a valid bool"),
        ("new:float32=1e300", "is not a valid"),
        ("new:float32=1e999", "is not a valid"),
        ("new=1e999", "is not a valid float32"),
        ("new=1" + "0" * 25, "is not a valid int64"),
        ("new=" + "9" * 5000, "is not a valid int64"),
        ("new:uint32=1_7", "is not a valid uint32"),
        ("new:uint32= 17", "is not a valid uint32"),
        ("new:float64=1_7", "is not a valid float64"),
    ],
)
def test_changes_that_make_no_sense_are_refused(text, message):
    with pytest.raises(UsageError, match=message):
        parse_change(text, {"x.u16": 1, "list": []}, {"x.u16": "uint16", "list": "array"})


def test_no_change_and_the_same_key_twice_are_refused(source, tmp_path):
    with pytest.raises(UsageError, match="nothing to change"):
        write_copy(source, tmp_path / "o.gguf", changes=[])
    with pytest.raises(UsageError, match="a is set twice"):
        write_copy(source, tmp_path / "o.gguf", changes=["a=1", "a=2"])


def test_the_source_is_not_touched(source, tmp_path):
    before = hashlib.sha256(source.read_bytes()).digest()
    write_copy(source, tmp_path / "o.gguf", changes=["general.name=x"])
    assert hashlib.sha256(source.read_bytes()).digest() == before


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([1, 2**31 - 1, -1], "int32"),
        ([1, 3_000_000_000], "int64"),
        ([-(2**40), 1], "int64"),
        ([1, 0.5], "float32"),
        ([0.5, 2], "float32"),
        ([], "string"),
        (["a", "b"], "string"),
        ([True], "bool"),
        (2**32 - 1, "uint32"),
        (2**40, "int64"),
    ],
)
def test_a_value_gets_a_type_that_all_of_it_fits(value, kind, tmp_path):
    write_new(tmp_path / "a.gguf", {"a": encode_value(value)}, [])
    with GGUF.open(tmp_path / "a.gguf") as gguf:
        stored = gguf.metadata["a"]
        if isinstance(value, list):
            assert stored.item_type == kind
            stored = list(stored)
        assert stored == value


@pytest.mark.parametrize(
    "value",
    [
        *(2**63, -(2**63) - 1, [2**63], [10**400], 1e308, [1e308], None, [None], {"a": 1}, [[1]]),
        *([1, "a"], ["a", 1], [True, 1], "\ud800", ["\ud800"]),
    ],
)
def test_a_value_that_no_type_fits_is_refused(value):
    with pytest.raises(Unsupported, match="cannot be stored in a GGUF file"):
        encode_value(value)


@pytest.mark.parametrize("name", ["x-00001-of-00002.gguf", "x-00002-of-00002.gguf"])
def test_an_output_with_the_name_of_a_part_is_refused(source, tmp_path, name):
    with pytest.raises(UsageError, match="is the name of one of 2 parts"):
        write_copy(source, tmp_path / name, changes=["a=1"])
    with pytest.raises(UsageError, match="is the name of one of 2 parts"):
        write_new(tmp_path / name, {}, [])
    assert not (tmp_path / name).exists()


def test_an_output_with_the_name_of_the_only_part_opens(source, tmp_path):
    write_copy(source, tmp_path / "x-00001-of-00001.gguf", changes=["a=1"])
    GGUF.open(tmp_path / "x-00001-of-00001.gguf").close()
