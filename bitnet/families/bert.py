"""BERT and its relatives: encoders, whose attention is bidirectional, and which embed texts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.families.blocks import Block, Branch, FeedForward, Mixer
from bitnet.families.dense import ModelConfig, Sizes, attention, model_of, sizes
from bitnet.families.family import ATTENTION, LlamaCppSupport, Values, register, register_variant
from bitnet.families.heads import INNER, SCORES, HeadLayers
from bitnet.families.keys import Config, Keys, neutral, read, reads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_PRODUCTS = (*ATTENTION, "ffn_up", "ffn_down")
# Row of padding in MPNet's table of positions, and its token, whatever ``pad_token_id`` is.
_PADDING = 1
# Rows of MPNet's table of biases: half of them for keys up to the query, half for later keys.
_BUCKETS = 32
_REACH = 128  # from this distance on, all keys of a side have one bias
# Key of the padding token, in models for which transformers counts only other tokens as positions.
# A text may contain that token, too. llama.cpp treats it like any other, and its converter does not
# write the key.
_UNCOUNTED = {"uncounted_token_id": read("a text with it is refused: it would shift positions")}
#: Beginnings of the names of tensors of heads for other tasks.
HEADS = ("cls.", "lm_head.", "pooler.", "qa_outputs.", "vocab_")
#: Layers of classifiers of the first hidden state of a text: in BERT, then in RoBERTa.
POOLED_CLASSIFIER: HeadLayers = (
    ("pooler.dense", INNER, "tanh"),
    ("classifier", SCORES, "identity"),
)
DENSE_CLASSIFIER: HeadLayers = (
    ("classifier.dense", INNER, "tanh"),
    ("classifier.out_proj", SCORES, "identity"),
)


def norms_behind(mixer: Mixer, network: Mixer) -> Block:
    """Attention, then a network, with a norm of the stream behind each."""
    return (
        Branch("", (mixer,), stream_norm="attn_output_norm"),
        Branch("", (network,), stream_norm="layer_output_norm"),
    )


def encoder(keys: Keys, model_sizes: Sizes, blocks: Iterable[Block], **more: Any) -> ModelConfig:
    """Encoder of *blocks* with LayerNorm, and *more* fields of :class:`ModelConfig`.

    Attention is bidirectional unless a key says otherwise. Tokens get segment embeddings if the
    file has the table of them, ``token_types``.
    """
    usual_fields: dict[str, Any] = {"norm_biases": True, "final_norm": ""}
    uncounted = None
    if keys.value("uncounted_token_id", None) is not None:
        uncounted = keys.integer("uncounted_token_id")
    return model_of(
        keys,
        model_sizes,
        blocks,
        norm_eps=keys.number("attention.layer_norm_epsilon"),
        causal=keys.flag("attention.causal", False),
        centered_norms=True,
        text_rows=keys.row_count("token_types.weight", 0),
        uncounted_token=uncounted,
        embedding_norm="token_embd_norm",
        **(usual_fields | more),
    )


def _bert(keys: Keys) -> ModelConfig:
    model_sizes = sizes(keys)
    mixer = attention(keys, model_sizes.dim, rope=None)
    network = FeedForward(model_sizes.ffn, "gelu", gated=False)
    blocks = [norms_behind(mixer, network)] * model_sizes.layers
    return encoder(keys, model_sizes, blocks, biases=_PRODUCTS, positions=True)


def both_ways(_config: Config) -> dict[str, Any]:
    """The GGUF key of bidirectional attention."""
    return {"attention.causal": False}


BERT = register(
    title="BERT",
    architecture="bert",
    activation="gelu",
    encodes=True,
    headless=True,
    config_keys={
        **reads("layer_norm_eps"),
        "is_decoder": neutral(None, False),
        "position_embedding_type": neutral(None, "absolute"),
        "type_vocab_size": read("must be the number of rows of `token_types`"),
    },
    gguf_keys=reads("attention.layer_norm_epsilon") | _UNCOUNTED,
    tensors={
        "attention.self.query": "attn_q",
        "attention.self.key": "attn_k",
        "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output",
        "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up",
        "output.dense": "ffn_down",
        "output.LayerNorm": "layer_output_norm",
    },
    unread=HEADS,
    classifier=POOLED_CLASSIFIER,
    biases={"": _PRODUCTS},
    rotates=False,
    llama_cpp=LlamaCppSupport(tensors=(".bias",), only_whole_width=True, gelu_tanh=True),
    translate=both_ways,
    decoder=_bert,
)


def _first_position(config: Config) -> int:
    """Row of the position table for the first token; padding uses the rows before it."""
    return int(config["pad_token_id"]) + 1


def positions_behind_padding(config: Config) -> dict[str, Any]:
    """GGUF keys of an encoder whose first position follows the row for padding."""
    positions = config["max_position_embeddings"] - _first_position(config)
    return both_ways(config) | {"context_length": positions}


def _roberta_keys(config: Config) -> dict[str, Any]:
    return positions_behind_padding(config) | {"uncounted_token_id": config["pad_token_id"]}


def _roberta_orders(config: Config) -> Values:
    """A function that removes the rows of positions for padding."""
    first = _first_position(config)

    def behind_padding(rows: NDArray[Any]) -> NDArray[Any]:
        return rows[first:]

    return {"position_embd.weight": behind_padding}


register_variant(
    BERT,
    title="RoBERTa and XLM-R",
    in_gguf=False,
    model_types=("roberta", "xlm-roberta", "camembert"),
    config_keys={
        **reads("pad_token_id"),
    },
    orders=_roberta_orders,
    classifier=DENSE_CLASSIFIER,
    translate=_roberta_keys,
)


def _mpnet(keys: Keys) -> ModelConfig:
    model_sizes = sizes(keys)
    mixer = attention(keys, model_sizes.dim, rope=None, reach=_REACH)
    network = FeedForward(model_sizes.ffn, "gelu", gated=False)
    blocks = [norms_behind(mixer, network)] * model_sizes.layers
    return encoder(keys, model_sizes, blocks, biases=_PRODUCTS, positions=True)


def _bucket(distance: int) -> int:
    """Row with the biases of a key that is *distance* positions after its query (negative: before).

    Each side has half of the rows: a half of these for short distances, one each, and the others
    for ranges of longer distances up to ``_REACH``, equal on a logarithmic scale.
    """
    half = _BUCKETS // 2
    first_row = half if distance > 0 else 0
    exact = half // 2  # distances below this one have a row each
    size = abs(distance)
    if size < exact:
        return first_row + size
    # In float32, as transformers computes it, so that rows change at the same distances.
    share = np.log(np.float32(size) / np.float32(exact)) / np.float32(math.log(_REACH / exact))
    return first_row + min(exact + int(share * np.float32(half - exact)), half - 1)


def _mpnet_values(_config: Config) -> Values:
    """A function that turns the table of biases by bucket into one by distance, a row per head."""
    rows = [_bucket(distance) for distance in range(-_REACH, _REACH + 1)]

    def by_distance(table: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(table[rows].T)

    return {"attn_rel_b.weight": by_distance}


def _mpnet_orders(_config: Config) -> Values:
    return {"position_embd.weight": lambda rows: rows[_PADDING + 1 :]}


def _mpnet_keys(config: Config) -> dict[str, Any]:
    positions = config["max_position_embeddings"] - _PADDING - 1
    return both_ways(config) | {"context_length": positions, "uncounted_token_id": _PADDING}


register_variant(
    BERT,
    title="MPNet",
    architecture="mpnet",
    model_types=("mpnet",),
    config_keys={
        "relative_attention_num_buckets": neutral(None, _BUCKETS),
        "type_vocab_size": neutral(None),
    },
    tensors={
        "attention.attn.q": "attn_q",
        "attention.attn.k": "attn_k",
        "attention.attn.v": "attn_v",
        "attention.attn.o": "attn_output",
        "attention.LayerNorm": "attn_output_norm",
    },
    classifier=DENSE_CLASSIFIER,
    values=_mpnet_values,
    orders=_mpnet_orders,
    llama_cpp=None,
    translate=_mpnet_keys,
    decoder=_mpnet,
)


def _distilbert_keys(config: Config) -> dict[str, Any]:
    # transformers' class has this epsilon built in, so that no ``config.json`` states it.
    return both_ways(config) | {"attention.layer_norm_epsilon": 1e-12}


register_variant(
    BERT,
    title="DistilBERT",
    in_gguf=False,
    model_types=("distilbert",),
    aliases={
        "activation": "hidden_act",
        "dim": "hidden_size",
        "hidden_dim": "intermediate_size",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
    },
    classifier=(("pre_classifier", INNER, "relu"), ("classifier", SCORES, "identity")),
    config_keys={"layer_norm_eps": neutral(None, 1e-12), "type_vocab_size": neutral(None)},
    tensors={
        "attention.q_lin": "attn_q",
        "attention.k_lin": "attn_k",
        "attention.v_lin": "attn_v",
        "attention.out_lin": "attn_output",
        "sa_layer_norm": "attn_output_norm",
        "ffn.lin1": "ffn_up",
        "ffn.lin2": "ffn_down",
        "output_layer_norm": "layer_output_norm",
    },
    translate=_distilbert_keys,
)
