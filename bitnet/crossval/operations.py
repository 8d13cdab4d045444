"""Every operation of an engine, computed again in float64 from its own inputs.

An engine gives the intermediates of a pass. The float64 program computes one operation, compares
the result with the engine's, and continues from the engine's value, so that the error of one
operation does not reach the next. The remaining difference is the rounding of that operation. A
norm that is 1 % off, another epsilon or an attention window that is short by one exceeds it a
thousand times, while the logits at the end of the pass would hide it. Only the last :data:`ROWS`
positions are computed again, with the engine's own keys and values of all earlier ones: a long
prompt costs as little as a short one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from bitnet.crossval.bounds import (
    BOUNDS,
    NOT_FINITE,
    NOT_GIVEN,
    ROWS,
    Kind,
    Residual,
    measure,
)
from bitnet.crossval.prefix import fill_caches, inputs, list_cached, results
from bitnet.kernels import instructions
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.mixer_instructions import DeltaRule, ExpertLinear, Route, SelectiveScan
from bitnet.kernels.program import Mark
from bitnet.quants import registry

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from numpy.typing import NDArray

    from bitnet.crossval.trace import Arithmetic, Question, Reference
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.program import Program, Register
    from bitnet.models.transformer import Model

_BLOCK = "l_out-"  # prefix of the name of the residual stream behind a block
_STREAM = ("embed", _BLOCK, "result_")  # prefixes of its names, and of that of the norm at its end
_HALF = ("F16", "BF16")
_CACHED = ("Kcur-", "Vcur-")  # prefixes of the values that a cache stores


@dataclass(frozen=True)
class Operation:
    """One operation beside the float64 pass."""

    name: str  # of its result, in llama.cpp's words: ``Qcur-3`` is rotated queries of layer 3
    kind: Kind  # what it rounds
    error: float  # ``|theirs - float64| / |float64|`` of the worst position
    gain: float  # slope of theirs over float64's values, less 1
    # length of the mean residual of :data:`ROWS` positions, over that of one position's value
    mean: float

    @property
    def residual(self) -> Residual:
        """The measures of its residual."""
        return Residual(self.error, self.gain, self.mean)

    @property
    def is_near(self) -> bool:
        """True if every measure of its residual is within the bound of its kind; NaN is not."""
        bound = BOUNDS[self.kind]
        return (
            abs(self.error) <= bound.error
            and abs(self.gain) <= bound.gain
            and abs(self.mean) <= bound.mean
        )


def list_planned(program: Program) -> tuple[tuple[str, ...], ...]:
    """Names of the intermediates of *program*, those of each branch of a block together.

    A branch ends where its result is added to the residual stream, whose value behind a block is a
    group by itself.
    """
    groups: list[list[str]] = [[]]  # the last one is of the branch that has not ended
    stream: Register | None = None  # the register that holds the residual stream
    for step in program.instructions:
        if isinstance(step, Mark) and step.name.startswith(_STREAM):
            stream = step.register
            groups += [[step.name], []]
        elif isinstance(step, Mark):
            groups[-1].append(step.name)
        elif isinstance(step, instructions.Add) and step.x == stream:
            stream = step.out
            groups.append([])
    return (*(tuple(group) for group in groups if group), ("result_output",))


def missing_operations(
    steps: Sequence[Operation], planned: Sequence[Sequence[str]], *, all_of_them: bool
) -> tuple[Operation, ...]:
    """An operation with the error :data:`NOT_GIVEN` for each *planned* name that *steps* lack.

    Without *all_of_them*, one operation of each group of :func:`list_planned` is enough. Two kinds
    of values may then be absent: the embeddings, which ik_llama.cpp does not name, and the sum
    behind a block, which llama.cpp does not name in ModernBERT. Their error shows in the next
    value, which the float64 pass then computes from its own value of the absent one.
    """
    compared_names = {step.name for step in steps}
    missing_names: list[str] = []
    for group, next_group in zip(planned, (*planned[1:], ()), strict=True):
        absent_names = [name for name in group if name not in compared_names]
        if all_of_them:
            missing_names += absent_names
            continue
        is_shown = group[0].startswith(_BLOCK) and bool(compared_names.intersection(next_group[:1]))
        if len(absent_names) == len(group) and absent_names != ["embed"] and not is_shown:
            missing_names.append(" or ".join(absent_names))
    return tuple(Operation(name, "sum", NOT_GIVEN, 0.0, 0.0) for name in missing_names)


def describe(engine: str, steps: Sequence[Operation], layers: int) -> tuple[bool, str]:
    """True if the operations of *engine* are right, and the result in one sentence.

    They are right if all are near float64, and the sum behind every layer, or the norm that reads
    that sum, was compared.
    """
    real_steps = [step for step in steps if step.error != NOT_GIVEN]
    faulty = next((step for step in real_steps if not step.is_near), None)
    if faulty is not None and faulty.error == NOT_FINITE:
        return False, f"{faulty.name} of {engine}, or in float64 on the same inputs, is not finite"
    if faulty is not None:
        bound = BOUNDS[faulty.kind]
        return False, (
            f"{faulty.name} of {engine} differs from float64 on the same inputs: relative error "
            f"{faulty.error:.1e} (at most {bound.error:.0e} for {faulty.kind}), gain "
            f"{faulty.gain:+.1e} (at most {bound.gain:.0e}), mean residual {faulty.mean:.1e} "
            f"(at most {bound.mean:.0e})"
        )
    compared_names = {step.name for step in real_steps}
    not_given = (step.name for step in steps if step.error == NOT_GIVEN)
    # Lazy, since it is read up to the first name only: a report may state billions of layers.
    not_shown = (
        f"{_BLOCK}{layer}"
        for layer in range(layers)
        if not _is_shown(layer, layers, compared_names)
    )
    absent = chain(not_given, not_shown)
    missing = next((name for name in absent if name not in compared_names), None)
    if missing is not None:
        return False, f"{engine} gave {len(real_steps)} intermediates, and no {missing}"
    worst = {step.kind: step.error for step in sorted(steps, key=lambda step: step.error)}
    errors = ", ".join(f"{kind} {worst[kind]:.1e}" for kind in get_args(Kind) if kind in worst)
    return True, f"all {len(steps)} of {engine} as in float64 (largest relative errors: {errors})"


def _is_shown(layer: int, layers: int, compared: Container[str]) -> bool:
    """True if the sum behind *layer*, or the norm that reads it, is *compared*."""
    norm = f"attn_norm-{layer + 1}" if layer + 1 < layers else "result_norm"
    return f"{_BLOCK}{layer}" in compared or norm in compared


def our_intermediates(model: Model, ids: Sequence[int]) -> dict[str, NDArray[Any]]:
    """Intermediates of *model* for *ids*; the last is its ``result_output``, the logits."""
    # The first ids only fill the caches: of their rows, the cached values are kept, and put before
    # the other rows.
    stop = _count_cached(model, ids)
    cache = KVCache(model.config, len(ids))
    earlier_rows: dict[str, NDArray[Any]] = {}
    if stop:
        cached_names = list_cached(model.program, last=True)
        earlier_rows = {
            name: np.array(values)
            for name, values in model.trace(ids[:stop], cache, head=False)
            if name in cached_names
        }
    arrays: dict[str, NDArray[Any]] = {}
    for name, values in model.trace(ids[stop:], cache):
        rows = np.array(values)
        if name in earlier_rows:
            rows = np.concatenate([earlier_rows[name], rows])
        arrays[name] = rows
    return arrays


def check_operations(
    exact: Model,
    checkpoint: Checkpoint,
    ids: Sequence[int],
    theirs: Mapping[str, NDArray[Any]],
    *,
    arithmetic: Arithmetic,
    half_cache: bool,
) -> tuple[Operation, ...]:
    """The operations of an engine, each beside that of *exact*, in the order of computation.

    *theirs* has intermediates by name: those of :func:`list_cached` with a row for each of *ids*,
    all others for the last :data:`ROWS`, or for all where a position attends to later ones. With
    *half_cache* the engine stores keys and values as float16. Empty if the values of earlier
    positions are not enough to fill the caches.
    """
    stop = _count_cached(exact, ids)
    cache = KVCache(exact.config, len(ids), dtype=np.float64)
    cache.reach = len(ids)  # selects the RoPE scaling
    round_stored = partial(_round_to_cache, half=half_cache)
    if stop and not fill_caches(exact, cache, ids[:stop], theirs, round_stored=round_stored):
        return ()
    attention: Kind = "attention"
    if arithmetic == "float32":
        attention = "product"  # nothing is stored in another form
    elif checkpoint.kv_type == "q8" and not half_cache:
        attention = "q8 attention"
    kinds = _kinds(exact, checkpoint, theirs, arithmetic, attention)
    steps: list[Operation] = []
    trace = exact.trace(ids[stop:], cache)
    name, value = next(trace)
    while True:
        # The next operation reads the engine's value, or ours where the engine gave none.
        rows: NDArray[np.float64] | None = None
        engine_values = theirs.get(name, np.empty(0))[-len(value) :]
        if engine_values.size == value.size:
            rows = np.asarray(engine_values, dtype=np.float64).reshape(value.shape)
            steps.append(Operation(name, kinds[name], *measure(rows, value)))
            if name.startswith(_CACHED):
                rows = _round_to_cache(rows, half_cache)
        try:
            name, value = trace.send(rows)
        except StopIteration:
            return tuple(steps)


def _count_cached(model: Model, ids: Sequence[int]) -> int:
    """Number of *ids*, from the first on, whose operations only fill the caches.

    It is 0 if positions attend to later ones: such a text cannot be run in parts.
    """
    return max(len(ids) - ROWS, 0) if model.config.looks_back else 0


def reference_operations(
    reference: Reference, question: Question, exact: Model
) -> tuple[Operation, ...] | None:
    """The operations of *reference* on the only prompt of *question*; None if it gives none.

    Where its values of earlier positions do not fill the caches of *exact*, because it has no name
    for the inputs of a state, it is asked about the first :data:`ROWS` positions alone.
    """
    checkpoint, (prompt,) = question.checkpoint, question.prompts
    for ids in (prompt.ids, prompt.ids[:ROWS]):
        asked = replace(question, prompts=(replace(prompt, ids=ids),))
        theirs = reference.intermediates(asked, exact)
        if theirs is None:
            return None
        arithmetic = reference.arithmetic(checkpoint)
        half_cache = arithmetic != "float32"
        steps = check_operations(
            exact, checkpoint, ids, theirs, arithmetic=arithmetic, half_cache=half_cache
        )
        if steps:
            return steps
    return ()


def _round_to_cache(values: NDArray[Any], half: bool) -> NDArray[np.float64]:
    """*values* as the engine's cache holds them."""
    return (values.astype(np.float16) if half else values).astype(np.float64)


