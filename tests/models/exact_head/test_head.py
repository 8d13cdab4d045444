"""With the exact head, every token is the one the full head gives, whatever the sampler does."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import tiny

from bitnet.base import native
from bitnet.base.errors import Unsupported
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.native import NativeOps
from bitnet.kernels.packing import prepare_matrix
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.exact_head import Found, Logits, Needed
from bitnet.models.exact_head.copy import HeadCopy
from bitnet.models.exact_head.head import MOST_AT_ONCE, PASSES, Costs
from bitnet.models.load import load_model
from bitnet.quants import registry, types
from bitnet.quants.weight import Weight
from bitnet.runtime.request import Request
from bitnet.runtime.sampling import Sampler
from bitnet.runtime.scheduler import Scheduler

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

pytestmark = pytest.mark.skipif(native.module() is None, reason="the module is not built")

ROWS = 3000
COLUMNS = 192
# Options that change single logits before a token is drawn.
ADJUSTED = {
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.7,
    "logit_bias": {5: 6.0, 2999: float("-inf"), 77: -100.0},
}
SAMPLERS = {
    "greedy": Request(),
    "greedy, adjusted": Request(**ADJUSTED),
    "only the first of top-k": Request(seed=42, temperature=1.0, top_k=1),
    "top-k": Request(seed=42, temperature=0.9, top_k=40),
    "top-k and top-p": Request(seed=42, temperature=1.2, top_k=20, top_p=0.8),
    "top-k and min-p, adjusted": Request(seed=42, temperature=0.7, top_k=30, min_p=0.1, **ADJUSTED),
    "top-p": Request(seed=42, temperature=1.0, top_p=0.9),
    "top-p, adjusted": Request(seed=42, temperature=1.5, top_p=0.95, **ADJUSTED),
    "min-p": Request(seed=42, temperature=1.0, min_p=0.05),
    "top-p and min-p": Request(seed=42, temperature=1.0, top_p=0.99, min_p=0.02),
}


class SmallHead:
    """A head whose hidden states point more or less clearly at some of its rows.

    They are those of a model that is more or less sure of the next token.
    """

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        values = random.standard_normal((ROWS, COLUMNS)) * 0.2
        values[1::500] = values[0::500]  # equal rows
        self.values = values.astype(np.float16)
        weight = Weight(
            "output.weight",
            self.values.shape,
            types.by_name("F16"),
            self.values.view(np.uint8).reshape(-1),
        )
        self.ops = NativeOps(threads=1)
        self.matrix = prepare_matrix(self.ops.module, weight, in_rows=True)
        self.copy = HeadCopy.build(self.ops, self.matrix)

    def state(self, seed: int, sureness: float) -> NDArray[np.float32]:
        """A hidden state: noise plus *sureness* times the direction of a row drawn by *seed*."""
        random = np.random.default_rng(seed)
        row = self.values[random.integers(ROWS // 500) * 500].astype(np.float32)
        noise = random.standard_normal(COLUMNS).astype(np.float32)
        return (sureness * row / 0.2 + noise)[None]


HEAD = SmallHead() if native.module() else None


def steps(params: Request, count: int, sureness: float) -> tuple[int, int]:
    """Tokens decided by the found logits alone, and *count*; all tokens must be the full head's."""
    assert HEAD is not None
    ours = Sampler(params, [1, 2, 3])
    theirs = Sampler(params, [1, 2, 3])
    decided = 0
    for seed in range(count):
        x = HEAD.state(seed, sureness)
        full = HEAD.ops.linear(x, HEAD.matrix)[0]
        needed = ours.needs()
        assert needed is not None
        (found,) = HEAD.copy.find(x, [needed])
        assert found is not None
        logits = Logits(found, lambda full=full: full)
        assert ours.sample(logits).token == theirs.sample(full).token
        decided += logits.found is not None
    return decided, count


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("sureness", [0.3, 1.0, 3.0])
def test_found_logits_give_the_token_of_all_logits(name: str, sureness: float) -> None:
    decided, count = steps(SAMPLERS[name], 150, sureness)
    exact = "greedy" in name or "top-k" in name
    if exact:
        assert decided == count
    elif sureness == 3:  # where the model is sure, filters by probability are decided as well
        assert decided > count / 2


@given(
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 50, 1000]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999]),
    min_p=st.sampled_from([0.0, 1e-6, 0.1, 1.0]),
    adjusted=st.booleans(),
    sureness=st.sampled_from([0.0, 1.0, 5.0]),
    seed=st.integers(0, 1000),
)
def test_any_sampler_gives_the_token_of_all_logits(
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    adjusted: bool,
    sureness: float,
    seed: int,
) -> None:
    params = Request(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        **(ADJUSTED if adjusted else {}),
    )
    steps(params, 5, sureness)


