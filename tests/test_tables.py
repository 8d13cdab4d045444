import io

import pytest

from bitnet import tables


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (2000, "2,000 files")]
)
def test_a_count_has_the_form_of_its_number(number, said):
    assert tables.counted(number, "file") == said


def test_only_a_digest_is_shortened():
    assert tables.short("0123456789ab" + "c" * 52) == "0123456789ab…"
    for name in ("llama3-128k", "g" * 64, "a" * 63):
        assert tables.short(name) == name


def test_a_table_in_a_pipe_is_as_wide_as_its_cells():
    rows = [["1 B", "x" * 200], ["100 B", "y"]]
    lines = list(tables.table(["size", "path"], rows, shrink=[1], right=[0], stream=io.StringIO()))
    assert lines == [" size  path", "  1 B  " + "x" * 200, "100 B  y"]


def test_a_table_on_a_terminal_loses_the_middle_of_what_may_shrink(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [["a" * 4, "begin" + "x" * 50 + "the end"]]
    head, row = tables.table(["name", "path"], rows, shrink=[1], stream=Terminal())
    assert (head, len(row)) == ("name  path", 20)
    assert row.endswith("the end")
    assert "…" in row


def test_what_steers_a_terminal_is_written_out():
    lines = list(tables.table(["name"], [["a\x1b[31mb"]], stream=io.StringIO()))
    assert lines[1] == "a\\x1b[31mb"