def _kinds(
    exact: Model,
    checkpoint: Checkpoint,
    theirs: Container[str],
    arithmetic: Arithmetic,
    attention: Kind,
) -> dict[str, Kind]:
    """Kind of every marked value, by all that is rounded after the last values in *theirs*.

    The float64 pass continues from the engine's own values in *theirs*, so that what was rounded
    before them does not count.
    """
    kinds: dict[Register, Kind] = {}
    mark_kinds: dict[str, Kind] = {}

    def product(weight: str) -> Kind:
        # A head without a tensor of its own is the embedding.
        stored = checkpoint.weights.get(weight, checkpoint.weights["token_embd.weight"])
        if stored.quant.name in _HALF:
            return "half product"
        is_rounded = arithmetic == "int8" and stored.quant.name != "F32"
        is_rounded = is_rounded or registry.rounds_activations(stored)
        return "int8 product" if is_rounded else "product"

    for step in exact.program.instructions:
        if isinstance(step, Mark):
            mark_kinds[step.name] = kinds[step.register]
            if step.name in theirs:
                kinds[step.register] = "sum"
            continue
        rounds: list[Kind] = [kinds[register] for register in inputs(step) if register in kinds]
        if isinstance(step, (instructions.Linear, ExpertLinear)):
            rounds += map(product, step.weights)
        elif isinstance(step, instructions.Attend):
            rounds.append(attention)
        elif isinstance(step, (instructions.Gate, Route)):
            # transformers computes what C++ engines look up in tables of 16 bits
            rounds.append("product" if arithmetic == "float32" else "gate")
        elif isinstance(step, instructions.Rotate):
            rounds.append("rotation")
        elif isinstance(step, (DeltaRule, SelectiveScan)):
            # llama.cpp divides by products of the decays of rows, chunk by chunk (KDA), which loses
            # precision: the looser bound of gates
            is_by_row = isinstance(step, DeltaRule) and step.alpha.width > step.beta.width
            rounds.append("gate" if is_by_row and arithmetic != "float32" else "state")
        worst: Kind = max(rounds, key=get_args(Kind).index, default="sum")
        kinds |= dict.fromkeys(results(step), worst)
    return mark_kinds | {"result_output": product("output.weight")}
