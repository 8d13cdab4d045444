"""BitNets in the form in which their authors publish them, tiny and random.

The keys of each ``config.json`` and the names, types and scales of the tensors are those of the
published folder; the sizes are not.
"""

import hashlib
import json

import numpy as np
from hf_folders import bf16, save_tensors
from sentencepiece_writer import sentencepiece_bytes
from tiny_models import TOKENS

from bitnet.tokenizer.spec import TokenizerSpec

DIM = 256
HEADS = 4
KV_HEADS = 2
HEAD = 64
FFN = 512
LAYERS = 2
VOCAB = 64
# As float32, the type of a GGUF file: another value may round an activation to another int8.
EPS_5 = float(np.float32(1e-5))
EPS_6 = float(np.float32(1e-6))

SIZES = {
    "hidden_size": DIM,
    "intermediate_size": FFN,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "model_type": "llama",
    "pretraining_tp": 1,
    "rope_scaling": None,
    "use_cache": True,
}
# huggingface.co/1bitLLM/bitnet_b1_58-large, but for the sizes; -3B has the same.
ONE_BIT = SIZES | {
    "_name_or_path": "1bitLLM/bitnet_b1_58-large",
    "architectures": ["BitnetForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "input_bits": 8,
    "num_key_value_heads": HEADS,
    "pad_token_id": 63,
    "rms_norm_eps": EPS_5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float16",
    "weight_bits": 1,
}
_PACKED = SIZES | {
    "architectures": ["LlamaForCausalLM"],
    "is_bitnet_config": True,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
# huggingface.co/HF1BitLLM/Llama3-8B-1.58-100B-tokens; the file has quantization_config twice.
LLAMA3 = _PACKED | {
    "rms_norm_eps": EPS_5,
    "rope_interleaved": False,
    "rope_theta": 500000.0,
    "quantization_config": {"modules_to_not_convert": None, "quant_method": "bitnet"},
}
LLAMA3_TEXT = json.dumps(LLAMA3)[:-1] + ', "quantization_config": {"quant_method": "bitnet"}}'
# huggingface.co/tiiuae/Falcon3-7B-Base-1.58bit
_FALCON = "tiiuae/falcon3-7B--"
FALCON3 = _PACKED | {
    "activation": "swiglu",
    "auto_map": {
        "AutoConfig": f"{_FALCON}configuration_llama.LlamaConfig",
        "AutoModel": f"{_FALCON}modeling_llama.LlamaModel",
        "AutoModelForCausalLM": f"{_FALCON}modeling_llama.LlamaForCausalLM",
        "AutoModelForQuestionAnswering": f"{_FALCON}modeling_llama.LlamaForQuestionAnswering",
    },
    "bos_token_id": 11,
    "eos_token_id": 11,
    "head_dim": HEAD,
    "parallel_attn": False,
    "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "bitnet"},
    "rms_norm_eps": EPS_6,
    "rope_theta": 1000042,
}
# huggingface.co/tiiuae/Falcon-E-1B-Base, as onebitllms 0.0.4 writes it with transformers 4.52.
FALCON_E = _PACKED | {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": HEAD,
    "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "bitnet"},
    "rms_norm_eps": EPS_5,
    "rope_theta": 1000042.0,
    "transformers_version": "4.52.4",
}
# The form of transformers, in which the scale of a layer multiplies; in the others it divides.
MULTIPLIES = LLAMA3 | {
    "quantization_config": {
        "linear_class": "autobitlinear",
        "modules_to_not_convert": None,
        "quant_method": "bitnet",
        "quantization_mode": "offline",
    }
}
# A TriLM: ternary weights, trained with inputs in floating point, and stored as plain numbers.
PLAIN = _PACKED | {"is_bitnet_config": False, "rms_norm_eps": EPS_5, "rope_theta": 10000.0}
CONFIGS = {
    "bitnet_b1_58-large": ONE_BIT,
    "Llama3-8B-1.58": LLAMA3,
    "Falcon3-7B-1.58bit": FALCON3,
    "Falcon-E-1B": FALCON_E,
    "autobitlinear": MULTIPLIES,
}
# huggingface.co/microsoft/bitnet-b1.58-2B-4T-bf16
MASTERS = SIZES | {
    "architectures": ["BitNetForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_act": "relu2",
    "model_type": "bitnet",
    "quantization_config": {
        "linear_class": "autobitlinear",
        "quant_method": "bitnet",
        "quantization_mode": "online",
    },
    "rms_norm_eps": EPS_5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
# Folders that Microsoft's converter reads.
MICROSOFT = {
    "bitnet-b1.58-2B-4T-bf16": MASTERS,
    "bitnet_b1_58-large": ONE_BIT,
    "Llama3-8B-1.58": LLAMA3,
    "Falcon3-7B-1.58bit": FALCON3,
    "Falcon-E-1B": FALCON_E,
}
# Names of the norms before the last product of attention and of the FFN.
SUB_NORMS = {
    "BitnetForCausalLM": ("self_attn.inner_attn_ln", "mlp.ffn_layernorm"),
    "BitNetForCausalLM": ("self_attn.attn_sub_norm", "mlp.ffn_sub_norm"),
}
SCALE = 16.0  # a power of two, which every encoding of a scale represents exactly


def weights(config, rng=None):
    """Tensors in their stored form, and the dense float64 matrices that codes encode, by name."""
    rng = rng or np.random.default_rng(6)
    stored = {}
    dense = {}
    kv = config["num_key_value_heads"] * HEAD
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for part, shape in {
            "self_attn.q_proj": (DIM, DIM),
            "self_attn.k_proj": (kv, DIM),
            "self_attn.v_proj": (kv, DIM),
            "self_attn.o_proj": (DIM, DIM),
            "mlp.gate_proj": (FFN, DIM),
            "mlp.up_proj": (FFN, DIM),
            "mlp.down_proj": (DIM, FFN),
        }.items():
            _add_matrix(config, f"{prefix}{part}.weight", shape, rng, stored, dense)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            stored[f"{prefix}{norm}.weight"] = _halves(rng, DIM)
        sub_norms = SUB_NORMS.get(config["architectures"][0], ())
        for norm, width in zip(sub_norms, (DIM, FFN), strict=False):
            stored[f"{prefix}{norm}.weight"] = _halves(rng, width)
    stored["model.norm.weight"] = _halves(rng, DIM)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if not (name.startswith("lm_head") and config["tie_word_embeddings"]):
            stored[name] = _halves(rng, (VOCAB, DIM)) * rng.choice([-0.5, 0.5], (VOCAB, DIM))
    return stored, dense


def _halves(rng, shape):
    """Numbers from 0.5 to 1.5, exact in bfloat16 and float16, whose products are rarely ties."""
    values = (0.5 + rng.random(shape)).astype("<f4")
    return (values.view("<u4") >> 16 << 16).view("<f4").astype(np.float64)


def _add_matrix(config, name, shape, rng, stored, dense):
    """Add a random matrix to *stored* in the form of *config*, and if it has codes to *dense*."""
    if config is MASTERS:
        # Numbers so small that float32 adds them exactly, in any order.
        stored[name] = rng.integers(-64, 65, shape) / 256
        return
    codes = rng.integers(-1, 2, shape)
    if config is ONE_BIT:
        # Masters; half of them are zeros, so that the mean of their sizes is a power of two.
        codes = rng.permutation(np.resize([-1, 0, 1, 0], codes.size)).reshape(shape)
        stored[name] = codes / 8
        dense[name] = codes / 16
        return
    # A byte has the codes, plus one, of four rows that are a quarter of the matrix apart.
    packed = np.zeros((shape[0] // 4, shape[1]), np.uint8)
    for part, rows in enumerate(np.split(codes + 1, 4)):
        packed |= (rows << (2 * part)).astype(np.uint8)
    stored[name] = ("U8", packed)
    multiplies = "linear_class" in config["quantization_config"]
    stored[f"{name}_scale"] = bf16([1 / SCALE if multiplies else SCALE])
    dense[name] = codes / SCALE


class Drawn:
    """The methods of NumPy's generators used here, with the same results in all its versions."""

    def __init__(self, name):
        self._name = name
        self._calls = 0

    def random(self, shape):
        """Numbers from 0 to 1."""
        self._calls += 1
        count = int(np.prod(shape))
        raw = hashlib.shake_256(f"{self._name} {self._calls}".encode()).digest(4 * count)
        return np.frombuffer(raw, "<u4").reshape(shape) / 2**32

    def integers(self, low, high, shape):
        """Integers from *low* up to *high*, which is excluded."""
        return low + (self.random(shape) * (high - low)).astype(np.int64)

    def permutation(self, values):
        """*values* in a random order."""
        return values[np.argsort(self.random(values.shape), kind="stable")]

    def choice(self, values, shape):
        """Random ones of *values*."""
        return np.asarray(values)[self.integers(0, len(values), shape)]


def published(path, name, rng=None):
    """Write the folder *path* in the form in which the model *name* is published."""
    path.mkdir()
    config = (CONFIGS | MICROSOFT)[name]
    stored = weights(config, rng)[0]
    save_tensors(
        path / "model.safetensors",
        {key: value if isinstance(value, tuple) else bf16(value) for key, value in stored.items()},
    )
    text = LLAMA3_TEXT if name == "Llama3-8B-1.58" else json.dumps(config)
    (path / "config.json").write_text(text)
    return path


def with_tokenizer(path, name):
    """As :func:`published`, with weights that depend only on *name*, and a ``tokenizer.model``."""
    published(path, name, Drawn(name))
    pieces = ["<unk>", *TOKENS[:2], *(f"t{number}" for number in range(VOCAB - 3))]
    kinds = [2, 3, 3, *[1] * (VOCAB - 3)]
    scores = [0.0, 0.0, 0.0, *(-float(number) for number in range(VOCAB - 3))]
    special = {"unknown_id": 0, "bos_id": 1, "eos_id": 2}
    model = TokenizerSpec(
        "spm", pieces, scores=scores, token_types=kinds, add_space_prefix=True, **special
    )
    (path / "tokenizer.model").write_bytes(sentencepiece_bytes(model))
    return path


def digest(checkpoint):
    """SHA-256 of all tensors of a GGUF file: their names, encodings, shapes and bytes.

    The 28 bytes after the scale of I2_S do not count: Microsoft's quantizer does not write them.
    """
    sha256 = hashlib.sha256()
    for name, weight in sorted(checkpoint.weights.items()):
        count = int(np.prod(weight.shape))
        size = count // 4 + 4 if weight.quant.name == "I2_S" else weight.data.size
        sha256.update(f"{name} {weight.quant.name} {weight.shape}\n".encode())
        sha256.update(weight.data[:size].tobytes())
    return sha256.hexdigest()
