"""The decoder-only transformer; every family is a configuration of it.

    block:  x += post_norm(attention(attn_norm(x)));  x += post_norm(ffn(ffn_norm(x)))

``hidden_program.py`` writes that as a program; here it is bound to weights and run on batches. On
the native backend, results for a token are bit-identical whatever else is in the batch.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InferenceError, InvalidFormat, Unsupported, UsageError
from bitnet.base.machine import lock_pages
from bitnet.base.quantities import human_size
from bitnet.families.config_values import list_sizes
from bitnet.families.heads import HEAD_NORM
from bitnet.families.keys import COMPARE
from bitnet.families.tensor_names import usual_name
from bitnet.formats.mapped_file import expect_unchanged, files_behind
from bitnet.kernels.activations import ACTIVATIONS
from bitnet.kernels.program import Interpreter, Segment
from bitnet.models.exact_head.head import Head, HeadMode, read_by_row
from bitnet.models.hidden_program import hidden_program, layout
from bitnet.quants import registry, types

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.heads import Projection
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.kv_cache import KVCache
    from bitnet.kernels.kv_codes import Array
    from bitnet.kernels.program import Ops, Prepared, Program
    from bitnet.models.layout import Layout
    from bitnet.quants.weight import Weight

logger = logging.getLogger(__name__)

FACTORS = (".lora_a", ".lora_b")  # ends of the names of an adapter's tensors
# Tensors that only the configuration reads.
_READ_ELSEWHERE = frozenset(
    {
        *("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
        f"{HEAD_NORM}.weight",
    }
)


class Model:
    """A transformer bound to its weights and a backend."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        *,
        ops: Ops,
        exact_head: HeadMode = "off",
        base: Model | None = None,
    ) -> None:
        """Bind the weights of *checkpoint*.

        With *exact_head* ``on`` a copy of the head finds the logits; ``auto`` does so where it
        saves time. *base* is the same model with other adapters; its weights and head are
        shared.
        """
        self.config = config  # its configuration
        self.ops = ops  # the compute backend
        with expect_unchanged(
            view for weight in checkpoint.weights.values() for view in weight.views
        ):
            self._bind(checkpoint, exact_head, base)
        # by name, this model with a low-rank adapter; they share its weights and its head
        self.adapters: dict[str, Model] = {}
        program = hidden_program(config, self._weights)
        self._run = ops.compile(program, self._weights)
        self._interpreter = Interpreter(program, self._weights, ops)
        drafter = config.drafter
        drafts = hidden_program(drafter, self._weights) if drafter else None
        self._run_drafter = ops.compile(drafts, self._weights) if drafts else None

    def _bind(self, checkpoint: Checkpoint, exact_head: HeadMode, base: Model | None) -> None:
        config = self.config
        ops = self.ops
        by_row = read_by_row(checkpoint, config, ops, exact_head)
        bound = base._weights if base else None
        if base and "output.weight" in checkpoint.replaced:
            raise Unsupported(
                "an adapter that requests name changes the output head, which all answers share",
                hint="run every answer with it: --lora FILE, without a name",
            )
        self._weights: dict[str, Prepared] = bind(
            checkpoint, config, ops, by_row=by_row, bound=bound
        )
        # its output head, which gives the logits of ``hidden`` states
        self.head: Head = (
            base.head if base else Head(checkpoint, config, ops, self._weights, exact_head)
        )
        # Matrices of experts may stay in their files, where a pass reads only those that its tokens
        # are routed to. All other arrays are "hot": lock() keeps them in memory.
        read_always: list[Any] = []
        read_when_routed: list[Any] = []
        for weight in self._weights.values():
            if isinstance(weight, tuple):
                read_when_routed += [array for expert in weight for array in ops.reads(expert)]
            else:
                read_always += ops.reads(weight)
        self._files = files_behind([*read_always, *read_when_routed])
        unpacked = [array for array in read_when_routed if not files_behind([array])]
        self._hot = [*read_always, *unpacked]

    def lock(self) -> None:
        """Keep the weights in memory, but for experts that stay in their files."""
        size = lock_pages(self._hot)
        logger.info("%s of weights are locked in memory", human_size(size))

    def check_files(self) -> None:
        """Check that the mapped files are the ones that were loaded.

        Otherwise results that were computed since are invalid.
        """
        for file in self._files:
            file.check()

    def hidden(self, segments: Sequence[Segment], adapters: Sequence[str] = ()) -> list[Array]:
        """Hidden states that the head reads, of each segment's requested tokens, ``(n, dim)``.

        Afterwards the caches hold the segments' tokens. *adapters* are the names of the segments'
        adapters, empty for none; segments of one adapter run together.
        """
        if not any(adapters):
            return _parts(self._states(segments), segments)
        states: dict[int, Array] = {}
        for name in dict.fromkeys(adapters):
            places = [at for at, adapter in enumerate(adapters) if adapter == name]
            model = self.adapters[name] if name else self
            states |= zip(places, model.hidden([segments[at] for at in places]), strict=True)
        return [states[at] for at in range(len(segments))]

    def vector(self, pooled: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """The vector of a text, ``(vector_dim,)``, of its *pooled* hidden states, ``(dim,)``."""
        for layer in self.config.projections:
            pooled = self._project(layer, pooled)
        return pooled

    def scores(self, pooled: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Score of each label, ``(labels,)``, of *pooled* hidden states, ``(dim,)``."""
        assert self.config.classifier is not None, "a model that scores texts"
        for layer in self.config.classifier.layers:
            pooled = self._project(layer, pooled)
        return pooled

    def _project(self, layer: Projection, x: NDArray[np.floating[Any]]) -> Array:
        """The result of *layer* for one vector *x*."""
        weight = self._weights[f"{layer.name}.weight"]
        bias = self._weights.get(f"{layer.name}.bias")
        rows = self.ops.linear(x.astype(np.float32)[None], weight, bias)
        y = ACTIVATIONS[layer.activation](rows[0])
        if layer.norm is None:
            return y
        centered = y - y.mean()
        return centered / np.sqrt(np.mean(centered * centered) + layer.norm_eps) * layer.norm

    def foresee(self, segments: Sequence[Segment]) -> Array:
        """Predicted hidden states after the last token of each segment, ``(n, dim)``.

        The model's drafting block (``config.drafter``) reads the tokens and the hidden states
        before them; the segments' caches are those of ``config.drafter``.
        """
        assert self._run_drafter is not None, "the model has a block that drafts"
        rows = self._run_drafter(segments)
        self.check_files()
        return rows

    def run(self, segments: Sequence[Segment]) -> list[Array]:
        """Logits of the requested tokens of each segment, ``(n, vocab_size)``."""
        return _parts(self.head(self._states(segments)), segments)

    def forward(
        self, tokens: Sequence[int], cache: KVCache, *, all_positions: bool = False
    ) -> Array:
        """Logits after *tokens*, which continue the sequence in *cache* and are added to it.

        They are ``(T, vocab_size)`` for *all_positions*, else ``(1, vocab_size)``.
        """
        return self.run([Segment(tokens, cache, "all" if all_positions else "last")])[0]

    def weight(self, name: str) -> Prepared:
        """The tensor *name*, as its backend prepared it."""
        return self._weights[name]

    @property
    def weights(self) -> Mapping[str, Prepared]:
        """Its tensors, as its backend prepared them, by name."""
        return self._weights

    @property
    def program(self) -> Program:
        """The forward pass as a program, without the head."""
        return self._interpreter.program

    def trace(
        self, tokens: Sequence[int], cache: KVCache, *, head: bool = True
    ) -> Generator[tuple[str, Array], Array | None, None]:
        """Every named intermediate of a pass over *tokens*, in order, one row per token.

        A value that is sent to the generator replaces the intermediate in the pass.

        The names are llama.cpp's: ``embed``, per layer ``attn_norm-0 Qcur-0 Kcur-0 Vcur-0``
        (rotated) ``kqv_out-0 attn_out-0 ffn_norm-0 ffn_gate-0 ffn_up-0 ffn_act-0 ffn_out-0
        l_out-0``, then ``result_norm`` and, with *head*, ``result_output``. Queries and keys before
        their rotation or norm are ``Qcur_product-0`` and ``Kcur_product-0``, behind a norm and
        before a rotation ``Qcur_normed-0`` and ``Kcur_normed-0``.
        """
        segments = [Segment(tokens, cache, "all")]
        self._check(segments)
        result = yield from self._interpreter.trace(segments)
        self.check_files()
        if head:
            yield "result_output", self.head(result)

    def _states(self, segments: Sequence[Segment]) -> Array:
        self._check(segments)
        states = self._run(segments)
        self.check_files()
        return states

    def _check(self, segments: Sequence[Segment]) -> None:
        self.check_files()
        if not segments or not all(len(segment.tokens) for segment in segments):
            raise UsageError("there are no tokens to run the model on", hint="pass some text")
        if len({id(segment.cache) for segment in segments}) != len(segments):
            raise UsageError("two segments of a batch share a cache; each needs its own")
        size = self.config.vocab_size
        for segment in segments:
            if min(segment.tokens) < 0 or max(segment.tokens) >= size:
                outside = next(token for token in segment.tokens if not 0 <= token < size)
                raise UsageError(
                    f"token id {outside} is outside the model's vocabulary of {size:,}",
                    hint="use the model's own tokenizer, without its tokens that have no embedding",
                )
            # Only the prompt is read both ways; an answer continues it token by token.
            is_answer = self.config.prompt_both_ways and len(segment.tokens) == 1
            if segment.cache.length and not (self.config.looks_back or is_answer):
                raise InferenceError(
                    "attention in this model is bidirectional: a text cannot be run in parts",
                    hint="pass the whole text",
                )
            needed = segment.cache.length + len(segment.tokens)
            if self.config.positions and needed > self.config.context_length:
                raise InferenceError(
                    f"{needed:,} positions, the model has embeddings of "
                    f"{self.config.context_length:,}",
                    hint="shorten the text",
                )
            if needed > segment.cache.capacity:
                raise InferenceError(
                    f"{needed:,} positions, the context holds {segment.cache.capacity:,}",
                    hint="shorten the prompt or raise the context size",
                )


def _parts(rows: Array, segments: Sequence[Segment]) -> list[Array]:
    """*rows* of the whole batch, split by segment."""
    ends = list(accumulate(segment.rows for segment in segments))
    return [rows[end - segment.rows : end] for end, segment in zip(ends, segments, strict=True)]


def bind(
    checkpoint: Checkpoint,
    config: ModelConfig,
    ops: Ops,
    *,
    by_row: Collection[str] = (),
    bound: Mapping[str, Prepared] | None = None,
) -> dict[str, Prepared]:
    """Every tensor of *checkpoint*, prepared by *ops*, by GGUF name.

    The matrices named by *by_row* are prepared for reading single rows. *bound* has the prepared
    tensors of the same model with other adapters; those that no adapter changes are shared. An
    error lists all tensors that are missing, unexpected or of the wrong shape.
    """
    expected = layout(config)
    _check_fit(checkpoint, expected)
    if bound is None:
        ops.expect(checkpoint.weights.values())
    shared = {
        name: weight
        for name, weight in (bound or {}).items()
        if not name.endswith(FACTORS) and name not in checkpoint.replaced
    }
    if bound is not None and "output.weight" not in bound:
        # If an adapter changes a tied embedding, *checkpoint*, the adapted one, has the old one as
        # output.weight.
        shared["output.weight"] = bound["token_embd.weight"]
    prepared: dict[str, Prepared] = {}
    for name, weight in checkpoint.weights.items():
        if _is_read_elsewhere(name, expected):
            continue
        if name in shared:
            prepared[name] = shared[name]
            continue
        is_tied = "output.weight" not in checkpoint.weights
        is_embedding_alone = name == "token_embd.weight" and not is_tied
        looked_up = is_embedding_alone or name in by_row or name in expected.tables
        weight = _as_expected(weight, expected)
        is_of_experts = len(weight.shape) == 3
        matrices = [
            ops.prepare(matrix, looked_up=looked_up, expert=is_of_experts)
            for matrix in _with_scales(checkpoint, weight, expected)
        ]
        prepared[name] = tuple(matrices) if is_of_experts else matrices[0]
    return prepared


def _is_read_elsewhere(name: str, expected: Layout) -> bool:
    """True if the tensor *name* is read with another one, by the configuration, or not at all."""
    is_scale = name.endswith(".scale") and name not in expected.required
    is_left_out = name.startswith(expected.decoder.left_out)
    return is_scale or is_left_out or name in _READ_ELSEWHERE


def _as_expected(weight: Weight, expected: Layout) -> Weight:
    """*weight* as the program reads it: scaled, a matrix of one row or a vector."""
    name = weight.name
    if name in expected.scales:
        weight = replace(weight, scale=weight.scale * expected.scales[name])
    if expected.required.get(name) == (1, *weight.shape):
        weight = replace(weight, shape=(1, *weight.shape))
    if name in expected.vectors:
        values = registry.dequantize(weight).reshape(-1)
        weight = registry.quantize(name, values, types.by_id(0))  # F32
    return weight


def _with_scales(checkpoint: Checkpoint, weight: Weight, expected: Layout) -> list[Weight]:
    """The matrices of *weight*, each times its factor in a tensor of scales, if there is one."""
    matrices = weight.matrices()
    scale = f"{weight.name.removesuffix('weight')}scale"
    if not weight.name.endswith(".weight") or scale in expected.required:
        return list(matrices)
    factors = checkpoint.numbers(scale, (len(matrices),))
    if factors is None:
        return list(matrices)
    return [
        replace(matrix, scale=matrix.scale * factor)
        for matrix, factor in zip(matrices, factors.tolist(), strict=True)
    ]


def _check_fit(checkpoint: Checkpoint, expected: Layout) -> None:
    if mismatches := list(differences(checkpoint, expected)):
        lines = "\n  ".join(mismatches)
        if checkpoint.config is not None:
            sizes = list_sizes(checkpoint.config)
            raise InvalidFormat(
                f"{checkpoint.path.name}: {len(mismatches)} tensors do not have the sizes that "
                f"follow from config.json:\n  {lines}\n{sizes}",
                hint=COMPARE,
            )
        raise InvalidFormat(
            f"{checkpoint.path.name}: {len(mismatches)} tensors do not fit a model of architecture "
            f"{expected.decoder.architecture}:\n  {lines}",
            hint="the file is incomplete or was converted for another architecture",
        )


def differences(checkpoint: Checkpoint, expected: Layout) -> Iterator[str]:
    """Missing, unexpected and misshapen tensors, one line for each."""
    for name, shape in expected.required.items():
        if name not in checkpoint.weights:
            yield f"{checkpoint.tensor_name(name, usual_name)} {shape} is missing"
    for name, weight in checkpoint.weights.items():
        right_shape = expected.required.get(name) or expected.optional.get(name)
        if right_shape is None:
            if name not in _READ_ELSEWHERE and not name.startswith(expected.decoder.left_out):
                yield f"{checkpoint.tensor_name(name, usual_name)} {weight.shape} is unexpected"
        elif not _fits(weight.shape, right_shape, is_vector=name in expected.vectors):
            own = checkpoint.tensor_name(name, usual_name)
            yield f"{own} has shape {weight.shape}, expected {right_shape}"


def _fits(shape: tuple[int, ...], expected: tuple[int, ...], *, is_vector: bool) -> bool:
    """True if a tensor of *shape* can be read as the *expected* one.

    In a tensor that is applied element by element (*is_vector*), axes of length 1 do not matter.
    """
    if is_vector:
        return [n for n in shape if n != 1] == [n for n in expected if n != 1]
    return expected in (shape, (1, *shape))
