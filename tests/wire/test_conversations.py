"""Earlier reasoning and calls in the bodies of every dialect reach the request."""

from types import SimpleNamespace

import pytest
from conversations import CALLED, DIALECTS, TOLD, TOOL, USER
from published_templates import FORMS, outcome, request_of, tokenizer_of

from bitnet.base.errors import UsageError
from bitnet.runtime.conversation import conversation_text, effort_variables
from bitnet.runtime.request import Request
from bitnet.wire.anthropic import message_places
from bitnet.wire.reasoning import takes_effort

#: A template that writes whatever it is given.
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }};{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}({{ m.reasoning_content }})"
    "{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}{{ c.id }}</tool_call>"
    "{% endfor %}{% if m.tool_call_id %}{{ m.tool_call_id }}{% endif %}{% endfor %}"
)
ID = CALLED["tool_calls"][0]["id"]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("conversation", "begin"),
    [
        ("reasoning", "(I need it.)"),
        ("reasoning and text", "(I need it.)I will look."),
        ("text and call", "I will look."),
        ("call", ""),
    ],
)
def test_a_call_keeps_its_reasoning_and_text(dialect, conversation, begin):
    text, _ = outcome(tokenizer_of(TEMPLATE), conversation, dialect)
    called = f'<tool_call>get_weather {{"city": "Paris"}}{ID}</tool_call>'
    assert text.endswith(f"[assistant]{begin}{called}[tool]21 degrees{ID}")


@pytest.mark.parametrize("dialect", ["openai", "responses"])
def test_a_developer_message_keeps_its_role_in_the_request(dialect):
    """Only the template decides whether it becomes a system message."""
    assert request_of("developer", dialect).messages[0]["role"] == "developer"


def test_a_later_system_message_keeps_its_place_in_anthropics_dialect():
    messages = request_of("later system", "anthropic").messages
    assert [message["role"] for message in messages] == [
        "system", "user", "assistant", "system", "user",
    ]  # fmt: skip


def test_reasoning_of_responses_belongs_to_what_follows_it():
    def thought(text, kind="content"):
        parts = [{"type": "reasoning_text", "text": text}]
        return {"type": "reasoning", "id": "r", "summary": [], kind: parts}

    function = {"name": "get_weather", "arguments": "{}"}
    items = [
        USER, thought("a"), {"type": "function_call", "call_id": "1", **function},
        {"type": "function_call", "call_id": "2", **function},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
        thought("b", "summary"), {"role": "assistant", "content": "c"},
        thought("d"), {"type": "function_call", "call_id": "3", **function},
        thought("lost"), USER,
    ]  # fmt: skip
    form = FORMS["responses"]
    (request,) = form.requests(form.read({"input": items}), None, None)
    # The messages: user, two calls, the result of the first, text, a call, user. The last
    # reasoning has no answer after it and is dropped.
    reasoning = [message.get("reasoning_content") for message in request.messages]
    assert reasoning == [None, "a", None, "b", "d", None]
    assert [len(message.get("tool_calls", ())) for message in request.messages] == [
        0,
        2,
        0,
        0,
        1,
        0,
    ]


def test_reasoning_that_is_not_a_text_is_refused():
    form = FORMS["responses"]
    item = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text"}]}
    with pytest.raises(UsageError, match=r"input\.0"):
        form.requests(form.read({"input": [item, USER]}), None, None)


def test_ollamas_results_name_their_function():
    form = FORMS["ollama"]
    result = TOLD | {"tool_name": "get_weather"}
    messages = [USER, CALLED | {"content": ""}, result]
    body = {"model": "m", "messages": messages, "tools": [TOOL]}
    (request,) = form.requests(form.read(body), None, None)
    assert request.messages[2]["name"] == "get_weather"


#: A template that omits the messages of the assistant.
OMITS_ASSISTANT = (
    "{% for m in messages if m.role != 'assistant' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
ANSWER = {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("dialect", "body", "place"),
    [
        ("openai", {"messages": [USER, ANSWER, USER]}, "messages.1"),
        (
            "anthropic",
            {"system": "s", "max_tokens": 1, "messages": [USER, USER, ANSWER, USER]},
            "messages.2",
        ),
        ("responses", {"instructions": "s", "input": [USER, USER, ANSWER, USER]}, "input.2"),
    ],
)
def test_a_refused_message_is_named_by_its_place_in_the_clients_body(dialect, body, place):
    form = FORMS[dialect]
    fields = form.read(body)
    (request,) = form.requests(fields, None, None)
    with pytest.raises(UsageError) as error:
        conversation_text(tokenizer_of(OMITS_ASSISTANT), request)
    renamed = form.rename(error.value, fields)
    assert renamed.field == place
    assert renamed.message.startswith(f"{place}: the chat template")


def test_results_in_one_message_of_anthropics_have_its_place():
    results = [{"type": "tool_result", "tool_use_id": str(at), "content": "x"} for at in range(3)]
    body = FORMS["anthropic"].read(
        {"max_tokens": 1, "messages": [USER, {"role": "user", "content": results}, USER]}
    )
    assert message_places(body) == ["messages.0", *["messages.1"] * 3, "messages.2"]


#: Templates that read a switch of reasoning, and an effort under a name of their own.
SWITCH = "{% if enable_thinking %}on{% endif %}" + TEMPLATE
STRENGTH = "{{ reasoning_strength | default('high') }}" + TEMPLATE


@pytest.mark.parametrize(
    ("template", "effort", "variables"),
    [
        (TEMPLATE + "{# reasoning_effort #}", "low", {}),  # named, but without effect
        (STRENGTH, "low", {"reasoning_strength": "low"}),
        (SWITCH, "none", {"enable_thinking": False}),
        (SWITCH, "low", {}),  # a switch knows no efforts
    ],
)
def test_an_effort_is_given_to_templates_whose_text_it_changes(template, effort, variables):
    model = SimpleNamespace(tokenizer=tokenizer_of(template))
    assert effort_variables(model.tokenizer, effort) == variables
    assert takes_effort(model, effort) == bool(variables)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_under_every_name_can_be_continued(name):
    # A template is known to reason by this mark, which is here in a comment.
    template = TEMPLATE.replace("{% endfor %}", "{% endfor %}{# </think> #}", 1)
    message = {"role": "assistant", name: "I need"}
    request = Request(messages=[USER, message], continue_final_message=True)
    text, *_ = conversation_text(tokenizer_of(template), request)
    assert text.endswith("<think>\nI need")
