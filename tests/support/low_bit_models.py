"""Random Qwen3 models of transformers whose matrices are ternary or of one bit in blocks of 128.

They have the form of PrismML's ``-unpacked`` folders: float16 weights with values -d, 0 and d.
"""

import copy
import json

import numpy as np
from hf_models import random_model, torch, transformers
from safetensors.numpy import load_file, save_file

SHAPE = {
    "vocab_size": 160,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 1e6,
    "original_max_position_embeddings": 32,
}
TOKENS = np.random.default_rng(7).integers(3, 160, 40).tolist()
# Codes by the number that functions here call levels: those of one bit, ternary ones, those of two
# bits.
VALUES = {1: (-1, 1), 2: (-1, 0, 1), 4: (-1, 0, 1, 2)}


def low_bit(values, levels, rng):
    """Random weights of the size of *values*: codes times a scale for each 128 columns.

    *levels* is a key of VALUES, which has the codes.
    """
    rows, columns = values.shape
    size = np.abs(values).reshape(rows, columns // 128, 128).mean(axis=2, keepdims=True)
    scales = size.astype(np.float16).astype(np.float32)
    codes = rng.choice(VALUES[levels], (rows, columns // 128, 128))
    codes[:, :, 0] = 1  # so that every block has its scale as a value
    return (codes * scales).reshape(rows, columns).astype(np.float32)


def unpacked_hybrid(folder):
    """A random Qwen 3.5 with a vision tower, as :func:`unpacked_model`, but saved as float32."""
    text = SHAPE | {
        "num_hidden_layers": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
    }
    vision = {"depth": 1, "hidden_size": 64, "intermediate_size": 64, "num_heads": 2}
    vision |= {"out_hidden_size": 256, "num_position_embeddings": 16}
    config = transformers.Qwen3_5Config(text_config=text, vision_config=vision)
    config.tie_word_embeddings = False
    torch.manual_seed(0)
    model = transformers.Qwen3_5ForConditionalGeneration(config).float().eval()
    _quantize(model, 2)
    model.save_pretrained(folder, safe_serialization=True)
    return model


def unpacked_model(folder, *, levels=2, rope=YARN, **options):
    """A random model, saved as float16 into *folder*, and itself as a module of transformers."""
    model = random_model("Qwen3", SHAPE | {"rope_parameters": rope} | options)
    _quantize(model, levels)
    halves = copy.deepcopy(model).half()  # which rounds the rope frequencies as well
    halves.save_pretrained(folder, safe_serialization=True)
    return model


def _quantize(model, levels):
    """Replace the matrices of *model* by random low-bit ones; round the rest to float16.

    A vision tower, if any, belongs to the rest.
    """
    rng = np.random.default_rng(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "visual" not in name:
                parameter.copy_(torch.from_numpy(low_bit(parameter.numpy(), levels, rng)))
            else:
                parameter.copy_(parameter.half().float())


def as_mlx(folder, bits):
    """Pack the matrices of *folder*, of 1 or 2 bits, as MLX does: codes, scales and biases."""
    path = folder / "model.safetensors"
    packed = {}
    for name, values in load_file(path).items():
        if values.ndim != 2:
            packed[name] = values
            continue
        rows, columns = values.shape
        groups = values.astype(np.float32).reshape(rows, -1, 128)
        size = np.abs(groups).max(axis=2, keepdims=True)
        codes = np.rint(groups / size).astype(np.int64)
        # MLX computes scale * code + bias, with codes from 0 on.
        codes = (codes + 1) // 2 if bits == 1 else codes + 1
        per_word = 32 // bits
        words = codes.reshape(rows, columns // per_word, per_word) << bits * np.arange(per_word)
        stem = name.removesuffix(".weight")
        packed[name] = words.sum(axis=2).astype(np.uint32)
        packed[f"{stem}.scales"] = ((2 if bits == 1 else 1) * size[..., 0]).astype(np.float16)
        packed[f"{stem}.biases"] = (-size[..., 0]).astype(np.float16)
    save_file(packed, path)
    config = json.loads((folder / "config.json").read_text())
    config["quantization"] = config["quantization_config"] = {"group_size": 128, "bits": bits}
    (folder / "config.json").write_text(json.dumps(config))


__all__ = ["TOKENS", "YARN", "as_mlx", "low_bit", "unpacked_hybrid", "unpacked_model"]
