"""A model on disk, as its family reads it, and the rules for its keys.

A key is *read*, *neutral* for certain values, or harmless with any value. Others are refused with
their name, their value and a way to continue nevertheless. In a GGUF file, every key of the
architecture must be known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from bitnet.base.errors import InvalidFormat, Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

RopeStyle = Literal["interleaved", "half"]


class Keys(Protocol):
    """A model on disk: its keys under GGUF's names, without the architecture prefix."""

    @property
    def architecture(self) -> str:
        """GGUF's name of the architecture."""

    @property
    def path(self) -> Path:
        """The file or folder."""

    @property
    def config(self) -> Mapping[str, Any] | None:
        """``config.json``, if it is a folder."""

    @property
    def rope_style(self) -> RopeStyle:
        """Pairing of rotary dimensions."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """All keys, as they are stored."""

    @property
    def weights(self) -> Mapping[str, Any]:
        """Tensors by GGUF name."""

    def numbers(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
        """The tensor *name* decoded; ``None`` if it does not exist."""

    def value(self, key: str, default: Any = ...) -> Any:
        """The value of *key*."""

    def integer(self, key: str, default: Any = ...) -> int:
        """The integer *key*."""

    def number(self, key: str, default: Any = ...) -> float:
        """The finite number *key*."""


@dataclass(frozen=True)
class Rule:
    """Rule for one key."""

    note: str  # meaning of the key, for the documentation
    values: tuple[Any, ...] | None = None  # values without effect; ``None``: any value is accepted
    is_read: bool = False  # the computation follows it

    def allows(self, value: Any) -> bool:
        """True if the model can be run exactly with *value*."""
        return self.values is None or any(_same(value, expected) for expected in self.values)

    def __str__(self) -> str:
        if self.is_read:
            return "read"
        if self.values is None:
            return "changes nothing"
        return "neutral when " + " or ".join(f"`{_show(value)}`" for value in self.values)


HARMLESS = Rule("does not change what is computed")


def read(note: str) -> Rule:
    """Rule for a key that the computation follows."""
    return Rule(note, is_read=True)


def neutral(*values: Any, note: str = "") -> Rule:
    """Rule for a key without effect at one of *values*; other values are refused."""
    return Rule(note, values)


def check(
    given: Mapping[str, Any], rules: Mapping[str, Rule], *, model: str, kind: str, below: str = ""
) -> None:
    """Refuse the first of the *given* keys, which are *below* a table, that is not allowed."""
    for key, value in given.items():
        rule = rules.get(key)
        if rule is None or not rule.allows(value):
            raise refusal(f"{below}{key}", value, model=model, kind=kind, rule=rule)


def refusal(
    key: str,
    value: Any,
    why: str = "",
    *,
    kind: str,
    model: str = "config.json",
    rule: Rule | None = None,
) -> Unsupported:
    """Error for a key that changes the result in an unsupported way."""
    if rule is not None and rule.values is not None:
        why = f"only {' or '.join(_show(value) for value in rule.values)} is computed"
    return Unsupported(
        f"{model}: this {kind} model has {key} = {_show(value)}: "
        f"{why or 'not a key that is known to leave the result alone'}",
        hint=f"choose another model, or, to compute as if the key were not there: "
        f"--ignore-key {key}",
    )


def contradiction(keys: Keys, problem: str) -> InvalidFormat:
    """Error for keys or tensors that contradict each other."""
    return InvalidFormat(f"{keys.path.name}: {problem}", hint="the file is damaged; fetch it again")


def without(keys: Mapping[str, Any], ignored: Iterable[str], *, prefix: str = "") -> dict[str, Any]:
    """*keys* without the *ignored* keys, which are named with or without their table."""
    names = frozenset(ignored)
    return {
        key: value
        for key, value in keys.items()
        if not names & {key, f"{prefix}{key}", key.partition(".")[2] or key}
    }


def _same(value: Any, expected: Any) -> bool:
    if isinstance(value, bool) or isinstance(expected, bool) or value is None or expected is None:
        return value is expected
    return bool(value == expected)


def _show(value: Any) -> str:
    is_word = value is None or isinstance(value, bool)  # 1 is not true
    text = {True: "true", False: "false", None: "null"}[value] if is_word else repr(value)
    text = f'"{value}"' if isinstance(value, str) else text
    return text if len(text) <= 80 else f"{text[:77]}..."


_OFF = neutral(0, False, note="not computed")
#: For every family.
COMMON: dict[str, Rule] = {
    "block_count": read("layers"),
    "embedding_length": read("width of the residual stream"),
    "feed_forward_length": read("width inside the feed-forward network"),
    "context_length": read("positions the model was trained for"),
    "vocab_size": HARMLESS,
    "attention.head_count": read("query heads"),
    "attention.head_count_kv": read("key and value heads"),
    "attention.key_length": read("width of a head"),
    "attention.value_length": read("must be the width of a head"),
    "attention.layer_norm_rms_epsilon": read("epsilon of every norm"),
    "attention.layer_norm_epsilon": HARMLESS,
    "attention.scale": read(
        "on scores; beside Gemma and Granite only one over the root of the width"
    ),
    "attention.sliding_window": read("positions a query attends to; 0: all"),
    "attention.sliding_window_pattern": read("which layers have a window"),
    "attention.causal": Rule("causal or bidirectional attention", (True, False), is_read=True),
    "attention.max_alibi_bias": _OFF,
    "attention.clamp_kqv": _OFF,
    "attention.shared_kv_layers": _OFF,
    "attention.temperature_scale": _OFF,
    "rope.dimension_count": read("rotary dimensions of a head"),
    "rope.freq_base": read("base of the RoPE frequencies"),
    "rope.scale_linear": read("name of `rope.scaling.factor` in 2023"),
    "rope.scaling.type": read("`none`, `linear`, `yarn`, `longrope`, `dynamic`"),
    "rope.scaling.factor": read("factor of context extension; `linear` without a type"),
    "rope.scaling.original_context_length": read("context before"),
    "rope.scaling.attn_factor": read("on rotated queries and keys, besides that of `yarn`"),
    "rope.scaling.yarn_beta_fast": neutral(32.0, note="of `yarn`"),
    "rope.scaling.yarn_beta_slow": neutral(1.0, note="of `yarn`"),
    "rope.scaling.yarn_ext_factor": neutral(1.0, -1.0),
    "rope.scaling.yarn_attn_factor": neutral(1.0),
    "rope.scaling.yarn_log_multiplier": _OFF,
    "rope.scaling.finetuned": HARMLESS,
    "rope.scaling.alpha": _OFF,
    "pooling_type": Rule(
        "how vectors are pooled: 0 (no vectors), 1 mean, 2 first, 3 last",
        (0, 1, 2, 3),
        is_read=True,
    ),
    "tensor_data_layout": neutral("Meta AI original pth"),
    "use_parallel_residual": neutral(False),
    "attn_logit_softcapping": _OFF,
    "final_logit_softcapping": _OFF,
    "logit_scale": neutral(1.0, 0),
    "residual_scale": neutral(1.0, 0),
    "embedding_scale": neutral(1.0, 0),
    **dict.fromkeys(
        (
            "expert_count",
            "expert_used_count",
            "expert_shared_count",
            "expert_feed_forward_length",
            "leading_dense_block_count",
            "nextn_predict_layers",
            "embedding_length_per_layer_input",
        ),
        _OFF,
    ),
}
