"""Rotary position embedding (RoPE): frequencies, scaling to longer contexts, and their keys.

``rope_parameters`` of a ``config.json`` become GGUF's keys and tensors by the formulas of
transformers. The kinds of scaling, their parameters and their meaning:
https://github.com/huggingface/transformers/blob/v5.0.0/src/transformers/modeling_rope_utils.py
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.families.keys import Config, Keys, RopeStyle, contradiction, refusal, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

SCALINGS = ("none", "linear", "dynamic", "yarn", "longrope")

# YaRN (arXiv:2309.00071): frequencies of pairs with more than _YARN_FAST rotations over the
# original context are kept, those of pairs with less than _YARN_SLOW are divided by the factor.
_YARN_FAST = 32
_YARN_SLOW = 1
# Least and largest factor of an extension: beyond them frequencies become 0 or infinite.
_FACTOR_RANGE = 1e-6, 1e6


@dataclass(frozen=True, eq=False)
class Rope:
    """Rotary position embedding."""

    dims: int  # rotary dimensions of a head, twice the number of pairs
    theta: float  # base of the frequencies, ``rope_theta``
    style: RopeStyle  # which elements form a pair
    scaling: str = "none"  # method of context extension, one of ``SCALINGS``
    factor: float = 1.0  # factor of the extension
    # positions that the model was trained for before the extension; the default is the least that
    # :func:`rope_faults` accepts, and only kinds of scaling that set the field read it
    original_context: int = 2
    attention_factor: float = 1.0  # factor on rotated queries and keys
    # frequencies are divided by these, ``(dims / 2,)`` (``rope_freqs.weight``)
    freq_factors: NDArray[np.float32] | None = None
    # *freq_factors* for contexts beyond the original one (Phi-3)
    long_freq_factors: NDArray[np.float32] | None = None

    def regime(self, context: int) -> int:
        """Key of the frequencies: contexts with equal keys have equal frequencies."""
        if self.scaling == "dynamic":
            return max(context, self.original_context)
        return int(self.long_freq_factors is not None and context > self.original_context)

    def frequencies(self, context: int) -> tuple[NDArray[np.float64], float]:
        """Frequencies in radians per position, ``(dims / 2,)``, and the attention factor.

        *context* is the number of positions that the sequence may reach.
        """
        beyond = context > self.original_context
        theta = self.theta
        if self.scaling == "dynamic" and beyond:
            stretch = self.factor * context / self.original_context - (self.factor - 1)
            theta *= stretch ** (self.dims / (self.dims - 2))
        frequencies = theta ** (-np.arange(0, self.dims, 2, dtype=np.float64) / self.dims)
        long = beyond and self.long_freq_factors is not None
        freq_factors = self.long_freq_factors if long else self.freq_factors
        if freq_factors is not None:
            frequencies = frequencies / freq_factors
        if self.scaling == "linear":
            frequencies = frequencies / self.factor
        elif self.scaling == "yarn":
            frequencies = self._yarn(frequencies)
        return frequencies, self.attention_factor

    def _yarn(self, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        """*frequencies*: slow ones divided by the factor, fast ones kept, others interpolated."""
        context = self.original_context
        fast = _pair_with(_YARN_FAST, context, theta=self.theta, dims=self.dims)
        slow = _pair_with(_YARN_SLOW, context, theta=self.theta, dims=self.dims)
        low = max(math.floor(fast), 0)
        high = min(math.ceil(slow), self.dims - 1)
        ramp = (np.arange(self.dims // 2) - low) / max(high - low, 0.001)  # as in ggml
        interpolated = np.clip(ramp, 0, 1)
        return frequencies * (1 - interpolated) + frequencies / self.factor * interpolated


def _pair_with(rotations: float, context: int, *, theta: float, dims: int) -> float:
    """Number, not rounded, of the pair that makes so many *rotations* in *context* positions."""
    inverse_frequency = context / (rotations * 2 * math.pi)
    return dims * math.log(inverse_frequency) / (2 * math.log(theta))


def magnitude(factor: float, scale: float = 1.0) -> float:
    """YaRN's factor on rotated queries and keys for an extension by *factor*; *scale* is mscale."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def without_scaling(rope: Rope, **changes: Any) -> Rope:
    """*rope* without scaling and frequency factors, and with the *changes* of other fields."""
    return replace(
        rope,
        scaling="none",
        attention_factor=1.0,
        freq_factors=None,
        long_freq_factors=None,
        **changes,
    )


