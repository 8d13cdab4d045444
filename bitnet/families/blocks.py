"""A decoder as data: blocks of branches, each of which adds to the residual stream ``x``.

    x = x + post_norm(scale * mixer(norm(x)))

or, where norms are behind a branch, ``x = stream_norm(x + mixer(x))``.

Mixers of one branch read the same ``norm(x)``. What each kind computes is in the package
``models``: ``attention.py``, ``networks.py`` and ``recurrent.py``; tensors, program, registers and
cache follow from these values.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeAlias

from bitnet.base.errors import InvalidFormat
from bitnet.families.network_mixers import MOST_EXPERTS as MOST_EXPERTS
from bitnet.families.network_mixers import Activation as Activation
from bitnet.families.network_mixers import BlockInput as BlockInput
from bitnet.families.network_mixers import Experts as Experts
from bitnet.families.network_mixers import FeedForward as FeedForward
from bitnet.families.network_mixers import Gating as Gating
from bitnet.families.network_mixers import LayerInput as LayerInput
from bitnet.families.network_mixers import LowRank as LowRank
from bitnet.families.network_mixers import Routing as Routing
from bitnet.families.rope import rope_faults
from bitnet.families.state_mixers import DeltaNet as DeltaNet
from bitnet.families.state_mixers import KimiDelta as KimiDelta
from bitnet.families.state_mixers import Mamba1 as Mamba1
from bitnet.families.state_mixers import Mamba2 as Mamba2
from bitnet.families.state_mixers import ShortConvolution as ShortConvolution
from bitnet.families.state_mixers import State as State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bitnet.families.hadamard import HadamardBasis
    from bitnet.families.heads import Classifier, Projection
    from bitnet.families.rope import Rope
    from bitnet.families.streams import Cycles, Streams

# Bounds far above the sizes of published models: a damaged file may state billions.
LONGEST_KERNEL = 64  # positions of a convolution
LARGEST_HEAD = 1 << 16  # number of heads, width of a head, a state or a latent
MOST_STREAMS = 64

Pooling = Literal["none", "mean", "cls", "last"]
KVType = Literal["f16", "q8"]  # form of keys and values: codes of 16 bits, or of 8

MAX_SCALE = 200.0  # on scores: those of the longest queries and keys stay within float32
MAX_ALIBI = 64.0  # the smallest slope is at least ``2**-64``
CAPS = 1e-3, 1e3  # least and largest soft cap; outside, ``cap * tanh(x / cap)`` loses digits


@dataclass(frozen=True)
class KeysValues:
    """A cache that grows with the sequence."""

    kv_heads: int  # heads of keys, and of values
    head_dim: int  # width of each
    window: int = 0  # positions a query attends to, itself included; 0: all
    kv_type: KVType = "f16"  # form of its keys and values


CacheKind: TypeAlias = KeysValues | State


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention over keys and values of its own, or over those of an earlier attention."""

    heads: int  # query heads
    kv_heads: int  # key and value heads; each serves ``heads / kv_heads`` query heads
    head_dim: int  # width of a head
    rope: Rope | None  # position embedding; ``None``: no rotation
    scale: float  # factor on scores, at most 200
    # positions that a query attends to on each side, itself included; 0: all
    window: int = 0
    softcap: float = 0.0  # soft cap on scores, 0.001 to 1,000; 0: none
    # norms of queries and keys; ``head``: of each head, with one weight for all; ``rotated``: the
    # same behind the rotation; ``each``: of each head, with a weight of its own; ``whole``: of all
    # heads as one vector
    qk_norm: Literal["", "head", "rotated", "each", "whole"] = ""
    fused: bool = False  # query, key and value are one matrix
    biased: bool = False  # query, key and value must have biases; otherwise they may
    # ``attn_q`` has a gate behind each head, whose sigmoid multiplies the result
    gated: bool = False
    # a gate multiplies each number, or each head, of the result; it is the activation of a product
    # of the input with a matrix of its own, ``attn_gate``
    own_gate: Literal["", "numbers", "heads"] = ""
    gate_activation: Activation = "sigmoid"  # of that gate
    sub_norm: bool = False  # there is a norm before the output projection
    # largest absolute value of the entries of queries, keys and values; 0: they are not clamped
    clamp: float = 0.0
    # ALiBi: scores fall with the distance, by slopes of which the smallest is ``2**-alibi`` if the
    # number of heads is a power of two; 0: no ALiBi
    alibi: float = 0.0
    alibi_scale: float = 1.0  # factor on the slopes
    # scores get a bias by the distance of their key, from ``-reach`` to ``reach``, out of
    # ``attn_rel_b``; keys that are farther away get that of the nearer end; 0: no biases
    reach: int = 0
    # each head has one more key, whose score is in ``attn_sinks`` and whose value is zero
    sinks: bool = False
    # queries at a position are scaled by ``1 + growth * log(1 + position // growth_length)``
    growth: float = 0.0
    growth_length: int = 1  # positions between two steps of that growth
    # values are the keys before norm and rotation; there is no ``attn_v``
    keys_as_values: bool = False
    value_norm: bool = False  # there is an RMS norm of each value head, without a weight
    # number of the cache that it reads, which an earlier attention of the same shape fills;
    # ``None``: it has keys and values of its own
    shared_cache: int | None = None

    @property
    def slopes(self) -> tuple[float, ...]:
        """Loss of a score per position of distance, for each head; empty without ``alibi``.

        The first heads, as many as the largest power of two up to ``heads``, have slopes of
        ``2**-step`` with steps at equal distances up to ``alibi``. The other heads have the steps
        half-way between those (arXiv:2108.12409).
        """
        if not self.alibi:
            return ()
        whole = 1 << (self.heads.bit_length() - 1)
        steps = [self.alibi * (head + 1) / whole for head in range(whole)]
        between = [self.alibi * (head + 0.5) / whole for head in range(self.heads - whole)]
        return tuple(self.alibi_scale * 2.0**-step for step in (*steps, *between))

    @property
    def reads(self) -> KeysValues:
        """Shape of the cache that it reads, its own or that of another attention."""
        return KeysValues(self.kv_heads, self.head_dim, self.window)

    @property
    def cache(self) -> KeysValues | None:
        """The cache that it fills, or None if it reads that of another attention."""
        return self.reads if self.shared_cache is None else None


