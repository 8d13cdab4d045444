"""Submitting, stepping and cancelling in any order: nothing is lost, nothing is mixed."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scheduling import alone, budget, params, prompt, run, sampled
from tiny_keys import EXPERTS
from tiny_models import in_encoding, tiny

from bitnet.kernels.native import select
from bitnet.models.load import load_model
from bitnet.runtime.scheduler import Scheduler

PREFIXES = [prompt(20, seed=7), prompt(12, seed=8)]  # prompts begin with a part of one of these
EXPECTED = {}  # the answers of expected()


@pytest.fixture(scope="module", autouse=True)
def _model():
    """Load the model of each machine, and delete it behind the tests of this file."""
    drafting = tiny("qwen35", block_count=3, nextn_predict_layers=1)
    machines = {
        AnyOrder: tiny("llama"),
        AnyOrderOfStates: tiny("qwen35"),
        AnyOrderOfConvolutions: tiny("lfm2"),
        AnyOrderOfScans: tiny("nemotron_h"),
        AnyOrderOfDrafts: drafting,
        AnyOrderOfExperts: tiny("qwen3moe"),
        AnyOrderOfLatents: tiny("deepseek2"),
        AnyOrderOfSharedCaches: tiny("gemma4", **EXPERTS),
    }
    for machine, checkpoint in machines.items():
        machine.model = load_model(in_encoding(checkpoint, "Q8_0"), ops=select(threads=1))
    AnyOrderOfADraftModel.model = AnyOrder.model
    AnyOrderOfADraftModel.draft_model = AnyOrderOfStates.model
    yield
    del AnyOrderOfADraftModel.model, AnyOrderOfADraftModel.draft_model
    for machine in machines:
        del machine.model  # kernels that outlive the run are leaks to the extension


def expected(model, ids, wanted):
    """Tokens of the answer to *ids* and the request *wanted* alone, without drafts; cached."""
    kind = model.config.architecture, model.config.drafter is None
    key = (kind, tuple(ids), wanted.max_tokens, wanted.seed)
    if key not in EXPECTED:
        EXPECTED[key] = alone(model, ids, replace(wanted, lookup=0))
    return EXPECTED[key]


class AnyOrder(RuleBasedStateMachine):
    """Submitting, stepping and cancelling in any order."""

    draft_model = None

    def __init__(self):
        super().__init__()
        self.written = {}
        self.wanted = {}

    @initialize(
        max_batch=st.integers(1, 4), chunk=st.integers(1, 30), room=st.sampled_from([None, 1, 2])
    )
    def make(self, max_batch, chunk, room):
        self.budget = room and budget(self.model, room)
        self.scheduler = Scheduler(
            self.model,
            max_batch=max_batch,
            prefill_chunk=chunk,
            kv_budget_bytes=self.budget,
            draft_model=self.draft_model,
        )

    @rule(
        prefix=st.sampled_from(PREFIXES),
        length=st.integers(1, 20),
        last=st.integers(3, 6),
        count=st.integers(1, 8),
        seed=st.integers(0, 2),
        lookup=st.sampled_from([0, 3]),
    )
    def submit(self, prefix, length, last, count, seed, lookup):
        wanted = params(count, **sampled(seed), lookup=lookup)
        sequence = self.scheduler.submit([*prefix[:length], last], wanted)
        self.wanted[sequence] = ([*prefix[:length], last], wanted)
        self.written[sequence] = []

    @rule(count=st.integers(1, 5))
    def step(self, count):
        for _ in range(count):
            for sequence, piece in self.scheduler.step():
                self.written[sequence].append(piece.token)

    @precondition(lambda self: self.wanted)  # ended sequences are cancelled, too
    @rule(data=st.data())
    def cancel(self, data):
        self.scheduler.cancel(data.draw(st.sampled_from(list(self.wanted))))

    @invariant()
    def nothing_is_lost_or_mixed(self):
        for sequence, (ids, wanted) in self.wanted.items():
            whole = expected(self.model, ids, wanted)
            written = self.written[sequence]
            assert written == whole[: len(written)]
            assert sequence.ids == ids + written
            if sequence.finish_reason == "length":
                assert len(written) == len(whole)
            # The last token was not run; without a cache a sequence has ended, or did not begin.
            if sequence.cache:
                assert sequence.cache.length < len(sequence.ids)
            else:
                assert sequence.finish_reason or not written

    @invariant()
    def the_bounds_hold(self):
        if self.wanted:
            assert len(self.scheduler.running) <= self.scheduler.max_batch
            assert self.budget is None or self.scheduler.caches.size_bytes <= self.budget

    def teardown(self):
        if self.wanted:
            for sequence, tokens in run(self.scheduler).items():
                self.written[sequence] += tokens
            self.nothing_is_lost_or_mixed()
            assert all(sequence.finish_reason for sequence in self.wanted)


class AnyOrderOfStates(AnyOrder):
    """The same with layers whose state returns to chosen lengths only."""


class AnyOrderOfConvolutions(AnyOrder):
    """The same with states that are the inputs of convolutions alone."""


class AnyOrderOfScans(AnyOrder):
    """The same with states of Mamba-2."""


class AnyOrderOfLatents(AnyOrder):
    """The same with attention over latents."""


class AnyOrderOfSharedCaches(AnyOrder):
    """The same with layers that read the keys and values of others."""


class AnyOrderOfDrafts(AnyOrder):
    """The same with states, and a block of the model that drafts whenever it may."""

    @initialize(max_batch=st.integers(1, 4), chunk=st.integers(1, 30), room=st.just(None))
    def make(self, max_batch, chunk, room):
        super().make(max_batch, chunk, room)
        # Without times of passes, it never decides that drafts do not pay.
        self.scheduler._pace.observe = lambda *_, **__: None


class AnyOrderOfADraftModel(AnyOrderOfDrafts):
    """The same with another model that drafts, which has states."""


class AnyOrderOfExperts(AnyOrder):
    """The same with experts, whose tokens are gathered from all sequences of a pass."""


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestAnyOrderOfStates = AnyOrderOfStates.TestCase
TestAnyOrderOfStates.settings = TestAnyOrder.settings
TestAnyOrderOfConvolutions = AnyOrderOfConvolutions.TestCase
TestAnyOrderOfConvolutions.settings = TestAnyOrder.settings
TestAnyOrderOfScans = AnyOrderOfScans.TestCase
TestAnyOrderOfScans.settings = TestAnyOrder.settings
TestAnyOrderOfLatents = AnyOrderOfLatents.TestCase
TestAnyOrderOfLatents.settings = TestAnyOrder.settings
TestAnyOrderOfSharedCaches = AnyOrderOfSharedCaches.TestCase
TestAnyOrderOfSharedCaches.settings = TestAnyOrder.settings
TestAnyOrderOfDrafts = AnyOrderOfDrafts.TestCase
TestAnyOrderOfDrafts.settings = TestAnyOrder.settings
TestAnyOrderOfADraftModel = AnyOrderOfADraftModel.TestCase
TestAnyOrderOfADraftModel.settings = TestAnyOrder.settings
TestAnyOrderOfExperts = AnyOrderOfExperts.TestCase
TestAnyOrderOfExperts.settings = TestAnyOrder.settings
