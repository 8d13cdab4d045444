"""Answers of every call format, ended at any character: reading them ends, and loses no text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_models import CLOCK

from bitnet.runtime.conversation import _MARKS, ReasoningReader
from bitnet.runtime.request import ReasoningRules
from bitnet.runtime.tool_calls import call_reader, write_calls
from bitnet.runtime.tool_formats import (
    COHERE,
    FORMATS,
    GLIMMER,
    HARMONY,
    HERMES,
    KIMI_K3,
    SOLAR,
    CallRules,
)

FORMS = dict(FORMATS).values()
#: Formats of templates whose reasoning has marks of its own, by the sign of these marks.
FORMS_OF_SIGNS = {
    "<|channel|>": HARMONY,
    "assistant to=self<|message|>": GLIMMER,
    "open_tag('think')": KIMI_K3,
    "assistant<|think|>": SOLAR,
    "<|END_THINKING|>": COHERE,
}
SCHEMAS = {"weather": {}, "clock": CLOCK["function"]["parameters"]}
#: Letters of the texts and arguments here; no mark of a format has any of them.
LETTERS = frozenset("абвгдежзиклмнопрстуфхцчшщ")


def call(name, **arguments):
    """A call of the function *name*, as in a message."""
    return {"function": {"name": name, "arguments": arguments}}


def calls_of(form):
    """Answers in *form* of one, two and three calls; the function of the third is unknown."""
    calls = [call("weather", city="аб", note="в"), call("clock", zone="г"), call("other", a="де")]
    return [write_calls(form, calls[:length]) for length in (1, 2, 3)]


def messages_of(form):
    """Answers in *form*, whose messages have headers: for the user, for the model itself, calls."""
    one_call, *_ = calls_of(form)
    start = form.headers.dropped
    end = form.headers.ends[0]
    final = "<|channel|>final<|message|>" if form is HARMONY else "<|message|>"
    thinking = "<|channel|>analysis<|message|>" if form is HARMONY else " to=self<|message|>"
    unknown = one_call.replace("weather", "other")
    return [
        f"{final}ж з",
        f"{final}и{end}{start}{final}к{end}",
        f"{final}л{end}{start}{one_call}",
        f"{thinking}м{end}{start}{thinking}н{end}{start}{final}о",
        f"{thinking}п{end}{start}{start}{final}р",
        f"{unknown}{start}{final}с",
        f"{one_call}{start}{final}т",
        f"{start}{final}у{end}{start}{end}ф",
    ]


def answers_of(form):
    """Answers of a model whose calls have the format *form*."""
    if form.headers:
        return messages_of(form)
    skipped = form.skipped or ("",)
    calls = calls_of(form)
    return [*calls, *(f"{skipped[0]}ж з{each}и{skipped[-1]}" for each in calls)]


class Reader:
    """The readers of reasoning and of calls, one after the other, as in :class:`Answer`."""

    def __init__(self, rules, thoughts=None):
        self.reader = call_reader(rules)
        self.thoughts = None if thoughts is None else ReasoningReader(thoughts)

    def read(self, text, *, final):
        reasoning = ""
        if self.thoughts is not None:
            reasoning, text = self.thoughts.read(text, final=final)
        return reasoning, *self.reader.read(text, final=final)


def read(reader, parts, *, last=""):
    """Reasoning, text, and calls by name and arguments, of *parts* and the end *last*."""
    thoughts = []
    texts = []
    calls = []
    for part, final in [*((part, False) for part in parts), (last, True)]:
        reasoning, text, deltas = reader.read(part, final=final)
        thoughts.append(reasoning)
        texts.append(text)
        for delta in deltas:
            if delta.id:
                calls.append([delta.name, ""])
            calls[delta.index][1] += delta.arguments
    return "".join(thoughts), "".join(texts), [tuple(call) for call in calls]


def check_beginnings(answer, size, new_reader):
    """Check that each beginning of *answer* is read without loss; return the texts.

    It is read in parts of *size* characters, and at once.
    """
    texts = []
    for length in range(len(answer) + 1):
        begun = answer[:length]
        parts = [begun[at : at + size] for at in range(0, length, size)]
        reasoning, text, calls = read(new_reader(), parts)
        assert read(new_reader(), [], last=begun) == (reasoning, text, calls)
        whole = "".join([reasoning, text, *(arguments for _, arguments in calls)])
        assert sorted(LETTERS.intersection(whole)) == sorted(LETTERS.intersection(begun)), begun
        texts.append(text)
    return texts


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_an_answer_that_ends_anywhere_is_read_to_its_end_and_loses_no_text(form):
    size = 1 if form.headers else 17  # characters of a part
    for answer in [*answers_of(form), "ж з", f"и{''.join(answers_of(form)[:1])}"]:
        texts = check_beginnings(answer, size, lambda: Reader(CallRules(form, SCHEMAS)))
        # The beginning of the next message's header is not text.
        assert not any("<|start|>" in text for text in texts)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_guided_calls_that_end_anywhere_lose_no_arguments(form):
    for answer in calls_of(form):
        check_beginnings(answer, 17, lambda: Reader(CallRules(form, SCHEMAS, guided=True)))


@pytest.mark.parametrize("marks", _MARKS, ids=lambda marks: marks[1])
@pytest.mark.parametrize("is_begun", [False, True])
def test_reasoning_before_an_answer_that_ends_anywhere_loses_no_text(marks, is_begun):
    sign, opening, closing = marks
    form = FORMS_OF_SIGNS.get(sign, HERMES)
    rules = ReasoningRules(opening, closing, is_begun)
    start = form.headers.dropped if form.headers else ""
    first = "" if is_begun else opening
    # The reasoning has two parts, the second one in marks of its own.
    for answer in messages_of(form) if form.headers else calls_of(form)[:1]:
        check_beginnings(
            f"{first}х ц{closing}{start}{opening}ч{closing}{start}{answer}",
            5,
            lambda: Reader(CallRules(form, SCHEMAS), rules),
        )


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@given(data=st.data())
def test_any_order_of_a_formats_marks_is_read_to_its_end(form, data):
    marks = sorted({*form.texts, *"аб {}[]\"':,0", *map(json.dumps, SCHEMAS), "to=user"})
    parts = data.draw(st.lists(st.sampled_from(marks), max_size=12))
    rules = CallRules(form, SCHEMAS)
    in_parts = read(Reader(rules), parts)
    assert read(Reader(rules), [], last="".join(parts)) == in_parts
