"""Sizes and ranges in the headers of a reply, whatever a server writes there."""

import pytest

from bitnet.hub.http import as_count, complete_length, content_range


@pytest.mark.parametrize(
    ("value", "found"),  # found: start, stop (exclusive) and size of the file
    [
        ("bytes 0-9/100", (0, 10, 100)),
        ("bytes 5-5/*", (5, 6, None)),
        ("bytes */100", None),
        ("0-9/100", None),
        ("", None),
        (None, None),
        (f"bytes 0-{'9' * 5000}/*", None),
        ("bytes 1000-999/3000", None),
        ("bytes 7-3/*", None),
        ("bytes 0-100/100", None),
    ],
)
def test_a_content_range_is_read_or_ignored(value, found):
    assert content_range(value) == found


@pytest.mark.parametrize(
    ("value", "found"),
    [("bytes */100", 100), (" bytes */0 ", 0), ("bytes */*", None), ("bytes 0-9/100", None),
     ("", None), (None, None)],
)  # fmt: skip
def test_the_size_in_the_content_range_of_a_416_reply_is_read_or_ignored(value, found):
    assert complete_length(value) == found


@pytest.mark.parametrize(
    ("value", "found"),
    [("17", 17), (" 0 ", 0), ("", None), (None, None), ("-1", None), ("1e3", None), ("٣", None),
     ("9" * 5000, None)],
)  # fmt: skip
def test_a_content_length_is_read_or_ignored(value, found):
    assert as_count(value) == found
