"""The reasoning part of answers: found in any pieces, and ended by its budget."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import VOCAB, letters, tiny_gguf

import bitnet
from bitnet.errors import UsageError
from bitnet.runtime.options import SamplingParams
from bitnet.runtime.reasoning import ReasoningReader, ReasoningRules
from bitnet.runtime.request import Request

ASK = [{"role": "user", "content": "a"}]
MARKS = ["<think>", "</think>"]
TOKENS = ["<s>", "</s>", *MARKS, *"abcdefghijklmnopqrstuvwxyz.", "\u0120"]
TOKENS += [f"Q{at}" for at in range(VOCAB - len(TOKENS))]
OPEN = "{% for m in messages %}{{ m.content }}.{% endfor %}<think>"
# The template opens the reasoning, unless it is told not to.
TEMPLATE = OPEN + "{% if enable_thinking is false %}</think>{% endif %}"


def reasoning_gguf(path, template=TEMPLATE, tokens=TOKENS):
    """A random model whose template has reasoning."""
    kinds = [3, 3] + [4 if token in MARKS else 1 for token in tokens[2:]]
    words = letters(tokens) | {
        "tokenizer.chat_template": template,
        "tokenizer.ggml.token_type": kinds,
        "llama.context_length": 128,
    }
    return tiny_gguf(path, tokenizer=False, **words)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with bitnet.load(reasoning_gguf(tmp_path_factory.mktemp("think") / "m.gguf")) as model:
        yield model


def read(text, cuts=(), *, begun=False):
    """Reasoning and text of *text*, which comes in pieces."""
    reader = ReasoningReader(ReasoningRules("<think>", "</think>", begun))
    at = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    parts = [reader.push(text[begin:end]) for begin, end in pairwise(at)] + [reader.finish()]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


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


@given(st.text("<think/>ab \n", max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_the_pieces_make_no_difference(text, cuts):
    assert read(text, cuts) == read(text)


def answer(model, **fields):
    sampling = SamplingParams(temperature=1.0, seed=3, logit_bias={1: float("-inf")})
    request = Request(messages=ASK, max_tokens=16, sampling=sampling, **fields)
    written = model.answer(request)
    return written, "".join(written)


@pytest.mark.parametrize("lookup", [0, 8])
def test_a_budget_ends_the_reasoning(model, lookup):
    written, text = answer(model, separate_reasoning=True, thinking_budget=5, lookup=lookup)
    assert written.ids.index(TOKENS.index("</think>")) <= 5
    assert written.reasoning
    assert text
    assert "</think>" not in written.reasoning + text
    assert len(written.ids) == 16


def test_a_budget_of_nothing_ends_it_at_once(model):
    written, _ = answer(model, separate_reasoning=True, thinking_budget=0)
    assert (written.ids[0], written.reasoning) == (TOKENS.index("</think>"), "")


def test_a_template_can_be_told_not_to_reason(model):
    written, text = answer(model, separate_reasoning=True, thinking=False)
    assert (written.reasoning, bool(text)) == ("", True)
    assert written.prompt_ids[-1] == TOKENS.index("</think>")


def test_reasoning_stays_in_the_text_unless_it_is_to_be_separate(model):
    written, text = answer(model)
    assert (written.reasoning, len(text) > 8) == ("", True)


def test_a_budget_needs_marks_that_are_tokens(tmp_path):
    tokens = [token for token in TOKENS if token not in MARKS] + ["Q98", "Q99"]
    with bitnet.load(reasoning_gguf(tmp_path / "m.gguf", "</think>", tokens)) as model:
        request = Request(messages=ASK, separate_reasoning=True, thinking_budget=3)
        with pytest.raises(UsageError, match="no limit") as caught:
            model.prepare(request)
    assert caught.value.field == "thinking_budget"
