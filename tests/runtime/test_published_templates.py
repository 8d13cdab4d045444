"""Conversations through every chat template that llama.cpp's source has.

``tests/data/chat_templates.json`` says what each template takes, and which conversations are
refused. The templates are read from that source, which the job of the other engines downloads.
"""

import os

import pytest
from conversations import CALLS, CONVERSATIONS, DIALECTS
from published_templates import (
    answer_with_calls,
    entry_of,
    outcome,
    read_answer,
    read_table,
    request_of,
    source_of,
    tokenizer_of,
)

from bitnet.runtime.turns import Turns
from bitnet.tokenizer.chat import chat_template, template_process

TEMPLATES = read_table()["templates"]
needs_source = pytest.mark.skipif(
    "BITNET_LLAMA_CPP" not in os.environ,
    reason="needs llama.cpp's source, which has the templates: BITNET_LLAMA_CPP",
)


def test_the_table_has_a_decision_for_every_published_template():
    assert len(TEMPLATES) >= 70
    for name, entry in TEMPLATES.items():
        assert ("arguments=object" in entry["facts"]) != ("arguments=text" in entry["facts"]), name
        assert set(entry["refused"]) <= set(CONVERSATIONS), name
        assert all(entry["refused"].values()), name


def test_few_conversations_are_refused():
    refused = {
        (name, conversation)
        for name, entry in TEMPLATES.items()
        for conversation in entry["refused"]
        if conversation not in ("unknown role", "result without call")
    }
    assert len(refused) < len(TEMPLATES) * len(CONVERSATIONS) / 20


@needs_source
@pytest.mark.parametrize("name", TEMPLATES)
def test_no_published_template_reaches_into_python(name):
    assert template_process().reaches(source_of(name)) == []


@needs_source
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_published_template_is_as_in_the_table(name):
    assert entry_of(source_of(name)) == TEMPLATES[name]


def test_the_table_has_a_format_of_calls_for_every_published_template():
    refused = {name for name, entry in TEMPLATES.items() if "refused" in entry["calls"]}
    assert refused == {"fireworks-ai-llama-3-firefunction-v2"}  # it fails without a variable
    for name, entry in TEMPLATES.items():
        left = entry["calls"].get("left", "")
        assert "get_forecast" not in left, name
        assert "Paris" not in left, name


@needs_source
@pytest.mark.parametrize("conversation", CALLS)
@pytest.mark.parametrize(
    "name", [name for name, entry in TEMPLATES.items() if "format" in entry.get("calls", ())]
)
def test_the_calls_that_a_template_writes_are_read_back_in_every_cut(name, conversation):
    tokenizer = tokenizer_of(source_of(name))
    answers = answer_with_calls(tokenizer, conversation)
    longest = max(len(text) for _, text, _ in answers)
    for size in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, longest):
        calls = []
        for answer in answers:
            _, found = read_answer(tokenizer, *answer, size)
            calls += found
        assert calls == CALLS[conversation], size


@needs_source
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_dialect_renders_the_same_conversation(name):
    tokenizer = tokenizer_of(source_of(name))
    for conversation in CONVERSATIONS:
        expected = outcome(tokenizer, conversation)
        for dialect in set(DIALECTS) - {"openai"}:
            if request_of(conversation, dialect) is not None:
                assert outcome(tokenizer, conversation, dialect) == expected, (
                    conversation,
                    dialect,
                )


@needs_source
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_text_is_the_one_that_transformers_renders(name):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    source = source_of(name)
    template = chat_template(tokenizer_of(source))
    for conversation, (messages, tools) in CONVERSATIONS.items():
        if conversation in TEMPLATES[name]["refused"]:
            continue
        listed = tools if template.facts.tools else None
        explained = () if listed or not tools else tools
        turns = Turns(template, messages, tools=listed, explained=explained).messages
        if listed is None and template.facts.needs_list:
            listed = []
        (expected,), _ = utils.render_jinja_template(
            [[template.adapt(turn) for turn in turns]],
            tools=listed,
            chat_template=source,
            add_generation_prompt=True,
            bos_token="<s>",
            eos_token="</s>",
        )
        assert template.render(turns, tools=listed) == expected, conversation
