"""The lock file of a project: pins are written, read, replaced and checked."""

import json
from dataclasses import replace

import pytest

from bitnet.base.errors import InvalidFormat, PermissionDenied, Unsupported
from bitnet.store import records
from bitnet.store.records import Pin

TOKENIZER = Pin(
    kind="tokenizer",
    repo="baseten/Meta-Llama-3-tokenizer",
    revision="main",
    file="tokenizer.json",
    commit="c" * 40,
    sha256="a" * 64,
    size=9_085_657,
    licence="Meta Llama 3 Community License",
)
MODEL = Pin(
    kind="model",
    repo="o/m",
    revision="v1",
    file="sub/m.gguf",
    commit=None,
    sha256="b" * 64,
    size=5,
    place="models/o-m/m.gguf",
)


def test_pins_that_are_written_are_read_again_sorted(tmp_path):
    path = tmp_path / records.LOCK_FILE
    records.write_lock(path, [TOKENIZER, MODEL])
    assert records.read_lock(path) == [MODEL, TOKENIZER]  # sorted by identity
    assert [entry.name for entry in tmp_path.iterdir()] == [records.LOCK_FILE]


def test_the_order_in_which_files_are_pinned_does_not_change_the_lock_file(tmp_path):
    one = tmp_path / "one"
    two = tmp_path / "two"
    records.write_lock(one, [TOKENIZER, MODEL])
    records.write_lock(two, records.add_pins([MODEL], [TOKENIZER]))
    assert one.read_bytes() == two.read_bytes()


def test_adding_a_pin_replaces_the_one_with_the_same_identity(tmp_path):
    path = tmp_path / records.LOCK_FILE
    newer = replace(TOKENIZER, sha256="d" * 64)
    pins = records.add_pins([], [TOKENIZER])
    assert records.add_pins(pins, [TOKENIZER]) == pins
    records.write_lock(path, records.add_pins(pins, [newer]))
    assert records.read_lock(path) == [newer]
    assert records.find_pin(records.read_lock(path), TOKENIZER.identity) == newer


def test_a_missing_file_has_no_entries(tmp_path):
    assert records.read_lock(tmp_path / records.LOCK_FILE) == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1}', '{"version": 1, "files": 3}', "\udcff", "[" * 99_999]
)
def test_a_damaged_file_is_refused_with_its_name(tmp_path, text):
    path = tmp_path / records.LOCK_FILE
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidFormat, match=r"bitnet\.lock\.json"):
        records.read_lock(path)


def test_a_lock_file_of_another_schema_version_is_refused(tmp_path):
    path = tmp_path / records.LOCK_FILE
    path.write_text('{"version": 2, "files": []}')
    with pytest.raises(Unsupported, match="version 2"):
        records.read_lock(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "virus"),
        ("repo", ""),
        ("revision", None),
        ("sha256", "A" * 64),
        ("sha256", "a" * 63),
        ("size", -1),
        ("size", True),
        ("licence", None),
        ("commit", 7),
        ("path", "../elsewhere"),
        ("path", "/etc/passwd"),
        ("path", "C:/Windows"),
        ("path", "a\\..\\b"),
        ("file", "a/../../b"),
        ("unknown", 1),
    ],
)
def test_an_entry_with_an_invalid_field_is_refused_with_its_number_and_the_field(
    tmp_path, field, value
):
    path = tmp_path / records.LOCK_FILE
    records.write_lock(path, [MODEL])
    document = json.loads(path.read_text())
    document["files"][0][field] = value
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidFormat, match=f"entry 1: .*{field}"):
        records.read_lock(path)


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / records.LOCK_FILE
    records.write_lock(path, [MODEL])
    before = path.read_bytes()

    def refuse(descriptor):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(PermissionDenied):
        records.write_lock(path, [TOKENIZER])
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [records.LOCK_FILE]


def test_a_path_below_the_folder_is_recorded_as_relative_and_any_other_not_at_all(tmp_path):
    assert records.relative(tmp_path / "models" / "m.gguf", tmp_path) == "models/m.gguf"
    assert records.relative(tmp_path.parent / "m.gguf", tmp_path) is None


@pytest.mark.parametrize(
    ("place", "key"),
    [
        (None, "baseten--Meta-Llama-3-tokenizer/main/tokenizer.json"),
        ("tokenizers/llama3-128k/tokenizer.json", "llama3-128k"),
        ("models/tokenizer.json", "models"),
        ("tokenizers", ""),
        ("tokenizer.json", ""),
    ],
)
def test_the_key_of_a_tokenizer_is_its_folder_in_the_cache_or_made_from_its_name(place, key):
    assert replace(TOKENIZER, place=place).key == key
