"""Folders of quantized matrices, and folders with the same numbers as plain floats."""

import json

import numpy as np
import packed_matrices
import pytest
from hf_folders import save_tensors, tiny_folder
from packed_matrices import AWQ, GPTQ

from bitnet.formats import safetensors
from bitnet.formats.checkpoint import Inventory
from bitnet.formats.stored_numbers import KEY
from bitnet.quants import registry

PARITY = "pip install 'bitnet-xtask[parity]'"
#: A layer whose matrix is stored in codes.
NAME = "model.layers.0.mlp.up_proj"


def torch():
    """The module torch; a test is skipped without it."""
    return pytest.importorskip("torch", reason=PARITY)


def same_bits(weight, expected):
    """True if *weight* has the numbers of *expected*, a torch tensor of its type and shape."""
    names = {"torch.bfloat16": "BF16", "torch.float16": "F16", "torch.float32": "F32"}
    assert weight.quant.name == names[str(expected.dtype)]
    assert weight.shape == tuple(expected.shape)
    return np.array_equal(registry.dequantize(weight), expected.float().numpy(), equal_nan=True)


def pack_rows(values):
    """*values* in 8 bits with a scale for each row: the stored tensors, and the rounded numbers."""
    scales = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    codes = np.rint(values / scales).astype(np.int8)
    return {"weight": ("I8", codes), "weight_scale": scales}, codes.astype(np.float32) * scales


def pack_groups(values, method):
    """*values* in 4 bits of GPTQ or AWQ, in groups of 32 inputs: tensors, and rounded numbers."""
    outputs, inputs = values.shape
    grouped = values.reshape(outputs, -1, 32)
    scales = (np.abs(grouped).max(axis=2) / np.float32(7)).astype("<f2")  # (outputs, groups)
    steps = scales.astype(np.float32)[:, :, None]
    codes = np.clip(np.rint(grouped / steps), -7, 7) + 8
    numbers = ((codes - 8) * steps).astype("<f2").reshape(outputs, inputs)
    codes = codes.astype(int).reshape(outputs, inputs).T
    zeros = np.full((inputs // 32, outputs), 8)
    if method == "awq":
        tensors = packed_matrices.awq_tensors(codes, zeros, np.ascontiguousarray(scales.T))
    else:
        order = np.arange(inputs) // 32
        tensors = packed_matrices.gptq_tensors(
            codes, zeros, np.ascontiguousarray(scales.T), order, 4, first_version=True
        )
    stored = {
        name: ("F16" if name == "scales" else "I32", np.ascontiguousarray(part))
        for name, part in tensors.items()
    }
    return stored, numbers


def plain_and_packed(tmp_path, method="compressed-tensors"):
    """Two folders with the same numbers: as plain floats, and as codes of the *method*."""
    plain = tiny_folder(tmp_path / "plain", "llama", torch_dtype="float32")
    stored = safetensors.read_file(Inventory(plain), "model.safetensors")
    quantized = {}
    numbers = {}
    for name, weight in stored.items():
        values = registry.dequantize(weight)
        if not name.endswith("_proj.weight"):
            quantized[name] = numbers[name] = values
            continue
        stem = name.removesuffix(".weight")
        if method == "compressed-tensors":
            parts, numbers[name] = pack_rows(values)
        else:
            parts, halves = pack_groups(values, method)
            numbers[name] = "F16", halves
        quantized |= {f"{stem}.{part}": values for part, values in parts.items()}
    config = json.loads((plain / "config.json").read_text())
    group = {"weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}}
    configs = {
        "compressed-tensors": {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "config_groups": {"group_0": group},
        },
        "gptq": GPTQ | {"bits": 4, "sym": True},
        "awq": AWQ,
    }
    config[KEY] = configs[method]
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "config.json").write_text(json.dumps(config))
    save_tensors(packed / "model.safetensors", quantized)
    save_tensors(plain / "model.safetensors", numbers)
    return plain, packed


def plain_folder(folder, **config):
    """A folder of a tiny LLaMA in float32; *config* are keys of its config.json."""
    return tiny_folder(folder, "llama", **config)
