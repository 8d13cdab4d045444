"""The output head of a model, from hidden states to logits, and whether its copy saves time."""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Literal

from bitnet.base.errors import Unsupported
from bitnet.formats.mapped_file import files_behind
from bitnet.models.exact_head import Logits
from bitnet.models.exact_head.copy import HeadCopy, reason_against, refusal, saves_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bitnet.families.blocks import ModelConfig
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.kv_codes import Array
    from bitnet.kernels.program import Ops, Prepared
    from bitnet.models.exact_head import Found, Needed

logger = logging.getLogger(__name__)

HeadMode = Literal["off", "on", "auto"]

MOST_AT_ONCE = 8  # positions above which computing the whole head costs no more


# Cost of reading a byte, relative to a byte of the interleaved head in memory; for the reasons see
# docs/architecture/exact-head.md.
FROM_FILE = 2.0  # the whole head, read from the file
ROWS = 10.0  # single rows of it
SIXTH = 4.0  # sixth bits of single rows

PASSES = 64  # recent passes that decide whether the copy is dropped


class Head:
    """The output head of a model; every mode leads to the same tokens."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        ops: Ops,
        weights: Mapping[str, Prepared],
        mode: HeadMode,
    ) -> None:
        """Take the head from *weights*, and make its copy if *mode* asks for it.

        *weights* are by GGUF name; those that :func:`read_by_row` names are stored row by row.
        """
        name = _name(checkpoint)
        self._ops = ops
        self._bias = weights.get("output.bias")
        self._scale = config.logit_scale
        self._softcap = config.final_softcap
        self._use(weights[name])
        # copy that finds the logits that matter; ``None``: all logits are computed
        self.copy: HeadCopy | None = None
        self.stopped: bool = False  # the copy did not save time and was dropped
        if _is_exact(checkpoint, config, ops, mode):
            self.copy = self._copy(checkpoint.path.name, weights["output_norm.weight"], mode)
        # With "on" the copy is never dropped, so its costs do not matter.
        self._costs = Costs(self.copy) if self.copy and mode == "auto" else None
        self._stored = checkpoint.weights[name] if self._costs else None

    def __call__(self, hidden: Array) -> Array:
        """All logits of hidden states, ``(n, dim)`` to ``(n, vocab_size)``."""
        logits = self._ops.linear(hidden, self._weight, self._bias)
        self._check_files()
        if self._scale != 1:
            logits = logits * logits.dtype.type(self._scale)
        return self._ops.softcap(logits, self._softcap) if self._softcap else logits

    def logits(self, hidden: Array, needed: Sequence[Needed | None]) -> list[Logits]:
        """The logits of each hidden state, at least those that are needed.

        *hidden* is ``(n, dim)``; ``None`` among *needed* means all.
        """
        if self._costs and self._costs.too_high:
            self._drop_copy()
        candidates = self._find(hidden, needed)
        if self._costs and candidates:
            self._costs.add(candidates)
        undecided = [at for at, candidate in enumerate(candidates) if candidate is None]
        full_logits: Iterator[Array] = iter(())
        if undecided:
            rows = hidden if len(undecided) == len(candidates) else hidden[undecided]
            full_logits = iter(self(rows))
        results: list[Logits] = []
        for candidate, state in zip(candidates, hidden, strict=True):
            if candidate is None:
                results.append(Logits(next(full_logits)))
            else:
                results.append(Logits(candidate, partial(self._compute_all, state)))
        return results

    def _copy(self, model: str, norm: Prepared, mode: HeadMode) -> HeadCopy | None:
        """Copy of the head of *model*; with ``auto``, ``None`` if its weights permit none."""
        try:
            return HeadCopy.build(self._ops, self._weight, importance=norm, model=model)
        except Unsupported as error:
            if mode == "on":
                raise
            logger.warning("%s: every step reads the whole head", error)
            return None

    def _find(self, hidden: Array, needed: Sequence[Needed | None]) -> list[Found | None]:
        """Logits that the copy finds; ``None`` where all have to be computed."""
        candidates: list[Found | None] = [None] * len(hidden)
        places = [at for at, need in enumerate(needed) if need is not None]
        if self.copy is None or not 0 < len(places) <= MOST_AT_ONCE:
            return candidates
        by_place = self.copy.find(hidden[places], [need for need in needed if need is not None])
        self._check_files()
        for at, candidate in zip(places, by_place, strict=True):
            candidates[at] = candidate
        return candidates

    def _compute_all(self, state: Array) -> Array:
        """All logits of one hidden state, since those that the copy found did not decide."""
        if self._costs:
            self._costs.add_whole()
        logits: Array = self(state[None])[0]
        return logits

    def _drop_copy(self) -> None:
        """Read the whole head from now on, interleaved in memory if there is room.

        The logits stay bit-identical.
        """
        stored = self._stored
        assert stored is not None, "it is set as long as there are costs"
        self.copy = None
        self._costs = None
        self._stored = None
        self.stopped = True
        logger.info("the exact head does not save time here: every step reads the whole head")
        try:
            self._use(self._ops.prepare(stored))
        except MemoryError:
            logger.info("no memory for its interleaved rows: they are read from the file")

    def _use(self, weight: Prepared) -> None:
        self._weight = weight
        self._files = files_behind(self._ops.reads(weight))

    def _check_files(self) -> None:
        for file in self._files:
            file.check()


def read_by_row(
    checkpoint: Checkpoint, config: ModelConfig, ops: Ops, mode: HeadMode
) -> tuple[str, ...]:
    """Names of the matrices from which :class:`Head` mostly reads single rows."""
    # An embedding model reads single rows and hardly ever all of the head.
    single = not config.writes or _is_exact(checkpoint, config, ops, mode)
    return (_name(checkpoint),) if single else ()


def _name(checkpoint: Checkpoint) -> str:
    """Name of the output head's tensor; the token embedding where they are tied."""
    return "output.weight" if "output.weight" in checkpoint.weights else "token_embd.weight"


