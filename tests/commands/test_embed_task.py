"""embed as a command: texts of lines, files of vectors."""

import io
import json
import os
import sys

import numpy as np
import pytest
from bitnet_embeddings import folder
from builders import Tensor, Typed, write_gguf
from tiny_models import letters, tiny, tiny_gguf

from bitnet import load
from bitnet.commands import bulk
from bitnet.runtime.language_model import LanguageModel


@pytest.fixture
def model(tmp_path):
    return folder(tmp_path / "model", "qwen3")


@pytest.fixture
def expected(model):
    """Vectors of three texts, of which the second is empty."""
    with load(model) as running:
        return running.embed(["abc", "", "de"])


@pytest.fixture
def run(model, bitnet):
    return lambda *words: bitnet("embed", "--model", model, *words)


def rows(text):
    """Vectors in JSON lines, whose indices count from 0."""
    entries = [json.loads(line) for line in text.splitlines()]
    assert [entry["index"] for entry in entries] == list(range(len(entries)))
    return np.array([entry["embedding"] for entry in entries], dtype=np.float32)


def test_each_line_of_a_file_becomes_a_row(run, expected, tmp_path):
    (tmp_path / "texts.txt").write_bytes(b"abc\r\n\nde\n")
    done = run("--input", tmp_path / "texts.txt", "--output", tmp_path / "v.npy")
    assert (done.code, done.out) == (0, f"{tmp_path / 'v.npy'}\n")
    vectors = np.load(tmp_path / "v.npy")
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_texts_on_stdin_become_json_lines_on_stdout_or_in_a_file(
    run, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\n\nde\n")))
    np.testing.assert_allclose(rows(run().out), expected, atol=1e-6)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\n\nde\n")))
    assert run("--output", tmp_path / "v.jsonl").code == 0
    np.testing.assert_allclose(rows((tmp_path / "v.jsonl").read_text()), expected, atol=1e-6)


def test_texts_of_json_lines_may_contain_line_ends(run, model, tmp_path):
    (tmp_path / "texts.jsonl").write_text('"a\\nb"\n{"text": "cd", "id": 7}\n')
    with load(model) as running:
        expected = running.embed(["a\nb", "cd"])
    vectors = rows(run("--input", tmp_path / "texts.jsonl").out)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_options_set_the_prompt_the_length_the_dimensions_and_the_precision(run, model, tmp_path):
    (tmp_path / "texts.txt").write_text("cd")
    words = ("--input", tmp_path / "texts.txt", "--prompt-name", "query")
    with load(model) as running:
        whole = running.embed("abcd", normalize=False)  # the prompt called query is "ab"
    np.testing.assert_allclose(rows(run(*words, "--no-normalize").out), whole, rtol=1e-4, atol=1e-5)
    short = whole[:, :16] / np.linalg.norm(whole[:, :16])
    np.testing.assert_allclose(rows(run(*words, "--dimensions", 16).out), short, atol=1e-6)
    file = tmp_path / "v.npy"
    small = run(*words, "--truncate-dim", 16, "--precision", "ubinary", "--output", file)
    assert small.code == 0
    assert np.array_equal(np.load(file), np.packbits(whole[:, :16] > 0, axis=-1))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--output", "v.txt"), "expected the name of a .npy or .jsonl file"),
        (("--output", "."), "expected the name of a .npy or .jsonl file"),
        (("--input", "missing.txt"), "missing.txt"),
        (("--input", "empty.txt"), "there are no texts"),
        (("--input", "wrong.jsonl"), "wrong.jsonl, line 2: expected a JSON text"),
        (("--input", "broken.jsonl"), "broken.jsonl, line 1: expected a JSON text"),
        (("--input", "texts.txt", "--prompt-name", "passage"), "no prompt called 'passage'"),
        (("--input", "texts.txt", "--dimensions", "0"), "of this model have 128"),
        (("--input", "texts.txt", "--dimensions", "12", "--precision", "binary"), "into a byte"),
        (("--input", "texts.txt", "--precision", "int4"), "int4"),
        (("--input", "long.txt", "--no-truncate"), "65 tokens, the model reads 64"),
    ],
)
def test_wrong_inputs_and_options_are_refused_with_the_reason(
    run, words, said, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "texts.txt": "ab\n",
        "empty.txt": "\n",
        "wrong.jsonl": '"a"\n1\n',
        "broken.jsonl": "{\n",
        "long.txt": "a" * 64,
    }.items():
        (tmp_path / name).write_text(content)
    done = run(*words)
    assert done.code
    assert said in done.err
    assert "internal error" not in done.err
    assert not list(tmp_path.glob("v.*"))


