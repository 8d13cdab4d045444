"""inspect-gguf and fix-gguf as commands.

Exit codes: 2 wrong usage, 13 damaged or malformed data, 19 not found.
"""

import json

import pytest
from builders import f32, vocabulary, write_gguf

from bitnet.commands import load
from bitnet.commands.program import Program
from bitnet.formats.gguf import GGUF


@pytest.fixture
def model(tmp_path):
    metadata = {"general.architecture": "llama", **vocabulary(["a", "b"], merges=["a b"])}
    return write_gguf(tmp_path / "m.gguf", metadata, [f32("w", (4,))])


def _run(*words):
    """Exit code of a command line."""
    with pytest.raises(SystemExit) as stop:
        Program(load(), "bitnet").run(["bitnet", *map(str, words)])
    return stop.value.code


def test_inspect_gguf_prints_the_report(model, capsys):
    assert _run("inspect-gguf", model) == 0
    shown = capsys.readouterr()
    assert "derived from tokenizer.ggml.tokens: 2" in shown.out
    assert shown.err == ""


def test_inspect_gguf_writes_json_with_metadata_tensors_and_vocabulary(model, capsys):
    assert _run("inspect-gguf", model, "--json", "--full") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["metadata"]["general.architecture"] == "llama"
    assert facts["tensors"][0]["name"] == "w"
    assert facts["vocabulary"]["size"] == 2


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["inspect-gguf", "none.gguf"], 19, "no such file or folder: none.gguf"),
        (["inspect-gguf"], 2, "needs MODEL"),
        (["fix-gguf", "m.gguf", "--set-pre", "x"], 2, "needs --output"),
        (["fix-gguf", "m.gguf", "--output", "o.gguf"], 2, "nothing to change"),
        (
            ["fix-gguf", "m.gguf", "--set-pre", "lama-bpe", "--output", "o.gguf"],
            2,
            "any name can be set with --set",
        ),
        (["fix-gguf", "m.gguf", "--set-pre", "qwen2", "--output", "m.gguf"], 2, "not overwritten"),
    ],
)
def test_wrong_use_is_one_error_with_its_exit_code(model, monkeypatch, capsys, words, code, text):
    monkeypatch.chdir(model.parent)
    assert _run(*words) == code
    shown = capsys.readouterr()
    assert shown.err.count("Error:") == 1
    assert text in shown.err


def test_a_truncated_file_ends_with_the_exit_code_of_damage(model, capsys):
    model.write_bytes(model.read_bytes()[:100])
    assert _run("inspect-gguf", model) == 13
    assert "the file ends at 100" in capsys.readouterr().err


def test_fix_gguf_writes_a_corrected_copy(model, tmp_path, capsys):
    output = tmp_path / "fixed.gguf"
    words = ["--set-pre", "llama-bpe", "--set", "x.y=1", "--set", "x.z:int8=-1", "--output", output]
    assert _run("fix-gguf", model, *words, "--quiet") == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (f"{output}\n", "")
    with GGUF.open(output) as fixed:
        assert fixed.metadata["tokenizer.ggml.pre"] == "llama-bpe"
        assert (fixed.metadata["x.y"], fixed.metadata["x.z"]) == (1, -1)


def test_fix_gguf_says_in_json_what_changed(model, tmp_path, capsys):
    output = tmp_path / "fixed.gguf"
    assert _run("fix-gguf", model, "--set-pre", "llama-bpe", "--output", output, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    change = {"key": "tokenizer.ggml.pre", "type": "string", "value": "llama-bpe", "old": None}
    assert facts == {"output": str(output), "changes": [change]}
