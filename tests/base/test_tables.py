"""Text for terminals and pipes: counts, tables, wrapped lines, and a line that is replaced."""

import io
import os

import pytest

from bitnet.base import tables


@pytest.fixture
def terminal(monkeypatch):
    """A stream that is a terminal of 20 columns, without bold text."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    return Terminal()


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (2000, "2,000 files")]
)
def test_a_quantity_is_singular_for_1_only(number, said):
    assert tables.quantity(number, "file") == said


def test_only_a_digest_is_shortened():
    assert tables.short("0123456789ab" + "c" * 52) == "0123456789ab…"
    assert tables.short("/c/" + "0123456789ab" + "c" * 52 + ".tok") == "/c/0123456789ab….tok"
    for name in ("llama3-128k", "g" * 64, "a" * 63, "a" * 65):
        assert tables.short(name) == name


def test_a_table_in_a_pipe_is_as_wide_as_its_cells():
    rows = [["1 B", "x" * 200], ["100 B", "y"]]
    lines = list(tables.table(["size", "path"], rows, shrink=[1], right=[0], stream=io.StringIO()))
    assert lines == [" size  path", "  1 B  " + "x" * 200, "100 B  y"]


def test_a_cell_that_may_shrink_loses_its_middle_on_a_narrow_terminal(terminal):
    rows = [["a" * 4, "begin" + "x" * 50 + "the end"]]
    head, row = tables.table(["name", "path"], rows, shrink=[1], stream=terminal)
    assert (head, len(row)) == ("name  path", 20)
    assert row.endswith("the end")
    assert "…" in row


def test_control_characters_in_a_cell_are_escaped():
    lines = list(tables.table(["name"], [["a\x1b[31mb"]], stream=io.StringIO()))
    assert lines[1] == "a\\x1b[31mb"


def test_a_live_line_is_cut_to_the_terminal_and_erased_at_the_end(monkeypatch, terminal):
    monkeypatch.setattr("sys.stderr", terminal)
    with tables.LiveLine() as line:
        line.tell("x" * 50)
    # One column stays free; \x1b[K erases the rest of the line.
    assert terminal.getvalue() == "\r" + "x" * 19 + "\x1b[K\r\x1b[K"


HEAD = ("name", "size", "path", "note")
PATH = "/a folder/with a long name/of a model.gguf"


def columns(monkeypatch, number):
    """Let the terminal have *number* columns."""
    monkeypatch.setenv("COLUMNS", str(number))


@pytest.mark.parametrize("number", range(20, 60))
def test_columns_that_do_not_fit_are_below_their_row_and_never_cut(number, terminal, monkeypatch):
    columns(monkeypatch, number)
    rows = [("model-1", "1 B", PATH, "two links"), ("model-2", "2 B", "", "")]
    lines = list(tables.table(HEAD, rows, right=[1], below=[2, 3], stream=terminal))
    # Lines that are not indented are the heading and the two rows.
    assert [line.split()[0] for line in lines if line[0] != " "] == ["name", "model-1", "model-2"]
    assert sum(PATH in line for line in lines) == 1
    assert "…" not in "".join(lines)


def test_columns_that_fit_stay_in_their_row(terminal, monkeypatch):
    columns(monkeypatch, 100)
    rows = [("model-1", "1 B", PATH, "two links")]
    lines = list(tables.table(HEAD, rows, right=[1], below=[2, 3], stream=terminal))
    assert lines[1] == f"model-1   1 B  {PATH}  two links"
    piped = tables.table(HEAD, rows, right=[1], below=[2, 3], stream=io.StringIO())
    assert list(piped) == lines


@pytest.mark.parametrize("number", range(20, 80))
def test_wrapped_sentences_break_at_spaces_but_not_within_commands_and_paths(
    number, terminal, monkeypatch
):
    columns(monkeypatch, number)
    command = "`bitnet verify model.gguf`"
    text = f"one of the checks failed, see {command} and the file, {PATH}, for more"
    lines = tables.wrap(text, stream=terminal)
    assert " ".join(line.strip() for line in lines) == text
    assert sum(command in line for line in lines) == 1
    assert sum(PATH in line for line in lines) == 1
    assert all(len(line) <= max(number, len(PATH) + 4) for line in lines)
    assert tables.wrap(text, stream=io.StringIO()) == [text]


def test_each_line_of_a_text_is_wrapped_on_its_own(terminal, monkeypatch):
    columns(monkeypatch, 30)
    text = "a first line that is too long for it\n\nsecond: a/b\n  third"
    lines = tables.wrap(text, stream=terminal)
    assert lines == [
        *("a first line that is too long", "  for it", ""),
        *("  second: a/b", "    third"),
    ]
    assert tables.wrap(text, stream=io.StringIO()) == [text]


def test_line_breaks_in_a_cell_are_escaped_and_wide_letters_take_two_columns():
    rows = [["a\nb\tc", "x"], ["日本", "y"]]
    lines = list(tables.table(["name", "note"], rows, stream=io.StringIO()))
    assert lines == ["name     note", "a\\nb\\tc  x", "日本     y"]


def test_a_live_line_has_the_width_of_its_own_terminal(monkeypatch, terminal):
    columns(monkeypatch, 0)  # as if COLUMNS were not set
    sizes = {1: 200, 2: 20}  # columns by file descriptor
    monkeypatch.setattr("os.get_terminal_size", lambda fd=1: os.terminal_size((sizes[fd], 24)))
    terminal.fileno = lambda: 2
    monkeypatch.setattr("sys.stderr", terminal)
    with tables.LiveLine() as line:
        line.tell("x" * 50 + "\n")
        line.tell("字" * 50)
    assert terminal.getvalue().split("\x1b[K")[:2] == ["\r" + "x" * 19, "\r" + "字" * 9]
