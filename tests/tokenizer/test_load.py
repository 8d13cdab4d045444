"""Opening a tokenizer file, cold and from its compiled form."""

import hashlib
import json
import mmap
import os
import shutil

import pytest
from builders import vocabulary, write_gguf

from bitnet.base import settings
from bitnet.base.errors import InvalidFormat, TokenizerNotFound
from bitnet.store import digests
from bitnet.tokenizer import (
    detect_architecture_from_gguf,
    extract_merges,
    extract_scores,
    extract_tokenizer_from_gguf,
    extract_tokens,
    load_tokenizer,
)


def word_level(path, words, **more):
    """A tokenizer.json whose merges join the letters of *words*."""
    letters = sorted({letter for word in words for letter in word})
    merges = [[word[:1], word[1:]] for word in words if len(word) == 2]
    tokens = letters + [word for word in words if len(word) == 2]
    model = {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges}
    path.write_text(json.dumps({"version": "1.0", "model": model, "added_tokens": [], **more}))
    return path


def compiled_files():
    return sorted((settings.cache_dir() / "tokenizers" / "compiled").glob("*.tok"))


def test_the_second_load_comes_from_the_compiled_form(tmp_path):
    path = word_level(tmp_path / "tokenizer.json", ["ab"])
    first = load_tokenizer(path)
    if first.engine != "native":
        pytest.skip("the compiled form belongs to the native module, which is not in use")
    (file,) = compiled_files()
    written = file.stat().st_mtime_ns
    again = load_tokenizer(path)
    assert again.encode("ab") == first.encode("ab") == [2]
    assert again.source == first.source == str(path)
    assert file.stat().st_mtime_ns == written


def test_a_changed_file_is_another_tokenizer(tmp_path):
    path = word_level(tmp_path / "tokenizer.json", ["ab"])
    assert load_tokenizer(path).encode("cd", add_special=False) == []
    word_level(path, ["ab", "cd"])
    assert load_tokenizer(path).encode("cd") == [5]


def test_a_changed_neighbour_counts_too(tmp_path):
    path = word_level(tmp_path / "tokenizer.json", ["ab"])
    assert load_tokenizer(path).chat_template is None
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "hello"}')
    assert load_tokenizer(path).chat_template == "hello"


def test_the_same_content_elsewhere_names_its_own_place(tmp_path):
    path = word_level(tmp_path / "tokenizer.json", ["ab"])
    load_tokenizer(path)
    (tmp_path / "copy").mkdir()
    other = shutil.copy(path, tmp_path / "copy" / "tokenizer.json")
    assert load_tokenizer(other).source == str(other)


@pytest.fixture
def read(monkeypatch):
    """Names of the files whose digest is computed; a file counts as settled at once."""
    monkeypatch.setattr(digests, "SETTLED_S", -10.0)
    monkeypatch.setattr("bitnet.tokenizer.load._SMALL", 0)
    computed = []
    real = hashlib.sha256

    def sha256(data=b""):
        if isinstance(data, mmap.mmap):
            computed.append(len(data))
        return real(data)

    monkeypatch.setattr("bitnet.tokenizer.load.hashlib.sha256", sha256)
    return computed


def test_a_file_that_was_not_touched_is_hashed_once(tmp_path, read):
    path = word_level(tmp_path / "tokenizer.json", ["ab"])
    first = load_tokenizer(path)
    assert load_tokenizer(path).fingerprint == first.fingerprint
    assert len(read) == 1
    load_tokenizer(path, verify=True)
    assert len(read) == 2


def _until_its_times_differ(path, change):
    """Time that file systems count in ticks of some milliseconds."""
    before = path.stat().st_ctime_ns
    change()
    while path.stat().st_ctime_ns == before:
        change()


@pytest.mark.parametrize("how", ["in place", "set back", "replaced", "linked"])
def test_a_file_of_the_same_size_is_hashed_again(how, tmp_path, read):
    path = word_level(tmp_path / "tokenizer.json", ["ab"])
    assert load_tokenizer(path).encode("ab") == [2]
    status = path.stat()
    content = path.read_text().replace('["a", "b"]', '["b", "a"]').replace('"ab"', '"ba"')
    assert len(content) == status.st_size

    def change():
        if how == "replaced":
            fresh = tmp_path / "fresh"
            fresh.write_text(content)
            os.utime(fresh, ns=(status.st_atime_ns, status.st_mtime_ns))
            fresh.replace(path)
        else:
            path.write_text(content)
            if how in ("set back", "linked"):
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            if how == "linked":
                (tmp_path / "link").unlink(missing_ok=True)
                (tmp_path / "link").hardlink_to(path)

    _until_its_times_differ(path, change)
    again = load_tokenizer(path)
    assert len(read) == 2
    assert (again.encode("ab"), again.encode("ba")) == ([0, 1], [2])


def test_a_file_that_changed_a_moment_ago_is_not_trusted(tmp_path, read, monkeypatch):
    monkeypatch.setattr(digests, "SETTLED_S", 3.0)
    path = word_level(tmp_path / "tokenizer.json", ["ab"])
    os.utime(path, (1e9, 1e9))  # its contents are old, it says
    for times in (1, 2, 3):
        load_tokenizer(path)
        assert len(read) == times


def test_a_damaged_record_is_none(tmp_path, read):
    path = word_level(tmp_path / "tokenizer.json", ["ab"])
    load_tokenizer(path)
    (record,) = (settings.cache_dir() / "tokenizers/compiled/digests").iterdir()
    for damage in ("", "{}", record.read_text().replace("ctime_ns", "other"), "[1]"):
        record.write_text(damage)
        assert load_tokenizer(path).encode("ab") == [2]
    assert len(read) == 5


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_a_damaged_compiled_form_is_made_again(tmp_path, damage):
    path = word_level(tmp_path / "tokenizer.json", ["ab"])
    if load_tokenizer(path).engine != "native":
        pytest.skip("the compiled form belongs to the native module, which is not in use")
    (file,) = compiled_files()
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 0xFF
    file.write_bytes({"truncate": content[:-9], "flip": content, "empty": b""}[damage])
    assert load_tokenizer(path).encode("ab") == [2]


@pytest.mark.parametrize("content", ["", "{", '{"model": 5}'])
def test_a_damaged_file_is_an_error_with_its_name(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(InvalidFormat, match=r"tokenizer\.json"):
        load_tokenizer(path)


def test_a_missing_file_says_what_was_expected(tmp_path):
    with pytest.raises(TokenizerNotFound, match=r'No tokenizer found at ".*"\. Expected tokenizer'):
        load_tokenizer(tmp_path / "none")


def test_the_parts_of_an_embedded_tokenizer_can_be_read_one_by_one(tmp_path):
    metadata = {"general.architecture": "gpt2"} | vocabulary(
        ["a", "b", " c", "ab"], merges=["a b", "ab  c"], pre="gpt-2"
    )
    path = write_gguf(tmp_path / "m.gguf", metadata)
    assert extract_tokens(path) == ["a", "b", " c", "ab"]
    assert extract_merges(path) == [("a", "b"), ("ab", " c")]
    assert extract_scores(path) == []
    assert detect_architecture_from_gguf(path) == "gpt2"


def test_a_file_without_a_tokenizer_says_which_key_is_missing(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"})
    with pytest.raises(TokenizerNotFound, match=r"Missing tokenizer\.ggml\.tokens"):
        extract_tokenizer_from_gguf(path)
    with pytest.raises(TokenizerNotFound, match=r"Missing tokenizer\.ggml\.merges"):
        extract_merges(path)