def test_found_logits_whose_bound_is_too_low_give_other_tokens() -> None:
    """The comparison above would notice a wrong tail: with none, top-p ends too early."""
    assert HEAD is not None
    params = Request(seed=42, temperature=1.0, top_p=0.9)
    differences = 0
    for seed in range(100):
        x = HEAD.state(seed, 0.0) * 2
        full = HEAD.ops.linear(x, HEAD.matrix)[0]
        ours = Sampler(params)
        theirs = Sampler(params)
        (found,) = HEAD.copy.find(x, [Needed(margin=0.1)])
        assert found is not None
        too_low = Logits(replace(found, tail=0.0, bound=-1e30), lambda full=full: full)
        sampled = ours.sample(too_low)
        differences += too_low.found is not None and sampled.token != theirs.sample(full).token
    assert differences


def test_samplers_without_bounded_support_need_all_logits() -> None:
    assert Sampler(Request(seed=42, temperature=1.0)).needs() is None
    assert Sampler(Request(seed=42, temperature=1.0, top_k=10**6)).needs() is None


def test_touched_tokens_are_needed_whatever_their_logits() -> None:
    params = Request(repetition_penalty=1.1, logit_bias={9: 1.0})
    needed = Sampler(params, [4, 2]).needs([7])
    assert needed is not None
    assert needed.ids.tolist() == [2, 4, 7, 9]
    plain = Sampler(Request(), [4, 2]).needs([7])
    assert plain is not None
    assert not len(plain.ids)


