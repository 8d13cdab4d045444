"""Prompts, requests, and schedulers that run to their end."""

from collections import defaultdict

import numpy as np
from tiny_keys import VOCAB

from bitnet.kernels.kv_codes import PAGE
from bitnet.runtime.request import Request
from bitnet.runtime.scheduler import Scheduler


def prompt(length, seed=0):
    return np.random.default_rng(seed).integers(3, VOCAB, length).tolist()


def params(count=6, **more):
    return Request(max_tokens=count, **{**sampled(9), **more})


def sampled(seed, **more):
    return {"temperature": 1.5, "seed": seed, **more}


def run(scheduler):
    """Run *scheduler* until it is idle, and return the tokens of each sequence."""
    written = defaultdict(list)
    while scheduler.busy:
        for sequence, piece in scheduler.step():
            if piece.token is not None:
                written[sequence].append(piece.token)
    return written


def alone(model, ids, wanted, **more):
    pieces = Scheduler(model, **more).generate(ids, wanted)
    return [piece.token for piece in pieces if piece.token is not None]


def budget(model, pages):
    """Bytes of *pages* pages of keys and values."""
    return pages * Scheduler(model).new_cache().cost(PAGE, 1)