def _is_exact(checkpoint: Checkpoint, config: ModelConfig, ops: Ops, mode: HeadMode) -> bool:
    """True if the head of *checkpoint* gets a copy.

    If *mode* is on, a head of which no copy can be made is refused.
    """
    weight = checkpoint.weights.get(_name(checkpoint))
    if mode == "off" or not config.writes or weight is None or len(weight.shape) != 2:
        return False
    reason = reason_against(ops, weight)
    if "output.bias" in checkpoint.weights or config.final_softcap or config.logit_scale != 1:
        reason = "its logits are changed afterwards"
    if _name(checkpoint).replace("weight", "scale") in checkpoint.weights:
        reason = "it has a scale of its own"
    if mode == "on" and reason:
        raise refusal(checkpoint.path.name, reason)
    return mode == "on" or (not reason and saves_time(ops, weight))


class Costs:
    """Costs of recent passes over an output head with a copy; the interleaved head would cost 1.

    They are bytes and not times, so the same passes always lead to the same decision.
    """

    def __init__(self, copy: HeadCopy) -> None:
        """Costs of no passes yet."""
        self._copy = (copy.size_bytes - copy.sixth_bytes) / copy.head_bytes
        self._sixth = copy.sixth_bytes / copy.head_bytes
        self._recent: deque[float] = deque(maxlen=PASSES)

    def add(self, candidates: Sequence[Found | None]) -> None:
        """Add a pass that found *candidates* by the copy; ``None``: it read the whole head."""
        by_copy = [candidate for candidate in candidates if candidate is not None]
        if by_copy:
            rows = by_copy[0].vocab_size
            refined = sum(candidate.refined for candidate in by_copy) / rows
            computed = sum(len(candidate.ids) for candidate in by_copy) / rows
            self._recent.append(self._copy + SIXTH * self._sixth * refined + ROWS * computed)
            if len(by_copy) < len(candidates):
                self.add_whole()
        else:
            self._recent.append(FROM_FILE)

    def add_whole(self) -> None:
        """Add to the cost of the last pass: it had to read the whole head after all."""
        if self._recent:
            self._recent[-1] += FROM_FILE

    @property
    def too_high(self) -> bool:
        """True if recent passes would have read less with the head interleaved."""
        return len(self._recent) == PASSES and sum(self._recent) > PASSES
