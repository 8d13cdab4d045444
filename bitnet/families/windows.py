"""Readers of the keys in ``config.json`` that give each layer's attention window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["alternating", "everywhere", "from_first"]

_KINDS = {"sliding_attention": True, "full_attention": False}


def everywhere(config: Mapping[str, Any]) -> dict[str, Any]:
    """``sliding_window`` for all layers (Mistral, Phi-3)."""
    return {"attention.sliding_window": _window(config)}


def from_first(config: Mapping[str, Any]) -> dict[str, Any]:
    """``layer_types``, or windows from layer ``max_window_layers`` on (Qwen)."""
    window = _window(config) if config.get("use_sliding_window") else 0
    first = config.get("max_window_layers", 0)
    pattern = _types(config, window)
    if pattern is None:
        pattern = [bool(window) and layer >= first for layer in range(config["num_hidden_layers"])]
    return {
        "attention.sliding_window": window,
        **({"attention.sliding_window_pattern": pattern} if window else {}),
    }


def alternating(
    default_period: int, key: str = ""
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """``layer_types``, or windows in all layers but one in every *default_period* (Gemma).

    Args:
        default_period: one layer in this many has full attention.
        key: name of a key that overrides this number.
    """

    def keys(config: Mapping[str, Any]) -> dict[str, Any]:
        window = _window(config)
        period = config.get(key) or default_period
        pattern = _types(config, window)
        if pattern is None:
            pattern = [(layer + 1) % period != 0 for layer in range(config["num_hidden_layers"])]
        if True in pattern and not window:
            raise ValueError("layers with a window, and no sliding_window")
        return {"attention.sliding_window": window, "attention.sliding_window_pattern": pattern}

    return keys


def _window(config: Mapping[str, Any]) -> int:
    window = config.get("sliding_window")
    if window is None:
        return 0
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        raise InvalidFormat(f"config.json: sliding_window is {window!r}, expected at least 1")
    return window


def _types(config: Mapping[str, Any], window: int) -> list[bool] | None:
    kinds = config.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != config["num_hidden_layers"]:
        raise ValueError("layer_types for another number of layers")
    unknown = [kind for kind in kinds if kind not in _KINDS]
    if unknown:
        raise ValueError(f"a layer of the kind {unknown[0]!r} in layer_types")
    pattern = [_KINDS[kind] for kind in kinds]
    if any(pattern) and not window:
        raise ValueError("layers with a window in layer_types, and no sliding_window")
    return pattern
