"""The reasoning part of answers: found in any pieces, and ended by its budget."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reasoning_models import MARKS, OPEN, TOKENS, reasoning_gguf
from tool_models import tool_gguf

import bitnet
from bitnet import load
from bitnet.base.errors import UsageError
from bitnet.runtime.answer import Answer
from bitnet.runtime.conversation import (
    _CHANNEL,
    _MARKS,
    ReasoningReader,
    reasoning_rules,
    render_beginning,
)
from bitnet.runtime.piece import Piece
from bitnet.runtime.reasoning_budget import BudgetRules, ReasoningBudget
from bitnet.runtime.request import ReasoningRules, Request

ASK = [{"role": "user", "content": "a"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with bitnet.load(reasoning_gguf(tmp_path_factory.mktemp("think") / "m.gguf")) as model:
        yield model


def read(text, cuts=(), *, begun=False, marks=("<think>", "</think>")):
    """The reasoning in *text*, cut at the places *cuts*, and the rest of the text."""
    reader = ReasoningReader(ReasoningRules(*marks, begun))
    at = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    parts = [reader.read(text[begin:end]) for begin, end in pairwise(at)]
    parts += [reader.read("", final=True)]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


# An answer, True if the prompt has opened the reasoning, and the answer's reasoning and text.
@pytest.mark.parametrize(
    ("text", "begun", "expected"),
    [
        ("<think>\nwhy\n</think>\n\nso", False, ("why", "so")),
        ("why\n</think>\n\nso", True, ("why", "so")),
        (" <think>a b</think>c", False, ("a b", "c")),
        ("<think></think>so", False, ("", "so")),
        ("<think>cut of", False, ("cut of", "")),
        ("<think>a < b </th", False, ("a < b </th", "")),
        (" no reasoning", False, ("", " no reasoning")),
        ("<thin", False, ("", "<thin")),
        ("so <think>later</think>", False, ("", "so <think>later</think>")),
        ("a</think>b</think>c", True, ("a", "b</think>c")),
    ],
)
@given(cuts=st.lists(st.integers(0, 30), max_size=6))
def test_reasoning_is_found_wherever_the_text_is_cut(text, begun, expected, cuts):
    assert read(text, cuts, begun=begun) == expected


CHANNEL = "<|channel|>analysis<|message|>"


# An answer, its reasoning and its text.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Hi{CHANNEL}think<|end|>", ("think", "Hi")),
        (f"{CHANNEL}<|end|>{CHANNEL}think<|end|>so", ("think", "so")),
        (f"{CHANNEL}a<|end|>b{CHANNEL} c<|end|>{CHANNEL}<|end|>d", ("a\n\nc", "bd")),
    ],
)
@given(cuts=st.lists(st.integers(0, 99), max_size=6))
def test_parts_of_the_reasoning_in_channels_are_joined_by_an_empty_line(text, expected, cuts):
    assert read(text, cuts, marks=(CHANNEL, "<|end|>")) == expected


def with_template(text):
    """A tokenizer whose chat template is *text*, without tokens of its marks."""
    return SimpleNamespace(chat_template=text, special_ids=(), encode=lambda *_, **__: [])


@pytest.mark.parametrize("after", ["", "\n", " \n\n"])
@pytest.mark.parametrize(("sign", "opening", "closing"), _MARKS)
def test_a_prompt_that_ends_with_an_opening_mark_begins_the_reasoning(
    sign, opening, closing, after
):
    rules = reasoning_rules(with_template(sign), f"user. assistant {opening.rstrip()}{after}")
    assert rules.begun
    reader = ReasoningReader(rules)
    assert reader.read(f"I think.\n{closing}\nHello", final=True) == ("I think.", "Hello")
    # A prompt that closes the reasoning again, as templates do to turn it off.
    closed_prompt = f"user. assistant {opening}\nI think.\n{closing}\n"
    assert not reasoning_rules(with_template(sign), closed_prompt).begun


@pytest.mark.parametrize(
    ("sign", "opening", "closing"), [marks for marks in _MARKS if marks[1] != _CHANNEL]
)
def test_an_answer_that_is_continued_has_the_marks_that_the_prompt_lacks(sign, opening, closing):
    message = {"content": "Hello", "reasoning_content": "I think."}
    continuation = f"I think.\n{closing}\n\nHello"
    mark = opening.rstrip()
    tokenizer = with_template(sign)
    assert render_beginning(tokenizer, f"assistant {mark}\n", message) == continuation
    assert render_beginning(tokenizer, "assistant ", message) == f"{mark}\n{continuation}"


def test_reasoning_alone_is_not_continued_where_the_template_has_no_marks_for_it():
    message = {"content": "", "reasoning_content": "I think."}
    with pytest.raises(UsageError, match="reasoning alone") as refused:
        render_beginning(with_template("assistant"), "assistant ", message)
    assert refused.value.field == "continue_final_message"
    answered = {**message, "content": "Hello"}
    assert render_beginning(with_template("assistant"), "assistant ", answered) == "Hello"


def test_only_tokens_of_reasoning_count_as_such(tmp_path):
    marks = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>"]
    thoughts = [f"<|channel|>analysis<|message|>{text}" for text in ("ab", "efg")]
    others = ["<|channel|>commentary<|message|>oslo", "<|channel|>final<|message|>rome"]
    parts = (thoughts[0], others[0], thoughts[1], others[1])
    with load(tool_gguf(tmp_path / "m.gguf", "harmony", control=marks)) as model:
        ids, request = model.prepare(Request(messages=ASK, separate_reasoning=True))
        written = Answer(model.tokenizer, model.engine.prepare(ids, request))
        text = "<|end|><|start|>assistant".join(parts)
        for token in model.tokenizer.encode(text, add_special=False):
            written.take(Piece(token))
        expected = sum(len(model.tokenizer.encode(text, add_special=False)) for text in thoughts)
    assert ("ab" in written.reasoning, "efg" in written.reasoning) == (True, True)
    assert written.reasoning_tokens == expected


@given(st.text("<think/>ab \n", max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_reasoning_in_pieces_is_that_of_the_whole_text(text, cuts):
    assert read(text, cuts) == read(text)


def answer(model, **fields):
    """An answer to ASK of 16 tokens, and its text; the end-of-sequence token is forbidden."""
    sampling = {"temperature": 1.0, "seed": 3, "logit_bias": {1: float("-inf")}}
    request = Request(messages=ASK, max_tokens=16, **sampling, **fields)
    answered = model.answer(request)
    return answered, "".join(answered)


@pytest.mark.parametrize("lookup", [0, 8])
def test_a_budget_ends_the_reasoning(model, lookup):
    written, text = answer(model, separate_reasoning=True, thinking_budget=5, lookup=lookup)
    # The prompt opens the reasoning, so the budget counts from the first token.
    assert written.ids.index(TOKENS.index("</think>")) <= 5
    assert written.reasoning
    assert text
    assert "</think>" not in written.reasoning + text
    assert len(written.ids) == 16


def test_a_budget_of_zero_ends_the_reasoning_at_once(model):
    written, _ = answer(model, separate_reasoning=True, thinking_budget=0)
    assert (written.ids[0], written.reasoning) == (TOKENS.index("</think>"), "")


def test_thinking_false_lets_the_template_close_the_reasoning_in_the_prompt(model):
    written, text = answer(model, separate_reasoning=True, thinking=False)
    assert (written.reasoning, bool(text)) == ("", True)
    assert written.prompt_ids[-1] == TOKENS.index("</think>")


def test_thinking_is_passed_under_the_name_that_the_template_reads(tmp_path):
    template = OPEN + "{% if not thinking %}</think>{% endif %}"  # as DeepSeek V3.1's
    with bitnet.load(reasoning_gguf(tmp_path / "m.gguf", template)) as model:
        are_closed = []
        for thinking in (True, False, None):
            ids, _ = model.prepare(Request(messages=ASK, thinking=thinking))
            are_closed.append(model.tokenizer.decode(ids).endswith("</think>"))
    assert are_closed == [False, True, True]


def test_reasoning_stays_in_the_text_unless_it_is_requested_separately(model):
    written, text = answer(model)
    assert (written.reasoning, len(text) > 8) == ("", True)


def test_a_budget_needs_marks_that_are_tokens(tmp_path):
    tokens = [token for token in TOKENS if token not in MARKS] + ["Q98", "Q99"]
    with bitnet.load(reasoning_gguf(tmp_path / "m.gguf", OPEN + "</think>", tokens)) as model:
        request = Request(messages=ASK, separate_reasoning=True, thinking_budget=3)
        with pytest.raises(UsageError, match="cannot be limited") as caught:
            model.prepare(request)
    assert caught.value.field == "thinking_budget"


def test_channels_are_reasoning_text_and_calls(tmp_path):
    control = ["<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>"]
    path = tool_gguf(tmp_path / "m.gguf", "harmony", control=control)
    text = (
        "<|channel|>analysis<|message|>a b<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>so<|end|><|start|>assistant<|channel|>analysis<|message|>c<|end|>"
        '<|start|>assistant<|channel|>final<|message|>it is "x" < "a"'
    )
    with load(path) as model:
        ids, request = model.prepare(
            Request(messages=[{"role": "user", "content": "a"}], separate_reasoning=True)
        )
        answer = Answer(model.tokenizer, model.engine.prepare(ids, request))
        pieces = [
            answer.take(Piece(token)) for token in model.tokenizer.encode(text, add_special=False)
        ]
        pieces.append(answer.end("stop"))
    assert (answer.reasoning, answer.text) == ("a b\n\nc", 'soit is "x" < "a"')
    assert "".join(piece.reasoning for piece in pieces) == answer.reasoning
    assert "".join(piece.text for piece in pieces) == answer.text


@pytest.mark.parametrize("most", range(7))
@pytest.mark.parametrize("begun", [True, False])
def test_a_budget_counts_tokens_of_reasoning_alone(most, begun):
    marks = {"O": "<think>", "C": "</think>"}
    # Of twelve tokens of reasoning, *most* are allowed; the mark is forced after them.
    rules = budget("C", most, begun=begun, marks=marks)
    written = write(rules, "abcdefghijkl" if begun else "Oabcdefghijkl", marks)
    parts = "".join(written).removeprefix("<think>").partition("</think>")
    assert parts[:2] == ("abcdefghijkl"[:most], "</think>")
    assert parts[2] == "abcdefghijkl"[most:]


def test_a_reasoning_that_ends_by_itself_is_not_ended_again():
    marks = {"C": "</think>"}
    assert write(budget("C", 3, begun=True, marks=marks), "abCdefgh", marks)[2:] == [
        "</think>", *"defgh"
    ]  # fmt: skip
    # The mark in other tokens, as models may write it.
    assert "".join(write(budget("C", 9, begun=True, marks=marks), "a</think>bcdefgh", marks)) == (
        "a</think>bcdefgh"
    )


def test_a_later_reasoning_gets_the_tokens_that_the_first_one_left():
    marks = {"O": "<think>", "C": "</think>"}
    written = write(budget("C", 4, begun=False, marks=marks), "OabcCdefOghij", marks)
    assert "".join(written) == "<think>abc</think>def<think>g</think>hij"


def test_a_character_is_completed_before_the_reasoning_ends():
    parts = {"1": b"\xe2", "2": b"\x82", "3": b"\xac"}  # of a euro sign
    marks = {"C": "</think>"}
    written = write(budget("C", 1, begun=True, marks=marks | parts), "123ab", marks | parts)
    assert written == [*parts.values(), "</think>", "a", "b"]


def test_a_thinking_message_is_written_before_the_end_that_a_budget_forces(model):
    written, text = answer(
        model, separate_reasoning=True, thinking_budget=2, thinking_message="enough."
    )
    assert written.reasoning.endswith("enough.")
    assert text


def budget(closing, most, *, begun, marks):
    """A budget of *most* tokens; a token is a letter, which stands for itself or for a mark."""

    def token_bytes(token):
        text = marks.get(chr(token), chr(token))
        return text if isinstance(text, bytes) else text.encode()

    forced = (ord(closing),)
    return ReasoningBudget(BudgetRules(most, b"<think>", b"</think>", forced, begun, token_bytes))


def write(limit, tokens, marks):
    """Texts of the answer of a model that generates *tokens*, with what *limit* forces."""
    remaining = list(tokens)
    written = []
    while remaining:
        token = chr(limit.next_token) if limit.next_token is not None else remaining.pop(0)
        limit.add(ord(token))
        written.append(marks.get(token, token))
    return written
