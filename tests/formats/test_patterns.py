"""Expressions that name modules."""

import pytest

from bitnet.base.errors import InvalidFormat
from bitnet.formats.patterns import compile_pattern


def test_an_expression_is_compiled():
    assert compile_pattern("a.*", "key", hint="h").match("abc")


@pytest.mark.parametrize(
    "pattern",
    ["(", "*", "\\", "a{99999999999999999999}", "(" * 5000 + ")" * 5000, "(?P<x>a)(?P<x>b)"],
)
def test_a_text_that_is_not_an_expression_is_refused_by_its_key(pattern):
    with pytest.raises(InvalidFormat, match="m: key is not a regular expression: ") as failure:
        compile_pattern(pattern, "m: key", hint="the hint")
    assert failure.value.hint == "the hint"
