"""Arcee: Llama without a GLU; the activation is squared ReLU."""

from __future__ import annotations

from functools import partial

from bitnet.families.dense import dense
from bitnet.families.family import ATTENTION, BIASES, Family, LlamaCppSupport, register
from bitnet.families.rules import neutral, read

register(
    Family(
        title="Arcee (AFM)",
        architecture="arcee",
        model_types=("arcee",),
        activation="relu2",
        gguf_rope_style="interleaved",
        defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
        config_keys={
            "attention_bias": read("biases around attention"),
            "mlp_bias": read("biases in the feed-forward network"),
        },
        gguf_keys={"attention.sliding_window": neutral(0)},
        biases={"attention_bias": ATTENTION, "mlp_bias": ("ffn_up", "ffn_down")},
        llama_cpp=LlamaCppSupport(tensors=("output.weight", *BIASES, "rope_freqs.weight")),
        # relu(up) * up equals the square of relu(up).
        decoder=partial(dense, ffn={"gated": False, "activation": "relu"}),
    )
)
