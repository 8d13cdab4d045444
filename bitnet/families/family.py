"""A family: everything that tells one decoder from another, and the registry of all of them."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bitnet.families.rules import Rule

__all__ = [
    "ATTENTION",
    "LLAMA_CPP",
    "MLP",
    "QKV",
    "Family",
    "Keys",
    "families",
    "of_gguf",
    "of_model_type",
    "register",
]

QKV = ("attn_q", "attn_k", "attn_v")
ATTENTION = (*QKV, "attn_output")
MLP = ("ffn_gate", "ffn_up", "ffn_down")

#: What llama.cpp loads of most families beside what all of them have.
LLAMA_CPP = ("output.weight", *(f"{part}.bias" for part in (*QKV, "attn_qkv")))


class Keys(Protocol):
    """The keys of a model under GGUF's names, without the architecture before them."""

    def value(self, key: str, default: Any = ...) -> Any:
        """The value of *key*."""

    def integer(self, key: str, default: Any = ...) -> int:
        """The integer *key*."""

    def number(self, key: str, default: Any = ...) -> float:
        """The finite number *key*."""


@dataclass(frozen=True, eq=False)
class Family:
    """One kind of decoder.

    Attributes:
        title: what people call it.
        architecture: ``general.architecture``; the name its keys have here, too.
        model_types: of ``config.json``.
        classes: names in ``architectures`` that tell it from the family of its ``model_type``.
        gguf: other names of the architecture in GGUF files; *architecture* is read unless
            *in_gguf* says otherwise.
        in_gguf: GGUF files of this architecture are read by this family.
        activation: of the gate, as ``config.json`` calls it.
        quantization: what ``quantization_config`` says where a folder has none.
        defaults: what transformers assumes where ``config.json`` is silent.
        config_keys: of ``config.json``, beside those that every family treats alike.
        rope_parameters: of ``rope_parameters``, beside those of the kind of scaling.
        gguf_keys: of GGUF files, beside those that every family treats alike.
        tensors: names of parts of a layer that differ from the usual ones.
        biases: parts that have biases, by the key that says so; those below ``""`` always do.
        partial_rotation: ``partial_rotary_factor`` is followed.
        layered_rope: layers with a window have a rope of their own.
        norms_from_zero: ``config.json``'s container stores what norms add to one.
        rope_style: pairs of rotated elements in a folder's weights.
        gguf_rope_style: the same in a GGUF file, for which converters move rows.
        llama_cpp: tensors that llama.cpp loads for this architecture beside those all models have,
            by the end of their names; ``None``: it does not know the architecture.
        translate: more GGUF keys from a ``config.json``.
        rounds_inputs: its ternary layers round a token's input to int8 (W1.58A8), in training too.
        block: fields of the transformer's configuration that always hold.
        configure: more of these fields, from the keys and the fields so far.
    """

    title: str
    architecture: str
    model_types: tuple[str, ...]
    activation: str
    gguf: tuple[str, ...] = ()
    in_gguf: bool = True
    classes: tuple[str, ...] = ()
    quantization: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    config_keys: Mapping[str, Rule] = field(default_factory=dict)
    rope_parameters: Mapping[str, str] = field(default_factory=dict)
    gguf_keys: Mapping[str, Rule] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    partial_rotation: bool = False
    layered_rope: bool = False
    rounds_inputs: bool = False
    norms_from_zero: bool = False
    rope_style: Literal["interleaved", "half"] = "half"
    gguf_rope_style: Literal["interleaved", "half"] = "half"
    llama_cpp: tuple[str, ...] | None = LLAMA_CPP
    translate: Callable[[Mapping[str, Any]], dict[str, Any]] = field(default=lambda _config: {})
    block: Mapping[str, Any] = field(default_factory=dict)
    configure: Callable[[Keys, Mapping[str, Any]], dict[str, Any]] = field(
        default=lambda _keys, _fields: {}
    )

    @property
    def architectures(self) -> tuple[str, ...]:
        """Its names in GGUF files; none where another family reads those."""
        return (self.architecture, *self.gguf) if self.in_gguf else ()


_REGISTERED: list[Family] = []


def register(family: Family) -> Family:
    """Add *family* to those that are known."""
    _REGISTERED.append(family)
    return family


@cache
def families() -> tuple[Family, ...]:
    """Every family there is a file of, by title."""
    package = import_module("bitnet.families")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"bitnet.families.{module.name}")
    return tuple(sorted(_REGISTERED, key=lambda family: family.title.lower()))


def of_gguf(architecture: str) -> Family | None:
    """The family that reads GGUF files of *architecture*."""
    return next((one for one in families() if architecture in one.architectures), None)


def of_model_type(model_type: str, named: str = "") -> Family | None:
    """The family of ``config.json``'s *model_type*, or that of the class *named* there."""
    own = next((one for one in families() if named in one.classes), None)
    return own or next((one for one in families() if model_type in one.model_types), None)
