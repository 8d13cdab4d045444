"""The cache folder: what is in it, whether it is intact, and how it is emptied.

    <cache>/CACHEDIR.TAG                               marks the folder as a cache, and as ours
    <cache>/store/                                     every fetched file once: bitnet.store
    <cache>/tokenizers/<key>/tokenizer.json            a link into the store; key: llama3-128k ...
    <cache>/tokenizers/compiled/<sha256>.tok           memory-mapped form, rebuilt when missing
    <cache>/tokenizers/compiled/digests/               of tokenizer files, computed once
    <cache>/models/                                    as earlier versions had it
    <cache>/screens/<hash of the head>.screen          what spares reading a head, rebuilt as well
    <cache>/measurements/<what>-<hash>.json            what is faster on this machine, likewise
    <cache>/reports/

Nothing here is an index: the folder itself is the truth, and any file or folder in it may be
deleted at any time without breaking anything but speed. Whatever lies outside these folders is
not ours and is never touched; links are never followed.
"""

from __future__ import annotations

from bitnet.cache.check import Verdict, verify
from bitnet.cache.entries import Entry, entries
from bitnet.cache.prune import Plan, Selection, parse_age, plan, prune, refuse_unless_cache

__all__ = [
    "Entry",
    "Plan",
    "Selection",
    "Verdict",
    "entries",
    "parse_age",
    "plan",
    "prune",
    "refuse_unless_cache",
    "verify",
]