def rope_from(checkpoint: Keys, head_dim: int) -> Rope:
    """Position embedding from the keys and tensors of *checkpoint*, read as by llama.cpp."""
    dims = checkpoint.integer("rope.dimension_count", head_dim)
    pairs = (dims // 2,)
    context = checkpoint.integer("context_length")
    former_factor = checkpoint.number("rope.scale_linear", 0.0)  # the key of older files
    factor = checkpoint.number("rope.scaling.factor", former_factor) or 1.0
    scaling = checkpoint.value("rope.scaling.type", "linear" if factor != 1 else "none")
    short = checkpoint.numbers("rope_factors_short.weight", pairs)
    long = checkpoint.numbers("rope_factors_long.weight", pairs)
    if (short is None) != (long is None):
        raise InvalidFormat(
            f"{checkpoint.path.name}: one of rope_factors_short and rope_factors_long is missing",
            hint="the file was converted incompletely; choose another conversion",
        )
    if long is not None and (factor != 1 or scaling not in ("none", "longrope")):
        raise Unsupported(
            f"{checkpoint.path.name}: rope scaling {show(scaling)} by {factor:g} beside rope "
            "factors",
            hint="choose another conversion",
        )
    if scaling not in SCALINGS or (scaling == "longrope" and long is None):
        raise Unsupported(
            f"{checkpoint.path.name}: rope scaling {show(scaling)}; known: {', '.join(SCALINGS)}"
        )
    original = checkpoint.integer("rope.scaling.original_context_length", context)
    rope = Rope(
        dims=dims,
        theta=checkpoint.number("rope.freq_base", 10000.0),
        style=checkpoint.rope_style,
        scaling="longrope" if long is not None else scaling,
        factor=factor if scaling != "none" else 1.0,
        original_context=original,
        freq_factors=checkpoint.numbers("rope_freqs.weight", pairs) if short is None else short,
        long_freq_factors=long,
    )
    if not _FACTOR_RANGE[0] <= factor <= _FACTOR_RANGE[1]:
        is_former = checkpoint.value("rope.scaling.factor", None) is None
        key = "rope.scale_linear" if is_former else "rope.scaling.factor"
        raise contradiction(checkpoint, f"{checkpoint.own_name(key)} is {factor:g}")
    attention_factor = checkpoint.number("rope.scaling.attn_factor", 1.0)
    for key, number in (
        ("rope.freq_base", rope.theta),
        ("rope.scaling.attn_factor", attention_factor),
    ):
        if number <= 0:
            name = checkpoint.own_name(key)
            raise contradiction(checkpoint, f"{name} is {number:g}, expected a number above 0")
    implied = 1.0  # factor that follows from the scaling itself
    if scaling == "yarn":
        for key, is_usable in (
            ("rope.dimension_count", dims > 0 and dims % 2 == 0),
            ("rope.freq_base", rope.theta > 1),
            ("rope.scaling.original_context_length", original > 1),
        ):
            if not is_usable:
                name = checkpoint.own_name(key)
                raise contradiction(checkpoint, f"no frequencies of yarn follow from {name}")
        # As in llama.cpp, which takes 1 for `mscale`; the key is `mscale_all_dim`, 0 if missing.
        # (DeepSeek's files have 0.1 times it, and do not use this factor.)
        log_multiplier = checkpoint.number("rope.scaling.yarn_log_multiplier", 0.0)
        implied = magnitude(factor) / magnitude(factor, log_multiplier)
    return replace(rope, attention_factor=attention_factor * implied)


# GGUF's keys, and its tensors by name.
Tables: TypeAlias = "tuple[dict[str, Any], dict[str, NDArray[np.float32]]]"

_CONTEXT = "original_max_position_embeddings"
#: Kinds of scaling that transformers refuses; families with them list them in ``rope_scalings``.
OF_FAMILIES = ("mrope", "ntk")
# Parameters of each kind of scaling, besides rope_theta, the kind itself, partial_rotary_factor and
# those of `Family.rope_parameters`. With ``dynamic`` the original context is ignored:
# ``max_position_embeddings`` counts.
PARAMETERS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", _CONTEXT),
    "yarn": (
        *("factor", _CONTEXT, "attention_factor", "beta_fast", "beta_slow"),
        *("mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": ("short_factor", "long_factor", _CONTEXT, "factor", "attention_factor"),
    "proportional": ("factor",),
    "mrope": (),
    "ntk": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _CONTEXT),
}
# Frequency factor of a pair that does not rotate, as llama.cpp's converter writes it.
_NO_ROTATION = 1e30


def rope_table(config: Config) -> str:
    """Name of the key of *config*, a ``config.json``, that describes its position embedding.

    It is for messages: ``rope_theta`` is a number, the other two are tables.
    """
    names = ("rope_scaling", "rope_parameters", "rope_theta")
    return next((name for name in names if config.get(name)), "rope_parameters")


def refuse_unread(config: Config, usual: str, own: str) -> None:
    """Refuse the key *usual* of *config* if the class reads *own* alone, which has another value.

    Values in a RoPE table have precedence over both.
    """
    if usual not in rope_parameters(config) and config[usual] != config[own]:
        why = f"transformers reads {own} in its place, which is {show(config[own])}"
        raise refusal(usual, config[usual], why)


def rope_parameters(config: Config) -> dict[str, Any]:
    """The table in *config* that describes its position embedding, without nulls; may be empty.

    As in transformers, ``rope_scaling`` alone counts if a file has both tables.
    """
    table = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return {key: value for key, value in table.items() if value is not None}


def with_rope_type(parameters: Config) -> dict[str, Any]:
    """*parameters* with the kind of scaling as ``rope_type``, even if it is called ``type``."""
    kinds = {parameters[key] for key in ("rope_type", "type") if parameters.get(key) is not None}
    if kinds == {"default", "mrope"}:  # as transformers 4 wrote it for models with images
        kinds = {"mrope"}
    if len(kinds) > 1:
        raise ValueError(f"rope_type and type are {' and '.join(sorted(map(repr, kinds)))}")
    others = {key: value for key, value in parameters.items() if key not in ("rope_type", "type")}
    return others | ({"rope_type": kinds.pop()} if kinds else {})


class Scaling(NamedTuple):
    """Input of a formula in :data:`FORMULAS`."""

    config: Config  # the whole ``config.json``
    parameters: Config  # its table of the position embedding
    base: float  # base of the frequencies
    dims: int  # rotary dimensions of a head

    @property
    def original(self) -> int:
        """Original context length; a key next to ``rope_parameters`` takes precedence."""
        stated = (self.config.get(_CONTEXT), self.parameters.get(_CONTEXT))
        context = next((length for length in stated if length is not None), None)
        return int(self.config["max_position_embeddings"] if context is None else context)

    def require_factor(self) -> float:
        """Factor of the extension; a KeyError if the table does not have it."""
        if self.parameters.get("factor") is None:
            raise KeyError("factor")
        return self.factor

    @property
    def factor(self) -> float:
        """Factor of the extension, by default the quotient of the two context lengths."""
        stated = self.parameters.get("factor")
        factor = float(stated or self.config["max_position_embeddings"] / self.original)
        if not _FACTOR_RANGE[0] <= factor <= _FACTOR_RANGE[1]:
            raise ValueError(f"a RoPE scaling by {factor:g}")
        return factor


def base_above_zero(*candidates: Any) -> float:
    """The first of *candidates* that is set, a base of RoPE frequencies; 10,000 if none is."""
    base = next((value for value in candidates if value is not None), 10000.0)
    return above_zero(base, "a RoPE base")


def above_zero(value: Any, label: str) -> float:
    """*value* as a number; a ValueError that names it by the *label* if it is not above 0."""
    number = float(value)
    if not number > 0:
        raise ValueError(f"{label} of {number:g}")
    return number


def _dynamic(scaling: Scaling) -> Tables:
    """A base that grows with the length of the text, or with Hunyuan's ``alpha`` only once."""
    if scaling.parameters.get("alpha"):
        stretch = scaling.parameters["alpha"] ** (scaling.dims / (scaling.dims - 2))
        return {"rope.freq_base": base_above_zero(scaling.base * stretch)}, {}
    return _scaling_keys("dynamic", scaling.require_factor()), {}


def _scaling_keys(kind: str, factor: float) -> dict[str, Any]:
    """GGUF's keys of the scaling *kind* by *factor*."""
    return {"rope.scaling.type": kind, "rope.scaling.factor": factor}


def _yarn(scaling: Scaling) -> Tables:
    """Slow frequencies divided by the factor, fast ones kept, those between interpolated.

    They become keys if llama.cpp computes the same from them, and frequency factors otherwise.
    """
    parameters = scaling.parameters
    factor = scaling.factor
    implied = magnitude(factor)
    stated_scale = parameters.get("attention_factor")
    if stated_scale is None and parameters.get("mscale") and parameters.get("mscale_all_dim"):
        stated_scale = magnitude(factor, parameters["mscale"]) / magnitude(
            factor, parameters["mscale_all_dim"]
        )
    scale = implied if stated_scale is None else above_zero(stated_scale, "an attention factor")
    fast = parameters.get("beta_fast") or 32
    slow = parameters.get("beta_slow") or 1
    if fast < slow:
        raise ValueError("beta_fast below beta_slow")
    is_truncated = bool(parameters.get("truncate", True))  # the bounds are rounded to whole pairs
    low, high = (
        _pair_with(rotations, scaling.original, theta=scaling.base, dims=scaling.dims)
        for rotations in (fast, slow)
    )
    if is_truncated:
        low = math.floor(low)
        high = math.ceil(high)
    low = max(low, 0)
    high = min(high, scaling.dims - 1)
    if is_truncated and (fast, slow) == (32, 1) and low <= high:
        keys = {
            "rope.scaling.original_context_length": scaling.original,
            **_scaling_keys("yarn", factor),
        }
        if scale != implied:
            keys["rope.scaling.attn_factor"] = scale / implied
        return keys, {}
    # llama.cpp treats crossed bounds in its own way, and files of older versions have no key for
    # other bounds; frequency factors express them exactly.
    ramp = np.clip((np.arange(scaling.dims // 2) - low) / ((high - low) or 0.001), 0, 1)
    freq_factors = 1 / (1 - ramp + ramp / factor)
    return {"rope.scaling.attn_factor": scale}, {"rope_freqs.weight": _floats(freq_factors)}


def _longrope(scaling: Scaling) -> Tables:
    """Lists of frequency factors, one for short and one for long contexts."""
    factor = scaling.factor
    scale = scaling.parameters.get("attention_factor")
    if scale is None:
        scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(scaling.original))
    keys = {
        "rope.scaling.original_context_length": scaling.original,
        "rope.scaling.attn_factor": float(scale),
    }
    tensors = {
        f"rope_factors_{name}.weight": _floats(
            np.array(scaling.parameters[f"{name}_factor"], dtype=np.float64)
        )
        for name in ("short", "long")
    }
    for freq_factors in tensors.values():
        if freq_factors.shape != (scaling.dims // 2,):
            raise ValueError(f"{freq_factors.size} factors for {scaling.dims // 2} pairs")
    return keys, tensors


def _floats(freq_factors: NDArray[np.float64]) -> NDArray[np.float32]:
    """*freq_factors* in float32, as files store them; a ValueError if one is too large."""
    with np.errstate(over="ignore"):
        floats = freq_factors.astype(np.float32)
    if not np.isfinite(floats).all():
        raise ValueError("a frequency factor beyond float32")
    return floats


def _llama3(scaling: Scaling) -> Tables:
    """Low frequencies divided by the factor, high ones kept, others interpolated (Llama 3.1)."""
    pairs = scaling.dims // 2
    parameters = scaling.parameters
    frequencies = scaling.base ** (-np.arange(pairs, dtype=np.float64) / pairs)
    turns = scaling.original * frequencies / (2 * math.pi)
    low = parameters["low_freq_factor"]
    high = parameters["high_freq_factor"]
    if not high > low:
        raise ValueError("high_freq_factor is not above low_freq_factor")
    share_kept = np.clip((turns - low) / (high - low), 0, 1)
    freq_factors = 1 / ((1 - share_kept) / scaling.require_factor() + share_kept)
    return {}, {"rope_freqs.weight": _floats(freq_factors)}


def _ntk(scaling: Scaling) -> Tables:
    """The base times the factor, and all frequencies divided (the published code of GTE)."""
    factor = scaling.require_factor()
    divisor = factor ** (2 / scaling.dims)
    keys = {"rope.freq_base": base_above_zero(scaling.base * factor)}
    return {**keys, **_scaling_keys("linear", divisor)}, {}


def _proportional(scaling: Scaling) -> Tables:
    """Frequencies by the width of the whole head, zero behind the rotated share (Gemma 4)."""
    share = scaling.parameters.get("partial_rotary_factor", 1.0)
    pairs = scaling.dims // 2
    rotated_pairs = int(share * scaling.dims // 2)
    if not 0 <= rotated_pairs <= pairs:
        raise ValueError(f"a partial_rotary_factor of {share}")
    freq_factors = np.full(pairs, _NO_ROTATION, dtype=np.float64)
    factor = scaling.parameters.get("factor", 1.0)
    freq_factors[:rotated_pairs] = above_zero(factor, "a factor")
    return {}, {"rope_freqs.weight": _floats(freq_factors)}


#: GGUF's keys and tensors for each kind of scaling.
FORMULAS: dict[str, Callable[[Scaling], Tables]] = {
    "default": lambda _scaling: ({}, {}),
    # Several coordinates of a position in an image; in a text they are equal, so nothing is scaled.
    "mrope": lambda _scaling: ({}, {}),
    "linear": lambda scaling: (_scaling_keys("linear", scaling.require_factor()), {}),
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "ntk": _ntk,
    "proportional": _proportional,
    "llama3": _llama3,
}


def rope_faults(rope: Rope, head_dim: int) -> Iterator[tuple[bool, str]]:
    """Conditions on *rope* that must be false, each with its name in an error.

    *head_dim* is the width of a head.
    """
    is_inside = 4 <= rope.dims <= head_dim
    sizes = f"({rope.dims} of {head_dim})"
    yield not is_inside, f"rotary dimensions outside of 4..head width {sizes}"
    yield rope.dims % 2 > 0, "an odd number of rotary dimensions"
    yield rope.theta <= 1, "a rope_theta of at most 1"
    yield rope.original_context < 2, "an original context below 2"
