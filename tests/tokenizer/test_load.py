"""Opening a tokenizer file, cold and from its compiled form."""

import contextlib
import hashlib
import json
import mmap
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import tekken_files
from builders import vocabulary, write_gguf
from rank_files import write_ranks
from sentencepiece_writer import sentencepiece_bytes
from small_specs import pieces
from tiny_models import tiny_gguf

from bitnet.base import settings
from bitnet.base.errors import InvalidFormat, TokenizerNotFound, Unsupported
from bitnet.formats.checkpoint import Inventory
from bitnet.store import digests
from bitnet.tokenizer import (
    detect_architecture_from_gguf,
    extract_merges,
    extract_scores,
    extract_tokenizer_from_gguf,
    extract_tokens,
    load_tokenizer,
)
from bitnet.tokenizer.compiled import compile_spec
from bitnet.tokenizer.from_files import spec_from_file
from bitnet.tokenizer.load import _content_key, load_spec
from bitnet.tokenizer.side_files import SIDE_FILES
from bitnet.tokenizer.spec import Step, byte_spelling


def write_bpe(path, words, **more):
    """Write a BPE ``tokenizer.json`` that joins the letters of each two-letter word of *words*.

    Return *path*.
    """
    letters = sorted({letter for word in words for letter in word})
    merges = [[word[:1], word[1:]] for word in words if len(word) == 2]
    tokens = letters + [word for word in words if len(word) == 2]
    model = {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges}
    path.write_text(json.dumps({"version": "1.0", "model": model, "added_tokens": [], **more}))
    return path


def compiled_files():
    """Paths of the compiled forms in the cache."""
    return sorted((settings.cache_dir() / "tokenizers" / "compiled").glob("*.tok"))


def test_the_second_load_comes_from_the_compiled_form(tmp_path):
    path = write_bpe(tmp_path / "tokenizer.json", ["ab"])
    first = load_tokenizer(path)
    if first.engine != "native":
        pytest.skip("the compiled form belongs to the native module, which is not in use")
    (file,) = compiled_files()
    written = file.stat().st_mtime_ns
    again = load_tokenizer(path)
    assert again.encode("ab") == first.encode("ab") == [2]
    assert again.source == first.source == str(path)
    assert file.stat().st_mtime_ns == written


def test_a_vocabulary_without_merges_does_not_hide_the_tokenizer_of_a_file(tmp_path):
    tiny_gguf(tmp_path / "model.gguf")
    expected = load_tokenizer(tmp_path / "model.gguf").encode("ab")
    (tmp_path / "vocab.json").write_text("{}")
    assert load_tokenizer(tmp_path).encode("ab") == expected


def test_a_changed_file_is_another_tokenizer(tmp_path):
    path = write_bpe(tmp_path / "tokenizer.json", ["ab"])
    assert load_tokenizer(path).encode("cd", add_special=False) == []
    write_bpe(path, ["ab", "cd"])
    assert load_tokenizer(path).encode("cd") == [5]


def test_a_new_file_beside_a_tokenizer_changes_it(tmp_path):
    path = write_bpe(tmp_path / "tokenizer.json", ["ab"])
    assert load_tokenizer(path).chat_template is None
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "hello"}')
    assert load_tokenizer(path).chat_template == "hello"


def test_a_copy_of_a_file_is_named_by_its_own_path(tmp_path):
    path = write_bpe(tmp_path / "tokenizer.json", ["ab"])
    load_tokenizer(path)
    (tmp_path / "copy").mkdir()
    other = shutil.copy(path, tmp_path / "copy" / "tokenizer.json")
    assert load_tokenizer(other).source == str(other)


@pytest.fixture
def read(monkeypatch):
    """Sizes of the mapped files whose digest is computed; a file counts as settled at once."""
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
    path = write_bpe(tmp_path / "tokenizer.json", ["ab"])
    first = load_tokenizer(path)
    assert load_tokenizer(path).fingerprint == first.fingerprint
    assert len(read) == 1
    load_tokenizer(path, verify=True)
    assert len(read) == 2


def _until_its_times_differ(path, change):
    """Call *change* until the file at *path* has another time: file systems count in ticks."""
    before = path.stat().st_ctime_ns
    change()
    while path.stat().st_ctime_ns == before:
        change()


@pytest.mark.parametrize("how", ["in place", "set back", "replaced", "linked"])
def test_a_changed_file_of_the_same_size_is_hashed_again(how, tmp_path, read):
    path = write_bpe(tmp_path / "tokenizer.json", ["ab"])
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
    path = write_bpe(tmp_path / "tokenizer.json", ["ab"])
    os.utime(path, (1e9, 1e9))  # as if it had changed in 2001
    for times in (1, 2, 3):
        load_tokenizer(path)
        assert len(read) == times


