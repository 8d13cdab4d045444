"""Drafts from the text itself: where they come from, and that they change nothing."""

import random
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitnet.base.errors import UsageError
from bitnet.runtime.request import Request
from bitnet.runtime.sampling import LONGEST_PAUSE, Sampler
from bitnet.runtime.scheduler import Scheduler

# A text of period five, cut within it: 7 7 3 9 4 come next.
REPEATING = [9, 4, 7, 7, 3, 9, 4, 7, 7, 3, 9, 4]


def drafting(most):
    """A sampler that drafts up to *most* tokens."""
    return Sampler(Request(lookup=most))


def tokens(model, ids, **params):
    """Tokens of the answer to *ids*."""
    return [piece.token for piece in Scheduler(model).generate(ids, Request(**params))]


@pytest.mark.parametrize(
    # The text, and what is drafted after it: at least its last two tokens must occur before.
    ("ids", "draft"),
    [
        ([1, 2, 3, 4, 1, 2], [3, 4, 1, 2]),
        ([1, 2, 3, 9, 1, 2, 4, 1, 2], [4, 1, 2, 4]),  # the latest of equally long ones
        ([5, 1, 2, 3, 8, 1, 2, 4, 5, 1, 2], [3, 8, 1, 2]),  # 5 1 2 is longer than 1 2
        ([1, 2, 1, 2], [1, 2, 1, 2]),  # runs into itself
        ([7, 7, 7], [7, 7, 7, 7]),
        ([1, 2, 3, 4], []),
        ([2, 2], []),
        ([1], []),
        ([], []),
    ],
)
def test_a_draft_is_what_followed_the_longest_match(ids, draft):
    assert drafting(4).draft(ids, 4) == draft


def test_a_draft_is_not_longer_than_the_room_or_the_option():
    assert drafting(4).draft(REPEATING, 2) == [7, 7]
    assert drafting(4).draft(REPEATING, 0) == []
    assert drafting(1).draft(REPEATING, 9) == [7]


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 15))
def test_a_draft_continues_an_earlier_place_as_the_text_went_on(ids, limit):
    draft = drafting(limit).draft(ids, limit)
    if draft:
        whole = ids + draft
        # Every drafted token stands where it follows the same two tokens as before.
        for at in range(len(ids), len(whole)):
            earlier = [whole[i] for i in range(2, at) if whole[i - 2 : i] == whole[at - 2 : at]]
            assert whole[at] in earlier


@given(st.lists(st.integers(0, 3), min_size=3, max_size=60))
def test_a_text_read_token_by_token_gives_the_draft_of_one_read_at_once(ids):
    growing = drafting(4)
    for count in range(len(ids)):
        growing.draft(ids[:count], 4)
    assert growing.draft(ids, 4) == drafting(4).draft(ids, 4)


def test_drafts_grow_while_they_are_right():
    lookup = drafting(15)
    lengths = []
    for _ in range(4):
        lengths.append(len(lookup.draft(REPEATING, 15)))
        lookup.report(len(REPEATING), drafted=lengths[-1], accepted=lengths[-1])
    assert lengths == [4, 8, 15, 15]  # doubled, up to the option's 15


def test_drafts_that_fail_get_short_and_then_rare():
    lookup = drafting(15)
    ids = list(REPEATING)
    drafted = []
    for _ in range(400):
        draft = lookup.draft(ids, 15)
        drafted.append(len(draft))
        # The text goes on with its period of five, so a match is always found.
        ids.append(ids[-5])
        if draft:
            lookup.report(len(ids), drafted=len(draft), accepted=0)
    assert drafted[0] == 4
    # One token, then pauses of up to LONGEST_PAUSE tokens.
    assert max(drafted[1:]) == 1
    assert sum(map(bool, drafted[200:])) <= 1 + 200 // LONGEST_PAUSE


def test_drafts_come_back_once_one_is_right():
    lookup = drafting(8)
    for _ in range(3):
        # After three failures the pause is eight tokens, which ends before the text does.
        lookup.report(len(REPEATING) - 9, drafted=1, accepted=0)
    assert lookup.draft(REPEATING, 8) != []
    lookup.report(len(REPEATING), drafted=1, accepted=1)
    assert len(lookup.draft(REPEATING, 8)) == 2


def test_drafts_that_lose_time_pause_until_the_loss_is_a_small_share():
    lookup = drafting(8)
    ids = REPEATING * 100
    lookup.report(100, drafted=4, accepted=1, price=0.75)  # loses the credit of two passes
    assert lookup.draft(ids[:104], 8) != []
    lookup.report(100, drafted=4, accepted=1, price=0.75)  # and two more
    # At a loss of two percent (MOST_LOST), two passes take 100 tokens: from 100 to 200.
    assert lookup.draft(ids[:184], 8) == []
    assert lookup.draft(ids[:204], 8) != []


