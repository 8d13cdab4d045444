"""SentencePiece BPE of both engines against its definition, one join at a time."""

import random

import pytest
from small_specs import pieces
from tokenizer_configurations import ENGINES

from bitnet.base import native

# Types of pieces, as SentencePiece numbers them.
NORMAL = 1
UNUSED = 5
LETTERS = "ab\u2581"


def join_by_definition(text, scores, unused):
    """Pieces of *text*: the best-scored neighbours are joined first, of equal ones the left.

    An unused piece is split into the two neighbours that were last found to make it. Unused
    characters are unknown; several in a row are unknown once.
    """
    symbols = list(text)
    halves = {}

    def joined(at):
        whole = "".join(symbols[at : at + 2]) if 0 <= at < len(symbols) - 1 else ""
        return whole if whole in scores else ""

    def offer(at):
        halves[joined(at)] = symbols[at : at + 2]

    for at in range(len(symbols)):
        offer(at)
    while pairs := [at for at in range(len(symbols)) if joined(at)]:
        best = max(pairs, key=lambda at: (scores[joined(at)], -at))
        symbols[best : best + 2] = [joined(best)]
        offer(best - 1)
        offer(best)
    out = []
    while symbols:
        piece = symbols.pop(0)
        if piece in unused and piece in halves:
            symbols[:0] = halves[piece]
        elif piece not in unused:
            out.append(piece)
        elif out[-1:] != ["<unk>"]:
            out.append("<unk>")
    return out


def vocabulary(rng):
    """Pieces of a few letters, their scores (equal, falling, rising or any), and their types."""
    tokens = dict.fromkeys(LETTERS)
    for _ in range(rng.randint(1, 25)):
        left, right = rng.choices([*tokens], k=2)
        tokens[(left + right)[:12]] = None
    size = len(tokens)
    scores = rng.choice(
        [
            [-float(i) for i in range(size)],
            [float(i) for i in range(size)],
            rng.choices([0.0, -0.0, -1.0], k=size),
            [rng.random() for _ in range(size)],
        ]
    )
    return list(tokens), scores, rng.choices([NORMAL, UNUSED], [3, rng.choice([0, 2])], k=size)


@pytest.fixture(params=ENGINES)
def open_engine(request):
    """The function that opens an engine for a specification."""
    if request.param == "native" and native.module() is None:
        pytest.skip("the native module is missing")
    return ENGINES[request.param]


@pytest.mark.parametrize("seed", range(8))
def test_pieces_are_joined_in_the_order_of_their_scores(seed, open_engine):
    rng = random.Random(seed)
    for _ in range(150):
        tokens, scores, types = vocabulary(rng)
        spec = pieces(
            "spm", tokens=["<unk>", *tokens], scores=[0.0, *scores], token_types=[2, *types]
        )
        by_token = dict(zip(tokens, scores, strict=True))
        unused = {token for token, kind in zip(tokens, types, strict=True) if kind == UNUSED}
        engine = open_engine(spec)
        for _ in range(4):
            text = "".join(rng.choices(LETTERS, k=rng.randint(0, 50)))
            pieces_of_text = [spec.tokens[id] for id in engine.encode(text)]
            assert pieces_of_text == join_by_definition(text, by_token, unused)


@pytest.mark.parametrize("step", [1.0, -1.0])
def test_long_runs_join_alike_whether_longer_pieces_score_more_or_less(step, open_engine):
    runs = ["a" * 2**i for i in range(9)]
    scores = [step * i for i in range(len(runs))]
    spec = pieces("spm", tokens=["<unk>", *runs], scores=[0.0, *scores], token_types=[2] + [1] * 9)
    # The longest piece, 256 letters, has the id 9; that of 64 has 7.
    ids = open_engine(spec).encode("a" * (1000 * 256 + 64))
    assert ids == [9] * 1000 + [7]
