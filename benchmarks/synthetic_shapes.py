"""Shapes of published models: their tensors in the types of their files, for synthetic.py."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from bitnet.quants import types

# Types of published files, by patterns of a tensor's name; the first match counts. llama.cpp
# encodes `attn_output` as other matrices in Q4_K_M, unless a model has eight experts.
MIXTURES = {
    "Q4_K_M": (("output", "Q6_K"), ("attn_v", "Q6_K"), ("ffn_down*", "Q6_K"), ("*", "Q4_K")),
    "MXFP4": (("*_exps", "MXFP4"), ("*", "Q8_0")),
}
EXPERTS = ("gate", "up", "down")


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, and the architecture that its file names."""

    architecture: str = "bitnet-b1.58"
    layers: int = 30
    dim: int = 2560
    ffn: int = 6912
    heads: int = 20
    kv_heads: int = 5
    head_dim: int = 128
    embeds: bool = False  # True for an embedding model
    low_bit: bool = False  # True if the embedding has the type of the other matrices
    # One layer in this many has attention. The others are short convolutions in a mixture of
    # experts, and delta nets in a dense model, whose attention has gates.
    period: int = 1
    key_heads: int = 16  # of a delta net
    value_heads: int = 48  # of a delta net
    state: int = 128  # width of a head of a delta net
    vocabulary: int = 0  # tokens of the model, if they are more than those of the vocabulary
    experts: int = 0  # 0: the model is dense
    used: int = 0  # experts that a token uses
    dense: int = 0  # leading layers without experts
    expert_ffn: int = 0  # width of the feed-forward network of an expert

    @property
    def width(self):
        """Width of all heads together."""
        return self.heads * self.head_dim


