"""render as a command: the text of a conversation, its ids, and what the template takes."""

import io
import json
import sys

import pytest
from conversations import CALLED, SYSTEM, TOLD, TOOL, USER
from tiny_models import tiny_gguf

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


@pytest.fixture
def model(tmp_path):
    return tiny_gguf(tmp_path / "m.gguf", **{"tokenizer.chat_template": TEMPLATE})


@pytest.fixture
def write(tmp_path):
    def write(name, value):
        path = tmp_path / name
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    return write


def test_the_text_of_a_conversation_is_shown(bitnet, model, write):
    done = bitnet("render", model, "--messages", write("chat.json", [SYSTEM, USER]))
    expected = "[system]Be brief.[user]Is it warm in Paris?\n"
    assert (done.code, done.out, done.err) == (0, expected, "")


def test_a_whole_request_has_its_tools(bitnet, model, write):
    body = {"messages": [USER, CALLED, TOLD], "tools": [TOOL], "temperature": 0}
    whole = bitnet("render", model, "--messages", write("body.json", body))
    assert '"name": "get_weather"' in whole.out
    messages = write("chat.json", body["messages"])
    tools = write("tools.json", [TOOL])
    parts = bitnet("render", model, "--messages", messages, "--tools", tools)
    assert (whole.code, parts.out) == (0, whole.out)


def test_json_has_the_text_its_ids_and_what_the_template_supports(bitnet, model, monkeypatch):
    stdin = io.TextIOWrapper(io.BytesIO(json.dumps([USER]).encode()), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stdin)
    facts = json.loads(bitnet("render", model, "--json").out)
    assert facts["text"] == "[user]Is it warm in Paris?"
    assert all(isinstance(token, int) for token in facts["ids"])
    assert (facts["template"]["tools"], facts["template"]["arguments"]) == (False, "text")


def test_a_given_template_replaces_the_models_template_for_tools_too(bitnet, write, tmp_path):
    named = {
        "tokenizer.chat_template": TEMPLATE,
        "tokenizer.chat_template.tool_use": "T" + TEMPLATE,
    }
    model = tiny_gguf(tmp_path / "n.gguf", **named)
    words = ("--messages", write("chat.json", [USER]), "--tools", write("tools.json", [TOOL]))
    # These templates do not write tools, so a system message describes them.
    assert bitnet("render", model, *words).out.startswith("T[system]")
    template = write("t.jinja", "X" + TEMPLATE)
    assert bitnet("render", model, *words, "--chat-template", template).out.startswith("X[system]")


def test_a_whole_request_is_rendered_as_a_server_does(bitnet, write, tmp_path):
    template = "{{ extra }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}[assistant]{% endif %}"
    model = tiny_gguf(tmp_path / "n.gguf", **{"tokenizer.chat_template": template})
    begun = {"role": "assistant", "content": "It is"}
    body = {
        "messages": [USER, begun],
        "chat_template_kwargs": {"extra": "x"},
        "continue_final_message": True,
        "tools": [TOOL],
        "tool_choice": "none",
    }
    done = bitnet("render", model, "--messages", write("body.json", body))
    assert done.out == "x[user]Is it warm in Paris?[assistant]It is\n"
    wrong = bitnet("render", model, "--messages", write("body.json", body | {"mesages": []}))
    assert (wrong.code, "mesages" in wrong.err) == (2, True)


def test_another_template_can_be_tried(bitnet, model, write):
    template = write("t.jinja", "{{ messages[0].content }}!")
    chat = write("chat.json", [USER])
    done = bitnet("render", model, "--messages", chat, "--chat-template", template)
    assert done.out == "Is it warm in Paris?!\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "chat.json is not JSON"),
        ("[]", "messages is empty"),
        ("3", "messages is not a list of objects"),
        ('[{"role": "user"}]', "messages.0"),
        ('{"messages": [{"role": "user", "content": "a"}], "tools": 3}', "tools"),
    ],
)
def test_what_is_not_a_conversation_is_refused(bitnet, model, write, text, problem):
    done = bitnet("render", model, "--messages", write("chat.json", text))
    assert done.code not in (0, 1)
    assert problem in done.err
