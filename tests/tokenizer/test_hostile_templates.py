"""Chat templates made to take long or fill the memory end in an error that says so."""

import pytest

from bitnet.errors import InvalidFormat
from bitnet.tokenizer.chat import ChatTemplate
from bitnet.tokenizer.limits import TEMPLATE_CHARS

DOUBLED = "{% set n = namespace(x=[], y=[]) %}{% for i in range(40) %}{% set n.x = [n.x, n.x] %}"
DOUBLED += "{% set n.y = [n.y, n.y] %}{% endfor %}"
MANY = "{% set a = 'a' * 9999999 %}{% for i in range(99999) %}{% set b = ??? %}{% endfor %}"
STOPPED = {
    "rounds": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "a long text": "{{ 'a' * 10 ** 9 }}",
    **{
        what: MANY.replace("???", what)
        for what in ("'a' * 9999999", "a ~ a", "a[1:]", "'b' in a", "a | upper", "a.upper()")
    },
    "lists of lists": DOUBLED + "{{ n.x }}",
    "lists of lists as JSON": DOUBLED + "{{ n.x | tojson }}",
    "lists of lists in a format": DOUBLED + "{{ '%s' % n.x }}",
    "equal lists of lists": DOUBLED + "{{ n.x == n.y }}",
    "squares": "{% set n = namespace(x=3) %}"
    "{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "powers": "{{ 99999 ** 99999 }}",
    "recursion": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
}


@pytest.mark.parametrize("name", STOPPED)
def test_a_template_without_an_end_is_stopped(name):
    template = ChatTemplate(STOPPED[name])
    with pytest.raises(InvalidFormat, match=r"stopped|failed") as caught:
        template.render([{"role": "user", "content": "Hello"}])
    assert "--chat-template" in caught.value.hint


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
        "{{ " + "(" * 9999,
        "a" * (TEMPLATE_CHARS + 1),
    ],
    ids=["blocks", "parentheses", "characters"],
)
def test_a_template_that_is_too_deep_or_long_is_refused(source):
    with pytest.raises(InvalidFormat):
        ChatTemplate(source)
