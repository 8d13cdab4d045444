import json
from dataclasses import replace

import pytest

from bitnet.errors import InvalidFormat, PermissionDenied, Unsupported
from bitnet.hub import lockfile
from bitnet.hub.lockfile import Locked

TOKENIZER = Locked(
    kind="tokenizer",
    repo="baseten/Meta-Llama-3-tokenizer",
    revision="main",
    file="tokenizer.json",
    commit="c" * 40,
    sha256="a" * 64,
    size=9_085_657,
    licence="Meta Llama 3 Community License",
)
MODEL = Locked(
    kind="model",
    repo="o/m",
    revision="v1",
    file="sub/m.gguf",
    commit=None,
    sha256="b" * 64,
    size=5,
    path="models/o-m/m.gguf",
)


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / lockfile.NAME
    lockfile.write(path, [TOKENIZER, MODEL])
    assert lockfile.read(path) == [MODEL, TOKENIZER]
    assert [entry.name for entry in tmp_path.iterdir()] == [lockfile.NAME]


def test_the_order_of_locking_leaves_no_trace(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    lockfile.write(one, [TOKENIZER, MODEL])
    lockfile.write(two, [MODEL])
    assert lockfile.record(two, TOKENIZER)
    assert one.read_bytes() == two.read_bytes()


def test_recording_replaces_the_entry_with_the_same_key(tmp_path):
    path = tmp_path / lockfile.NAME
    newer = replace(TOKENIZER, sha256="d" * 64)
    assert lockfile.record(path, TOKENIZER)
    assert not lockfile.record(path, TOKENIZER)
    assert lockfile.record(path, newer)
    assert lockfile.read(path) == [newer]
    assert lockfile.find(lockfile.read(path), TOKENIZER.key) == newer


def test_a_missing_file_has_no_entries(tmp_path):
    assert lockfile.read(tmp_path / lockfile.NAME) == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1}', '{"version": 1, "files": 3}', "\udcff", "[" * 99_999]
)
def test_a_damaged_file_is_refused_with_its_name(tmp_path, text):
    path = tmp_path / lockfile.NAME
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidFormat, match=r"bitnet\.lock\.json"):
        lockfile.read(path)


def test_another_schema_version_is_refused(tmp_path):
    path = tmp_path / lockfile.NAME
    path.write_text('{"version": 2, "files": []}')
    with pytest.raises(Unsupported, match="version 2"):
        lockfile.read(path)


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
def test_an_entry_that_cannot_be_meant_is_refused_by_name(tmp_path, field, value):
    path = tmp_path / lockfile.NAME
    lockfile.write(path, [MODEL])
    document = json.loads(path.read_text())
    document["files"][0][field] = value
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidFormat, match=f"entry 1: .*{field}"):
        lockfile.read(path)


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / lockfile.NAME
    lockfile.write(path, [MODEL])
    before = path.read_bytes()

    def refuse(descriptor):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(PermissionDenied):
        lockfile.write(path, [TOKENIZER])
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [lockfile.NAME]


def test_paths_are_relative_to_the_folder_or_not_kept(tmp_path):
    assert lockfile.relative(tmp_path / "models" / "m.gguf", tmp_path) == "models/m.gguf"
    assert lockfile.relative(tmp_path.parent / "m.gguf", tmp_path) is None