def test_a_generative_model_embeds_but_an_embedding_model_does_not_generate(
    bitnet, run, model, tmp_path
):
    (tmp_path / "texts.txt").write_text("ab")
    tiny = tiny_gguf(tmp_path / "tiny.gguf")
    facts = bitnet("embed", "--model", tiny, "--input", tmp_path / "texts.txt", "--json")
    assert json.loads(facts.out)["pooling"] == "mean"
    refused = bitnet("infer", "--model", model, "--prompt", "ab")
    assert refused.code
    assert "makes vectors of texts and does not write any" in refused.err
    assert "bitnet embed " in refused.err


def interrupt_after(monkeypatch, blocks):
    """Interrupt models after *blocks* blocks of two texts; return the list of embedded blocks."""
    embedded = []
    original = LanguageModel.embed

    def embed(self, texts, **options):
        if len(embedded) == blocks:
            raise KeyboardInterrupt
        embedded.append(list(texts))
        return original(self, texts, **options)

    monkeypatch.setattr(bulk, "AT_ONCE", 2)
    monkeypatch.setattr(LanguageModel, "embed", embed)
    return embedded


TEXTS = ["abc", "", "de", "abcd", "a"]


@pytest.mark.parametrize("form", ["npy", "jsonl"])
def test_an_interrupted_run_is_continued(form, run, tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    words = ("--input", tmp_path / "texts.txt", "--output", tmp_path / f"v.{form}")
    assert run(*words).code == 0
    expected = (tmp_path / f"v.{form}").read_bytes()
    (tmp_path / f"v.{form}").unlink()
    before = set(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        assert run(*words).code
    assert not (tmp_path / f"v.{form}").exists()
    rows_left = tmp_path / f".v.{form}.rows"
    rows_left.write_bytes(rows_left.read_bytes() + b"unfinished")  # as a killed process leaves it
    with monkeypatch.context() as patch:
        embedded = interrupt_after(patch, 9)  # more blocks than there are: none is interrupted
        done = run(*words)
    assert (done.code, embedded) == (0, [TEXTS[4:]])  # two blocks were done before
    assert "4 vectors are computed already" in done.err
    assert (tmp_path / f"v.{form}").read_bytes() == expected
    assert set(tmp_path.iterdir()) - before == {tmp_path / f"v.{form}"}


@pytest.fixture
def interrupted(run, tmp_path, monkeypatch):
    """Words of a command that was interrupted after four of five texts."""
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    words = ("--input", tmp_path / "texts.txt", "--output", tmp_path / "v.npy")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        assert run(*words).code
    return words


def test_a_run_with_other_options_starts_from_the_first_text(
    interrupted, run, tmp_path, monkeypatch
):
    embedded = interrupt_after(monkeypatch, 9)
    assert run(*interrupted, "--dimensions", 8).code == 0
    assert [text for block in embedded for text in block] == TEXTS
    assert np.load(tmp_path / "v.npy").shape == (5, 8)


@pytest.mark.parametrize("options", [("--kv-type", "q8"), ("--ignore-key", "rope_theta")])
def test_rows_of_a_model_with_other_options_are_not_continued(
    options, interrupted, run, monkeypatch
):
    embedded = interrupt_after(monkeypatch, 9)
    run(*interrupted, *options)
    assert [text for block in embedded for text in block] == TEXTS


def split_model(folder):
    """A model in two files; the path of the first."""
    whole = tiny("llama")
    metadata = whole.metadata | letters(add_bos_token=True)
    tensors = [
        Tensor(weight.name, weight.shape, 0, weight.data.tobytes())
        for weight in whole.weights.values()
    ]
    paths = [folder / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for number, (keys, part) in enumerate([(metadata, tensors[:3]), ({}, tensors[3:])]):
        split = {"split.no": Typed(2, number), "split.count": Typed(2, 2)}
        write_gguf(paths[number], keys | split, part)
    return paths[0]


def touch(path):
    """Change the modification time of *path*."""
    os.utime(path, ns=(1, 1))


def reformat(path):
    """Write the JSON file *path* again with another indentation."""
    path.write_text(json.dumps(json.loads(path.read_text()), indent=3))


@pytest.mark.parametrize(
    ("kind", "file", "change"),
    [
        ("parts", "m-00001-of-00002.gguf", touch),
        ("parts", "m-00002-of-00002.gguf", touch),
        ("folder", "model/model.safetensors", touch),
        ("file of a folder", "model/config.json", touch),
        ("folder", "tokenizer.json", reformat),
    ],
)
def test_rows_of_a_model_with_another_file_are_not_continued(
    kind, file, change, model, bitnet, tmp_path, monkeypatch
):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    (tmp_path / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    words = ["embed", "--input", tmp_path / "texts.txt", "--output", tmp_path / "v.npy", "--model"]
    if kind == "parts":
        words += [split_model(tmp_path)]
    else:
        words += [model if kind == "folder" else model / "model.safetensors"]
        words += ["--tokenizer", tmp_path / "tokenizer.json"]
    # The run continues if nothing has changed, and starts again otherwise.
    for is_changed in (False, True):
        with monkeypatch.context() as patch:
            interrupt_after(patch, 2)
            assert bitnet(*words).code
        if is_changed:
            change(tmp_path / file)
        with monkeypatch.context() as patch:
            embedded = interrupt_after(patch, 9)
            assert bitnet(*words).code == 0
        texts = [text for block in embedded for text in block]
        assert texts == (TEXTS if is_changed else TEXTS[4:])
        (tmp_path / "v.npy").unlink()


@pytest.mark.parametrize("content", ["abc\n\nDE\nabcd\na", "abc"])
def test_rows_of_other_texts_are_not_continued(content, interrupted, run, tmp_path):
    (tmp_path / "texts.txt").write_text(content)
    done = run(*interrupted)
    assert done.code == 2
    assert "are of other texts" in done.err
    assert f"rm {tmp_path / '.v.npy.rows'}" in done.err
    (tmp_path / ".v.npy.rows").unlink()
    assert run(*interrupted).code == 0
    assert len(np.load(tmp_path / "v.npy")) == len(content.split("\n"))


@pytest.mark.parametrize("precision", ["float32", "int8", "ubinary"])
def test_an_array_has_the_bytes_of_numpy_save(precision, run, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    file = tmp_path / "v.npy"
    words = ("--input", tmp_path / "texts.txt", "--precision", precision, "--output", file)
    assert run(*words).code == 0
    content = io.BytesIO()
    np.save(content, np.load(file))
    assert file.read_bytes() == content.getvalue()


def test_the_position_of_a_wrong_byte_is_counted_from_the_start_of_the_file(run, tmp_path):
    (tmp_path / "texts.txt").write_bytes(b"abc\nd\xff\n")
    done = run("--input", tmp_path / "texts.txt")
    assert done.code == 2
    assert "texts.txt is not UTF-8: byte 0xff at position 5" in done.err
