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

# Functions for a folder's tensors, by the end of their GGUF names, such as ``attn_q.weight``.
Values: TypeAlias = "Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]]"

# Functions that cut a part out of a folder's tensor, by the end of the tensor's GGUF name, then by
# the end of the part's.
Parts: TypeAlias = "Mapping[str, Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]]]"

# Names of matrices of a layer in GGUF.
QKV = ("attn_q", "attn_k", "attn_v")
ATTENTION = (*QKV, "attn_output")
MLP = ("ffn_gate", "ffn_up", "ffn_down")

# Keys of windows, and names of tensors in GGUF.
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
        row_factors = np.repeat(np.array(self.factors, dtype=np.float32), self.rows)
        scaled: NDArray[Any] = tensor * row_factors.reshape(-1, *[1] * (tensor.ndim - 1))
        return scaled


@dataclass(frozen=True)
class LlamaCppSupport:
    """The models of a family that llama.cpp loads, and where it computes them differently.

    In the comments, "it" is llama.cpp.
    """

    # optional tensors that it loads, by the end of their names
    tensors: tuple[str, ...] = ("output.weight", *BIASES)
    # those of *tensors* without which it does not load a model
    required: tuple[str, ...] = ()
    # keys that it does not read, so that they have no effect in a GGUF file
    ignores: tuple[str, ...] = WINDOWS
    tied: bool = True  # it loads models whose head is the embedding
    # it loads only models whose heads together are as wide as the model
    only_whole_width: bool = False
    only_whole_keys: bool = False  # it loads only models with as many key heads as heads
    # in models with this many layers, it takes the model's width over the number of heads for the
    # width of a head when it scales scores; 0: in none
    wide_scale_layers: int = 0
    # it computes windows only in models with this many layers, whatever their keys say; 0: in all
    window_layers: int = 0
    # it rotates as many dimensions in every layer without a window as in the first layer
    rotates_as_first: bool = False
    # it loads only models whose states (Mamba) are twice as wide as the model
    wide_states: bool = False
    gelu_tanh: bool = False  # it computes GELU by the hyperbolic tangent
    both_ways: bool = False  # its graph computes bidirectional attention
    # in its graph, the product with the head has a name, by which :mod:`bitnet.crossval` finds it
    names_logits: bool = True
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
    broken_by_zero: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Family:
    """One kind of decoder or encoder: how its files name and store it, and its blocks."""

    title: str  # its name in messages and documentation
    architecture: str  # ``general.architecture``, also the prefix of its keys in GGUF
    # values of ``model_type`` in ``config.json``; by default *architecture* with underscores
    model_types: tuple[str, ...] = ("",)
    activation: str = "silu"  # activation function, by its name in ``config.json``
    # other names of the architecture in GGUF files; *architecture* is read unless *in_gguf* is
    # false
    gguf: tuple[str, ...] = ()
    in_gguf: bool = True  # this family reads GGUF files of this architecture
    # names in ``architectures`` that set it apart from the family of its ``model_type``;
    # ``auto_map`` may name them, too
    classes: tuple[str, ...] = ()
    # keys of ``config.json`` whose values set it apart from another family of its ``model_type``
    told_by: Mapping[str, Any] = field(default_factory=dict)
    # keys of ``config.json`` by their other names; if a file has both, the other name counts, but
    # where :func:`~bitnet.families.config_defaults.with_usual_names` has made both equal
    aliases: Mapping[str, str] = field(default_factory=dict)
    # ``quantization_config`` that is assumed for folders without one
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
    # keys of ``rope_parameters`` that it reads besides those of the kind of scaling, each with a
    # note for the documentation
    rope_parameters: Mapping[str, str] = field(default_factory=dict)
    # rules for GGUF files, besides those shared by all families
    gguf_keys: Mapping[str, Rule] = field(default_factory=dict)
    # names of tensors of a layer that differ from those in ``tensor_names.py``
    tensors: Mapping[str, str] = field(default_factory=dict)
    # names of the modules of a folder that hold a stack of blocks each, if it has several stacks;
    # in GGUF, the blocks of all stacks are numbered one stack after another
    stacks: tuple[str, ...] = ()
    # GGUF's names of a tensor in layers with a state, by its names in layers without one
    names_with_states: Mapping[str, str] = field(default_factory=dict)
    # from ``config.json``: functions for those tensors of a folder whose numbers are not the
    # numbers that GGUF stores
    values: Callable[[Config], Values] = field(default=lambda _config: {})
    # the same for tensors whose numbers GGUF has in another order, repeated, or not all of them;
    # they keep their encoding
    orders: Callable[[Config], Values] = field(default=lambda _config: {})
    # the same for tensors that GGUF stores as several tensors
    parts: Callable[[Config], Parts] = field(default=lambda _config: {})
    # names, without the block, of tensors that hold a single number in a folder; in GGUF the
    # numbers of all layers are an array, whose key has this name and no prefix
    numbers: tuple[str, ...] = ()
    # from ``config.json``: factors on a folder's tensors, by the end of their GGUF names
    factors: Callable[[Config], Mapping[str, float]] = field(default=lambda _config: {})
    # matrices with biases, by the key of ``config.json`` that enables the biases; under ``""`` are
    # those that always have them; of a folder: the decoder's own are in ``ModelConfig.biases``
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rotates: bool = True  # positions are rotations of queries and keys
    partial_rotation: bool = False  # ``partial_rotary_factor`` is supported
    # kinds of scaling of its RoPE that transformers does not know
    rope_scalings: tuple[str, ...] = ()
    layered_rope: bool = False  # layers with a window have a RoPE of their own
    # with *layered_rope*: ``rope_scaling`` scales the RoPE of the layers without a window; most
    # classes of transformers with such layers ignore it
    layered_scaling: bool = False
    has_freq_factors: bool = False  # GGUF files have frequency factors even if all are one
    # ternary layers round a token's input to int8 (W1.58A8), as in training
    rounds_inputs: bool = False
    encodes: bool = False  # it is an encoder as BERT is: it embeds texts
    headless: bool = False  # it embeds texts, and its files have no output head
    # layers of the classifier of a folder, in order
    classifier: HeadLayers = (("score", SCORES, "identity"),)
    classifier_norm: str = ""  # name of the norm behind its inner layer; empty: it has none
    # beginnings of the names of a folder's tensors that are left out, being for other tasks
    unread: tuple[str, ...] = ()
    # a folder may have adapters of tasks, which do not belong to the model itself; see
    # :func:`bitnet.formats.adapters.read_adapter`
    has_tasks: bool = False
    norms_from_zero: bool = False  # the safetensors weights of norms are stored minus one
    # folders may have more blocks than ``num_hidden_layers``; these draft tokens and are left out
    more_blocks: bool = False
    # a folder's matrices of experts are stored transposed, with rows of gate and up alternating, or
    # as blocks of MXFP4
    transposed_experts: bool = False
    # a folder's matrices of experts may be stored transposed, which their shapes show
    turned_experts: bool = False
    rope_style: RopeStyle = "half"  # pairing of rotary dimensions in a folder's weights
    # the same in a GGUF file; where it differs, converters permuted rows
    gguf_rope_style: RopeStyle = "half"
    # how llama.cpp computes it; ``None``: it does not support the architecture
    llama_cpp: LlamaCppSupport | None = field(default_factory=LlamaCppSupport)
    # additional GGUF keys from a ``config.json``; the entry ``architecture``, if there is one, is
    # the model's architecture instead of the family's
    translate: Callable[[Config], dict[str, Any]] = field(default=lambda _config: {})
    decoder: Callable[[Keys], ModelConfig] = dense  # makes a model's configuration from its keys

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
    """Create a family with these *fields*, and add it to those that :func:`families` returns."""
    family = Family(**fields)
    _REGISTERED.append(family)
    return family


