"""Chat templates: rendered as published, within a sandbox and its limits."""

import contextlib
from datetime import datetime, timezone

import pytest

from bitnet.base.errors import InvalidFormat, Unsupported, UsageError
from bitnet.tokenizer import chat_child
from bitnet.tokenizer.chat import ChatTemplate, chat_template, flatten
from bitnet.tokenizer.spec import AddedToken, TokenizerSpec
from bitnet.tokenizer.tokenizer import Tokenizer

USER = {"role": "user", "content": "Hi"}
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


def render(template, messages=(USER,), **options):
    """The text of *messages* by *template*, with the texts of BOS and EOS of LLaMA."""
    return ChatTemplate(template, bos_token="<s>", eos_token="</s>").render(messages, **options)


def test_a_llama3_conversation_is_rendered_as_published():
    text = render(LLAMA3, [{"role": "system", "content": " Be kind. "}, USER])
    assert text == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_the_generation_prompt_can_be_left_out():
    assert render(LLAMA3, add_generation_prompt=False).endswith("Hi<|eot_id|>")


def test_statements_of_a_template_leave_no_white_space():
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"


def test_loops_can_be_left_early():
    template = "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}x{% endfor %}"
    assert render(template, [USER] * 5) == "x"


def test_json_is_not_escaped_and_keeps_its_order():
    tools = [{"name": "f", "about": "<é> & 'x'"}]
    assert render("{{ tools[0] | tojson }}", tools=tools) == '{"name": "f", "about": "<é> & \'x\'"}'
    assert render("{{ {'b': 1, 'a': [2]} | tojson(indent=2) }}").startswith('{\n  "b": 1,\n')


def test_generation_blocks_change_nothing():
    assert render("a{% generation %}b{% endgeneration %}c") == "abc"


def test_the_date_comes_from_the_clock():
    clock = lambda: datetime(2026, 2, 3, tzinfo=timezone.utc)  # noqa: E731
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=clock)
    assert template.render([USER]) == "03 Feb 2026"


def test_tools_are_none_unless_given():
    assert render("{{ tools is none }} {{ documents is none }}") == "True True"
    assert render("{{ enable_thinking }}", variables={"enable_thinking": False}) == "False"


def test_a_conversation_that_the_template_refuses_is_a_usage_error():
    template = "{{ raise_exception('Conversation roles must alternate') }}"
    with pytest.raises(UsageError, match="roles must alternate"):
        render(template)


def test_a_syntax_error_names_source_and_line():
    with pytest.raises(InvalidFormat, match=r"model\.gguf.*line 2"):
        ChatTemplate("\n{% if %}", source="model.gguf")


def test_a_failing_template_names_its_source():
    template = ChatTemplate("{{ messages[7].content.x }}", source="model.gguf")
    with pytest.raises(InvalidFormat, match=r"model\.gguf"):
        template.render([USER])


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self.__init__.__globals__.os }}",
    ],
)
def test_templates_cannot_leave_the_sandbox(template):
    with pytest.raises(InvalidFormat):
        render(template)


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ range(10 ** 9) }}",
        "{{ 'x' * 10 ** 9 }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
        "{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
        "{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
        "{% set t %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = t %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
        "{% set n.x = n.x.replace('b', n.x) %}{% endfor %}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ 'x' | center(10 ** 9) }}",
        "{{ 'x'.ljust(10 ** 9) }}",
        "{{ 'x\n' | indent(10 ** 9) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_runaway_templates_are_stopped(template, monkeypatch):
    monkeypatch.setattr(chat_child, "CPU_MS", 150)  # instead of 1,500, to end sooner
    with pytest.raises(InvalidFormat):
        render(template)


def test_the_time_limit_begins_again_with_every_rendering():
    template = ChatTemplate("{% for i in range(99999) %}{% endfor %}x")
    assert {template.render([USER]) for _ in range(30)} == {"x"}


PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]


def test_parts_become_a_text_where_the_template_only_knows_texts():
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    assert render(template, [{"role": "user", "content": PARTS}]) == "[one\ntwo]"


def test_parts_stay_parts_where_the_template_knows_them():
    template = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}"
    )
    assert render(template, [{"role": "user", "content": PARTS}]) == "<one><two>"
    assert render(template) == "Hi"


def test_a_text_becomes_a_part_where_the_template_only_knows_parts():
    template = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    assert render(template) == "Hi"


def test_a_part_with_an_image_is_refused_by_its_type():
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    knows_parts = (
        "{% for m in messages %}{% for p in m.content %}"
        "{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}"
    )
    for template in (LLAMA3, knows_parts):
        with pytest.raises(Unsupported, match="image_url"):
            render(template, [message])


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}