SHAPES = {
    "2b-4t": Shape(),
    "embedding-0.6b": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, embeds=True),
    "embedding-270m": Shape("gemma3", 18, 640, 2048, 4, 1, 256, embeds=True),
    "bonsai-1.7b": Shape("qwen3", 28, 2048, 6144, 16, 8, 128, low_bit=True),
    "bonsai-8b": Shape("qwen3", 36, 4096, 12288, 32, 8, 128, low_bit=True),
    "bonsai-27b": Shape(
        "qwen35", 64, 5120, 17408, 24, 4, 256, low_bit=True, period=4, vocabulary=248320
    ),
    "tiny-hybrid": Shape(
        "qwen35",
        4,
        256,
        512,
        4,
        2,
        64,
        low_bit=True,
        period=4,
        key_heads=2,
        value_heads=4,
        state=64,
    ),
    "qwen3-30b-a3b": Shape(
        "qwen3moe", 48, 2048, 6144, 32, 4, 128, experts=128, used=8, expert_ffn=768
    ),
    "gpt-oss-20b": Shape("gpt-oss", 24, 2880, 2880, 64, 8, 64, experts=32, used=4, expert_ffn=2880),
    "lfm2-8b-a1b": Shape(
        "lfm2moe", 24, 2048, 7168, 32, 8, 64, experts=32, used=4, expert_ffn=1792, period=4, dense=2
    ),
    "maple-20b-a1b": Shape(
        "maple", 24, 2048, 2048, 16, 4, 128, experts=256, used=8, expert_ffn=512
    ),
    **{
        f"tiny-{name}": Shape(
            name,
            4,
            256,
            512,
            4,
            2,
            64,
            experts=4,
            used=2,
            expert_ffn=256,
            period=period,
            dense=first,
        )
        for name, period, first in (
            ("qwen3moe", 1, 0),
            ("gpt-oss", 1, 0),
            ("lfm2moe", 4, 2),
            ("maple", 1, 0),
        )
    },
    "tiny": Shape(dim=256, ffn=512, heads=4, kv_heads=2, head_dim=64),
    "tiny-embedding": Shape("qwen3", 2, 256, 512, 4, 2, 128, embeds=True),
}
QK_NORMS = ("qwen3", "gemma3")  # architectures without a period that norm queries and keys


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file: *shape* begins with the rows, *kind* is the name of the encoding."""

    name: str
    shape: tuple[int, ...]
    kind: str

    @property
    def size(self):
        """Bytes, without padding."""
        return types.by_name(self.kind).size_bytes(self.shape)


def norms(shape):
    """Width of each norm of a layer, by its name.

    `tensors` adds the norms of the inputs of single matrices, ``*_norm_in``.
    """
    dim = shape.dim
    head = shape.head_dim
    if shape.architecture.startswith("bitnet"):
        sub_norms = {"attn_sub_norm": shape.width, "ffn_sub_norm": shape.ffn}
        return {"attn_norm": dim, "ffn_norm": dim} | sub_norms
    widths = {"attn_norm": dim, "ffn_norm": dim}
    if shape.period > 1:
        return {
            "attn_norm": dim,
            "post_attention_norm": dim,
            "attn_q_norm": head,
            "attn_k_norm": head,
        }
    if shape.architecture in QK_NORMS:
        widths |= {"attn_q_norm": head, "attn_k_norm": head}
    if shape.architecture == "gemma3":
        widths |= {"post_attention_norm": dim, "post_ffw_norm": dim}
    return widths


def delta_net(kind, shape, block, feed_forward):
    """Tensors of a layer with a delta net in place of attention; *block* begins their names."""
    keys = shape.key_heads * shape.state
    values = shape.value_heads * shape.state
    heads = (shape.value_heads,)
    dim = shape.dim
    floats = {
        "attn_norm.weight": (dim,),
        "post_attention_norm.weight": (dim,),
        "ssm_a": heads,
        "ssm_conv1d.weight": (2 * keys + values, 4),
        "ssm_dt.bias": heads,
        "ssm_norm.weight": (shape.state,),
    }
    linear = {
        "attn_qkv": (2 * keys + values, dim),
        "attn_gate": (values, dim),
        "ssm_out": (dim, values),
    }
    entries = [Tensor(block + name, size, "F32") for name, size in floats.items()]
    entries += [
        Tensor(f"{block}ssm_{part}.weight", (*heads, dim), "BF16") for part in ("alpha", "beta")
    ]
    linear |= feed_forward
    return entries + [Tensor(f"{block}{name}.weight", size, kind) for name, size in linear.items()]


def encoding_of(kind, name, layer):
    """Encoding of the matrix *name* in a file of *kind*; *layer* is -1 outside the blocks.

    In Q4_K_M the attention values and down projections of every second layer have the longer Q6_K,
    in TQ2_0 the matrices outside the blocks have Q4_K.
    """
    if kind == "TQ2_0":
        return "TQ2_0" if layer >= 0 else "Q4_K"
    if kind == "Q4_K_M" and layer >= 0 and layer % 2:
        return "Q4_K"
    rules = MIXTURES.get(kind, (("*", kind),))
    return next(type_ for pattern, type_ in rules if fnmatchcase(name, pattern))


def with_experts(kind, shape, *, layers, vocabulary):
    """Every tensor of a mixture of experts, in file order."""
    dim = shape.dim
    heads = shape.heads
    experts = shape.experts
    width = shape.expert_ffn
    kv_width = shape.kv_heads * shape.head_dim
    architecture = shape.architecture
    entries = []

    def add(name, *size, layer=-1, floats=False):
        """Add a tensor of *size*, in F32 if *floats* or a vector; layer -1: outside the layers."""
        full = f"blk.{layer}.{name}" if layer >= 0 else name
        is_float = floats or len(size) == 1
        encoding = "F32" if is_float else encoding_of(kind, name.split(".")[0], layer)
        entries.append(Tensor(full, size, encoding))

    add("token_embd.weight", vocabulary, dim)
    if architecture != "lfm2moe":
        add("output.weight", vocabulary, dim)
    add("token_embd_norm.weight" if architecture == "lfm2moe" else "output_norm.weight", dim)
    for i in range(layers):
        add("attn_norm.weight", dim, layer=i)
        add(f"{'post_attention' if architecture == 'gpt-oss' else 'ffn'}_norm.weight", dim, layer=i)
        if i % shape.period == shape.period // 2:  # attention, else a short convolution
            sizes = {"q": (shape.width, dim), "k": (kv_width, dim), "v": (kv_width, dim)}
            for part, size in (sizes | {"output": (dim, shape.width)}).items():
                add(f"attn_{part}.weight", *size, layer=i)
                if architecture == "gpt-oss":
                    add(f"attn_{part}.bias", size[0], layer=i)
            if architecture == "gpt-oss":
                add("attn_sinks.weight", heads, layer=i)
            for part in "qk" if architecture != "gpt-oss" else "":
                add(f"attn_{part}_norm.weight", shape.head_dim, layer=i)
        else:
            add("shortconv.conv.weight", dim, 3, layer=i, floats=True)
            add("shortconv.in_proj.weight", 3 * dim, dim, layer=i)
            add("shortconv.out_proj.weight", dim, dim, layer=i)
        if i < shape.dense:
            for part in EXPERTS:
                size = (dim, shape.ffn) if part == "down" else (shape.ffn, dim)
                add(f"ffn_{part}.weight", *size, layer=i)
            continue
        add("ffn_gate_inp.weight", experts, dim, layer=i, floats=True)
        if architecture == "gpt-oss":
            add("ffn_gate_inp.bias", experts, layer=i)
        if architecture == "lfm2moe":
            add("exp_probs_b.bias", experts, layer=i)
        for part in EXPERTS:
            rows, columns = (dim, width) if part == "down" else (width, dim)
            add(f"ffn_{part}_exps.weight", experts, rows, columns, layer=i)
            if architecture == "gpt-oss":
                add(f"ffn_{part}_exps.bias", experts, rows, layer=i, floats=True)
    return entries


def tensors(kind, shape, *, layers, vocabulary):
    """Every tensor of the model, in file order."""
    if shape.experts:
        return with_experts(kind, shape, layers=layers, vocabulary=vocabulary)
    dim = shape.dim
    ffn = shape.ffn
    width = shape.width
    kv_width = shape.kv_heads * shape.head_dim
    linear = {
        "attn_q": (width, dim),
        "attn_k": (kv_width, dim),
        "attn_v": (kv_width, dim),
        "attn_output": (dim, width),
        "ffn_gate": (ffn, dim),
        "ffn_up": (ffn, dim),
        "ffn_down": (dim, ffn),
    }
    feed_forward = {name: linear[name] for name in ("ffn_gate", "ffn_up", "ffn_down")}
    if shape.period > 1:
        linear["attn_q"] = (2 * width, dim)  # queries and their gates
    layer_norms = norms(shape)
    if shape.embeds and kind == "I2_S":
        layer_norms |= {f"{name}_norm_in": size[1] for name, size in linear.items()}
    embedding = kind if shape.low_bit else "F16"
    entries = [Tensor("token_embd.weight", (vocabulary, dim), embedding)]
    if shape.period > 1:
        entries.append(Tensor("output.weight", (vocabulary, dim), embedding))
    for layer in range(layers):
        if (layer + 1) % shape.period:  # the last layer of each period has attention
            entries += delta_net(kind, shape, f"blk.{layer}.", feed_forward)
            continue
        entries += [
            Tensor(f"blk.{layer}.{name}.weight", (n,), "F32") for name, n in layer_norms.items()
        ]
        entries += [
            Tensor(f"blk.{layer}.{name}.weight", size, kind) for name, size in linear.items()
        ]
    return [*entries, Tensor("output_norm.weight", (dim,), "F32")]


def expert_keys(shape, layers):
    """Keys that only a mixture of experts has, below its architecture; empty for a dense model."""
    if not shape.experts:
        return {}
    own = {
        "expert_count": shape.experts,
        "expert_used_count": shape.used,
        "expert_feed_forward_length": shape.expert_ffn,
    }
    if shape.architecture == "gpt-oss":
        own |= {"attention.sliding_window": 128}
    if shape.architecture == "maple":
        # True for layers with a window: three of four.
        windows = [(i + 1) % 4 > 0 for i in range(layers)]
        own |= {
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": windows,
            "swiglu_clamp_exp": 7.0,
        }
    if shape.architecture == "lfm2moe":
        attends = [i % shape.period == shape.period // 2 for i in range(layers)]
        own |= {
            "shortconv.l_cache": 3,
            "expert_gating_func": 2,  # sigmoid
            "leading_dense_block_count": shape.dense,
            "attention.head_count_kv": [shape.kv_heads * attention for attention in attends],
        }
    return own