def register_variant(parent: Family, **changes: Any) -> Family:
    """Register a family like *parent*, but with other fields.

    In *changes*, a table is merged into that of *parent*; any other value replaces that of
    *parent*.
    """
    merged = {
        name: {**getattr(parent, name), **change} if isinstance(change, Mapping) else change
        for name, change in changes.items()
    }
    return register(**vars(parent) | merged)


@cache
def families() -> tuple[Family, ...]:
    """All families, sorted by title.

    The modules of this package register them when they are imported.
    """
    package = import_module("bitnet.families")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"bitnet.families.{module.name}")
    return tuple(sorted(_REGISTERED, key=lambda family: family.title.lower()))


def of_gguf(architecture: str) -> Family | None:
    """The family that reads GGUF files of *architecture*, or None if none does."""
    return next((family for family in families() if architecture in family.architectures), None)


def of_model_type(
    model_type: str, class_name: str = "", config: Config | None = None
) -> Family | None:
    """The family that reads folders of *model_type*, or None if none does.

    A family that lists *class_name*, the one in ``architectures``, comes first, whatever its
    ``model_type`` is; then one whose values of ``Family.told_by`` are all in *config*, a
    ``config.json``; then one without such values.
    """
    stated = config or {}
    candidates = [family for family in families() if model_type in family.model_types]
    for family in families():
        if class_name in family.classes:
            return family
    for family in candidates:
        told_by = family.told_by.items()
        if told_by and all(stated.get(key) == value for key, value in told_by):
            return family
    return next((family for family in candidates if not family.told_by), None)


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
    """Refuse a key of GGUF's *metadata*, below one of *prefixes*, that the family's rules refuse.

    *model* is the name of the file, for messages.
    """
    rules = COMMON | PROJECTION_KEYS | CLASSIFIER_KEYS | dict(family.gguf_keys)
    for prefix in (f"{name}." for name in prefixes):
        own = {key[len(prefix) :]: metadata[key] for key in metadata if key.startswith(prefix)}
        check(own, rules, model=model, below=prefix)


def find_zero(metadata: Mapping[str, Any], family: Family) -> str:
    """The first key that is 0 though llama.cpp then computes NaN or zeros; empty if none is.

    The keys that llama.cpp ignores must not be in *metadata*.
    """
    names = family.llama_cpp.broken_by_zero if family.llama_cpp is not None else ()
    keys = (f"{family.architecture}.{name}" for name in names)
    return next((key for key in keys if metadata.get(key, 1) == 0), "")
