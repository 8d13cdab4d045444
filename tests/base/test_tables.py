import io

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
def test_a_count_has_the_form_of_its_number(number, said):
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


def test_a_table_on_a_terminal_loses_the_middle_of_what_may_shrink(terminal):
    rows = [["a" * 4, "begin" + "x" * 50 + "the end"]]
    head, row = tables.table(["name", "path"], rows, shrink=[1], stream=terminal)
    assert (head, len(row)) == ("name  path", 20)
    assert row.endswith("the end")
    assert "…" in row


def test_what_steers_a_terminal_is_written_out():
    lines = list(tables.table(["name"], [["a\x1b[31mb"]], stream=io.StringIO()))
    assert lines[1] == "a\\x1b[31mb"


def test_a_sentence_breaks_between_words_on_a_terminal_only(terminal):
    lines = [
        "✓ file: " + "word " * 5 + "/a/path/that/is/long",
        "see: bitnet run smollm2-135m, or so",
    ]
    assert list(tables.wrap_lines(lines, io.StringIO())) == lines
    assert list(tables.wrap_lines(lines, terminal)) == [
        "✓ file: word word",
        "  word word word",
        "  /a/path/that/is/long",
        "see:",
        "  bitnet run smollm2-135m,",
        "  or so",
    ]


def test_a_value_goes_on_below_its_beginning(terminal):
    assert list(tables.wrap_lines(["  key     a b c d e f g h"], terminal)) == [
        "  key     a b c d e",
        "          f g h",
    ]


def test_wide_characters_take_two_columns(terminal):
    assert list(tables.wrap_lines(["✅ All models well"], terminal)) == ["✅ All models well"]
    lines = list(tables.wrap_lines(["✅ All models healthy"], terminal))
    assert lines == ["✅ All models", "  healthy"]
    head, row = tables.table(["a", "b"], [["字" * 30, "x"]], shrink=[0], stream=terminal)
    assert len(row) + row.count("字") <= 20
    assert head.index("b") == len(row) + row.count("字") - 1


def test_the_last_column_goes_on_below(terminal):
    rows = [["code", "one two three four five"], ["x", ""]]
    assert list(tables.table(["k", "meaning"], rows, wrap=1, stream=terminal)) == [
        "k     meaning",
        "code  one two three",
        "      four five",
        "x",
    ]


def test_markdown_is_a_table_on_a_terminal_and_itself_elsewhere(terminal):
    text = "# Title\n\n| a | b |\n|---|---|\n| x \\| y | **`z`** |\n"
    assert list(tables.of_markdown(text, io.StringIO())) == text.splitlines()
    assert list(tables.of_markdown(text, terminal)) == ["Title", "", "a      b", "x | y  z"]


def test_a_live_line_stays_one_line(monkeypatch, terminal):
    monkeypatch.setattr("sys.stderr", terminal)
    with tables.LiveLine() as line:
        line.tell("x" * 50)
    assert terminal.getvalue() == "\r" + "x" * 19 + "\x1b[K\r\x1b[K"


def test_a_name_is_never_cut(terminal):
    names = ["a-model-with-a-long-name", "short"]
    rows = [["yes", name, "1.6 MB", "a family", "Apache-2.0"] for name in names]
    head = ["here", "name", "size", "family", "licence"]
    lines = [*tables.table(head, rows, whole=1, shrink=(3, 4), right=(2,), stream=terminal)]
    assert [line for line in lines if line in names] == names
    assert len(lines) == 2 + 2 * len(names)
