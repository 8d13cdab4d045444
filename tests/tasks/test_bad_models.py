"""The same thing that is not a model gets the same answer from every command."""

import pytest

MODEL = {
    "infer": ("infer", "--prompt", "a", "--model"),
    "chat": ("chat", "--model"),
    "bench": ("bench", "--tests", "pp1", "--model"),
    "convert": ("convert", "--output", "new.gguf", "--model"),
    "crossval": ("crossval", "--model"),
    "plan": ("plan", "--model"),
    "inspect-gguf": ("inspect-gguf",),
    "fix-gguf": ("fix-gguf", "--set-pre", "llama-bpe", "--output", "new.gguf"),
    "explain-tokenizer": ("explain-tokenizer",),
    "compat-check": ("compat-check",),
    "serve": ("serve", "--model"),
    "batch": ("batch", "--input", "rows.jsonl", "--output", "answers.jsonl", "--model"),
}
BAD = {
    "missing": (None, 19, "no such file or folder: {}"),
    "page": (b"<!DOCTYPE html>", 13, "{} is neither a GGUF file nor safetensors but an HTML"),
    "random": (b"\x01\x02\x03\x04" * 99, 13, "{} is neither a GGUF file nor safetensors: it st"),
    "zip": (b"PK\x03\x04 rest", 13, "{} is neither a GGUF file nor safetensors but a zip"),
    "empty": (b"", 13, "{} is empty"),
    "folder": (
        "folder",
        20,
        "{} is a folder with no GGUF files, expected a GGUF file, or a folder",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_every_command_says_the_same_about_what_is_not_a_model(bitnet, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    content, code, text = BAD[kind]
    if content == "folder":
        (tmp_path / "bad.gguf").mkdir()
    elif content is not None:
        (tmp_path / "bad.gguf").write_bytes(content)
    answers = {name: bitnet(*words, "bad.gguf") for name, words in MODEL.items()}
    assert {name: done.code for name, done in answers.items()} == dict.fromkeys(MODEL, code)
    errors = {done.err[done.err.index("Error: ") :] for done in answers.values()}
    assert len(errors) == 1, errors
    assert text.format("bad.gguf") in errors.pop()