def test_undecided_positions_fall_back_to_all_logits() -> None:
    nothing = np.empty(0, dtype=np.int64)
    found = Found(nothing, np.empty(0, dtype=np.float32), bound=0.0, tail=0.0, vocab_size=3)
    logits = Logits(found, lambda: np.arange(3.0))
    assert Sampler(Request()).sample(logits).token == 2
    assert logits.found is None
    assert logits.all().tolist() == [0, 1, 2]


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    """A tiny model, without and with the exact head."""
    checkpoint = tiny("llama")
    ops = NativeOps(threads=1)
    return load_model(checkpoint, ops=ops), load_model(checkpoint, ops=ops, exact_head="on")


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("lookup", [0, 4])
def test_answers_are_those_of_the_full_head(
    models: tuple[Any, Any], name: str, lookup: int
) -> None:
    # The tiny model has 64 tokens.
    bias = {token: bias for token, bias in SAMPLERS[name].logit_bias.items() if token < 60}
    params = replace(SAMPLERS[name], logit_bias=bias, max_tokens=40, lookup=lookup)
    answers = [
        [piece.token for piece in Scheduler(model).generate([5, 9, 5, 9, 33, 2], params)]
        for model in models
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", ["greedy, adjusted", "top-k and top-p", "top-p and min-p"])
def test_a_real_model_writes_what_the_full_head_writes(name: str, test_models: Path) -> None:
    path = test_models / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        pytest.skip(f"{path.name} is not in the folder BITNET_TEST_MODELS names")
    checkpoint = open_checkpoint(path)
    head = checkpoint.weights["token_embd.weight"]
    values = registry.dequantize(head).astype(np.float16).view(np.uint8).reshape(-1)
    weight = Weight(head.name, head.shape, types.by_name("F16"), values)
    as_f16 = replace(checkpoint, weights={**checkpoint.weights, head.name: weight})
    ops = NativeOps(threads=2)
    engines = [
        Scheduler(load_model(as_f16, ops=ops, exact_head=mode), context=128)
        for mode in ("off", "on")
    ]
    params = replace(SAMPLERS[name], max_tokens=60)
    full, exact = (
        [piece.token for piece in engine.generate([504, 3575, 282], params)] for engine in engines
    )
    assert full == exact


@pytest.mark.parametrize("positions", [1, 3, MOST_AT_ONCE, MOST_AT_ONCE + 1])
def test_every_position_gets_the_logits_it_needs_with_the_bits_of_the_whole_head(
    models: tuple[Any, Any], positions: int
) -> None:
    plain, exact = (model.head for model in models)
    hidden = np.random.default_rng(positions).standard_normal((2 * positions, models[1].config.dim))
    hidden = hidden.astype(np.float32)
    whole = plain(hidden)
    needed = [Needed(3), None] * positions  # every second position needs all logits
    logits = exact.logits(hidden, needed)
    assert len(logits) == len(hidden)
    for at, (one, full) in enumerate(zip(logits, whole, strict=True)):
        if at % 2 or positions > MOST_AT_ONCE:
            assert one.found is None
        else:
            assert np.array_equal(one.found.logits, full[one.found.ids])
            assert np.delete(full, one.found.ids).max(initial=-np.inf) < one.found.bound
        assert np.array_equal(one.all(), full)
        assert one.found is None  # since all were asked for
    assert [one.found for one in plain.logits(hidden, needed)] == [None] * len(hidden)
    assert exact.logits(hidden[:0], []) == []


def test_log_probabilities_come_from_all_logits(models: tuple[Any, Any]) -> None:
    params = Request(max_tokens=5, logprobs=2)
    full, exact = (list(Scheduler(model).generate([5, 9], params)) for model in models)
    assert full == exact


def auto_model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tiny model with a copy of its head, on which ``auto`` decides after 16 passes."""
    monkeypatch.setattr("bitnet.models.exact_head.head.PASSES", 16)
    monkeypatch.setattr("bitnet.models.exact_head.head.saves_time", lambda ops, weight: True)
    model = load_model(tiny("llama"), ops=NativeOps(threads=1), exact_head="auto")
    assert model.head.copy is not None
    return model


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(Request(seed=42, temperature=1.0, top_k=30), id="many rows needed"),
        pytest.param(Request(seed=42, temperature=1.0), id="samplers that need all logits"),
    ],
)
def test_a_copy_that_does_not_save_time_is_dropped_and_changes_no_token(
    models: tuple[Any, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    sampling: Request,
) -> None:
    model = auto_model(monkeypatch)
    params = replace(sampling, max_tokens=100)
    prompt = [5, 9, 5, 9, 33, 2]
    with caplog.at_level("INFO", logger="bitnet"):
        answers = [
            [piece.token for piece in Scheduler(each).generate(prompt, params)]
            for each in (models[0], model)
        ]
    assert len(answers[0]) > 16
    assert answers[0] == answers[1]
    assert model.head.copy is None
    assert model.head.stopped
    assert sum("does not save time" in record.message for record in caplog.records) == 1


def test_a_copy_that_was_asked_for_is_never_dropped(models: tuple[Any, Any]) -> None:
    params = Request(max_tokens=100, seed=42, temperature=1.0)
    list(Scheduler(models[1]).generate([5, 9], params))
    assert models[1].head.copy is not None
    assert not models[1].head.stopped


def costs_of_a_copy() -> Costs:
    """Costs of a copy of a third of its head's size, besides sixth bits of 7 bytes in 100."""
    sizes = SimpleNamespace(size_bytes=40, sixth_bytes=7, head_bytes=100)
    return Costs(sizes)  # type: ignore[arg-type]


def found_of(refined: float, computed: float) -> Found:
    """Logits found with these shares of rows refined and computed."""
    ids = np.arange(round(computed * 1000))
    logits = np.zeros(len(ids), dtype=np.float32)
    return Found(ids, logits, 0.0, 0.0, vocab_size=1000, refined=round(refined * 1000))


@pytest.mark.parametrize(
    ("refined", "computed", "undecided", "high"),
    [
        (0.01, 0.001, 0, False),
        (0.1, 0.06, 0, False),
        (0.1, 0.07, 0, True),
        (1.0, 0.03, 0, False),
        (1.0, 0.04, 0, True),
        (0.1, 0.01, 30, True),
    ],
)
def test_a_copy_is_too_costly_if_its_passes_cost_more_than_the_head(
    refined: float, computed: float, undecided: int, high: bool
) -> None:
    """A pass costs 0.33 for the copy, 0.28 by the refined share, 10 by the computed share, and 2 if
    its position was undecided; on average at most 1 saves time.
    """
    costs = costs_of_a_copy()
    for step in range(3 * PASSES):
        assert not (costs.too_high and step < PASSES)  # the first passes decide nothing
        costs.add([found_of(refined, computed)])
        if step % PASSES < undecided:
            costs.add_whole()
    assert costs.too_high == high


def test_a_position_that_the_copy_does_not_help_costs_the_whole_head() -> None:
    with_failures = costs_of_a_copy()
    without_failures = costs_of_a_copy()
    for _ in range(PASSES):
        without_failures.add([found_of(0.0, 0.0), found_of(0.0, 0.0)])
        with_failures.add([found_of(0.0, 0.0), None])
    assert not without_failures.too_high
    assert with_failures.too_high


def test_a_copy_saves_time_again_once_its_costly_passes_are_long_ago() -> None:
    costs = costs_of_a_copy()
    for _ in range(PASSES):
        costs.add([None])
    assert costs.too_high
    for _ in range(PASSES):
        costs.add([found_of(0.0, 0.0)])
    assert not costs.too_high


def test_a_head_has_a_copy_only_where_that_is_asked_for_or_saves_time() -> None:
    checkpoint = tiny("llama")
    ops = NativeOps(threads=1)
    assert load_model(checkpoint, ops=ops).head.copy is None
    # A copy of so small a head saves no time.
    assert load_model(checkpoint, ops=ops, exact_head="auto").head.copy is None
    assert load_model(checkpoint, ops=ops, exact_head="on").head.copy is not None
    with pytest.raises(Unsupported, match="only the compiled backend can"):
        load_model(checkpoint, ops=ReferenceOps(), exact_head="on")
    assert load_model(checkpoint, ops=ReferenceOps(), exact_head="auto").head.copy is None
