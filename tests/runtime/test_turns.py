"""Conversations for chat templates that drop or refuse a part of them."""

import pytest
from conversations import ANSWER, CALLED, CONVERSATIONS, SYSTEM, THANKS, TOLD, TOOL, USER, call

from bitnet.base.errors import UsageError
from bitnet.runtime.turns import Turns
from bitnet.tokenizer.chat import ChatTemplate

# Parts of templates.
EACH = "{% for m in messages %}"
COPIED = "[{{ m.role }}]{{ m.content }}"
CALLS = (
    "{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments | tojson }}>"
    "{% endfor %}"
)
END = "{% endfor %}[assistant]"
TOOLS = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
WHOLE = TOOLS + EACH + COPIED + CALLS + END
# Refuses messages of user and assistant that do not alternate.
ALTERNATE = (
    "{% for m in messages if m.role in ('user', 'assistant') and not m.tool_calls %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}{% endfor %}"
)


def only(*roles):
    """The beginning of a template that writes messages of *roles* alone."""
    return f"{EACH}{{% if m.role in {roles} %}}{COPIED}{{% endif %}}"


def text(template, messages, tools=None):
    """Text of *messages* in *template*, which gets *tools* as a list or as a description."""
    template = ChatTemplate(template)
    if tools and not template.facts.tools:
        return template.render(Turns(template, messages, explained=tools).messages)
    return template.render(Turns(template, messages, tools=tools).messages, tools=tools)


def test_a_developer_is_the_system_for_templates_without_one():
    messages = [SYSTEM | {"role": "developer"}, USER]
    expected = "[system]Be brief.[user]Is it warm in Paris?[assistant]"
    assert text(WHOLE, messages) == expected
    assert text(only("system", "user") + END, messages) == expected


def test_a_developer_that_the_template_knows_keeps_its_role():
    template = EACH + "{% if m.role == 'developer' %}(D){% endif %}" + COPIED + END
    assert text(template, [SYSTEM | {"role": "developer"}, USER]).startswith("(D)[developer]Be")


# Writes a system message only if it is the first message.
FIRST = (
    "{% if messages[0].role == 'system' %}[system]{{ messages[0].content }}{% endif %}"
    "{% for m in messages if m.role != 'system' %}" + COPIED + END
)


def test_later_system_messages_join_the_first_where_only_that_is_written():
    messages, _ = CONVERSATIONS["later system"]
    rendered = text(FIRST, messages)
    assert rendered.startswith("[system]Be brief.\n\nBe kind.[user]Is it warm")
    assert text(FIRST, messages[1:]).startswith("[system]Be kind.[user]Is it warm")
    # A template that writes them where they are keeps their places.
    assert "Paris.[system]Be kind.[user]And" in text(WHOLE, messages)


def test_instructions_begin_the_users_message_where_no_system_is_written():
    messages, _ = CONVERSATIONS["later system"]
    expected = "[user]Be brief.\n\nBe kind.\n\nIs it warm in Paris?[assistant]It is"
    assert text(only("user", "assistant") + "{% endfor %}", messages).startswith(expected)
    refuses = EACH + "{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    assert text(refuses + COPIED + END, messages).startswith(expected)
    assert text(refuses + COPIED + END, [SYSTEM]) == "[user]Be brief.[assistant]"


def test_a_system_message_that_is_written_at_times_is_never_lost():
    # As Mistral Nemo's template: the system message is written before the last message, and only if
    # that is the user's.
    template = (
        "{% for m in messages if m.role != 'system' %}"
        "{% if loop.last and m.role == 'user' and messages[0].role == 'system' %}"
        "{{ messages[0].content }} {% endif %}" + COPIED + CALLS + END
    )
    assert "[user]Is it warm" in text(template, [SYSTEM, USER])
    rendered = text(template, [SYSTEM, USER, CALLED, TOLD], [TOOL])
    assert "Be brief." in rendered
    assert "21 degrees" in rendered


def test_messages_of_a_user_that_may_not_follow_each_other_are_joined():
    messages, _ = CONVERSATIONS["two users"]
    joined = "[user]Is it warm in Paris?\n\nIn degrees, please.[assistant]"
    assert text(ALTERNATE + WHOLE, messages) == joined
    assert text(WHOLE, messages).count("[user]") == 2


def test_the_text_beside_a_call_becomes_a_message_where_it_is_dropped():
    calls_or_text = (
        EACH + "{% if m.tool_calls %}" + CALLS + "{% else %}" + COPIED + "{% endif %}" + END
    )
    messages, tools = CONVERSATIONS["text and call"]
    expected = '[assistant]I will look.<get_weather {"city": "Paris"}>[tool]21 degrees'
    assert expected in text(TOOLS + calls_or_text, messages, tools)


