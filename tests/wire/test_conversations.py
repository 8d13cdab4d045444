"""Earlier reasoning and calls in the bodies of every dialect reach the request."""

import pytest
from conversations import CALLED, DIALECTS, TOLD, TOOL, USER
from published_templates import FORMS, outcome, request_of, tokenizer_of

from bitnet.base.errors import UsageError

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
def test_a_developer_stays_one_until_the_template_is_known(dialect):
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
    body = {"model": "m", "messages": [USER, CALLED, result], "tools": [TOOL]}
    body["messages"][1] = CALLED | {"content": ""}
    (request,) = form.requests(form.read(body), None, None)
    assert request.messages[2]["name"] == "get_weather"
