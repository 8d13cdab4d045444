"""Differences between engines: those that compute a converted file unlike its source.

The behaviour of llama.cpp was determined from its results on random models,
``tests/convert/test_engines.py`` (b11549); programs derived from it do the same.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bitnet.base.findings import Finding
from bitnet.families.blocks import LatentAttention
from bitnet.families.family import WINDOWS, of_gguf
from bitnet.families.mixers import DeltaNet, Mamba2, State
from bitnet.quants.ternary import SHORTEST_ROW

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bitnet.convert.tensors import Job
    from bitnet.families.blocks import ModelConfig
    from bitnet.families.family import LlamaCppSupport
    from bitnet.formats.checkpoint import Checkpoint


def differences(
    checkpoint: Checkpoint, config: ModelConfig, jobs: Sequence[Job]
) -> Iterator[Finding]:
    """Every engine that computes the file made of *jobs* differently from *checkpoint*."""
    yield from _products(jobs)
    if is_dynamic(checkpoint):
        yield _by(
            "every engine",
            f"positions beyond {config.context_length:,} are not stretched: GGUF cannot say "
            "dynamic rope scaling",
        )
    targets = {job.target.name for job in jobs}
    family = of_gguf(checkpoint.architecture)
    if family is None or family.llama_cpp is None:
        yield _by("llama.cpp", f"does not load the architecture {checkpoint.architecture}")
        return
    for name in sorted(targets & {"I2_S", "IQ2_BN"}):
        yield _by("llama.cpp", f"does not load {name}")
    if not config.causal:
        yield _by("llama.cpp", "lets no position see those behind it, unless it is told to")
    yield from _windows(config, family.llama_cpp)
    yield from _scale(config, family.llama_cpp)
    yield from _rope(config)
    yield from _caches(config)
    yield from _tensors(checkpoint, config, family.llama_cpp)


def is_dynamic(checkpoint: Checkpoint) -> bool:
    """True if the position embedding of *checkpoint* depends on the length of the sequence."""
    return bool(checkpoint.value("rope.scaling.type", "none") == "dynamic")


def _by(engine: str, text: str) -> Finding:
    return Finding("warning", engine, text)


def _products(jobs: Sequence[Job]) -> Iterator[Finding]:
    if changed := [job for job in jobs if not job.keeps_rounding]:
        before, after = changed[0].weight.quant.name, changed[0].target.name
        what = "no longer rounds" if not changed[0].target.is_ternary else "rounds"
        yield _by(
            "every engine",
            f"{what} what {len(changed)} matrices multiply to int8 per token: {before} -> {after} "
            "keeps the weights, and not the results",
        )
    widths = [job.weight.shape[-1] for job in jobs if job.target.name == "IQ2_BN"]
    if min(widths, default=SHORTEST_ROW) < SHORTEST_ROW:
        yield _by(
            "ik_llama.cpp",
            f"aborts at products of IQ2_BN with rows of fewer than {SHORTEST_ROW} weights; here "
            f"{min(widths)}",
        )


def _windows(config: ModelConfig, engine: LlamaCppSupport) -> Iterator[Finding]:
    if engine.window_layers:
        windowed = any(its.window or its.rope is None for its in config.attentions)
        if windowed != (config.n_layers == engine.window_layers):
            yield _by(
                "every engine",
                f"gives {config.architecture} models windows, and layers that do not rotate, where "
                f"they have {engine.window_layers} layers, whatever their keys say; here "
                f"{config.n_layers}",
            )
        return
    windows = {its.window for its in config.attentions if 0 < its.window < config.context_length}
    if windows and WINDOWS[0] in engine.ignores:
        yield _by(
            "every engine",
            f"ignores the sliding window of {config.architecture} models: beyond "
            f"{min(windows):,} positions it sees too much",
        )


def _scale(config: ModelConfig, engine: LlamaCppSupport) -> Iterator[Finding]:
    for its in config.attentions[:1] if engine.wide_scale_layers else ():
        usual = its.head_dim**-0.5
        if config.n_layers == engine.wide_scale_layers:
            usual = (config.dim / its.heads) ** -0.5
        if not math.isclose(its.scale, usual, rel_tol=1e-6):
            yield _by(
                "every engine",
                f"scales the scores of {config.architecture} models by {usual:.6g} whatever "
                f"query_pre_attn_scalar says, here {its.scale:.6g}",
            )


def _rope(config: ModelConfig) -> Iterator[Finding]:
    for rope in config.ropes:
        original = rope.original_context
        if rope.long_freq_factors is not None and original < config.context_length:
            yield _by(
                "llama.cpp",
                f"takes the long rope factors wherever its context is above {original:,} "
                "positions, however few the text has",
            )


def _caches(config: ModelConfig) -> Iterator[Finding]:
    """By llama.cpp, layers with a window read the last cache but one, the others the last one."""
    last = len(config.caches) - 1
    for its in config.attentions:
        if its.shared_cache is not None and its.shared_cache != last - bool(its.window):
            yield _by(
                "llama.cpp",
                f"lets layers without keys of {config.architecture} models read those of the last "
                "two that have keys, first one with a window, then one without",
            )
            return


def _tensors(
    checkpoint: Checkpoint, config: ModelConfig, engine: LlamaCppSupport
) -> Iterator[Finding]:
    kind = checkpoint.architecture
    optional = (  # tensors that only some models of a family have
        name
        for name in checkpoint.weights
        if name == "output.weight" or name.startswith("rope_f") or name.endswith(".bias")
    )
    strange = next((name for name in optional if not name.endswith(engine.tensors)), None)
    if strange:
        yield _by(
            "llama.cpp",
            f"has no {strange} in {kind} models: it refuses the file or computes without it",
        )
    for end in engine.required:
        if not any(name.endswith(end) for name in checkpoint.weights):
            yield _by("llama.cpp", f"does not load {kind} models without {end}")
    for mixer in {type(mixer): mixer for mixer in config.mixers()}.values():
        if isinstance(mixer, DeltaNet):
            yield from _delta_net(mixer, config)
        elif isinstance(mixer, LatentAttention) and mixer.eps != config.norm_eps:
            yield _by(
                "every engine",
                f"normalizes latents of {kind} models with the epsilon of other norms, "
                f"{config.norm_eps:g}, instead of {mixer.eps:g}",
            )
        elif isinstance(mixer, Mamba2):
            yield from _mamba2(mixer, config, engine)
    kinds = {
        "state" if isinstance(its, State) else "window" if its.window else "attention"
        for its in config.caches
    }
    for missing in sorted(engine.needs - kinds):
        yield _by("llama.cpp", f"crashes at {kind} models without layers of the kind {missing}")
    if not engine.tied and "output.weight" not in checkpoint.weights:
        yield _by("llama.cpp", f"does not load {kind} models whose head is the embedding")
    for its in config.attentions[:1]:
        if engine.whole_width and its.heads * its.head_dim != config.dim:
            yield _by(
                "llama.cpp",
                f"does not load {kind} models whose heads, {its.heads} of {its.head_dim}, are "
                f"not {config.dim} wide together",
            )
        if engine.whole_keys and its.heads != its.kv_heads:
            yield _by(
                "llama.cpp",
                f"does not load {kind} models with {its.heads} heads and {its.kv_heads} key heads",
            )


def _delta_net(mixer: DeltaNet, config: ModelConfig) -> Iterator[Finding]:
    kind = config.architecture
    if mixer.key_dim != mixer.value_dim:
        yield _by(
            "llama.cpp",
            f"does not load {kind} models with keys of {mixer.key_dim} and values of "
            f"{mixer.value_dim}",
        )
    if not math.isclose(config.norm_eps, 1e-6, rel_tol=1e-3):
        yield _by(
            "llama.cpp",
            f"normalizes keys of {kind} models with the epsilon of norms, {config.norm_eps:g}, "
            "instead of 1e-06",
        )


def _mamba2(mixer: Mamba2, config: ModelConfig, engine: LlamaCppSupport) -> Iterator[Finding]:
    kind = config.architecture
    if mixer.norm_groups and mixer.norm_first:
        yield _by("every engine", f"gates the states of {kind} models before their norm")
    if engine.wide_states and mixer.width != 2 * config.dim:
        yield _by(
            "llama.cpp",
            f"does not load {kind} models whose states are not twice as wide as the model: "
            f"{mixer.width}, expected {2 * config.dim}",
        )