def test_a_damaged_record_of_a_digest_counts_as_none(tmp_path, read):
    path = write_bpe(tmp_path / "tokenizer.json", ["ab"])
    load_tokenizer(path)
    (record,) = (settings.cache_dir() / "tokenizers/compiled/digests").iterdir()
    for damage in ("", "{}", record.read_text().replace("ctime_ns", "other"), "[1]"):
        record.write_text(damage)
        assert load_tokenizer(path).encode("ab") == [2]
    assert len(read) == 5  # once at first, and with each of four damages


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_a_damaged_compiled_form_is_made_again(tmp_path, damage):
    path = write_bpe(tmp_path / "tokenizer.json", ["ab"])
    if load_tokenizer(path).engine != "native":
        pytest.skip("the compiled form belongs to the native module, which is not in use")
    (file,) = compiled_files()
    original = file.read_bytes()
    content = bytearray(original)
    if damage == "flip":
        content[len(content) // 2] ^= 0xFF
    file.write_bytes({"truncate": content[:-9], "flip": content, "empty": b""}[damage])
    assert load_tokenizer(path).encode("ab") == [2]
    assert file.read_bytes() == original


@pytest.mark.parametrize("step", [Step("Unknown"), Step("Strip")])  # the second lacks its options
def test_a_damaged_decoder_is_refused_and_the_hint_removes_it_from_the_cache(
    tmp_path, bitnet, step
):
    path = write_bpe(tmp_path / "tokenizer.json", ["ab"])
    tokenizer = load_tokenizer(path)
    if tokenizer.engine != "native":
        pytest.skip("the compiled form belongs to the native module, which is not in use")
    damaged = replace(load_spec(path), fingerprint=tokenizer.fingerprint, decoder=(step,))
    (file,) = compiled_files()
    file.write_bytes(compile_spec(damaged))
    with pytest.raises(InvalidFormat, match=r"the decoder of .* is damaged: KeyError") as caught:
        load_tokenizer(path)
    assert caught.value.hint.endswith("remove a cached one with: bitnet cache clean")
    assert bitnet("cache", "clean", "--yes").code == 0
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


BYTES = [byte_spelling(bytes([byte])) for byte in range(256)]
SENTENCEPIECE = pieces(
    "spm",
    tokens=["<unk>", "<s>", "</s>", "\u2581", "a"],
    scores=[0.0] * 5,
    token_types=[2, 3, 3, 1, 1],
)


def _write_kind(kind, folder, name):
    """A tokenizer file of *kind* called *name*, with the files that it needs; and its ``--pre``."""
    path = folder / name
    if kind == "tokenizer.json":
        write_bpe(path, ["ab"])
    elif kind == "tekken":
        tekken_files.write(path)
    elif kind == "vocabulary":
        (folder / "vocab.json").write_text(json.dumps({text: id for id, text in enumerate(BYTES)}))
        (folder / "merges.txt").write_text("#version: 0.2\n")
    elif kind == "ranks":
        write_ranks(path, 256)
    else:
        path.write_bytes(sentencepiece_bytes(SENTENCEPIECE))
    return path, "gpt-2" if kind in ("vocabulary", "ranks") else None


KINDS = [
    ("tokenizer.json", "tokenizer.json"),
    ("tekken", "tekken.json"),
    ("vocabulary", "vocab.json"),
    ("vocabulary", "merges.txt"),
    ("ranks", "qwen.tiktoken"),
    ("sentencepiece", "tokenizer.model"),
]


@pytest.mark.parametrize("tokenizer_class", [None, "LlamaTokenizer", "GPT2Tokenizer"])
@pytest.mark.parametrize(("kind", "name"), [*KINDS, ("tokenizer.json", "other.json")])
def test_every_file_that_a_reader_looks_for_counts_in_the_key(
    kind, name, tokenizer_class, tmp_path, monkeypatch
):
    """With another content of any of them, or without it, the cache has another tokenizer."""

    def folder_with(**files):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        (folder / "additional_chat_templates").mkdir(parents=True)
        path, pre = _write_kind(kind, folder, name)
        if tokenizer_class is not None:
            files = {"tokenizer_config.json": f'{{"tokenizer_class": "{tokenizer_class}"}}'} | files
        for each, content in files.items():
            (folder / each).write_text(content)
        return path, pre

    def key(**files):
        return _content_key(*folder_with(**files), verify=False)

    path, pre = folder_with()
    names = set()
    has_file = Inventory.__contains__
    with monkeypatch.context() as patch, contextlib.suppress(Unsupported):
        patch.setattr(
            Inventory, "__contains__", lambda files, each: names.add(each) or has_file(files, each)
        )
        files = Inventory(path.parent)
        spec_from_file(path, pre=pre, files=files)
    names |= {*files.names, "additional_chat_templates/chat_template.jinja"}
    assert names >= {path.name, *SIDE_FILES}

    keys = [key()]
    for each in names:
        keys.append(key(**{each: "{}"}))
        # Of a tokenizer.json beside the file, only the presence counts.
        if each == name or each != "tokenizer.json":
            keys.append(key(**{each: "{ }"}))
    assert "" not in keys
    assert len(keys) == len(set(keys))


def test_a_removed_tokenizer_json_changes_a_tokenizer_model_that_was_loaded(tmp_path):
    """A ``tokenizer.json`` beside a ``tokenizer.model`` changes what the model file stands for."""
    path, _ = _write_kind("sentencepiece", tmp_path, "tokenizer.model")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    assert load_tokenizer(path).encode("a", add_special=False) == [4]
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(Unsupported, match="BertTokenizer"):
        load_tokenizer(path)


def test_ids_of_another_vocab_json_are_not_those_of_the_cache(tmp_path):
    for change in (reversed, list):  # two orders of ids
        path, pre = _write_kind("vocabulary", tmp_path, "merges.txt")
        vocabulary = {text: id for id, text in enumerate(change(BYTES))}
        (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
        assert load_tokenizer(path, pre=pre).encode("a") == [vocabulary["a"]]


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_the_name_of_a_tokenizer_does_not_depend_on_the_cache(
    kind, name, is_folder, tmp_path, monkeypatch
):
    path, pre = _write_kind(kind, tmp_path, name)
    for each in ("tokenizer_config.json", "additional_chat_templates/a.jinja"):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).write_text("{}")
    monkeypatch.chdir(tmp_path.parent)
    loaded = f"./{tmp_path.name}" if is_folder else f"./{tmp_path.name}/{name}"
    first = load_tokenizer(loaded, pre=pre)
    if first.engine != "native":
        pytest.skip("the compiled form belongs to the native module, which is not in use")
    monkeypatch.setattr("bitnet.tokenizer.load.spec_from_path", None)  # it is not read again
    again = load_tokenizer(loaded, pre=pre)
    read_name = "vocab.json" if kind == "vocabulary" else path.name
    assert first.source == again.source == str(Path(tmp_path.name) / read_name)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_content_that_was_read_before_a_change_is_not_cached_as_the_changed_one(name, tmp_path):
    def write(template, words):
        write_bpe(tmp_path / "tokenizer.json", words)
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))

    write("before", ["ab"])
    files = Inventory(tmp_path)
    files.read(name)
    write("after", ["ab", "cd"])
    load_tokenizer(tmp_path, files=files)
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.chat_template, tokenizer.encode("cd")) == ("after", [5])


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_a_pre_tokenizer_that_a_file_does_not_use_is_a_warning_each_time(
    kind, name, tmp_path, caplog
):
    path, _ = _write_kind(kind, tmp_path, name)
    for load in (load_tokenizer, load_tokenizer, load_spec):  # the second one is from the cache
        caplog.clear()
        load(path, pre="qwen2")
        expected = []
        if kind in ("tokenizer.json", "sentencepiece"):
            text = f"the pre-tokenizer qwen2 is not used: {path} says itself how text is cut"
            expected.append(f"{text} into words")
        assert [record.getMessage() for record in caplog.records] == expected


@pytest.mark.parametrize(("model", "is_used"), [("gpt2", True), ("llama", False), ("bert", False)])
def test_a_pre_tokenizer_that_a_gguf_file_does_not_use_is_a_warning(
    model, is_used, tmp_path, caplog
):
    tokens = ["<unk>", "<s>", "</s>", "a"]
    metadata = {"general.architecture": "llama"} | vocabulary(tokens, merges=[], pre="gpt-2")
    metadata |= {"tokenizer.ggml.model": model, "tokenizer.ggml.scores": [0.0] * 4}
    metadata |= {"tokenizer.ggml.unknown_token_id": 0}
    path = write_gguf(tmp_path / "m.gguf", metadata)
    extract_tokenizer_from_gguf(path, pre="qwen2")
    assert ("the pre-tokenizer qwen2 is not used" in caplog.text) is not is_used
