"""Differences between engines: those that compute a converted file unlike its source.

The behaviour of llama.cpp was determined from its results on random models,
``tests/convert/test_engines.py`` (b11549); programs derived from it do the same.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bitnet.base.findings import Finding
from bitnet.families.blocks import (
    DeltaNet,
    Experts,
    FeedForward,
    KimiDelta,
    LatentAttention,
    LayerInput,
    LowRank,
    Mamba1,
    Mamba2,
    State,
)
from bitnet.families.family import WINDOWS, of_gguf
from bitnet.families.heads import INNER
from bitnet.quants.ternary import SHORTEST_ROW

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bitnet.convert.tensors import Job
    from bitnet.families.blocks import CacheKind, ModelConfig
    from bitnet.families.family import LlamaCppSupport
    from bitnet.families.heads import Classifier
    from bitnet.families.streams import Streams
    from bitnet.formats.checkpoint import Checkpoint

    _Texts = Iterator[tuple[str, str]]  # names of engines, each with how it differs

# Constants of models of several streams (Gemma 3n) in llama.cpp.
_INPUT_WIDTH = 256  # numbers that each token has for each layer
_RANK = 64  # of the low-rank residuals
_OWN_CACHES = 20  # layers with keys and values of their own, from the first on
# Layers, from the first on, that compute ``gate = max(gate - mean - d * deviation, 0)``; and d: 5 %
# of a normal distribution are above it.
_SPARSE_LAYERS = 10
_DEVIATIONS = 1.64485
_SOFTCAP = 30.0  # bound of their logits
_CLASSIFIERS = ("bert", "modern-bert", "neo-bert")  # encoders whose classifiers llama.cpp loads
# bitnet, too: what llama.cpp ignores in a GGUF file has no effect here either.
_EVERY = "every engine"
_LLAMA_CPP = "llama.cpp"


def differences(
    checkpoint: Checkpoint, config: ModelConfig, jobs: Sequence[Job]
) -> Iterator[Finding]:
    """Every engine that computes the file made of *jobs* differently from *checkpoint*.

    Settings of texts that a GGUF file cannot hold have their own names in place of an engine's.
    """
    texts = (*_of_file(jobs), *_of_settings(checkpoint), *_of_model(checkpoint, config))
    for subject, text in texts:
        yield Finding("warning", subject, text)


def _of_settings(checkpoint: Checkpoint) -> _Texts:
    """Settings of texts that the file loses, by names of their own."""
    prompts = checkpoint.prompts
    if names := [repr(name) for name, text in prompts.texts.items() if text]:
        lost = f"the file has none, the folder has {', '.join(names)}"
        if prompts.texts.get(prompts.default):
            lost += f", and {prompts.default!r} without asking"
        yield "prompts", lost
    limit = checkpoint.text_limit
    context = checkpoint.value("context_length")
    if limit is not None and isinstance(context, int) and limit < context:
        lost = f"the file has none, the folder cuts a text to {limit:,} tokens"
        yield "max_seq_length", f"{lost}; {context:,} are read, and longer texts refused"


def _of_file(jobs: Sequence[Job]) -> _Texts:
    if changed := [job for job in jobs if not job.keeps_rounding]:
        before = changed[0].weight.quant.name
        after = changed[0].target.name
        rounds = "rounds" if changed[0].target.is_ternary else "no longer rounds"
        matrices = "1 matrix" if len(changed) == 1 else f"{len(changed)} matrices"
        deviation = f"{rounds} the inputs of {matrices} to int8 per token: "
        yield _EVERY, f"{deviation}{before} -> {after} keeps the weights, and not the results"
    widths = [job.weight.shape[-1] for job in jobs if job.target.name == "IQ2_BN"]
    if min(widths, default=SHORTEST_ROW) < SHORTEST_ROW:
        deviation = (
            f"aborts at products of IQ2_BN with rows of fewer than {SHORTEST_ROW} weights; here "
        )
        yield "ik_llama.cpp", f"{deviation}{min(widths)}"
    for name in sorted({job.target.name for job in jobs} & {"I2_S", "IQ2_BN"}):
        yield _LLAMA_CPP, f"does not load {name}"


def _of_model(checkpoint: Checkpoint, config: ModelConfig) -> _Texts:
    family = of_gguf(checkpoint.architecture)
    if family is None or family.llama_cpp is None:
        yield _LLAMA_CPP, f"does not load the architecture {checkpoint.architecture}"
        return
    if family.llama_cpp.always:
        yield _LLAMA_CPP, f"{family.llama_cpp.always} {checkpoint.architecture} models"
    if not (config.looks_back or family.encodes or family.llama_cpp.both_ways):
        yield _LLAMA_CPP, "lets no position see later ones, unless it is told to"
    has_exact_gelu = any(getattr(mixer, "activation", "") == "gelu" for mixer in config.mixers())
    if family.llama_cpp.gelu_tanh and has_exact_gelu:
        deviation = f"computes GELU of {checkpoint.architecture} models by the hyperbolic tangent"
        yield _LLAMA_CPP, f"{deviation}, up to 5e-4 from what it is"
    if config.projections and not family.llama_cpp.projections:
        yield _LLAMA_CPP, "leaves out the projections behind the pooling of its vectors"
    if config.classifier is not None:
        yield from _classifier(config, config.classifier, encodes=family.encodes)
    groups = checkpoint.value("expert_group_count", 0)
    if groups and groups >= checkpoint.value("expert_count", 0):
        deviation = f"crashes at {config.architecture} models with as many groups as experts"
        yield _LLAMA_CPP, f"{deviation}, here {groups}"
    yield from _attentions(config, family.llama_cpp)
    for mixer in {type(mixer): mixer for mixer in config.mixers()}.values():
        yield from _mixer(mixer, config, family.llama_cpp)
    if config.streams is not None:
        yield from _streams(checkpoint, config, config.streams)
    yield from _tensors(checkpoint, config, family.llama_cpp)


def _streams(checkpoint: Checkpoint, config: ModelConfig, streams: Streams) -> _Texts:
    """Constants of llama.cpp for models of several streams, where the model has other values."""
    kind = config.architecture
    mixers = tuple(config.mixers())
    sizes = {
        (mixer.width, mixer.rows) if isinstance(mixer, LayerInput) else (mixer.rank, 0)
        for mixer in mixers
        if isinstance(mixer, LayerInput | LowRank)
    }
    is_usual = (streams.count, streams.active) == (4, 0)
    if not is_usual or sizes != {(_INPUT_WIDTH, config.vocab_size), (_RANK, 0)}:
        deviation = f"knows {kind} models of 4 streams, whose tokens all have {_INPUT_WIDTH} "
        yield _LLAMA_CPP, f"{deviation}numbers for each layer, with residuals of rank {_RANK} only"
    layers = range(config.n_layers)
    if any(f"blk.{layer}.attn_k.weight" not in checkpoint.weights for layer in layers):
        deviation = f"does not load {kind} models without keys in every layer, also in those that "
        yield _LLAMA_CPP, f"{deviation}read the keys of others"
    shared = sum(attention.shared_cache is not None for attention in config.attentions)
    if shared != max(config.n_layers - _OWN_CACHES, 0):
        deviation = f"has keys of their own for the first {_OWN_CACHES} layers of {kind} models, "
        yield _LLAMA_CPP, f"{deviation}whatever the file says; here for {len(config.caches)}"
    if config.final_softcap != _SOFTCAP:
        deviation = f"caps logits of {kind} models at {_SOFTCAP:g} whatever the file says"
        yield _LLAMA_CPP, f"{deviation}, here {config.final_softcap:g}"
    networks = [mixer for mixer in mixers if isinstance(mixer, FeedForward)]
    for layer, network in enumerate(networks):
        if not _lowers_gates_as_llama_cpp(layer, network):
            deviation = f"lowers gates in the first {_SPARSE_LAYERS} layers of {kind} models by "
            deviation += f"{_DEVIATIONS} standard deviations, with a divisor of n - 1 and whatever "
            yield _LLAMA_CPP, f"{deviation}the file says"
            break


def _lowers_gates_as_llama_cpp(layer: int, network: FeedForward) -> bool:
    """True if llama.cpp lowers the gates of *network* as the model does, to about four digits."""
    if layer >= _SPARSE_LAYERS or network.cutoff is None:
        return layer >= _SPARSE_LAYERS and network.cutoff is None
    # llama.cpp divides the sum of squares by the width less 1, not by the width.
    cutoff = _DEVIATIONS * math.sqrt(network.width / max(network.width - 1, 1))
    return math.isclose(network.cutoff, cutoff, rel_tol=1e-4)


def _classifier(config: ModelConfig, classifier: Classifier, *, encodes: bool) -> _Texts:
    kind = config.architecture
    if encodes and kind not in _CLASSIFIERS:
        yield _LLAMA_CPP, f"does not load classifiers of {kind} models"
        return
    inner = [layer for layer in classifier.layers if layer.name == INNER]
    applied = "gelu" if kind == "modern-bert" else "tanh"
    for layer in inner:
        if layer.activation != applied:
            what = f"applies {applied} behind the inner layer of the classifier of {kind} models"
            yield _LLAMA_CPP, f"{what}, instead of {layer.activation}"
    if config.text_rows > 1 and classifier.ranks:
        yield _LLAMA_CPP, "gives the second text of a pair the type of the first"


def _attentions(config: ModelConfig, engine: LlamaCppSupport) -> _Texts:
    kind = config.architecture
    layers = config.n_layers
    attentions = config.attentions
    if engine.only_layers and layers not in engine.only_layers:
        counts = " or ".join(map(str, engine.only_layers))
        yield (
            _LLAMA_CPP,
            f"knows positions of {kind} models with {counts} layers only; here {layers}",
        )
    windows = {
        attention.window for attention in attentions if 0 < attention.window < config.context_length
    }
    if engine.window_layers:
        windowed = any(attention.window or attention.rope is None for attention in attentions)
        if windowed != (layers == engine.window_layers):
            deviation = (
                f"gives {kind} models windows, and layers that do not rotate, where they have "
            )
            deviation += f"{engine.window_layers} layers, whatever their keys say; here {layers}"
            yield _EVERY, deviation
    elif windows and WINDOWS[0] in engine.ignores:
        deviation = f"ignores the sliding window of {kind} models: beyond "
        yield _EVERY, f"{deviation}{min(windows):,} positions it attends to too many keys"
    if engine.rotates_as_first and attentions[0].rope is not None:
        turned = {each.rope.dims for each in attentions if not each.window and each.rope}
        if not turned <= {attentions[0].rope.dims}:
            deviation = f"rotates as many numbers of every head of {kind} models as their first "
            yield _LLAMA_CPP, f"{deviation}layer, {attentions[0].rope.dims}, but for windows"
    for rope in config.ropes:
        original = rope.original_context
        if rope.long_freq_factors is not None and original < config.context_length:
            deviation = f"takes the long rope factors wherever its context is above {original:,} "
            yield _LLAMA_CPP, f"{deviation}positions, however few the text has"
    # Layers with a window read the last cache but one, the others the last one.
    last = len(config.caches) - 1
    shared = [attention for attention in attentions if attention.shared_cache is not None]
    if any(attention.shared_cache != last - bool(attention.window) for attention in shared):
        deviation = (
            f"lets layers without keys of {kind} models read those of the last two that have "
        )
        yield _LLAMA_CPP, f"{deviation}keys, first one with a window, then one without"
    for attention in attentions[:1]:  # it stands for those of all layers
        if attention.alibi and not engine.alibi:
            deviation = (
                f"rotates queries and keys of {kind} models, whose scores should fall with the "
            )
            yield _LLAMA_CPP, f"{deviation}distance"
        if attention.qk_norm and layers < engine.head_norm_layers:
            deviation = f"has norms of queries and keys of {kind} models with at least "
            yield _LLAMA_CPP, f"{deviation}{engine.head_norm_layers} layers only; here {layers}"
        usual = attention.head_dim**-0.5
        if layers == engine.wide_scale_layers:
            usual = (config.dim / attention.heads) ** -0.5
        if engine.wide_scale_layers and not math.isclose(attention.scale, usual, rel_tol=1e-6):
            deviation = f"scales the scores of {kind} models by {usual:.6g} whatever "
            yield _EVERY, f"{deviation}query_pre_attn_scalar says, here {attention.scale:.6g}"
        if engine.only_whole_width and attention.heads * attention.head_dim != config.dim:
            heads = f"{attention.heads} of {attention.head_dim}"
            deviation = f"does not load {kind} models whose heads, {heads}, are not "
            yield _LLAMA_CPP, f"{deviation}{config.dim} wide together"
        if engine.only_whole_keys and attention.heads != attention.kv_heads:
            deviation = f"does not load {kind} models with {attention.heads} heads and "
            yield _LLAMA_CPP, f"{deviation}{attention.kv_heads} key heads"


def _mixer(mixer: object, config: ModelConfig, engine: LlamaCppSupport) -> _Texts:
    kind = config.architecture
    eps = config.norm_eps
    if isinstance(mixer, DeltaNet) and mixer.key_dim != mixer.value_dim:
        deviation = f"does not load {kind} models with keys of {mixer.key_dim} and values of "
        yield _LLAMA_CPP, f"{deviation}{mixer.value_dim}"
    if isinstance(mixer, DeltaNet | KimiDelta):
        if not math.isclose(eps, 1e-6, rel_tol=1e-3):
            deviation = f"normalizes keys of {kind} models with the epsilon of norms, {eps:g}"
            yield _LLAMA_CPP, f"{deviation}, instead of 1e-06"
    elif isinstance(mixer, Experts):
        if "expert_weights_norm" in engine.ignores and not mixer.routing.renormalised:
            deviation = f"divides the weights of the experts of {kind} models by their sum, "
            yield _EVERY, f"{deviation}which the model does not"
    elif isinstance(mixer, LatentAttention) and mixer.eps != eps:
        deviation = f"normalizes latents of {kind} models with the epsilon of other norms, "
        yield _EVERY, f"{deviation}{eps:g}, instead of {mixer.eps:g}"
    elif isinstance(mixer, Mamba1 | Mamba2):
        if isinstance(mixer, Mamba2) and mixer.norm_groups and mixer.norm_first:
            yield _EVERY, f"gates the states of {kind} models before their norm"
        if isinstance(mixer, Mamba1) and mixer.norms and mixer.eps != eps:
            deviation = f"normalizes steps of {kind} models with the epsilon of other norms, "
            yield _LLAMA_CPP, f"{deviation}{eps:g}, instead of {mixer.eps:g}"
        if engine.wide_states and mixer.width != 2 * config.dim:
            deviation = (
                f"does not load {kind} models whose states are not twice as wide as the model: "
            )
            yield _LLAMA_CPP, f"{deviation}{mixer.width}, expected {2 * config.dim}"


def _kind(cache: CacheKind) -> str:
    """The kind of a layer, by what it keeps between tokens."""
    if isinstance(cache, State):
        return "state"
    return "window" if cache.window else "attention"


def _tensors(checkpoint: Checkpoint, config: ModelConfig, engine: LlamaCppSupport) -> _Texts:
    kind = checkpoint.architecture
    names = checkpoint.weights
    for name in names:
        # Only some models of a family have these tensors.
        is_optional = name == "output.weight" or name.startswith("rope_f") or name.endswith(".bias")
        if is_optional and not name.endswith(engine.tensors):
            deviation = (
                f"has no {name} in {kind} models: it refuses the file or computes without it"
            )
            yield _LLAMA_CPP, deviation
            break
    for end in engine.lacks:
        if any(name.endswith(end) for name in names):
            yield _LLAMA_CPP, f"does not load {kind} models with {end}"
    for end in engine.required:
        if not any(name.endswith(end) for name in names):
            yield _LLAMA_CPP, f"does not load {kind} models without {end}"
    kinds = {_kind(cache) for cache in config.caches}
    states_window = bool(checkpoint.value("attention.sliding_window", 0))
    if states_window and not engine.window_layers and WINDOWS[0] not in engine.ignores:
        needed = engine.needs | {"window"}
    else:
        needed = engine.needs
    for missing in sorted(needed - kinds):
        yield _LLAMA_CPP, f"crashes at {kind} models without layers of the kind {missing}"
    if not engine.tied and "output.weight" not in names:
        yield _LLAMA_CPP, f"does not load {kind} models whose head is the embedding"