def test_the_text_beside_a_call_that_has_no_other_place_is_refused():
    calls_or_text = (
        EACH + "{% if m.tool_calls %}" + CALLS + "{% else %}" + COPIED + "{% endif %}" + END
    )
    one_answer = (
        "{% if (messages | selectattr('role', 'equalto', 'assistant') | list | length) > 1 %}"
    )
    one_answer += "{{ raise_exception('one answer') }}{% endif %}"
    # The template drops the text beside a call, and refuses a second message of the assistant.
    messages, tools = CONVERSATIONS["text and call"]
    with pytest.raises(UsageError, match="refuses the conversation: one answer"):
        text(TOOLS + one_answer + calls_or_text, messages, tools)


def test_calls_that_the_template_drops_are_written_as_text():
    messages, tools = CONVERSATIONS["call"]
    with_tools = text(TOOLS + EACH + COPIED + END + "<tool_call>", messages, tools)
    call_text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    assert f"[assistant]{call_text}[tool]21 degrees" in with_tools
    without_tools = text(EACH + COPIED + END, messages)
    assert (
        f"[assistant]{call_text}[user]<tool_response>\n21 degrees\n</tool_response>"
        in without_tools
    )


def test_several_calls_become_a_message_each_where_only_the_first_is_written():
    first_call = "{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}"
    messages, tools = CONVERSATIONS["two calls"]
    rendered = text(TOOLS + EACH + COPIED + first_call + END, messages, tools)
    places = [rendered.index(each) for each in ('Paris"', "21 degrees", 'Rome"', "25 degrees")]
    assert places == sorted(places)  # each result follows its call


# Writes only the first call of a message.
ONE_CALL = (
    TOOLS + EACH + "{% if m.tool_calls %}" + CALLS.replace("m.tool_calls", "m.tool_calls[:1]")
    + "{% elif m.role == 'tool' %}{{ m.content }}{% else %}" + COPIED + "{% endif %}{% endfor %}"
)  # fmt: skip


def numbered(*names, ids="012"):
    """A message that calls the functions *names*; the digits of *ids* are the ids of the calls."""
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for number, name in zip(ids, names, strict=False)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def numbered_result(number, content):
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": content}


@pytest.mark.parametrize(
    # Messages of a first and a second turn, whose calls have the same ids, and the text behind the
    # first question.
    ("first", "second", "expected"),
    [
        (
            [numbered("a", "b"), numbered_result(1, "1b"), numbered_result(0, "1a")],
            [numbered("a", "b"), numbered_result(0, "2a"), numbered_result(1, "2b")],
            "<a {}>1a<b {}>1b[user]And tomorrow?<a {}>2a<b {}>2b",
        ),
        (
            [numbered("a", "b"), numbered_result(0, "1a"), numbered_result(1, "1b")],
            [numbered("c"), numbered_result(0, "2c")],
            "<a {}>1a<b {}>1b[user]And tomorrow?<c {}>2c",
        ),
        (
            [numbered("c"), numbered_result(0, "1c")],
            [numbered("a", "b"), numbered_result(1, "2b")],
            "<c {}>1c[user]And tomorrow?<a {}><b {}>2b",
        ),
        (
            [numbered("a", "b", ids="00"), numbered_result(0, "1a"), numbered_result(0, "1b")],
            [numbered_result(0, "1c"), numbered_result(7, "7")],
            "<a {}>1a1c<b {}>1b[user]And tomorrow?7",
        ),
    ],
    ids=["several", "one", "one before", "equal ids"],
)
def test_results_follow_their_own_calls_if_a_client_uses_an_id_again(first, second, expected):
    assert text(ONE_CALL, [USER, *first, THANKS, *second], [TOOL]).endswith(f"Paris?{expected}")


def test_ids_are_shortened_for_templates_that_demand_nine_characters():
    demands = (
        "{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('9') }}"
        "{% endif %}({{ c.id }}){{ c.function.arguments }}{% endfor %}"
        "{% if m.role == 'tool' %}({{ m.tool_call_id }}){% endif %}"
    )
    messages, tools = CONVERSATIONS["call"]
    shortened = text(TOOLS + EACH + COPIED + demands + END, messages, tools)
    ids = [part.partition(")")[0] for part in shortened.split("(")[1:]]
    # The id of the call and that of its result.
    assert len(ids) == 2
    assert len(set(ids)) == 1
    unchanged = text(TOOLS + EACH + COPIED + demands.replace("!= 9", "< 9") + END, messages, tools)
    assert unchanged.count(f"({call(1, 'Paris')['id']})") == 2


