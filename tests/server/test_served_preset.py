"""A preset that is served: on every route, prompts begin with its messages and have its options."""

import pytest

from bitnet.wire.presets import Preset

SHOTS = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "arr"})
OPTIONS = {"temperature": 0.5, "top_k": 7, "max_tokens": 6}
PIRATE = Preset("pirate", "tiny", system="Be a pirate.", messages=SHOTS, options=OPTIONS)
ASK = [{"role": "user", "content": "abc"}]


@pytest.fixture
def pirate(serving):
    """A worker that serves the preset."""
    worker = serving()
    worker.slot.preset = PIRATE
    return worker


def test_the_tokens_that_are_counted_are_those_of_the_answers_prompt(pirate):
    for body in ({"messages": ASK}, {"messages": ASK, "system": "own"}):
        counted = pirate.post("/v1/messages/count_tokens", body).json()["input_tokens"]
        answered = pirate.post("/v1/messages", body | {"max_tokens": 1}).json()["usage"]
        cached = answered["cache_read_input_tokens"]
        assert counted == answered["input_tokens"] + cached


@pytest.mark.parametrize(
    ("messages", "system"),
    [(ASK, "Be a pirate."), ([{"role": "system", "content": "own"}, *ASK], "own")],
)
def test_the_prompt_of_a_chat_has_the_messages_of_the_preset(pirate, messages, system):
    prompt = pirate.post("/apply-template", {"messages": messages}).json()["prompt"]
    assert prompt == f"system.{system}.user.hi.assistant.arr.user.abc.assistant."


def test_facts_about_the_model_have_the_options_of_the_preset(pirate):
    params = pirate.http.get("/props").json()["default_generation_settings"]["params"]
    assert (params["temperature"], params["top_k"]) == (0.5, 7)
    (listed,) = pirate.http.get("/v1/models").json()["data"]
    facts = listed["generation_defaults"]
    for name, value in OPTIONS.items():
        assert facts[name] == {"value": value, "from": "preset pirate"}


#: A template that drops messages of other roles, which is an error.
PARTIAL = (
    "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}"
    "{{ m.role }}.{{ m.content }}.{% endif %}{% endfor %}assistant."
)


@pytest.mark.parametrize(
    ("system", "number"), [([], 1), ([{"role": "system", "content": "own"}], 2)]
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/apply-template"])
def test_an_error_has_the_number_of_the_message_in_the_body(serving, path, system, number):
    worker = serving({"tokenizer.chat_template": PARTIAL})
    worker.slot.preset = PIRATE
    # Numbers count the client's messages, not those of the preset.
    wrong = {"role": "critic", "content": "boo"}
    reply = worker.post(path, {"messages": [*system, *ASK, wrong], "max_tokens": 1})
    assert reply.status_code == 400
    assert f"messages.{number}: the chat template" in reply.text


def test_an_error_about_a_message_of_the_preset_names_the_preset(serving):
    worker = serving({"tokenizer.chat_template": PARTIAL.replace("'assistant'", "'other'")})
    worker.slot.preset = PIRATE
    reply = worker.post("/v1/chat/completions", {"messages": ASK, "max_tokens": 1})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith("preset 'pirate': ")
    assert reply.json()["error"]["param"] is None