@dataclass(frozen=True, eq=False)
class LatentAttention:
    """Attention of all heads over one vector for each position (MLA, arXiv:2405.04434).

    The vector joins a latent and a rotated key. Keys and values are not computed from the latent:
    the matrices for that, ``attn_k_b`` and ``attn_v_b``, are multiplied with the queries and with
    the results instead, and the latent serves as key and as value.
    """

    heads: int  # query heads
    latent: int  # width of a latent
    key_dim: int  # width of a query without its rotary dimensions
    value_dim: int  # width of a head's result
    rope: Rope  # position embedding, of dimensions of its own
    scale: float  # factor on scores, at most 200
    query_rank: int  # width of the latent of the queries; 0: they are computed from the input
    eps: float  # epsilon of the norms of latents
    rotates: bool = True  # the dimensions of *rope* are rotated
    # the sigmoid of a product with a matrix of its own, ``attn_gate``, multiplies each head
    gated: bool = False
    growth: float = 0.0  # as in :class:`Attention`
    growth_length: int = 1  # positions between two steps of that growth

    @property
    def reads(self) -> KeysValues:
        """Shape of the cache that it reads, which is its own."""
        return KeysValues(1, self.latent + self.rope.dims)

    @property
    def cache(self) -> KeysValues:
        """Latents and rotated keys, stored twice: as keys, and in the memory order of values."""
        return self.reads


Mixer: TypeAlias = (
    Attention
    | BlockInput
    | DeltaNet
    | Experts
    | FeedForward
    | KimiDelta
    | LatentAttention
    | LayerInput
    | LowRank
    | Mamba1
    | Mamba2
    | ShortConvolution
)


@dataclass(frozen=True, eq=False)
class Sum:
    """The sum of networks that read the same stream, each with norms of its own."""

    # the networks, of one mixer each; none of them needs another position
    branches: tuple[Branch, ...]


