"""Prompts, requests, and schedulers that run to their end."""

from collections import defaultdict

import numpy as np
from tiny_keys import VOCAB

from bitnet.kernels.kv_codes import PAGE
from bitnet.runtime.request import Request
from bitnet.runtime.scheduler import Scheduler


def prompt(length, seed=0):
    """Random ids without special tokens."""
    return np.random.default_rng(seed).integers(3, VOCAB, length).tolist()


def params(count=6, **more):
    """A request for *count* tokens, sampled with a fixed seed unless *more* has another one."""
    return Request(max_tokens=count, **{**sampled(9), **more})


def sampled(seed, **more):
    """Fields of a request that samples with *seed*."""
    return {"temperature": 1.5, "seed": seed, **more}


def run(scheduler):
    """Run *scheduler* until it is idle, and return the tokens of each sequence."""
    answers = defaultdict(list)
    while scheduler.busy:
        for sequence, piece in scheduler.step():
            if piece.token is not None:
                answers[sequence].append(piece.token)
    return answers


def alone(model, ids, wanted, **more):
    """Tokens of the answer to *ids* and the request *wanted*, by a scheduler of its own."""
    pieces = Scheduler(model, **more).generate(ids, wanted)
    return [piece.token for piece in pieces if piece.token is not None]


def budget(model, pages):
    """Bytes of *pages* pages of keys and values."""
    return pages * Scheduler(model).new_cache().cost(PAGE, 1)