@pytest.mark.parametrize(
    "written",
    [
        "{{ call.function.arguments | tojson }}",  # Qwen2.5: the object
        "{{ call.function.arguments }}",  # the text
        "{{ '' + call.function.arguments }}",  # DeepSeek: the text, or it fails
        "{% if call.function.arguments is string %}{{ call.function.arguments }}"
        "{% else %}{{ call.function.arguments | tojson }}{% endif %}",  # Qwen3: either
    ],
)
def test_arguments_of_a_call_are_written_as_json_once(written):
    template = (
        "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls %}"
        + written
        + "{% endfor %}{% endfor %}"
    )
    message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert render(template, [USER, message]) == 'Hi{"a": "é"}'


@pytest.mark.parametrize("call", [{}, "f", {"function": 1}, {"function": {"arguments": "{"}}])
def test_a_malformed_call_is_rendered_or_an_error_of_the_template(call):
    template = (
        "{% for m in messages %}{% for call in m.tool_calls %}"
        "{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    message = {"role": "assistant", "tool_calls": [call]}
    with contextlib.suppress(InvalidFormat):
        assert isinstance(render(template, [USER, message]), str)


CALLS = "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}"
# Templates that write reasoning in angle brackets, by where they look for it.
REASONING = {
    "a field": "{% for m in messages %}{% if m.reasoning_content %}"
    "<{{ m.reasoning_content }}>{% endif %}{{ m.content }}" + CALLS + "{% endfor %}",
    "parts": "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'thinking' %}<{{ p.thinking }}>{% else %}{{ p.text }}"
    "{% endif %}{% endfor %}{% endif %}" + CALLS + "{% endfor %}",
}


@pytest.mark.parametrize("form", REASONING)
@pytest.mark.parametrize("role", ["user", "tool", "assistant", "system"])
@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_a_message_of_reasoning_alone_has_an_empty_content(form, role, content):
    message = {"role": role, "reasoning_content": "why", **content}
    template = ChatTemplate(REASONING[form])
    assert template.facts.reasoning
    expected = template.render([USER, message | {"content": ""}])
    assert template.render([USER, message]) == expected
    assert "<why>" in expected


@pytest.mark.parametrize("content", [7, True, {"text": "x"}])
@pytest.mark.parametrize("form", REASONING)
def test_a_content_that_is_not_a_text_is_refused_beside_reasoning(form, content):
    message = {"role": "user", "content": content, "reasoning_content": "why"}
    with pytest.raises(UsageError, match="content is of type"):
        render(REASONING[form], [message])


def test_a_template_of_a_tokenizer_gets_the_texts_of_bos_and_eos():
    spec = TokenizerSpec(
        model="bpe",
        tokens=["a", "<B>", "<E>"],
        byte_level=True,
        bos_id=1,
        eos_id=2,
        chat_template="{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
    )
    assert chat_template(Tokenizer.from_spec(spec)).render([USER]) == "<B>Hi<E>"


def test_a_tokenizer_without_a_chat_template_is_refused():
    with pytest.raises(Unsupported, match="no chat template"):
        chat_template(Tokenizer.from_spec(TokenizerSpec(model="bpe", tokens=["a"])))


def test_a_bos_of_the_template_is_not_doubled():
    spec = TokenizerSpec(
        model="bpe",
        tokens=["H", "i", "<B>"],
        added=(AddedToken(2, "<B>"),),
        bos_id=2,
        add_bos=True,
        chat_template="{{ bos_token }}{{ messages[0].content }}",
    )
    tokenizer = Tokenizer.from_spec(spec)
    assert tokenizer.encode(chat_template(tokenizer).render([USER])) == [2, 0, 1]
    assert tokenizer.encode("Hi") == [2, 0, 1]


@pytest.mark.parametrize(
    ("part", "error", "text"),
    [
        ({"type": "text"}, UsageError, "has nothing as its text"),
        ({"type": "text", "text": None}, UsageError, "has nothing as its text"),
        ({"type": "text", "text": 5}, UsageError, "has a value of type int as its text"),
        ({"text": 5}, UsageError, "has a value of type int as its text"),
        ({}, UsageError, "has nothing as its text"),
        ({"type": "image_url"}, Unsupported, "content of type 'image_url' is not supported"),
        ({"type": "image_url", "text": "b"}, Unsupported, "content of type 'image_url' is not"),
        (5, Unsupported, "content of type 'int' is not supported"),
    ],
)
def test_a_part_of_content_without_a_text_is_refused_with_the_reason(part, error, text):
    with pytest.raises(error, match=text) as caught:
        flatten([{"type": "text", "text": "a"}, part])
    assert type(caught.value) is error
