"""Tensors of GPTQ and AWQ folders, and the weights that their libraries decode from them.

As a program, with a Python that has gptqmodel, it records digests of these weights for tests:

    python tests/support/packed_matrices.py
"""

import hashlib
import json
from pathlib import Path

import numpy as np

#: Digests of the numbers of gptqmodel 7.7.0 for each case.
RECORD = Path(__file__).parents[1] / "data" / "packed_matrices.json"
#: Outputs of eight in the order in which a word of AWQ stores them.
AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)
GPTQ = {"quant_method": "gptq", "group_size": 32, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
CASES = {
    **{
        f"gptq-{bits}-bits-{form}": GPTQ | {"bits": bits, "checkpoint_format": form}
        for bits in (2, 3, 4, 8)
        for form in ("gptq", "gptq_v2")
    },
    "gptq-ordered": GPTQ | {"bits": 4, "desc_act": True},
    "gptq-one-group": GPTQ | {"bits": 4, "group_size": -1},
    "gptq-3-bits-ordered": GPTQ | {"bits": 3, "desc_act": True, "checkpoint_format": "gptq_v2"},
    "gptq-bfloat16": GPTQ | {"bits": 4, "scales": "BF16"},
    "awq": AWQ,
    "awq-one-group": AWQ | {"group_size": -1},
}


def quantization(case):
    """The ``quantization_config`` of the *case*."""
    return {key: value for key, value in CASES[case].items() if key != "scales"}


def pack(codes, bits):
    """Rows of *codes* as rows of 32-bit words: one long number, with the first code lowest."""
    rows = []
    for row in codes.tolist():
        number = sum(code << bits * at for at, code in enumerate(row))
        size = -(-len(row) * bits // 32) * 4
        rows.append(np.frombuffer(number.to_bytes(size, "little"), "<i4"))
    return np.stack(rows)


def gptq_tensors(codes, zeros, scales, group_of, bits, *, first_version):
    """Tensors of a layer: *codes* ``(inputs, outputs)``, *zeros* and *scales* of groups."""
    stored = zeros - 1 if first_version else zeros  # the first version stores them less 1
    return {
        "qweight": pack(codes.T, bits).T,
        "qzeros": pack(stored, bits),
        "scales": scales,
        "g_idx": np.asarray(group_of, "<i4"),
    }


def awq_tensors(codes, zeros, scales):
    """Tensors of a layer: *codes* ``(inputs, outputs)``, *zeros* and *scales* of groups."""

    def turned(numbers):
        """*numbers* packed with the outputs in AWQ's order."""
        eights = numbers.reshape(len(numbers), -1, 8)
        return pack(eights[:, :, AWQ_PLACES].reshape(numbers.shape), 4)

    return {"qweight": turned(codes), "qzeros": turned(zeros), "scales": scales}


def draw(case, *, inputs=96, outputs=64):
    """Random tensors of a layer of the *case*, by name."""
    facts = CASES[case]
    rng = np.random.default_rng(sorted(CASES).index(case))
    bits = facts["bits"]
    size = facts["group_size"] if facts["group_size"] > 0 else inputs
    groups = inputs // size
    codes = rng.integers(0, 1 << bits, (inputs, outputs))
    is_first = facts.get("checkpoint_format", "gptq") == "gptq" and facts["quant_method"] == "gptq"
    zeros = rng.integers(int(is_first), 1 << bits, (groups, outputs))
    scales = (rng.random((groups, outputs)) * 0.1 + 0.001).astype("<f2")
    if facts.get("scales") == "BF16":
        scales = (scales.astype("<f4").view("<u4") >> 16).astype("<u2")
    if facts["quant_method"] == "awq":
        return awq_tensors(codes, zeros, scales)
    group_of = np.arange(inputs) // size
    if facts["desc_act"]:
        group_of = rng.permutation(group_of)
    return gptq_tensors(codes, zeros, scales, group_of, bits, first_version=is_first)


def library_values(case, tensors):
    """The weight of a linear layer that gptqmodel makes of *tensors*, in its own type."""
    import torch
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module

    facts = CASES[case]
    state = {name: torch.from_numpy(np.array(values)) for name, values in tensors.items()}
    if facts.get("scales") == "BF16":
        state["scales"] = torch.from_numpy(tensors["scales"].view("<i2").copy())
        state["scales"] = state["scales"].view(torch.bfloat16)
    outputs = state["scales"].shape[1]
    if facts["quant_method"] == "awq":
        inputs = state["qweight"].shape[0]
        size = facts["group_size"] if facts["group_size"] > 0 else inputs
        return dequantize_gemm(state["qweight"], state["qzeros"], state["scales"], 4, size).T
    inputs = len(state["g_idx"])
    layer = TorchLinear(
        bits=facts["bits"],
        group_size=facts["group_size"] if facts["group_size"] > 0 else inputs,
        sym=facts["sym"],
        desc_act=facts["desc_act"],
        in_features=inputs,
        out_features=outputs,
    )
    for name, values in state.items():
        layer.register_buffer(name, values)
    layer.eval()
    if facts.get("checkpoint_format", "gptq") == "gptq":
        convert_gptq_v1_to_v2_format_module(layer, facts["bits"], torch.int32)
    return layer.dequantize_weight().T


def digest(kind, numbers):
    """The type *kind* and the SHA-256 of the bytes *numbers*."""
    return f"{kind} {hashlib.sha256(numbers).hexdigest()}"


def _record():
    """Record the digest of the weight of each case."""
    import torch

    names = {torch.float16: "F16", torch.bfloat16: "BF16"}
    rows = {}
    for case in CASES:
        values = library_values(case, draw(case)).contiguous()
        rows[case] = digest(names[values.dtype], values.view(torch.int16).numpy().tobytes())
    RECORD.write_text(json.dumps(rows, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    _record()