@dataclass(frozen=True, eq=False)
class Branch:
    """A part of a block: mixers behind one norm, whose results are added to the stream."""

    norm: str  # name of the norm before it; empty: none
    # they read the same input; their results are added to the stream in order
    mixers: tuple[Mixer | Sum, ...]
    post_norm: str = ""  # name of the norm behind it; empty: none
    scale: float = 1.0  # factor on its result
    # it reads the stream as it was before its block, without the results of earlier branches
    parallel: bool = False
    stream_norm: str = ""  # name of the norm of the sum of stream and result; empty: none
    stream_scale: float = 1.0  # factor on the sum of stream and result
    # in a model with several streams: it runs when all streams are corrected, reads the active one,
    # and is added to all but the first
    beside: bool = False

    def every(self) -> Iterator[Mixer]:
        """Its mixers, with those of the branches of a :class:`Sum` in place of the sum."""
        for mixer in self.mixers:
            if isinstance(mixer, Sum):
                for branch in mixer.branches:
                    yield from branch.every()
            else:
                yield mixer


Block: TypeAlias = tuple[Branch, ...]


@dataclass(frozen=True, eq=False)
class ModelConfig:
    """A decoder, or an encoder, as data."""

    architecture: str  # GGUF's name for the family
    dim: int  # width of the residual stream
    vocab_size: int  # rows of the token embedding
    context_length: int  # positions the model was trained for
    norm_eps: float  # epsilon of every norm
    blocks: tuple[Block, ...]  # from the first to the last
    embedding_scale: float = 1.0  # factor on embeddings
    logit_scale: float = 1.0  # factor on logits
    final_softcap: float = 0.0  # soft cap on logits, 0.001 to 1,000; 0: none
    causal: bool = True  # positions attend only to themselves and to earlier ones
    # positions of a prompt attend to the whole prompt, those of an answer only to earlier ones
    prompt_both_ways: bool = False
    # how hidden states are pooled to an embedding; ``none``: it generates text
    pooling: Pooling = "none"
    classifier: Classifier | None = None  # on a pooled hidden state; ``None``: it has none
    projections: tuple[Projection, ...] = ()  # on a pooled vector, one after another
    centered_norms: bool = False  # norms subtract the mean first (LayerNorm)
    norm_biases: bool = False  # norms have biases
    norm_weights: bool = True  # norms have weights
    biases: tuple[str, ...] = ()  # names of matrices that must have biases; others may
    # each position has an embedding, a row of ``position_embd``, which is added to the token's
    positions: bool = False
    # id of a token that does not count as a position, so that texts with it are refused
    uncounted_token: int | None = None
    # rows of ``token_types``, the segment embeddings, which are added as well; 0: none
    text_rows: int = 0
    embedding_norm: str = ""  # name of the norm of the embeddings; empty: none
    # each projection of a block has an RMS norm on its input (BitNet embeddings)
    input_norms: bool = False
    output_scale: str = ""  # name of the factor on the stream behind each block; empty: none
    # beginnings of the names of tensors that generating text does not need
    left_out: tuple[str, ...] = ()
    first_block: int = 0  # number of the first block in the names of tensors
    # for each block, the number in the names of its tensors, where blocks share tensors (each block
    # still has a cache of its own); empty: the number of the block
    block_numbers: tuple[int, ...] = ()
    loop_norm: str = ""  # name of the norm of the stream before block 0 runs again; empty: none
    streams: Streams | None = None  # several residual streams (AltUp); ``None``: a single one
    cycles: Cycles | None = None  # two stacks of blocks on two streams; ``None``: one on one stream
    # its input is the embedding of a token joined with the hidden state of another decoder at the
    # token before
    joined: bool = False
    final_norm: str = "output_norm"  # name of the norm behind the last block; empty: none
    # names of norms whose tensors have just these names, without ``.weight``
    unsuffixed_norms: tuple[str, ...] = ()
    # the model's block that drafts the token after next, as a decoder; ``None``: it has none
    drafter: ModelConfig | None = None
    basis: HadamardBasis | None = None  # ``None``: no matrix is rotated
    # ranks of low-rank adapters, by the name of the matrix that they change
    adapted: Mapping[str, int] = field(default_factory=dict)
    kv_type: KVType = "f16"  # form of its keys and values

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    @property
    def vector_dim(self) -> int:
        """Width of the vector that it computes for a text."""
        return self.projections[-1].outputs if self.projections else self.dim

    @property
    def writes(self) -> bool:
        """True if the model generates text; otherwise it computes embeddings."""
        return self.causal and self.pooling == "none"

    @property
    def looks_back(self) -> bool:
        """True if no position sees later ones, so that a prompt can be run in parts."""
        return self.causal and not self.prompt_both_ways

    def mixers(self) -> Iterator[Mixer]:
        """Mixers of every block, in the order in which they run."""
        for block in self.blocks:
            for branch in block:
                yield from branch.every()

    @cached_property
    def attentions(self) -> tuple[Attention, ...]:
        """Mixers that are :class:`Attention`, in the order in which they run."""
        return tuple(mixer for mixer in self.mixers() if isinstance(mixer, Attention))

    @cached_property
    def caches(self) -> tuple[CacheKind, ...]:
        """Kind of cache of each mixer that has one, in the order in which they run."""
        return tuple(
            replace(cache, kv_type=self.kv_type) if isinstance(cache, KeysValues) else cache
            for mixer in self.mixers()
            if (cache := mixer.cache) is not None
        )

    @cached_property
    def ropes(self) -> tuple[Rope, ...]:
        """The position embeddings of its mixers, each once."""
        usual = [mixer.rope for mixer in self.mixers() if isinstance(mixer, Attention)]
        over_latents = [mixer for mixer in self.mixers() if isinstance(mixer, LatentAttention)]
        ropes = [*usual, *(mixer.rope for mixer in over_latents if mixer.rotates)]
        return tuple(dict.fromkeys(rope for rope in ropes if rope is not None))

    def regime(self, reach: int) -> tuple[int, ...]:
        """Key of the RoPE frequencies of a prompt that may *reach* this many positions.

        Prompts with equal keys can share a cache.
        """
        return tuple(rope.regime(reach) for rope in self.ropes)

    def __post_init__(self) -> None:
        own_faults = (
            (min(self.dim, len(self.blocks)) < 1, "a size below 1"),
            (min(self.vocab_size, self.context_length) < 1, "no vocabulary or no context"),
            (self.norm_eps < 0, "norms of a negative epsilon"),
            *self._stream_faults(),
            (_outside(self.final_softcap), f"a soft cap outside of {CAPS[0]:g} to {CAPS[1]:,g}"),
        )
        for fails, fault in chain(own_faults, *map(_faults, self.mixers())):
            if fails:
                raise InvalidFormat(
                    f"the keys do not describe a transformer: {fault} "
                    f"({len(self.blocks)} layers of width {self.dim})",
                    hint="the file is damaged; fetch it again",
                )

    def _stream_faults(self) -> Iterator[tuple[bool, str]]:
        """Conditions on the streams that must be false, each with its name in an error."""
        if self.streams is not None:
            count = self.streams.count
            yield not 2 <= count <= MOST_STREAMS, f"{count:,} residual streams"
            yield not 0 <= self.streams.active < count, f"a stream beyond {count:,} that is read"


