"""Facts about chat templates, found by running them on marked conversations."""

import json

import pytest

from bitnet.base.errors import InvalidFormat
from bitnet.tokenizer import chat_child
from bitnet.tokenizer.chat import ChatTemplate
from bitnet.tokenizer.template_facts import EFFORT_VARIABLES

# Parts of templates: the beginning of a message, the end of the loop, and calls of tools. WRITTEN
# stands for the code that writes the arguments of a call.
EACH = "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
END = "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
CALLS = (
    "{% for call in m.tool_calls or [] %}<call>{{ call.function.name }} WRITTEN</call>{% endfor %}"
)
USER = {"role": "user", "content": "Hi"}
OBJECT = {"city": "Paris", "days": 2}
TEXT = json.dumps(OBJECT)

#: Template code for the arguments of a call, the form that it takes, and the text that it writes.
FORMS = {
    "{{ call.function.arguments }}": ("text", TEXT),
    "{{ '' + call.function.arguments }}": ("text", TEXT),
    "{{ call.function.arguments | tojson }}": ("object", TEXT),
    "{% if call.function.arguments is string %}{{ call.function.arguments }}"
    "{% else %}{{ call.function.arguments | tojson }}{% endif %}": ("text", TEXT),
    "{% for k, v in call.function.arguments | items %}<{{ k }}>{{ v }}{% endfor %}": (
        "object",
        "<city>Paris<days>2",
    ),
    "{% for k, v in call.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}": (
        "object",
        "city=Paris;days=2;",
    ),
    "{% if call.function.arguments is mapping %}{% for k in call.function.arguments %}"
    "{{ k }}:{{ call.function.arguments[k] }},{% endfor %}"
    "{% else %}{ {{- call.function.arguments -}} }{% endif %}": ("object", "city:Paris,days:2,"),
    "{% if call.function.arguments is not mapping %}{{ raise_exception('a mapping') }}{% endif %}"
    "{{ call.function.arguments.city }}{% for k in call.function.arguments %}{{ k }}"
    "{{ call.function.arguments[k] }}{% endfor %}": ("object", "Pariscity" "Parisdays2"),
}  # fmt: skip


def facts(template):
    """Facts about *template*."""
    return ChatTemplate(template, bos_token="<s>", eos_token="</s>").facts


@pytest.mark.parametrize("written", FORMS)
@pytest.mark.parametrize("given", [OBJECT, TEXT])
def test_arguments_reach_the_template_in_the_form_that_it_takes(written, given):
    form, expected = FORMS[written]
    template = ChatTemplate(EACH + CALLS.replace("WRITTEN", written) + END)
    assert template.facts.arguments == form
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": given}}
    text = template.render([USER, {"role": "assistant", "tool_calls": [call]}])
    assert f"<call>weather {expected}</call>" in text


def test_a_template_knows_the_developer_only_if_it_names_that_role():
    assert not facts(EACH + END).developer
    assert facts(
        EACH.replace("m.role", "{'developer': 'system'}.get(m.role, m.role)") + END
    ).developer
    only = "{% if m.role in ('user', 'developer') %}" + EACH[len("{% for m in messages %}") :]
    assert facts("{% for m in messages %}" + only + "{% endif %}" + END).developer


def test_a_system_message_at_the_beginning_and_a_later_one_are_two_facts():
    first = "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    others = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    assert (facts(first + others).system, facts(first + others).later_system) == (True, False)
    assert (facts(EACH + END).system, facts(EACH + END).later_system) == (True, True)
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    assert not facts(refuses + EACH + END).system


def test_a_template_that_demands_alternation_does_not_take_repeated_user_messages():
    alternates = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    assert not facts(alternates).repeated_user
    assert facts(EACH + END).repeated_user


def test_calls_results_and_text_beside_calls_are_three_facts():
    whole = facts(EACH + CALLS.replace("WRITTEN", "{{ call.function.arguments }}") + END)
    assert (whole.calls, whole.results, whole.text_beside_calls) == (True, True, True)
    assert whole.several_calls
    silent = facts(EACH + END)
    assert (silent.calls, silent.results, silent.tools) == (False, False, False)
    either = (
        "{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments }}"
        "{% elif m.role != 'tool' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    facts_of_either = facts(either)
    assert (facts_of_either.calls, facts_of_either.results, facts_of_either.text_beside_calls) == (
        True,
        False,
        False,
    )
    assert not facts_of_either.several_calls


def test_a_template_that_demands_ids_of_nine_letters_has_short_ids():
    nine = (
        "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}"
        "{% if call.id | length != 9 %}{{ raise_exception('9 letters') }}{% endif %}"
        "{{ call.function.arguments }}{% endfor %}{% endfor %}"
    )
    assert facts(nine).short_ids
    assert not facts(nine.replace("!= 9", "> 99")).short_ids


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_put_where_the_template_looks_for_it(name):
    calls = CALLS.replace("WRITTEN", "{{ call.function.arguments }}")
    shown = f"{{% if m.{name} %}}<think>{{{{ m.{name} }}}}</think>{{% endif %}}"
    template = ChatTemplate(EACH + shown + calls + END)
    assert template.facts.reasoning == name
    message = {"role": "assistant", "content": "Yes", "reasoning_content": "Hm."}
    assert "Yes<think>Hm.</think>" in template.render([USER, message])


def test_reasoning_is_a_part_of_the_content_where_the_template_looks_there():
    template = ChatTemplate(
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}{% if part.type == 'thinking' %}[{{ part.thinking }}]"
        "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
        "{% for call in m.tool_calls or [] %}{{ call.function.arguments }}{% endfor %}{% endfor %}"
    )
    assert template.facts.reasoning == "parts"
    message = {"role": "assistant", "content": "Yes", "reasoning_content": "Hm."}
    assert template.render([USER, message]) == "Hi[Hm.]Yes"


def test_a_switch_of_thinking_that_changes_the_text_is_named():
    switch = facts(EACH + "{% if enable_thinking is false %}<think></think>{% endif %}" + END)
    assert (switch.thinking_switches, switch.effort) == (("enable_thinking",), "")


@pytest.mark.parametrize("name", EFFORT_VARIABLES)
def test_the_variable_of_an_effort_that_changes_the_text_is_named(name):
    effort = facts(EACH + "{{ " + name + " | default('medium') }}" + END)
    assert (effort.thinking_switches, effort.effort) == ((), name)


def test_a_template_that_needs_a_list_of_tools_gets_one():
    template = ChatTemplate("{% for tool in tools %}{{ tool | tojson }}{% endfor %}" + EACH + END)
    assert template.facts.needs_list
    assert template.facts.tools
    assert template.render([USER]) == "[user]Hi[assistant]"


def test_a_template_that_takes_too_long_on_a_probe_is_refused(monkeypatch):
    monkeypatch.setattr(chat_child, "CPU_MS", 150)  # instead of 1,500, to end sooner
    slow = "{% if messages | length > 1 %}{{ 'a' * 10 ** 9 }}{% endif %}{{ messages[0].content }}"
    with pytest.raises(InvalidFormat, match="stopped"):
        facts(slow)
