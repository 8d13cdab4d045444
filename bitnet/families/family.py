"""A family: everything in which one decoder differs from others, and the registry of families."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bitnet.base.errors import Unsupported
from bitnet.families.dense import ModelConfig, dense
from bitnet.families.heads import CLASSIFIER_KEYS, PROJECTION_KEYS, SCORES, HeadLayers
from bitnet.families.keys import COMMON, Config, Keys, RopeStyle, Rule, check, read
from bitnet.families.refused import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

# functions of a folder's tensor, by the end of its GGUF name, such as ``attn_q.weight``
Values: TypeAlias = "Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]]"

# functions that take parts of one tensor of a folder, by the end of the tensor's GGUF name and then
# by that of the part
Parts: TypeAlias = "Mapping[str, Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]]]"

QKV = ("attn_q", "attn_k", "attn_v")
ATTENTION = (*QKV, "attn_output")
MLP = ("ffn_gate", "ffn_up", "ffn_down")

WINDOWS = ("attention.sliding_window", "attention.sliding_window_pattern")
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
BIASES = tuple(f"{part}.bias" for part in (*QKV, "attn_qkv"))
#: Fields of :class:`LlamaCppSupport` for families that llama.cpp loads only with an output head,
#: never with the embedding as the head.
OWN_HEAD: dict[str, Any] = {"required": ("output.weight",), "tied": False}


@dataclass(frozen=True)
class RowFactors:
    """A function of :data:`Values` that multiplies each group of rows by a factor of its own."""

    factors: tuple[float, ...]  # one for each group
    rows: tuple[int, ...]  # number of rows in each group

    def __call__(self, tensor: NDArray[Any]) -> NDArray[Any]:
        """*tensor*, ``(rows, ...)``, times the factors.

        Raises:
            ValueError: *tensor* does not have the sum of *rows* rows.
        """
        expected = sum(self.rows)
        if tensor.shape[0] != expected:  # before a wrong size allocates anything
            raise ValueError(f"{tensor.shape[0]:,} rows, expected {expected:,}")
        of_rows = np.repeat(np.array(self.factors, dtype=np.float32), self.rows)
        scaled: NDArray[Any] = tensor * of_rows.reshape(-1, *[1] * (tensor.ndim - 1))
        return scaled


@dataclass(frozen=True)
class LlamaCppSupport:
    """Models of a family that llama.cpp can load, and where it differs from their keys."""

    # optional tensors that it loads, by the end of their names
    tensors: tuple[str, ...] = ("output.weight", *BIASES)
    required: tuple[str, ...] = ()  # those of them that it does not load a model without
    # keys that it does not read, so that they mean nothing in a file
    ignores: tuple[str, ...] = WINDOWS
    tied: bool = True  # it loads models whose head is the embedding
    whole_width: bool = False  # it loads only models whose heads together are as wide as the model
    whole_keys: bool = False  # it loads only models with as many key heads as heads
    # it scales scores by the width of the model over the number of heads, not by that of a head, in
    # models with this many layers; 0: in none
    wide_scale_layers: int = 0
    # it computes windows only in models with this many layers, whatever their keys say; 0: in all
    window_layers: int = 0
    # it rotates as many dimensions in every layer without a window as in the first layer
    rotates_as_first: bool = False
    # it loads only models whose states (Mamba) are twice as wide as the model
    wide_states: bool = False
    gelu_tanh: bool = False  # it computes GELU by the hyperbolic tangent
    both_ways: bool = False  # its graph computes bidirectional attention
    names_logits: bool = True  # in its graph, the product with the head has a name
    projections: bool = False  # it computes projections of pooled vectors
    alibi: bool = True  # it computes ALiBi in models that have it
    # it normalizes queries and keys only in models with at least this many layers
    head_norm_layers: int = 0
    # its difference in every model, for messages: a verb and its object, then "in"
    always: str = ""
    # it computes only models with one of these numbers of layers correctly; empty: all
    only_layers: tuple[int, ...] = ()
    lacks: tuple[str, ...] = ()  # ends of names of tensors that it does not load
    # kinds of layers without which it crashes: ``attention``, ``window`` or ``state``
    needs: frozenset[str] = frozenset()
    # keys that it must not read as 0, since its logits would be NaN or all 0
    nonzero: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Family:
    """One kind of decoder."""

    title: str  # its name in text for people
    architecture: str  # ``general.architecture``, which also prefixes its keys here
    # values of ``model_type`` in ``config.json``; as *architecture*, but with underscores
    model_types: tuple[str, ...] = ("",)
    activation: str = "silu"  # activation function, by its name in ``config.json``
    # other names of the architecture in GGUF files; *architecture* is read unless *in_gguf* is
    # false
    gguf: tuple[str, ...] = ()
    in_gguf: bool = True  # this family reads GGUF files of this architecture
    # names in ``architectures`` that set it apart from the family of its ``model_type``
    classes: tuple[str, ...] = ()
    # keys of ``config.json`` whose values set it apart from another family of its ``model_type``
    apart: Mapping[str, Any] = field(default_factory=dict)
    # keys of ``config.json`` by their other names; if a file has both, the other name counts
    aliases: Mapping[str, str] = field(default_factory=dict)
    # ``quantization_config`` of folders without one
    quantization: Mapping[str, Any] = field(default_factory=dict)
    # transformers' defaults for keys that published files leave out
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # keys of ``config.json`` that may be null, which is as if they were left out
    nullable: tuple[str, ...] = ()
    # keys of ``config.json``, separated by blanks, without which a folder is refused, since
    # transformers would assume a value that no file says
    stated: str = ""
    # rules for ``config.json``, besides those shared by all families and those of *biases*
    config_keys: Mapping[str, Rule] = field(default_factory=dict)
    # rules for ``rope_parameters``, besides those of the kind of scaling
    rope_parameters: Mapping[str, str] = field(default_factory=dict)
    # rules for GGUF files, besides those shared by all families
    gguf_keys: Mapping[str, Rule] = field(default_factory=dict)
    # names of tensors of a layer that differ from those in ``tensor_names.py``
    tensors: Mapping[str, str] = field(default_factory=dict)
    # modules of the stacks of blocks in a folder, where there are several; in GGUF, the blocks of
    # one are numbered behind those of the one before
    stacks: tuple[str, ...] = ()
    # GGUF's names of a tensor in layers with a state, by its names in layers without one
    names_with_states: Mapping[str, str] = field(default_factory=dict)
    # from ``config.json``: functions of those tensors of a folder whose numbers differ from those
    # that GGUF stores
    values: Callable[[Config], Values] = field(default=lambda _config: {})
    # the same of tensors whose numbers GGUF has in another order; the numbers keep their encoding
    orders: Callable[[Config], Values] = field(default=lambda _config: {})
    # the same of tensors that are several ones in GGUF
    parts: Callable[[Config], Parts] = field(default=lambda _config: {})
    # tensors of a folder that hold one number for each layer; in GGUF the numbers of all layers are
    # a key of this name, without a prefix
    numbers: tuple[str, ...] = ()
    # from ``config.json``: factors on a folder's tensors, by the end of their GGUF names
    factors: Callable[[Config], Mapping[str, float]] = field(default=lambda _config: {})
    # parts with biases, by the key that enables them; those under ``""`` always do
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rotates: bool = True  # positions are rotations of queries and keys
    partial_rotation: bool = False  # ``partial_rotary_factor`` is supported
    # kinds of scaling of its RoPE that transformers does not know
    rope_scalings: tuple[str, ...] = ()
    layered_rope: bool = False  # layers with a window have a RoPE of their own
    # of these families: ``rope_scaling`` changes the RoPE of the other layers; transformers ignores
    # it in most classes
    layered_scaling: bool = False
    has_freq_factors: bool = False  # files have frequency factors even where all of them are one
    # ternary layers round a token's input to int8 (W1.58A8), as in training
    rounds_inputs: bool = False
    encodes: bool = False  # it is an encoder as BERT is: it embeds texts
    headless: bool = False  # it embeds texts, and its files have no output head
    classifier: HeadLayers = (("score", SCORES, "identity"),)  # layers in a folder, in order
    classifier_norm: str = ""  # name of the norm behind its inner layer; empty: it has none
    # beginnings of the names of a folder's tensors that are for other tasks
    unread: tuple[str, ...] = ()
    # a folder may have adapters of tasks, which do not belong to the model itself; see
    # :func:`bitnet.formats.adapters.read_adapter`
    has_tasks: bool = False
    norms_from_zero: bool = False  # the safetensors weights of norms are stored minus one
    # folders may have blocks behind the last, which draft tokens and are left out
    more_blocks: bool = False
    # a folder's matrices of experts are stored transposed, with rows of gate and up in turns, or as
    # blocks of MXFP4
    transposed_experts: bool = False
    # a folder's matrices of experts may be stored transposed; their shapes tell
    turned_experts: bool = False
    rope_style: RopeStyle = "half"  # pairing of rotary dimensions in a folder's weights
    # the same in a GGUF file; where it differs, converters permuted rows
    gguf_rope_style: RopeStyle = "half"
    # how llama.cpp computes it; ``None``: it does not support the architecture
    llama_cpp: LlamaCppSupport | None = field(default_factory=LlamaCppSupport)
    # additional GGUF keys from a ``config.json``; the entry ``architecture``, if there is one, is
    # the model's architecture instead of the family's
    translate: Callable[[Config], dict[str, Any]] = field(default=lambda _config: {})
    decoder: Callable[[Keys], ModelConfig] = dense  # its blocks, from the keys

    def __post_init__(self) -> None:
        if self.model_types == ("",):
            object.__setattr__(self, "model_types", (self.architecture.replace("-", "_"),))

    @property
    def architectures(self) -> tuple[str, ...]:
        """Its names in GGUF files; empty if another family reads those."""
        return (self.architecture, *self.gguf) if self.in_gguf else ()

    @property
    def config_rules(self) -> Mapping[str, Rule]:
        """Rules for ``config.json``, besides those shared by all families."""
        rules = {
            key: read("biases of " + ", ".join(f"`{part}`" for part in parts))
            for key, parts in self.biases.items()
            if key
        }
        names = {alias: read(f"other name of `{name}`") for alias, name in self.aliases.items()}
        return {**rules, **names, **self.config_keys}


_REGISTERED: list[Family] = []


def register(**fields: Any) -> Family:
    """The family of these fields, which is one of :func:`families` from now on."""
    family = Family(**fields)
    _REGISTERED.append(family)
    return family


def register_variant(parent: Family, **changes: Any) -> Family:
    """A family that differs from *parent*; entries of tables are added to those of *parent*."""
    whole = {
        name: {**getattr(parent, name), **change} if isinstance(change, Mapping) else change
        for name, change in changes.items()
    }
    return register(**vars(parent) | whole)


@cache
def families() -> tuple[Family, ...]:
    """All families, by title."""
    package = import_module("bitnet.families")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"bitnet.families.{module.name}")
    return tuple(sorted(_REGISTERED, key=lambda family: family.title.lower()))


def of_gguf(architecture: str) -> Family | None:
    """The family that reads GGUF files of *architecture*."""
    return next((family for family in families() if architecture in family.architectures), None)


def of_model_type(model_type: str, named: str = "", config: Config | None = None) -> Family | None:
    """The family of *model_type* in ``config.json``, or that of the class *named* there.

    Families of one ``model_type`` differ in other values of the *config*.
    """
    stated = config or {}
    candidates = [family for family in families() if model_type in family.model_types]
    for family in families():
        if named in family.classes:
            return family
    for family in candidates:
        if family.apart and all(stated.get(key) == value for key, value in family.apart.items()):
            return family
    return next((family for family in candidates if not family.apart), None)


def architecture_refusal(
    name: str, supported: Iterable[str], *, kind: str = "", key: str = ""
) -> Unsupported:
    """Error for a model of the architecture *name*, which is not among those *supported*.

    For a file, *kind* is an adjective and a blank (``quantized ``). For a folder it is empty, and
    *name* is the value of the *key* of ``config.json``.
    """
    meaning = kind_of(name, is_folder=not kind)
    place = f"config.json: {key}: " if key else ""
    if meaning:
        return Unsupported(
            f"{place}Unsupported {kind}architecture: {name}, {meaning}",
            hint="choose a model of another family: bitnet search qwen3",
        )
    return Unsupported(
        f"{place}Unsupported {kind}architecture: {name[:80] or '(none)'}. "
        f"Supported: {', '.join(sorted(supported))}",
        hint="choose a model of one of these families",
    )


def check_keys(
    metadata: Mapping[str, Any], family: Family, *, prefixes: Iterable[str], model: str
) -> None:
    """Refuse keys of GGUF's *metadata*, below *prefixes*, that are not in the family's table."""
    rules = COMMON | PROJECTION_KEYS | CLASSIFIER_KEYS | dict(family.gguf_keys)
    for prefix in (f"{name}." for name in prefixes):
        own = {key[len(prefix) :]: metadata[key] for key in metadata if key.startswith(prefix)}
        check(own, rules, model=model, below=prefix)


def find_zero(metadata: Mapping[str, Any], family: Family) -> str:
    """The first key that is 0 and with which llama.cpp then computes nothing; empty if none is.

    *metadata* has no keys that llama.cpp ignores.
    """
    names = family.llama_cpp.nonzero if family.llama_cpp is not None else ()
    keys = (f"{family.architecture}.{name}" for name in names)
    return next((key for key in keys if metadata.get(key, 1) == 0), "")