def test_results_without_ids_belong_to_the_calls_in_their_order():
    template = TOOLS + EACH + COPIED + CALLS + "{{ m.name }}/{{ m.tool_call_id }}" + END
    calls = [{"type": "function", "function": {"name": n, "arguments": ""}} for n in ("a", "b")]
    messages = [
        USER,
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": None},
    ]
    rendered = text(template, messages)
    assert "<a {}><b {}>" in rendered
    # Results get names and made-up ids; an empty one is not written as "None".
    assert "[tool]1a/call1.0[tool]b/call1.1" in rendered


def test_results_without_ids_belong_to_the_calls_of_their_functions():
    template = TOOLS + EACH + COPIED + CALLS + "{{ m.name }}/{{ m.tool_call_id }}" + END
    calls = [{"type": "function", "function": {"name": n, "arguments": ""}} for n in ("a", "b")]
    messages = [
        USER,
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "name": "b", "content": "1"},
        {"role": "tool", "name": "other", "content": "2"},
    ]
    assert "[tool]1b/call1.1[tool]2other/call1.0" in text(template, messages)


def test_a_call_without_an_id_gets_the_one_that_a_kimi_model_writes():
    """Kimi's templates write the name of the function only as a part of the id."""
    call_text = (
        "<|tool_calls_section_begin|>{% for c in m.tool_calls or [] %}<|tool_call_begin|>{{ c.id }}"
        "<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>"
        "{% endfor %}<|tool_calls_section_end|>"
    )
    returned = "{% if m.role == 'tool' %}## Return of {{ m.tool_call_id }}{% endif %}"
    template = TOOLS + EACH + COPIED + call_text + returned + END
    calls = [{"type": "function", "function": {"name": n, "arguments": ""}} for n in ("a", "b")]
    result = {"role": "tool", "content": "1"}
    turn = [USER, {"role": "assistant", "tool_calls": calls}, result, result]
    rendered = text(template, turn * 2)
    for call_id in ("functions.a:0", "functions.b:1", "functions.a:2", "functions.b:3"):
        assert f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>" in rendered
        assert f"## Return of {call_id}" in rendered


def test_an_empty_list_of_calls_is_left_out():
    template = EACH + COPIED + "{% if m.tool_calls is defined %}CALLS{% endif %}" + END
    assert "CALLS" not in text(template, [USER, ANSWER | {"tool_calls": []}, THANKS])


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_is_read_under_each_of_its_names(name):
    shown = "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    template = TOOLS + EACH + COPIED + shown + CALLS + END
    assert "(Hm.)<get" in text(template, [USER, CALLED | {name: "Hm."}, TOLD], [TOOL])


def test_a_role_that_the_template_drops_is_refused_by_name():
    with pytest.raises(UsageError, match=r"messages\.0: .* the text .* 'sytem'") as caught:
        text(only("system", "user") + END, [{"role": "sytem", "content": "x"}, USER])
    assert caught.value.field == "messages.0"
    assert "system, developer, user" in caught.value.hint


@pytest.mark.parametrize(
    ("calls", "where"),
    [
        ("x", "messages.1: tool_calls is not a list"),
        ([{}], r"messages\.1\.tool_calls\.0: a call has no function name"),
        ([{"function": {"name": 1}}], r"messages\.1\.tool_calls\.0: a call has no function name"),
        ([{"function": {"name": "f", "arguments": "{"}}], r"function\.arguments: not JSON"),
        ([{"function": {"name": "f", "arguments": [1]}}], r"arguments: not a JSON object"),
        ([{"function": {"name": "f", "arguments": "1"}}], r"arguments: not a JSON object"),
    ],
)
def test_malformed_calls_are_refused_with_their_place(calls, where):
    with pytest.raises(UsageError, match=where):
        text(WHOLE, [USER, {"role": "assistant", "tool_calls": calls}])


def test_the_check_that_nothing_is_lost_is_cached_for_conversations_of_one_form(monkeypatch):
    template = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    rendered = []
    render = ChatTemplate.render

    def counting(self, *args, **kwargs):
        rendered.append(1)
        return render(self, *args, **kwargs)

    monkeypatch.setattr(ChatTemplate, "render", counting)

    def turns(*texts):
        roles = ("user", "assistant")
        messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
        return Turns(template, messages).messages

    assert turns("a", "b", "c")[2]["content"] == "c"
    first = len(rendered)
    assert first > 0
    # Another conversation of three messages needs no further check, which renders the template.
    assert turns("other", "texts", "here")[0]["content"] == "other"
    assert len(rendered) == first
    turns("one", "more", "turn", "is", "another form")
    assert len(rendered) > first


def test_a_refusal_is_repeated_for_the_next_conversation_of_that_form():
    template = ChatTemplate("{% for m in messages[-1:] %}{{ m.content }}{% endfor %}")
    for text in ("a", "b"):
        messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "c"}]
        with pytest.raises(UsageError, match="leaves out"):
            Turns(template, [*messages, {"role": "user", "content": "d"}])
