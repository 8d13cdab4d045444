"""Traces: what is kept of a distribution, and their form in a file."""

import json

import numpy as np
import pytest

from bitnet.base.errors import InvalidFormat, NotFound
from bitnet.crossval.plan import spread
from bitnet.crossval.recording import Recorded
from bitnet.crossval.trace import (
    EngineFacts,
    Position,
    PromptTrace,
    Trace,
    positions_from,
    trace_from,
)

GOOD = {
    "engine": "e",
    "prompts": [
        {
            "prompt": "p",
            "ids": [1, 2],
            "positions": [{"lse": 1.5, "ids": [4, 3], "logits": [1.0, 0.5]}],
            "greedy": [4],
            "top2_gaps": [0.5],
        }
    ],
}


def test_the_best_tokens_are_kept_best_first_and_the_sum_over_all():
    logits = np.array([[0.0, 3.0, 1.0, 3.0, 2.0]])
    (position,) = positions_from(logits, count=3)
    assert position.ids == (1, 3, 4)  # of equal ones the lower id first, as argmax
    assert position.logits == (3.0, 3.0, 2.0)
    assert position.lse == pytest.approx(np.log(np.exp(logits).sum()))
    assert position.gap == 0
    assert positions_from(logits, count=99)[0].ids == (1, 3, 4, 2, 0)


@pytest.mark.parametrize("count", [1, 2, 3, 64, 199, 200, 201, 2000])
def test_of_equal_logits_those_of_the_lowest_ids_are_kept(count):
    row = np.zeros(2000)
    row[1000:1200] = 1.0
    (position,) = positions_from(row[None], count=count)
    assert position.ids == tuple(np.argsort(-row, kind="stable")[:count])


def test_a_trace_survives_its_file(tmp_path):
    (position,) = positions_from(np.array([[0.25, 3.5, 1.0]]))
    prompt = PromptTrace("é\n", (0, 1), (position, position), (2, 1), (0.5, 0.25))
    trace = Trace(EngineFacts("x", "1", "float"), (prompt,), ((1, 2), ()))
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(trace.as_json()))
    recorded = Recorded(file).recording
    assert recorded.prompts[0].positions[0].lse == pytest.approx(position.lse, abs=1e-5)
    (read_back,) = {(entry.ids, entry.logits) for entry in recorded.prompts[0].positions}
    assert read_back == (position.ids, position.logits)
    assert (recorded.tokenized, recorded.engine.arithmetic) == (((1, 2), ()), "float")
    assert recorded.prompts[0].greedy == (2, 1)


def test_recorded_goldens_of_another_engine_are_read(test_data):
    recorded = Recorded(test_data / "goldens" / "smollm2.json").recording
    assert recorded.engine.arithmetic == "int8"
    assert len(recorded.prompts) > 3
    assert all(len(at.ids) == 20 for prompt in recorded.prompts for at in prompt.positions)
    chances = [
        sum(np.exp(list(at.log_probabilities().values()))) for at in recorded.prompts[0].positions
    ]
    # Probabilities of the 20 stored tokens sum up to 1 at most, but for the rounding in the file.
    assert all(0 < chance <= 1.0001 for chance in chances)


def damaged(**changes):
    """GOOD with *changes* to its only prompt."""
    prompt = GOOD["prompts"][0] | changes
    return GOOD | {"prompts": [prompt]}


def nested(values, depth):
    """*values* with a float64 pass (``exact``) that has one of its own, *depth* times."""
    values = values | {"engine": {"name": "e"}}
    whole = values
    for _ in range(depth + 1):
        whole = values | {"exact": whole}
    return whole


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"engine": "e"},
        {"engine": "e", "prompts": [3]},
        damaged(ids=["x"]),
        damaged(greedy=[1, 2]),
        damaged(positions=[{"lse": 1.0, "ids": [1], "logits": []}]),
        damaged(positions=[{"lse": 1.0, "ids": [1, 2], "logits": [1.0, 2.0]}]),
        damaged(positions=[{"lse": 0.0, "ids": [1], "logits": [1.0]}]),
        damaged(positions=[{"lse": 2.0, "ids": [1, 1], "logits": [1.0, 0.5]}]),
        damaged(positions=[{"lse": float("nan"), "ids": [1], "logits": [1.0]}]),
        damaged(positions=[None]),
        damaged(first=-1),
        damaged(first=2, positions=[]),
        damaged(first=1, positions=GOOD["prompts"][0]["positions"] * 2),
        damaged(ids=[-1, 2]),
        damaged(greedy=[-4]),
        damaged(positions=[{"lse": 1.5, "ids": [-4, 3], "logits": [1.0, 0.5]}]),
        damaged(positions=[{"lse": 10**400, "ids": [4], "logits": [1.0]}]),
        damaged(top2_gaps=[10**400]),
        nested(GOOD, 1),
        nested(GOOD, 5000),
        damaged(positions=GOOD["prompts"][0]["positions"] * 3),
        GOOD | {"engine": {"name": "e", "arithmetic": "int3"}},
    ],
)
def test_a_trace_with_a_wrong_value_is_refused(values):
    assert trace_from(GOOD, name="good").prompts[0].ids == (1, 2)
    with pytest.raises(InvalidFormat, match="not a recorded trace"):
        trace_from(values, name="bad")


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_what_is_not_a_json_object_is_refused(tmp_path, text):
    file = tmp_path / "trace.json"
    file.write_text(text)
    with pytest.raises(InvalidFormat):
        Recorded(file)
    with pytest.raises(NotFound):
        Recorded(tmp_path / "none.json")


def test_a_position_without_numbers_is_kept_as_that():
    positions = positions_from(np.array([[0.0, 1.0], [np.nan, 1.0]]))
    trace = Trace(EngineFacts("x"), (PromptTrace("p", (1, 2), tuple(positions)),))
    assert [at.is_finite for at in trace.prompts[0].positions] == [True, False]
    again = trace_from(json.loads(json.dumps(trace.as_json(), allow_nan=False)), name="x")
    assert [at.is_finite for at in again.prompts[0].positions] == [True, False]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_numbers_are_a_position_without_any(bad):
    positions = positions_from(np.array([[0.0, 1.0], [bad, 1.0]]))
    assert [at.is_finite for at in positions] == [True, False]


# Positions of each prompt, the most to compare, and how many of each are compared.
@pytest.mark.parametrize(
    ("lengths", "limit", "wanted"),
    [
        ([5, 13, 18, 17, 24], 20, [4, 4, 4, 4, 4]),
        ([3, 2, 1], 4, [2, 1, 1]),
        ([3, 2, 1], 99, [3, 2, 1]),
        ([2, 20, 20], 24, [2, 11, 11]),
        ([9, 9, 9, 9], 2, [1, 0, 1, 0]),
        ([0, 4], 3, [0, 3]),
        ([], 3, []),
    ],
)
def test_positions_are_spread_over_all_prompts(lengths, limit, wanted):
    assert spread(lengths, limit) == wanted


def test_the_gap_of_a_single_token_is_infinite():
    assert Position((3,), (1.0,), 1.0).gap == float("inf")
