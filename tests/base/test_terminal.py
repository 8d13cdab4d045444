"""Output and file names in locales whose encoding lacks letters: ASCII and Latin-1."""

import ast
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import TOKENS, tiny_gguf

import bitnet
from bitnet.base import terminal
from bitnet.base.files import path_of, text_of
from bitnet.tokenizer.spec import byte_spelling

COMMANDS = Path(bitnet.__file__).parent / "commands"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
# Environments of such locales.
NARROW = [ASCII, {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "latin-1"}]
NAME = "modèle ☃.gguf"
# A logit bias by which the model writes the first byte of é, and not the second.
HALF = f"{TOKENS.index(byte_spelling(bytes([0xC3])))}=90"


def written(text, encoding, monkeypatch):
    """The bytes of *text* on a prepared stream of *encoding*."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    terminal.prepare()
    print(text, end="", flush=True)
    return stream.buffer.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("✓ all\n✗ none", b"ok all\nx none"),
        ("  · a note", b"  * a note"),
        ("the token ✓", b"the token \\u2713"),
        ("café 💭", b"caf\\xe9 \\U0001f4ad"),
        (os.fsencode("é→").decode("ascii", "surrogateescape"), "é→".encode()),
        ("☃\udcc3\udca9", b"\\u2603\xc3\xa9"),
        ("\udcc3\udca9\udcff", b"\xc3\xa9\xff"),  # a name that is UTF-8 only in part
        ("\udcff and \ud800", b"\\udcff and \\ud800"),
    ],
)
def test_on_an_ascii_stream_marks_are_replaced_names_are_bytes_and_other_letters_escaped(
    text, shown, monkeypatch
):
    assert written(text, "ascii", monkeypatch) == shown


def test_utf_8_is_written_as_it_is_and_bytes_that_are_not_text_are_escaped(monkeypatch):
    assert written("✓ é \udcff", "utf-8", monkeypatch) == "✓ é \\udcff".encode()


def test_file_names_in_json_are_decoded_as_utf_8():
    name = "é".encode().decode("ascii", "surrogateescape")
    facts = {"path": name, "of": [name, ("\udcff", 1)], name: None}
    assert json.loads(terminal.as_json(facts)) == {
        "path": "é",
        "of": ["é", ["\udcff", 1]],
        "é": None,
    }


def test_a_path_becomes_text_and_a_path_again_without_loss():
    assert path_of(text_of(NAME)) == Path(NAME)
    assert text_of(os.fsdecode(b"\xff")) == "\udcff"


@pytest.mark.parametrize("module", sorted(COMMANDS.glob("*.py")), ids=lambda path: path.stem)
def test_every_command_prints_json_with_decoded_names(module):
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
            assert "json.dumps(" not in ast.unparse(node), "use terminal.as_json"


# Commands that run in one process for each locale: (command line, exit code).
WORDS = [
    (["doctor"], 0),
    (["doctor", "--report", "--model", NAME], 0),
    (["inspect-gguf", NAME], 0),
    (["inspect-gguf", NAME, "--json"], 0),
    (["verify", "--model", NAME], 0),
    (["health", "--model-dir", "."], 0),
    (["explain-tokenizer", NAME], 0),
    (["export-tokenizer", NAME, "--into", "sortie é"], 0),
    (["verify-tokenizer", NAME, "--against", NAME], 0),
    (["infer", "--model", NAME, "--prompt", "é日ab", "--max-tokens", "3"], 0),
    (["infer", "--model", NAME, "--prompt", "ab", "--stop", "é", "--max-tokens", "3"], 0),
    (["infer", "--model", NAME, "--prompt", "ab", "--max-tokens", "1", "--logit-bias", HALF], 0),
    (["infer", "--model", "né.gguf", "--prompt", "ab"], 19),
    (["batch", "--model", NAME, "--input", "textes é.jsonl", "--output", "à.jsonl"], 0),
    (["convert", "--model", NAME, "--output", "ô.gguf", "--type", "BF16"], 0),
    (["fix-gguf", NAME, "--set", "general.name=Ünï", "--output", "û.gguf"], 0),
    (["cache.list", "--cache-dir", "cäche"], 0),
    (["plan", "--model", NAME], 0),
    (["ci-init", "--into", ".", "--from", f"git+https://example.org/a/b@{'0' * 40}"], 0),
    (["infer", "--model", NAME, "--prompt", "é日", "--dump-ids", "--json", "--max-tokens=1"], 0),
    (["no-such-command-é"], 2),
]
ONE_PROCESS = """
import json, os, sys
from bitnet.commands.program import Program
from bitnet.commands import load

codes = []
for words in json.loads(sys.argv[1]):
    words = [os.fsdecode(word.encode()) for word in words]  # as this locale hands them over
    print("##", *words, flush=True)
    try:
        Program(load(), "bitnet").run(["bitnet", *words])
    except SystemExit as end:
        codes.append(end.code)
print("##", json.dumps(codes))
"""


@pytest.mark.parametrize("locale", NARROW, ids=["ascii", "latin-1"])
def test_every_command_works_in_a_locale_that_lacks_letters_of_its_files_and_texts(
    tmp_path, locale
):
    folder = tmp_path / "Übung"
    folder.mkdir()
    tiny_gguf(folder / NAME)
    (folder / "textes é.jsonl").write_text('{"id": "ü", "prompt": "ab"}\n', "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", ONE_PROCESS, json.dumps([words for words, _ in WORDS])],
        cwd=folder,
        env={**os.environ, **locale, "BITNET_CACHE_DIR": str(tmp_path / "cäche")},
        capture_output=True,
        timeout=600,
        check=True,
    )
    coding = "utf-8" if locale is ASCII else "latin-1"  # a name in ASCII is its UTF-8 bytes
    out = done.stdout.decode(coding)
    err = done.stderr.decode(coding)
    shown = NAME if locale is ASCII else NAME.replace("☃", "\\u2603")
    codes = json.loads(out.rpartition("##")[2])
    assert [(words, code) for (words, _), code in zip(WORDS, codes, strict=True)] == WORDS, err
    assert "internal error" not in err
    assert "no such file or folder: né.gguf" in err
    assert err.count("Note: this locale writes ") == 1
    assert f"## explain-tokenizer {shown}\n{shown}: llama model" in out
    # Half a character is U+FFFD, the replacement character, escaped.
    assert "\n\\ufffd\n" in out
    assert "sortie é/tokenizer.json" in out
    # The prompt was read as UTF-8: a token for each byte, behind the beginning-of-text token.
    facts = next(json.loads(line) for line in out.splitlines() if line.startswith('{"text"'))
    assert facts["prompt_ids"][1:] == [
        TOKENS.index(byte_spelling(bytes([byte]))) for byte in "é日".encode()
    ]
    assert json.loads((folder / "à.jsonl").read_text("utf-8"))["id"] == "ü"
