"""One forward pass: what each sequence contributes to it, and how a failed one is undone."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bitnet.base.errors import InferenceError
from bitnet.models.transformer import Segment
from bitnet.runtime.next_token import draft_together
from bitnet.runtime.prefix_cache import common_prefix

if TYPE_CHECKING:
    from bitnet.families.blocks import ModelConfig
    from bitnet.models.transformer import Model
    from bitnet.runtime.next_token import Foresight
    from bitnet.runtime.prefix_cache import Lease
    from bitnet.runtime.sequence import Sequence

__all__ = [
    "Scheduled",
    "foresee",
    "lease_of",
    "no_memory",
    "part_of",
    "prepare_draft",
    "repeat",
    "return_to_start",
    "run_parts",
    "should_wait",
    "start_over_beyond_border",
]

logger = logging.getLogger(__name__)

WORTH_WAITING = 32  # prompt tokens worth copying after a pass instead of computing them in it


@dataclass(frozen=True)
class Scheduled:
    """The tokens that one sequence contributes to a pass.

    Attributes:
        sequence: whose tokens they are.
        segment: the tokens, their cache, and the positions whose results are needed.
        draft: the last of the tokens, which are speculative.
        start: positions in the cache before the pass.
    """

    sequence: Sequence
    segment: Segment
    draft: list[int]
    start: int


def part_of(sequence: Sequence, tokens: list[int], draft: list[int]) -> Scheduled:
    """*tokens*, which end with *draft*, as the part of *sequence*."""
    cache = lease_of(sequence).cache
    complete = cache.length + len(tokens) - len(draft) == len(sequence.ids)
    outputs: Literal["none", "last", "all"] = "none"
    if draft or (sequence.request.embed and not sequence.pools_last):
        outputs = "all"
    elif complete and sequence.foresight:
        outputs = "all"  # its block reads these hidden states
    elif complete:
        outputs = "last"
    return Scheduled(sequence, Segment(tokens, cache, outputs), draft, cache.length)


def prepare_draft(draft: list[int], sequence: Sequence, config: ModelConfig) -> None:
    """Shorten *draft* to what runs behind the last token of *sequence* with the same bits."""
    cache, length = lease_of(sequence).cache, len(sequence.ids)
    regime = config.regime(max(cache.reach, length))
    while draft and config.regime(max(cache.reach, length + len(draft))) != regime:
        draft.pop()  # its RoPE frequencies would differ from those of the token before
    if draft:
        cache.mark()  # a state returns here if drafts are rejected


def foresee(
    model: Model, sequences: list[Sequence], room: int, context: int
) -> dict[Sequence, list[int]]:
    """Drafts of the model's own block for *sequences*, which decode; *room* tokens in all."""
    wanted: dict[Foresight, int] = {}
    owners: dict[Foresight, Sequence] = {}
    for sequence in sequences:
        most = min(room, sequence.draft_room, context - len(sequence.ids))
        if (its := sequence.foresight) and most > 0 and its.is_ready:
            owners[its], wanted[its] = sequence, min(most, its.length)
            room -= wanted[its]
    try:
        drafts = draft_together(model, wanted) if wanted else {}
    except MemoryError:
        for sequence in sequences:
            sequence.foresight = None  # the answer itself may have room
        return {}
    return {owners[its]: draft for its, draft in drafts.items()}


def run_parts(model: Model, parts: list[Scheduled]) -> list[Any]:
    """Logits of the requested tokens of each part; hidden states for embeddings."""
    results: list[Any] = model.hidden([part.segment for part in parts])
    places = [at for at, part in enumerate(parts) if not part.sequence.request.embed]
    for at in places:
        sequence, draft = parts[at].sequence, parts[at].draft
        if sequence.foresight and len(results[at]):
            sequence.hidden = parts[at].start + len(parts[at].segment.tokens), results[at]
            results[at] = results[at][-len(draft) - 1 :]
    if places:
        hidden = np.concatenate([results[at] for at in places])
        needed = [parts[at].sequence.needs(parts[at].draft) for at in places]
        each = [need for at, need in zip(places, needed, strict=True) for _ in results[at]]
        logits = iter(model.head.logits(hidden, each))
        for at in places:
            results[at] = list(islice(logits, len(results[at])))
    return results


def return_to_start(part: Scheduled) -> None:
    """Undo a pass that failed; what cannot be undone exactly will be run again."""
    cache = lease_of(part.sequence).cache
    cache.truncate(part.start)
    if cache.length < part.start and part.sequence.request.embed:
        cache.truncate(0)  # hidden states were added up
        part.sequence.embedding = None


def repeat(part: Scheduled) -> Scheduled:
    """*part* once more, after :func:`return_to_start`."""
    start = lease_of(part.sequence).cache.length
    if start == part.start:
        return part
    end = part.start + len(part.segment.tokens) - len(part.draft)
    return part_of(part.sequence, part.sequence.ids[start:end], [])


def lease_of(sequence: Sequence) -> Lease:
    """The cache of *sequence*, which runs."""
    assert sequence.lease is not None, "a sequence that runs has a cache"
    return sequence.lease


def start_over_beyond_border(sequence: Sequence, config: ModelConfig) -> None:
    """Rerun an answer that crosses the original context length, as a prompt of that length.

    Long and short frequency factors do not mix (transformers does the same: Phi-3's
    ``prepare_inputs_for_generation``).
    """
    cache = lease_of(sequence).cache
    borders = any(rope.long_freq_factors is not None for rope in config.ropes)
    if not borders or len(sequence.ids) <= cache.reach:
        return
    if config.regime(len(sequence.ids)) != config.regime(cache.reach):
        logger.info("beyond the original context: %d positions are run again", cache.length)
        cache.truncate(0)
        cache.reach = len(sequence.ids)


def should_wait(sequence: Sequence, ahead: list[Scheduled]) -> bool:
    """True if a part in *ahead* computes a prefix that *sequence* can copy after the pass."""
    shared = [
        (common_prefix(part.sequence.ids, sequence.ids), lease_of(part.sequence).cache.length)
        for part in ahead
    ]
    # What it has computed already was copied, or cannot be.
    to_come = max((count for count, computed in shared if computed < count), default=0)
    return to_come - lease_of(sequence).cache.length >= WORTH_WAITING


def no_memory(sequence: Sequence, error: MemoryError) -> InferenceError:
    """The error of a sequence whose caches find no memory."""
    return InferenceError(
        f"not enough memory for {len(sequence.ids):,} positions: {error}",
        hint="shorten the prompt or lower --max-tokens",
    )