def test_drafts_that_gain_may_lose_some_of_it():
    lookup = drafting(8)
    ids = REPEATING * 100
    lookup.report(100, drafted=8, accepted=8, price=0.25)  # saves six passes
    lookup.report(100, drafted=8, accepted=1, price=0.25)  # loses one of them
    assert lookup.draft(ids[:104], 8) != []


@pytest.mark.parametrize("row_cost", [0.02, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("kind", ["coins", "traps", "halves"])
def test_no_text_at_any_price_of_a_draft_loses_three_percent(row_cost, kind):
    """Simulated: a pass takes 1, and *row_cost* more for each drafted token.

    Of a draft, each token is right by the toss of a coin, none is right, or the first half is.
    """
    draw = random.Random(1)
    lookup = drafting(15)
    ids = [0, 1, 0, 1]
    spent = 0.0
    drafts = 0
    while len(ids) < 2500:
        draft = lookup.draft(ids, 15)
        if kind == "coins":
            right = sum(1 for _ in takewhile(lambda _: draw.random() < 0.5, draft))
        else:
            right = len(draft) // 2 if kind == "halves" else 0
        ids += [
            *draft[:right],
            *([draw.randrange(2)] if not draft else [1 - draft[right % len(draft)]]),
        ]
        spent += 1 + row_cost * len(draft)
        drafts += len(draft)
        if draft:
            lookup.report(len(ids), drafted=len(draft), accepted=right, price=row_cost)
    assert drafts > 20
    # Three percent more than a pass for each token, after a constant loss before the first pause.
    assert spent < 1.03 * len(ids) + 30


def test_drafts_begin_after_a_pass_without_them_was_measured(model):
    scheduler = Scheduler(model, max_batch=2)
    sequence = scheduler.submit(REPEATING, Request(max_tokens=40))
    drafted = []
    while scheduler.busy:
        scheduler.step()
        drafted.append(len(sequence.proposed))
    assert drafted[:2] == [0, 0]  # the prompt, and a pass whose time is known then
    assert any(drafted)


@pytest.mark.parametrize("lookup", [1, 4, 15])
def test_a_greedy_answer_is_the_same_with_drafts(model, lookup):
    ids = REPEATING * 2
    plain = tokens(model, ids, max_tokens=36, lookup=0)
    assert tokens(model, ids, max_tokens=36, lookup=lookup) == plain


def test_a_sampled_answer_is_the_same_with_drafts_for_any_seed(model):
    # Few tokens to choose from, so that many drafts are right and many are not.
    bias = dict.fromkeys((4, 7, 9), 30.0)
    # NumPy is slow at this, and adds up in another order for another number of rows.
    for seed in range(25 if model.ops.name != "reference" else 4):
        sampling = {"temperature": 2.0, "seed": seed, "logit_bias": bias, "frequency_penalty": 0.3}
        plain = tokens(model, REPEATING, max_tokens=40, lookup=0, **sampling)
        drafted = tokens(model, REPEATING, max_tokens=40, **sampling, lookup=6)
        assert drafted == plain


@pytest.mark.usefixtures("free_drafts")
def test_drafts_save_passes_and_are_counted(model):
    scheduler = Scheduler(model)
    plain = scheduler.submit(REPEATING, Request(max_tokens=40, lookup=0))
    quick = scheduler.submit(REPEATING, Request(max_tokens=40, lookup=8))
    while scheduler.busy:
        scheduler.step()
    assert quick.ids == plain.ids
    assert plain.passes == 40
    assert quick.passes == 40 - quick.accepted
    assert 0 < quick.accepted <= quick.drafted


def test_drafts_never_go_beyond_the_context_or_the_answer(model):
    # The context ends the first answer, max_tokens the second one.
    for context, count in ((16, 40), (64, 5)):
        engine = Scheduler(model, context=context)
        answers = [
            [(piece.token, piece.finish_reason) for piece in engine.generate(REPEATING, params)]
            for params in (
                Request(max_tokens=count, lookup=0),
                Request(max_tokens=count, lookup=15),
            )
        ]
        assert answers[0] == answers[1]


def test_a_stop_id_within_a_draft_ends_the_answer(model):
    free = tokens(model, REPEATING, max_tokens=20, lookup=0)
    stop = frozenset({free[9]})
    plain = tokens(model, REPEATING, max_tokens=20, stop_ids=stop, lookup=0)
    assert tokens(model, REPEATING, max_tokens=20, stop_ids=stop, lookup=15) == plain


@pytest.mark.parametrize("lookup", [-1, 16])
def test_a_length_out_of_range_names_the_option(lookup):
    with pytest.raises(UsageError, match=rf"lookup is {lookup}, expected 0 to 15"):
        Request(lookup=lookup)
