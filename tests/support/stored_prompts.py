"""Prompts of tiny models, stored as files."""

from dataclasses import replace

from tiny_models import in_encoding, tiny

from bitnet.cache.prompts import PromptFolder
from bitnet.kernels.native import NativeOps
from bitnet.models.load import load_model
from bitnet.runtime.prompt_cache import PromptCache
from bitnet.runtime.request import Request
from bitnet.runtime.scheduler import Scheduler

LONG = 400  # positions of the tiny models here: several pages, and more than a window
# Facts on which a stored prompt depends.
FACTS = {"weights": "ab" * 32, "version": "1", "adapters": "", "kv_type": "f16"}

#: Caches that :func:`cache_at` made; the fixture ``short_prompts`` closes them.
opened: list[PromptCache] = []


def model_of(architecture, *, kv_type="f16"):
    """A tiny model of *architecture* with a context of LONG positions, on one thread."""
    checkpoint = in_encoding(tiny(architecture, context_length=LONG), "Q8_0")
    return load_model(replace(checkpoint, kv_type=kv_type), ops=NativeOps(threads=1))


def folder_at(path, limit_bytes=1e9):
    """The folder of stored prompts at *path*."""
    return PromptFolder(path, limit_bytes=limit_bytes)


def cache_at(path, facts=FACTS, **limits):
    """A cache of prompts in the folder at *path*, for a model with these *facts*."""
    cache = PromptCache(folder_at(path, **limits), lambda _adapter: facts)
    opened.append(cache)
    return cache


def reused_of(model, ids, stored, **options):
    """Token and log-probabilities of each piece of an answer to *ids*, and number of reused ids.

    *stored* is the cache of prompts, or None.
    """
    scheduler = Scheduler(model, prompt_cache=stored, **options)
    sequence = scheduler.prepare(ids, Request(max_tokens=5, temperature=0.0, logprobs=8))
    pieces = list(scheduler.run(sequence))
    bits = [(piece.token, piece.logprob, piece.top_logprobs) for piece in pieces]
    return bits, sequence.reused_tokens


def store(model, ids, path, facts=FACTS, **limits):
    """Answer *ids*, and write the computed prompt to *path*; returns the files there."""
    stored = cache_at(path, facts, **limits)
    reused_of(model, ids, stored)
    stored.close()
    return files_in(path)


def files_in(path):
    """Files of stored prompts below *path*."""
    return sorted(path.rglob("*.kv"))
