"""Unigram of the portable engine against its definition: the best of all paths, in float32."""

import math
import random

import numpy as np
import pytest
from small_specs import pieces

from bitnet.tokenizer.library import open_engine

# Types of pieces, as SentencePiece numbers them.
NORMAL = 1
USER_DEFINED = 4
UNUSED = 5
UNKNOWN_PENALTY = 10.0  # below the lowest score, as in SentencePiece
LETTERS = "ab\u2581"


def best_path(text, spec):
    """The pieces of *text* with the largest sum of scores, by the definition.

    Each sum is rounded to float32. Of equal sums the one whose last piece begins first is taken.
    """
    scores = {}
    for token, score, kind in zip(spec.tokens, spec.scores, spec.token_types, strict=True):
        if kind in (NORMAL, USER_DEFINED):
            # A user-defined piece gets SentencePiece's bonus instead of its score.
            bonus = 0.1 * (len(token.encode()) - 1)
            scores[token] = bonus if kind == USER_DEFINED else score
    scored_types = zip(spec.scores, spec.token_types, strict=True)
    worst = min((score for score, kind in scored_types if kind == NORMAL), default=0.0)
    unknown = float(np.float32(worst - UNKNOWN_PENALTY))
    paths = [(0.0, ())]  # the best sum and its pieces, for each length of the text
    for end in range(1, len(text) + 1):
        best_sum = -math.inf
        best_pieces = ()
        for start in range(end):
            piece = text[start:end]
            score = scores.get(piece, unknown if len(piece) == 1 else None)
            if score is not None and (total := np.float32(score + paths[start][0])) > best_sum:
                best_sum = float(total)
                best_pieces = (*paths[start][1], piece)
        paths.append((best_sum, best_pieces))
    return list(paths[-1][1])


@pytest.mark.parametrize("seed", range(8))
def test_the_segmentation_with_the_best_score_wins_and_of_equal_ones_the_first(seed):
    rng = random.Random(seed)
    for _ in range(60):
        drawn = [
            "".join(rng.choices(LETTERS, k=rng.randint(2, 8))) for _ in range(rng.randint(1, 15))
        ]
        vocabulary = [*dict.fromkeys([*LETTERS, *drawn])]  # each piece once
        scores = [
            rng.choice([-1.0, -2.0, float(np.float32(-9 * rng.random()))]) for _ in vocabulary
        ]
        types = rng.choices([NORMAL, USER_DEFINED, UNUSED], [6, 1, 1], k=len(vocabulary))
        types[: len(LETTERS)] = [NORMAL] * len(LETTERS)  # so that every text has a path
        spec = pieces(tokens=["<unk>", *vocabulary], scores=[0.0, *scores], token_types=[2, *types])
        engine = open_engine(spec)[0]
        for _ in range(4):
            text = "".join(rng.choices(LETTERS, k=rng.randint(0, 40)))
            ids = engine.encode(text)
            assert [spec.tokens[id] for id in ids] == best_path(text, spec)


def test_long_runs_of_one_letter_take_the_longest_pieces():
    runs = ["a" * length for length in range(1, 17)]
    # A longer piece scores a little less, but far more than two shorter ones together.
    scores = [0.0, *(-1 - length / 64 for length in range(16))]
    spec = pieces(tokens=["<unk>", *runs], scores=scores, token_types=[2] + [NORMAL] * 16)
    assert open_engine(spec)[0].encode("a" * 160_000) == [16] * 10_000
