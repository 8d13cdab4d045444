"""tokenize as a command: ids, pieces, counts; text, files and stdin.

Exit codes: 2 wrong usage, 19 not found.
"""

import io
import json
import sys

import pytest
from vocabularies import spec


@pytest.fixture
def tokenizer(tmp_path):
    spec("llama", tmp_path)
    return tmp_path / "tokenizer.json"


@pytest.fixture
def _piped(monkeypatch):
    """The text ``the fox`` and a line end on standard input."""
    stdin = io.TextIOWrapper(io.BytesIO(b"the fox\n"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stdin)


def test_ids_of_a_text_are_one_line(tokenizer, bitnet):
    done = bitnet("tokenize", tokenizer, "the fox")
    assert (done.code, done.err) == (0, "")
    ids = [int(word) for word in done.out.split()]
    facts = json.loads(bitnet("tokenize", tokenizer, "the fox", "--json").out)
    assert facts == {"tokenizer": str(tokenizer), "count": len(ids), "ids": ids}
    assert bitnet("tokenize", tokenizer, "the fox", "--count").out == f"{len(ids)}\n"


def test_pieces_are_listed_with_the_characters_that_they_cover(tokenizer, bitnet):
    lines = bitnet("tokenize", tokenizer, "the 🙂", "--pieces").out.splitlines()
    assert lines[0].split() == ["id", "characters", "text", "spelling"]
    # The tokenizer writes a space before the text, whose token covers the first character. The
    # emoji is not in the vocabulary: the tokens of its four bytes cover the same character.
    assert [line.split()[1] for line in lines[1:]] == ["0-1", "0-3", "3-4", *["4-5"] * 4]
    facts = json.loads(bitnet("tokenize", tokenizer, "the 🙂", "--pieces", "--json").out)
    assert facts["count"] == 7
    assert facts["pieces"][1]["text"] == "the"
    assert {entry["text"] for entry in facts["pieces"][3:]} == {"🙂"}
    assert facts["pieces"][3]["spelling"] == "<0xF0>"


@pytest.mark.usefixtures("_piped")
def test_stdin_is_the_text_where_none_is_given(tokenizer, bitnet):
    wanted = bitnet("tokenize", tokenizer, "the fox\n").out
    assert bitnet("tokenize", tokenizer).out == wanted


@pytest.mark.usefixtures("_piped")
def test_stdin_is_counted(tokenizer, bitnet):
    wanted = len(bitnet("tokenize", tokenizer, "the fox\n").out.split())
    done = bitnet("tokenize", tokenizer, "--file", "-", "--count", "--json")
    assert json.loads(done.out) == {"tokenizer": str(tokenizer), "count": wanted}


def test_a_file_is_encoded_as_it_is(tokenizer, tmp_path, bitnet):
    path = tmp_path / "text.txt"
    path.write_text("the fox\n")
    wanted = bitnet("tokenize", tokenizer, "the fox\n").out
    assert bitnet("tokenize", tokenizer, "--file", path).out == wanted
    count = bitnet("tokenize", tokenizer, "--file", path, "--count").out
    assert int(count) == len(wanted.split())


def test_special_tokens_are_text_with_no_parse_special(tokenizer, bitnet):
    as_token = bitnet("tokenize", tokenizer, "<s>", "--count").out
    as_text = bitnet("tokenize", tokenizer, "<s>", "--count", "--no-parse-special").out
    assert int(as_token) < int(as_text)


def test_only_the_heading_is_bold_unless_the_environment_says_no(tokenizer, bitnet, monkeypatch):
    words = ("tokenize", tokenizer, "the fox", "--pieces")
    assert "\x1b" not in bitnet(*words).out
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    heading, *pieces = bitnet(*words).out.splitlines()
    assert heading.startswith("\x1b[1m")
    assert "\x1b" not in "".join(pieces)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in bitnet(*words).out


def test_control_characters_never_reach_the_terminal(tokenizer, bitnet):
    assert "\x1b" not in bitnet("tokenize", tokenizer, "a\x1b[31m", "--pieces").out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["text", "--file", "x"], 2, "two texts"),
        (["text", "--count", "--pieces"], 2, "--count prints no pieces"),
        (["--file", "missing.txt"], 19, "missing.txt"),
    ],
)
def test_options_that_contradict_and_missing_files_are_refused(
    tokenizer, words, code, said, bitnet
):
    done = bitnet("tokenize", tokenizer, *words)
    assert (done.code, done.out) == (code, "")
    assert said in done.err


def test_tokenize_on_a_terminal_without_a_text_is_refused(tokenizer, bitnet, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    done = bitnet("tokenize", tokenizer)
    assert done.code == 2
    assert "there is no text" in done.err
