"""Files and folders that are not models get the same error from every command that takes a model.

Exit codes: 13 damaged or malformed data, 15 a check failed, 19 not found.
"""

import json

import pytest

from bitnet.commands import load

#: Words of a command line that ends with the model, by command.
WORDS = {
    "attest": ("attest", "--model"),
    "batch": ("batch", "--input", "rows.jsonl", "--output", "answers.jsonl", "--model"),
    "bench": ("bench", "--tests", "pp1", "--model"),
    "chat": ("chat", "--model"),
    "classify": ("classify", "--input", "texts.txt", "--model"),
    "compat-check": ("compat-check",),
    "convert": ("convert", "--output", "new.gguf", "--model"),
    "crossval": ("crossval", "--model"),
    "embed": ("embed", "--input", "texts.txt", "--model"),
    "explain-tokenizer": ("explain-tokenizer",),
    "export-tokenizer": ("export-tokenizer", "--into", "new"),
    "fix-gguf": ("fix-gguf", "--set-pre", "llama-bpe", "--output", "new.gguf"),
    "infer": ("infer", "--prompt", "a", "--model"),
    "inspect-gguf": ("inspect-gguf",),
    "launch": ("launch", "codex", "--model"),
    "plan": ("plan", "--model"),
    "rank": ("rank", "--query", "a", "--input", "texts.txt", "--model"),
    "render": ("render", "--messages", "rows.jsonl"),
    "run": ("run", "--prompt", "a"),
    "serve": ("serve", "--model"),
    "show": ("show",),
    "tokenize": ("tokenize", "--file", "rows.jsonl"),
    "verify": ("verify", "--model"),
    "verify-tokenizer": ("verify-tokenizer", "--against", "bad.gguf"),
}
# Commands not in WORDS: doctor has a test of its own below; the others take names of models in the
# cache or on the hub.
OTHERWISE = {"doctor", "bundle.export", "cache.verify", "download", "download-model", "rm"}
# Names of options, also of those that are given without their names.
MODEL_OPTIONS = {"model", "path", "tokenizer"}
TAKE_A_TOKENIZER = ("export-tokenizer", "render", "tokenize", "verify-tokenizer")

CHECK = "check the path, or fetch a model: bitnet download-model smollm2-135m"
PASS = "fetch it again, or pass a .gguf file or a folder with config.json and *.safetensors"
NEITHER = "bad.gguf is neither a GGUF file nor safetensors"
# By kind: content of bad.gguf (None: there is none; "folder": it is an empty folder), exit code,
# message and hint.
BAD = {
    "missing": (None, 19, "no such file or folder: bad.gguf", CHECK),
    "folder": (
        "folder",
        19,
        "no model in bad.gguf: neither *.gguf nor *.safetensors with config.json",
        CHECK,
    ),
    "page": (
        b"<!DOCTYPE html>",
        13,
        f"{NEITHER} but an HTML or XML page",
        "fetch it again: the server answered with a page",
    ),
    "zip": (
        b"PK\x03\x04 rest",
        13,
        f"{NEITHER} but a zip archive or a PyTorch checkpoint",
        "convert it to GGUF first",
    ),
    "random": (b"!?%&" * 99, 13, f"{NEITHER}: it starts with {b'!?%&'!r}", PASS),
    "empty": (b"", 13, "bad.gguf is empty", "fetch the file again"),
}


@pytest.fixture(params=BAD)
def bad(request, tmp_path, monkeypatch):
    """Kind of bad.gguf, a key of BAD; the exit code, the message and the hint."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("a")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    content, *expected = BAD[request.param]
    if content == "folder":
        (tmp_path / "bad.gguf").mkdir()
    elif content is not None:
        (tmp_path / "bad.gguf").write_bytes(content)
    return request.param, *expected


def test_every_command_reports_what_is_not_a_model_in_the_same_words(bitnet, bad):
    kind, code, text, hint = bad
    commands = dict(WORDS)
    if kind == "folder":  # these also accept a folder with a tokenizer, and have another message
        for name in TAKE_A_TOKENIZER:
            assert bitnet(*commands.pop(name), "bad.gguf").code == code
    answers = {name: bitnet(*words, "bad.gguf") for name, words in commands.items()}
    assert {name: done.code for name, done in answers.items()} == dict.fromkeys(commands, code)
    errors = {name: done.err[done.err.index("Error: ") :] for name, done in answers.items()}
    assert errors == dict.fromkeys(commands, f"Error: {text}\nhint: {hint}\n")


def test_the_report_of_doctor_has_the_same_message_and_hint(bitnet, bad):
    _, code, text, hint = bad
    done = bitnet("doctor", "--model", "bad.gguf")
    assert done.code == code
    assert f"✗ Model: {text}" in done.out
    assert f"{text}: {hint}." in done.out


def test_health_reports_a_file_that_is_not_a_model_as_failed(bitnet, bad, tmp_path):
    kind, _, text, _ = bad
    done = bitnet("health", "--model-dir", ".")
    if kind in ("missing", "folder"):  # then there is no file to check
        assert done.code == 19
        assert "no model in .: neither *.gguf nor" in done.err
    else:
        assert done.code == 15
        assert f"Validating: bad.gguf: failed: file: {text}" in done.out


def test_verify_gives_a_verdict_on_a_damaged_model_instead_of_an_error(bitnet, tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF\x03\0\0\0 and no more")
    done = bitnet("verify", "--model", tmp_path / "bad.gguf", "--json")
    assert done.code == 15
    assert json.loads(done.out)["findings"][0]["severity"] == "failed"


def test_every_command_that_takes_a_model_is_in_a_table_of_this_file():
    namespace = load()
    taking = {
        name
        for name in namespace.task_names
        if MODEL_OPTIONS & {arg.name for arg in namespace[name].options}
    }
    assert taking == {*WORDS, *OTHERWISE}
