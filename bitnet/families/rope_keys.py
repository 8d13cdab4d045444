"""Map ``rope_parameters`` to GGUF's keys and tensors, by the formulas of transformers.

The kinds of scaling, their parameters and their meaning:
https://github.com/huggingface/transformers/blob/v5.0.0/src/transformers/modeling_rope_utils.py
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from bitnet.base.errors import Unsupported
from bitnet.families.keys import Config, check, refusal
from bitnet.families.rope import magnitude

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from bitnet.families.family import Family

# GGUF's keys and tensors.
Tables: TypeAlias = "tuple[dict[str, Any], dict[str, NDArray[np.float32]]]"

# Parameters of each kind of scaling, besides rope_theta and the kind itself. With ``dynamic`` the
# original context is ignored: ``max_position_embeddings`` counts.
_CONTEXT = "original_max_position_embeddings"
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
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _CONTEXT),
}
_NO_TURN = 1e30  # a factor that leaves nothing of a frequency, as llama.cpp's converter writes it
_EVERYWHERE = {"rope_type", "type", "rope_theta"}


class _Rope(NamedTuple):
    config: Config
    parameters: Config
    base: float
    dims: int

    @property
    def original(self) -> int:
        """Original context length; a key next to ``rope_parameters`` takes precedence."""
        context = self.parameters.get(_CONTEXT, self.config["max_position_embeddings"])
        return int(self.config.get(_CONTEXT, context))

    @property
    def factor(self) -> float:
        """Factor of the extension, by default that of both context lengths."""
        given = self.parameters.get("factor")
        return float(given or self.config["max_position_embeddings"] / self.original)


def from_parameters(config: Config, family: Family) -> Tables:
    """GGUF keys and tensors of the position embedding of *config*."""
    parameters = config.get("rope_scaling") or config.get("rope_parameters") or {}
    local: dict[str, Any] = {}
    if family.layered_rope:
        parameters, local = _split_by_attention(config)
    parameters = {
        key: value for key, value in _in_one_word(parameters).items() if value is not None
    }
    kind = parameters.get("rope_type") or "default"
    if kind not in PARAMETERS:
        raise Unsupported(
            f"rope scaling {kind!r}; known: {', '.join(PARAMETERS)}", hint="choose another model"
        )
    if family.layered_rope and parameters.get("truncate") is False:
        raise refusal("rope_parameters.full_attention.truncate", False)
    dims = _rotary_dims(config, parameters, family)
    names = {*_EVERYWHERE, *PARAMETERS[kind], *family.rope_parameters, "partial_rotary_factor"}
    rest = {key: value for key, value in parameters.items() if key not in names}
    check(rest, {}, below="rope_parameters.")
    base = _above_zero(parameters.get("rope_theta"), config.get("rope_theta"))
    more, tensors = _SCALINGS[kind](_Rope(config, parameters, base, dims))
    if family.has_freq_factors:
        tensors = {"rope_freqs.weight": np.ones(dims // 2, dtype=np.float32)} | tensors
    return {"rope.freq_base": base, "rope.dimension_count": dims, **local, **more}, tensors


def _split_by_attention(config: Config) -> tuple[Config, dict[str, Any]]:
    """Parameters of layers with full attention, and the RoPE base of the others."""
    nested = config.get("rope_parameters") or {}
    full = _in_one_word(nested.get("full_attention") or {})
    full |= _in_one_word(config.get("rope_scaling") or {})
    local = _in_one_word(nested.get("sliding_attention") or {})
    for key in nested.keys() - {"full_attention", "sliding_attention"}:
        raise refusal(f"rope_parameters.{key}", nested[key])
    key = "rope_parameters.sliding_attention"
    if (local.get("rope_type") or "default") != "default":
        raise refusal(key, local, "layers with a window support RoPE without scaling only")
    rest = {
        name: value
        for name, value in local.items()
        if name not in _EVERYWHERE and value is not None
    }
    check(rest, {}, below=f"{key}.")
    its = local.get("rope_theta"), config.get("rope_local_base_freq"), config.get("rope_theta")
    return full, {"rope.freq_base_swa": _above_zero(*its)}


def _in_one_word(parameters: Config) -> dict[str, Any]:
    """*parameters* with ``type``, the earlier name of ``rope_type``, under the later one."""
    kinds = {parameters[key] for key in ("rope_type", "type") if parameters.get(key) is not None}
    if len(kinds) > 1:
        raise ValueError(f"rope_type and type are {' and '.join(sorted(map(repr, kinds)))}")
    rest = {key: value for key, value in parameters.items() if key not in ("rope_type", "type")}
    return rest | ({"rope_type": kinds.pop()} if kinds else {})


def _above_zero(*candidates: Any) -> float:
    """The first of *candidates* that is set, a base of RoPE frequencies; 10,000 if none is."""
    base = float(next((value for value in candidates if value is not None), 10000.0))
    if base <= 0:
        raise ValueError(f"a RoPE base of {base:g}")
    return base


def _rotary_dims(config: Config, parameters: Config, family: Family) -> int:
    """Number of rotary dimensions of a head."""
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    partial = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial is None or partial == 1.0 or parameters.get("rope_type") == "proportional":
        return int(head_dim)
    if not family.partial_rotation:
        why = "models of this family apply RoPE to whole heads"
        raise refusal("partial_rotary_factor", partial, why)
    return int(head_dim * partial)


def _dynamic(its: _Rope) -> Tables:
    if its.parameters.get("alpha"):  # Hunyuan's, which does not depend on the length after all
        stretch = its.parameters["alpha"] ** (its.dims / (its.dims - 2))
        return {"rope.freq_base": _above_zero(its.base * stretch)}, {}
    return _scaling_keys("dynamic", float(its.parameters["factor"])), {}


def _scaling_keys(kind: str, factor: float) -> dict[str, Any]:
    return {"rope.scaling.type": kind, "rope.scaling.factor": factor}


def _yarn(its: _Rope) -> Tables:
    parameters, factor = its.parameters, its.factor
    implied = magnitude(factor)
    magnification = parameters.get("attention_factor")
    if magnification is None and parameters.get("mscale") and parameters.get("mscale_all_dim"):
        magnification = magnitude(factor, parameters["mscale"]) / magnitude(
            factor, parameters["mscale_all_dim"]
        )
    scale = implied if magnification is None else _above_zero(magnification)
    fast, slow = parameters.get("beta_fast") or 32, parameters.get("beta_slow") or 1
    if fast < slow:
        raise ValueError("beta_fast below beta_slow")
    whole = bool(parameters.get("truncate", True))
    low, high = (
        its.dims * math.log(its.original / (turns * 2 * math.pi)) / (2 * math.log(its.base))
        for turns in (fast, slow)
    )
    if whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, its.dims - 1)
    if whole and (fast, slow) == (32, 1) and low <= high:
        keys = {
            "rope.scaling.original_context_length": its.original,
            **_scaling_keys("yarn", factor),
        }
        if scale != implied:
            keys["rope.scaling.attn_factor"] = scale / implied
        return keys, {}
    # llama.cpp has no key for other bounds and treats crossed bounds in its own way; frequency
    # factors express them exactly.
    ramp = np.clip((np.arange(its.dims // 2) - low) / ((high - low) or 0.001), 0, 1)
    freq_factors = 1 / (1 - ramp + ramp / factor)
    return {"rope.scaling.attn_factor": scale}, {
        "rope_freqs.weight": np.asarray(freq_factors, dtype=np.float32)
    }


def _longrope(its: _Rope) -> Tables:
    factor, scale = its.factor, its.parameters.get("attention_factor")
    if scale is None:
        scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(its.original))
    keys = {
        "rope.scaling.original_context_length": its.original,
        "rope.scaling.attn_factor": float(scale),
    }
    tensors = {
        f"rope_factors_{name}.weight": np.array(its.parameters[f"{name}_factor"], dtype=np.float32)
        for name in ("short", "long")
    }
    for freq_factors in tensors.values():
        if freq_factors.shape != (its.dims // 2,):
            raise ValueError(f"{freq_factors.size} factors for {its.dims // 2} pairs")
    return keys, tensors


def _llama3(its: _Rope) -> Tables:
    """Low frequencies divided by the factor, high ones kept, interpolated between (Llama 3.1)."""
    pairs, parameters = its.dims // 2, its.parameters
    frequencies = its.base ** (-np.arange(pairs, dtype=np.float64) / pairs)
    turns = its.original * frequencies / (2 * math.pi)
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    if not high > low:
        raise ValueError("high_freq_factor is not above low_freq_factor")
    kept = np.clip((turns - low) / (high - low), 0, 1)
    freq_factors = 1 / ((1 - kept) / parameters["factor"] + kept)
    return {}, {"rope_freqs.weight": np.asarray(freq_factors, dtype=np.float32)}


def _proportional(its: _Rope) -> Tables:
    """Frequencies of the whole head, of which only the first ones are not zero (Gemma 4)."""
    share = its.parameters.get("partial_rotary_factor", 1.0)
    pairs, turning = its.dims // 2, int(share * its.dims // 2)
    if not 0 <= turning <= pairs:
        raise ValueError(f"a partial_rotary_factor of {share}")
    freq_factors = np.full(pairs, _NO_TURN, dtype=np.float32)
    freq_factors[:turning] = _above_zero(its.parameters.get("factor", 1.0))
    return {}, {"rope_freqs.weight": freq_factors}


_SCALINGS: dict[str, Callable[[_Rope], Tables]] = {
    "default": lambda _its: ({}, {}),
    "linear": lambda its: (_scaling_keys("linear", float(its.parameters["factor"])), {}),
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
    "llama3": _llama3,
}
