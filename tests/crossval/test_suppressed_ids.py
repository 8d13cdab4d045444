"""Continuations in a comparison have no ids that the model's files suppress, like answers."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
from tiny_models import TOKENS, tiny_gguf

import bitnet
from bitnet.crossval.crossval_options import CrossvalOptions
from bitnet.crossval.ours import our_trace
from bitnet.crossval.plan import prompts_for
from bitnet.crossval.references import LlamaCpp
from bitnet.crossval.trace import Prompt, Question, prompt_trace
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.generation import GenerationSettings
from bitnet.kernels.kv_cache import KVCache
from bitnet.runtime.request import MAX_LOGPROBS, Request
from bitnet.shipped import SHIPPED

STEPS = 6
TEXT = "abba"
SUPPRESSED = "tokenizer.ggml.suppress_tokens"


@pytest.fixture
def free(tmp_path):
    """Tokens that the tiny model writes after TEXT if nothing is suppressed."""
    return continuation(tiny_gguf(tmp_path / "free.gguf"))


@pytest.fixture
def path(tmp_path, free):
    """A file of the tiny model that suppresses the first and the last token of *free*."""
    ids = sorted({free[0], free[-1]})
    return tiny_gguf(tmp_path / "suppressing.gguf", **{SUPPRESSED: ids})


def question_for(model):
    """A question about TEXT with STEPS greedy tokens, and the ids that the *model* suppresses."""
    prompts = prompts_for(model, None, [TEXT], CrossvalOptions(greedy=STEPS))
    return Question(open_checkpoint(model.path), prompts, generation=model.generation)


def continuation(path):
    """Our greedy continuation of TEXT by the model at *path*, as a comparison computes it."""
    model = bitnet.load(path)
    (answer,) = our_trace(model, question_for(model)).prompts
    assert not answer.error
    return answer.greedy


def test_our_continuation_is_the_greedy_answer_of_the_model(path, free):
    tokens = continuation(path)
    model = bitnet.load(path)
    request = Request(prompt=TEXT, max_tokens=STEPS, temperature=0.0, ignore_eos=True)
    ids, ready = model.prepare(request)
    answer = [piece.token for piece in model.engine.generate(ids, ready)]
    assert list(tokens) == answer
    assert free[0] not in tokens
    assert free[-1] not in tokens


@pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None,
    reason="xllamacpp is not installed: an extra of crossval",
)
def test_the_reference_continues_without_suppressed_ids_as_we_do(path, free):
    model = bitnet.load(path)
    (theirs,) = LlamaCpp().trace(question_for(model)).prompts
    assert theirs.greedy == continuation(path)
    # Logits are compared as the graph gives them: the suppressed token is still the likeliest.
    assert theirs.positions[-1].ids[0] == free[0]


def test_gaps_are_between_the_two_likeliest_allowed_tokens(path):
    model = bitnet.load(path)
    question = question_for(model)
    (ours,) = our_trace(model, question).prompts
    last = dict(zip(ours.positions[-1].ids, ours.positions[-1].logits, strict=True))
    allowed = sorted(
        (last[id] for id in last if id not in question.generation.suppressed), reverse=True
    )
    assert ours.top2_gaps[0] == pytest.approx(allowed[0] - allowed[1], abs=1e-4)


# More than the tokens that a request can ask logits of, and one or two less.
@pytest.mark.parametrize("count", [MAX_LOGPROBS - 2, MAX_LOGPROBS - 1, 300])
def test_any_number_of_ids_may_be_suppressed(count):
    model = bitnet.load(SHIPPED["bitnet-tiny"].path)
    question = question_for(model)
    (free,) = our_trace(model, question).prompts
    suppressed = frozenset({free.greedy[0], *range(count - 1)})
    assert len(suppressed) == count
    generation = GenerationSettings(suppressed=suppressed)
    (ours,) = our_trace(model, replace(question, generation=generation)).prompts
    assert not ours.error
    assert len(ours.greedy) == len(ours.top2_gaps) == STEPS
    assert not suppressed.intersection(ours.greedy)
    ids = list(ours.ids)
    for token, gap in zip(ours.greedy, ours.top2_gaps, strict=True):
        cache = KVCache(model.config, len(ids))
        logits = model.engine.model.forward(ids, cache)[-1].astype(np.float64)
        logits[list(suppressed)] = -np.inf
        second, best = np.sort(logits)[-2:]
        assert token == logits.argmax()
        assert gap == pytest.approx(best - second, abs=1e-4)
        ids.append(token)


def test_a_token_that_alone_may_come_has_an_infinite_gap(path):
    model = bitnet.load(path)
    allowed = len(TOKENS) - 1
    generation = GenerationSettings(suppressed=frozenset(range(allowed)))
    question = replace(question_for(model), generation=generation)
    (ours,) = our_trace(model, question).prompts
    assert not ours.error
    assert ours.greedy == (allowed,) * STEPS
    assert ours.top2_gaps == (np.inf,) * STEPS


def test_an_id_may_be_suppressed_at_the_beginning_alone():
    rows = np.tile(np.arange(len(TOKENS), dtype=np.float32), (2, 1))
    best = len(TOKENS) - 1
    generation = GenerationSettings(
        suppressed=frozenset({best - 2}), suppressed_first=frozenset({best, best - 1})
    )

    def forward(ids, all_positions):
        return rows[: len(ids)]

    answer = prompt_trace(forward, Prompt("p", (3, 4), steps=3), generation=generation)
    # Logits are the ids themselves. At first 63, 62 and 61 are not allowed, later 61 alone.
    assert answer.greedy == (best - 3, best, best)
    assert answer.top2_gaps == (1.0, 1.0, 1.0)
