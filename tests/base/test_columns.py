"""Columns that a text takes, as a terminal counts them."""

import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitnet.base.columns import as_shown, clip, columns_of, cut, ellipsis_for, pad, width_of

# Letters of one and of two columns, and a combining accent, which takes none.
TEXTS = st.text(st.sampled_from("ab 字カé\u0301한"), max_size=30)


@pytest.mark.parametrize(
    ("text", "width"),
    [("", 0), ("abc", 3), ("日本", 4), ("e\u0301", 1), ("한글.gguf", 9), ("ａ", 2), ("é…", 2)],
)
def test_a_wide_letter_takes_two_columns_and_a_mark_none(text, width):
    assert width_of(text) == width


@given(TEXTS, st.integers(3, 40))
def test_a_text_that_is_cut_fits_and_keeps_its_beginning_and_end(text, width):
    for ellipsis in ("…", "..."):
        shortened = cut(text, width, ellipsis)
        assert width_of(shortened) <= width
        assert (shortened == text) is (width_of(text) <= width)
        if shortened != text:
            begin, _, end = shortened.partition(ellipsis)
            assert text.startswith(begin)
            assert text.endswith(end)
    assert text.startswith(clip(text, width))
    assert width_of(clip(text, width)) <= width
    if width_of(text) <= width:
        assert width_of(pad(text, width)) == width_of(pad(text, width, right=True)) == width


@pytest.mark.parametrize(("encoding", "ellipsis"), [("utf-8", "…"), ("latin-1", "...")])
def test_the_ellipsis_and_the_text_are_limited_to_what_the_stream_can_encode(encoding, ellipsis):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
    assert ellipsis_for(stream) == ellipsis
    assert as_shown("é", stream) == "é"
    assert as_shown("字", stream) == ("字" if encoding == "utf-8" else "\\u5b57")
    # A stream whose error handler is strict gets the text as it is.
    strict = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    assert as_shown("\udcff", strict) == "\udcff"
    assert as_shown("字", None) == "字"


def test_the_columns_are_those_of_the_streams_own_terminal_or_of_the_environment(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    sizes = {1: 200, 2: 40, 3: 0}  # columns by file descriptor; 4 is not a terminal

    def size(number):
        if number not in sizes:
            raise OSError(25, "Inappropriate ioctl for device")
        return os.terminal_size((sizes[number], 24))

    class Stream(io.StringIO):
        def __init__(self, number):
            super().__init__()
            self.fileno = lambda: number

    monkeypatch.setattr("os.get_terminal_size", size)
    assert [columns_of(Stream(number)) for number in (1, 2, 3, 4)] == [200, 40, 80, 80]
    assert columns_of(io.StringIO()) == 80
    monkeypatch.setenv("COLUMNS", "50")
    assert columns_of(Stream(1)) == 50
    monkeypatch.setenv("COLUMNS", "many")
    assert columns_of(Stream(2)) == 40
