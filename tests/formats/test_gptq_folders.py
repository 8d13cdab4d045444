"""GPTQ and AWQ folders: the numbers are those of their libraries, or the key is named."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import packed_matrices
import pytest
from hf_folders import save_tensors
from packed_matrices import AWQ, GPTQ, draw
from quantized_folders import NAME, plain_and_packed, plain_folder, same_bits, torch
from stored_weights import stored_weight

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.formats import safetensors
from bitnet.formats.checkpoint import Inventory
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.quantized_folders import unpack_quantized
from bitnet.formats.stored_numbers import KEY
from bitnet.quants import registry


def read_packed(folder, tensors, quantization, stem=NAME, **config):
    """The weight of the layer *stem* that GPTQ's or AWQ's *tensors* are, saved and read again."""
    types_of = {"<i4": "I32", "<u2": "BF16", "<f2": "F16"}  # NumPy has no bfloat16
    stored = {}
    for name, values in tensors.items():
        kind = types_of[values.dtype.newbyteorder("<").str]
        stored[f"{stem}.{name}"] = kind, np.ascontiguousarray(values)
    save_tensors(folder / "model.safetensors", stored)
    stored = safetensors.read_file(Inventory(folder), "model.safetensors")
    weights, rest = unpack_quantized(stored, {KEY: quantization, **config}, "m")
    assert KEY not in rest
    assert [*weights] == [f"{stem}.weight"]
    return weights[f"{stem}.weight"]


@pytest.mark.parametrize("case", packed_matrices.CASES)
def test_gptq_and_awq_are_what_gptqmodel_was_recorded_to_dequantize(tmp_path, case):
    weight = read_packed(tmp_path, draw(case), packed_matrices.quantization(case))
    recorded = json.loads(packed_matrices.RECORD.read_text("utf-8"))
    assert weight.shape == (64, 96)  # (outputs, inputs)
    assert packed_matrices.digest(weight.quant.name, weight.data.tobytes()) == recorded[case]


@pytest.mark.parametrize("case", packed_matrices.CASES)
def test_gptq_and_awq_are_what_gptqmodel_dequantizes(tmp_path, case):
    pytest.importorskip("gptqmodel", reason="pip install gptqmodel")
    tensors = draw(case)
    weight = read_packed(tmp_path, tensors, packed_matrices.quantization(case))
    assert same_bits(weight, packed_matrices.library_values(case, tensors))


def module_of(library, path):
    """The module at *path* of an installed *library*, imported without the package around it.

    The packages themselves import parts of transformers that its later versions do not have.
    """
    places = [Path(entry) / path for entry in sys.path]
    place = next((place for place in places if place.is_file()), None)
    if place is None:
        pytest.skip(f"pip install --no-deps {library}")
    spec = importlib.util.spec_from_file_location(place.stem, place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("case", [name for name in packed_matrices.CASES if "awq" in name])
def test_awq_is_what_autoawq_dequantizes(tmp_path, case):
    packing = module_of("autoawq", "awq/utils/packing_utils.py")
    tensors = draw(case)
    codes, zeros, scales = (torch().from_numpy(values.copy()) for values in tensors.values())
    size = packed_matrices.CASES[case]["group_size"]
    expected = packing.dequantize_gemm(codes, zeros, scales, 4, size if size > 0 else len(codes))
    weight = read_packed(tmp_path, tensors, packed_matrices.quantization(case))
    assert same_bits(weight, expected.T)


# Cases that auto-gptq reads: GPTQ in its first version, with scales of float16.
OF_AUTO_GPTQ = [
    name
    for name, facts in packed_matrices.CASES.items()
    if facts.get("checkpoint_format", "gptq") == "gptq" and "scales" not in facts
    if facts["quant_method"] == "gptq"
]


@pytest.mark.parametrize("case", OF_AUTO_GPTQ)
def test_the_first_version_of_gptq_is_what_auto_gptq_multiplies_by(tmp_path, case):
    linear = module_of("auto-gptq", "auto_gptq/nn_modules/qlinear/qlinear_cuda.py")
    tensors = draw(case)
    facts = packed_matrices.quantization(case)
    layer = linear.QuantLinear(facts["bits"], facts["group_size"], 96, 64, bias=False)  # in, out
    for name, values in tensors.items():
        layer.register_buffer(name, torch().from_numpy(np.array(values)))
    # Its kernel has no function that dequantizes: the products with unit vectors are the matrix.
    expected = layer(torch().eye(96, dtype=torch().float16))
    assert same_bits(read_packed(tmp_path, tensors, facts), expected.T)


def test_the_layers_of_gpt_2_keep_a_row_for_each_input(tmp_path):
    """Layers of GPT-2 are Conv1D modules, whose weight is ``(inputs, outputs)``."""
    tensors = draw("gptq-4-bits-gptq")
    facts = packed_matrices.quantization("gptq-4-bits-gptq")
    usual = read_packed(tmp_path, tensors, facts, model_type="llama")
    turned = read_packed(tmp_path, tensors, facts, model_type="gpt2")
    assert turned.shape == usual.shape[::-1]
    assert np.array_equal(registry.dequantize(turned), registry.dequantize(usual).T)


def test_dynamic_rules_of_gptq_give_a_matrix_its_own_bits(tmp_path):
    tensors = draw("gptq-8-bits-gptq")
    usual = read_packed(tmp_path, tensors, packed_matrices.quantization("gptq-8-bits-gptq"))
    facts = packed_matrices.quantization("gptq-4-bits-gptq")
    # "+:" changes the modules that match an expression, "-:" leaves them unquantized.
    facts["dynamic"] = {r"+:.*\.up_proj.*": {"bits": 8, "group_size": 32}, "-:lm_head": {}}
    dynamic = read_packed(tmp_path, tensors, facts)
    assert dynamic.data.tobytes() == usual.data.tobytes()


def tensors_with_the_largest_point(case):
    """Tensors of the *case*, of which one stored zero point is the largest code.

    The first version stores a point less 1: this one wraps to 0 in some libraries, and not in all.
    """
    tensors = draw(case)
    bits = packed_matrices.CASES[case]["bits"]
    tensors["qzeros"] = tensors["qzeros"].copy()
    tensors["qzeros"][1, 0] |= (1 << bits) - 1
    return tensors


@pytest.mark.parametrize("case", ["gptq-2-bits-gptq", "gptq-3-bits-gptq", "gptq-8-bits-gptq"])
def test_a_point_on_which_libraries_differ_counts_as_its_writer_counts_it(tmp_path, case):
    tensors = tensors_with_the_largest_point(case)
    facts = packed_matrices.quantization(case)
    with pytest.raises(Unsupported, match="qzeros has the largest code"):
        read_packed(tmp_path, tensors, facts)
    # The folder names the library that wrote it.
    facts["meta"] = {"quantizer": ["optimum:1.24.0", "gptqmodel:2.0.0"]}
    weight = read_packed(tmp_path, tensors, facts)
    assert np.isfinite(registry.dequantize(weight)).all()
    pytest.importorskip("gptqmodel", reason="pip install gptqmodel")
    assert same_bits(weight, packed_matrices.library_values(case, tensors))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 5}, "bits is 5"),
        ({"bits": None}, "bits is None"),
        ({"group_size": 0}, "group_size is 0"),
        ({"group_size": 16}, "groups"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format"),
        ({"format": "gptq_p"}, "format"),
        ({"rotation": "hadamard"}, "rotation"),
        ({"dynamic": {"+:x": {"lora": 1}}}, "dynamic has lora"),
        ({"pack_dtype": "int8"}, "pack_dtype"),
        ({"new": 1}, "new"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_gptq_of_another_form_is_refused_by_its_key(tmp_path, change, message):
    facts = packed_matrices.quantization("gptq-4-bits-gptq") | change
    with pytest.raises((Unsupported, InvalidFormat), match=message) as failure:
        read_packed(tmp_path, draw("gptq-4-bits-gptq"), facts)
    assert failure.value.hint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "gemv"}, "version"),
        ({"version": "gemv_fast"}, "version"),
        ({"version": "marlin"}, "version"),
        ({"format": "llm-awq"}, "format"),
        ({"backend": "llm-awq"}, "backend"),
        ({"zero_point": False}, "zero_point"),
        ({"bits": 8}, "bits is 8"),
        ({"group_size": 64}, "groups of 64"),
    ],
    ids=json.dumps,
)
def test_awq_of_another_form_is_refused_by_its_key(tmp_path, change, message):
    with pytest.raises((Unsupported, InvalidFormat), match=message):
        read_packed(tmp_path, draw("awq"), AWQ | change)


# By a damaged part and its damage, the part that is named if it is another: the one whose shape
# does not fit the number of groups, outputs or inputs that the damaged part has.
NAMED_INSTEAD = {
    ("scales", "cut"): "qzeros",
    ("scales", "flat"): "qweight",
    ("g_idx", "cut"): "qweight",
    ("g_idx", "flat"): "qweight",
}


@pytest.mark.parametrize("part", ["qweight", "qzeros", "scales", "g_idx"])
@pytest.mark.parametrize("damage", ["cut", "flat", "other-type", "gone"])
def test_a_damaged_part_of_a_packed_matrix_is_named(tmp_path, part, damage):
    tensors = draw("gptq-ordered")
    if damage == "gone":
        del tensors[part]
    elif damage == "cut":
        tensors[part] = tensors[part][: len(tensors[part]) // 2]
    elif damage == "flat":
        tensors[part] = tensors[part].reshape(-1, 1)
    else:
        is_float = tensors[part].dtype == np.dtype("<f2")
        tensors[part] = np.ones_like(tensors[part], dtype="<i4" if is_float else "<f2")
    if (part, damage) == ("g_idx", "gone"):  # without an order of its own, it may be left out
        read_packed(tmp_path, tensors, GPTQ | {"bits": 4})
        return
    named = NAMED_INSTEAD.get((part, damage), part)
    said = rf"{NAME}(\.{named} is| has no {named}\b)"
    if (part, damage) == ("qweight", "gone"):  # without codes there is no matrix to be named
        said = rf"{NAME}\.(qzeros|scales|g_idx) belongs to no quantized matrix"
    with pytest.raises((InvalidFormat, Unsupported), match=said):
        read_packed(tmp_path, tensors, GPTQ | {"bits": 4, "desc_act": True})


@pytest.mark.parametrize("order", ["mixed", "zeros", "too-large", "negative"])
def test_groups_that_libraries_read_differently_are_refused(tmp_path, order):
    tensors = draw("gptq-ordered")
    # "mixed": an order of groups that the key desc_act denies. The others are not orders.
    facts = GPTQ | {"bits": 4, "desc_act": order != "mixed"}
    if order == "zeros":
        tensors["g_idx"] = np.zeros(96, "<i4")
    elif order != "mixed":
        tensors["g_idx"] = tensors["g_idx"].copy()
        tensors["g_idx"][5] = 3 if order == "too-large" else -1  # of the groups 0, 1 and 2
    with pytest.raises((InvalidFormat, Unsupported), match="g_idx"):
        read_packed(tmp_path, tensors, facts)


def test_a_folder_called_gptq_without_codes_is_refused(tmp_path):
    folder = plain_folder(tmp_path / "m", quantization_config=GPTQ | {"bits": 4})
    with pytest.raises(InvalidFormat, match="no tensor is a qweight"):
        open_checkpoint(folder)


def test_scales_of_an_activation_are_refused():
    """AWQ may scale the outputs of an activation: such scales belong to no matrix."""
    tensors = {f"{NAME}.{name}": values for name, values in draw("awq").items()}
    stored = {
        name: stored_weight(name, values, "F16" if name.endswith("scales") else "I32")
        for name, values in tensors.items()
    }
    stored["model.layers.0.mlp.act.scales"] = stored[f"{NAME}.scales"]
    with pytest.raises(Unsupported, match=r"mlp\.act\.scales belongs to no quantized matrix"):
        unpack_quantized(stored, {KEY: AWQ}, "m")


@pytest.mark.parametrize("values", ["zeros", "others"])
def test_biases_of_zeros_that_auto_gptq_added_count_as_none(tmp_path, values):
    _plain, packed = plain_and_packed(tmp_path, "gptq")
    stored = safetensors.read_file(Inventory(packed), "model.safetensors")
    tensors = {}
    for name, weight in stored.items():
        kinds = {"F16": "<f2", "I32": "<i4", "F32": "<f4"}
        array = weight.data.view(kinds[weight.quant.name]).reshape(weight.shape)
        tensors[name] = weight.quant.name, array
    before = open_checkpoint(packed).weights
    outputs = stored["model.layers.0.self_attn.o_proj.scales"].shape[1]
    bias = np.zeros(outputs, "<f2")
    bias[0] = 0 if values == "zeros" else 0.5
    tensors["model.layers.0.self_attn.o_proj.bias"] = "F16", bias
    save_tensors(packed / "model.safetensors", tensors)
    if values == "zeros":
        assert open_checkpoint(packed).weights.keys() == before.keys()
        return
    with pytest.raises(InvalidFormat, match=r"o_proj\.bias is there"):
        open_checkpoint(packed)