def _outside(cap: float) -> bool:
    """True if *cap* is a soft cap that is not computed exactly."""
    return cap != 0 and not CAPS[0] <= cap <= CAPS[1]


def _faults(mixer: Mixer) -> Iterator[tuple[bool, str]]:
    """Conditions on *mixer* that must be false, each with its name in an error.

    A later condition may divide by a number that an earlier one has checked not to be 0: the caller
    stops at the first condition that is true.
    """
    kernel = getattr(mixer, "kernel", 1)
    scale = getattr(mixer, "scale", 0.0)
    yield kernel > LONGEST_KERNEL, f"a convolution over more than {LONGEST_KERNEL}"
    yield abs(scale) > MAX_SCALE, f"scores times more than {MAX_SCALE:g}"
    match mixer:
        case LowRank():
            yield mixer.rank < 1, "a size below 1 (inside the learned residual)"
        case FeedForward() | LayerInput():
            yield mixer.width < 1, "a size below 1 (inside the feed-forward network)"
        case ShortConvolution():
            yield min(mixer.width, kernel) < 1, "a convolution of nothing"
        case Experts():
            # a latent of width 0 is none
            yield min(mixer.width, mixer.latent + 1) < 1, "a size below 1 (inside the experts)"
            yield from _routing_faults(mixer.routing)
        case DeltaNet():
            sizes = mixer.heads, mixer.key_heads, mixer.key_dim, mixer.value_dim, kernel
            heads = f"{mixer.heads} heads of {mixer.value_dim}, {mixer.key_heads} key heads"
            yield min(sizes) < 1, f"linear attention without heads ({heads})"
            yield max(sizes) > LARGEST_HEAD, f"linear attention of {max(sizes):,} dimensions"
            yield (
                mixer.heads % mixer.key_heads > 0,
                f"key heads that do not divide the heads ({heads})",
            )
        case KimiDelta():
            kda_sizes = mixer.heads, mixer.head_dim, kernel
            yield min(kda_sizes) < 1, f"linear attention without heads {kda_sizes}"
            yield (
                max(kda_sizes) > LARGEST_HEAD,
                f"linear attention of {max(kda_sizes):,} dimensions",
            )
            yield mixer.floor > 0, f"decays whose logarithms are above {mixer.floor:g}"
        case Mamba1():
            widths = mixer.state_size, mixer.step_rank, kernel
            yield min(mixer.width, *widths) < 1, f"a state-space model of nothing {widths}"
            yield max(widths) > LARGEST_HEAD, f"a state-space model of {max(widths):,} dimensions"
        case Mamba2():
            sizes = mixer.heads, mixer.head_dim, mixer.groups, mixer.state_size, kernel
            heads = f"{mixer.heads} heads of {mixer.head_dim}, {mixer.groups} groups"
            yield min(sizes) < 1, f"a state-space model without heads ({heads})"
            yield max(sizes) > LARGEST_HEAD, f"a state-space model of {max(sizes):,} dimensions"
            yield mixer.heads % mixer.groups > 0, f"groups that do not divide the heads ({heads})"
            yield (
                mixer.width % max(mixer.norm_groups, 1) > 0,
                f"{mixer.norm_groups} norms ({heads})",
            )
        case Attention():
            heads = f"{mixer.heads} heads of {mixer.head_dim}, {mixer.kv_heads} key heads"
            yield min(mixer.heads, mixer.kv_heads, mixer.head_dim) < 1, f"no heads ({heads})"
            yield (
                mixer.heads % mixer.kv_heads > 0,
                f"key heads that do not divide the heads ({heads})",
            )
            yield mixer.growth_length < 1, "queries that grow after no positions"
            yield not 0 <= mixer.alibi <= MAX_ALIBI, f"ALiBi outside of 0 to {MAX_ALIBI:g}"
            yield mixer.clamp < 0, "values clamped to nothing"
            yield _outside(mixer.softcap), f"a soft cap outside of {CAPS[0]:g} to {CAPS[1]:,g}"
            yield from rope_faults(mixer.rope, mixer.head_dim) if mixer.rope else ()
        case LatentAttention():
            latents = mixer.heads, mixer.latent, mixer.key_dim, mixer.value_dim
            yield min(latents) < 1 or mixer.query_rank < 0, f"attention without heads {latents}"
            yield mixer.growth_length < 1, "queries that grow after no positions"
            largest = max(*latents, mixer.query_rank)
            yield largest > LARGEST_HEAD, f"latents of {largest:,}"
            yield from rope_faults(mixer.rope, mixer.rope.dims)


def _routing_faults(routing: Routing) -> Iterator[tuple[bool, str]]:
    """As :func:`_faults`, of the choice of experts."""
    groups = f"{routing.groups_used} of {routing.groups} groups of {routing.count} experts"
    yield not 1 <= routing.used <= routing.count, f"{routing.used} of {routing.count} experts"
    yield routing.count > MOST_EXPERTS, f"{routing.count:,} experts"
    yield not 1 <= routing.groups_used <= routing.groups, groups
    yield routing.count % routing.groups > 0, f"groups that differ in size ({groups})"
    available = routing.count // routing.groups * routing.groups_used
    yield routing.used > available, f"more experts of a token than {groups} have ({routing.used})"
