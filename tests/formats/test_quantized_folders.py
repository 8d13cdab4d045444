"""Quantized folders: the numbers are those of the method's own library, or the method is named."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import packed_matrices
import pytest
from hf_folders import save_tensors, tiny_folder
from packed_matrices import AWQ, GPTQ, draw

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.formats import safetensors
from bitnet.formats.checkpoint import Inventory
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.quantized_folders import unpack_quantized
from bitnet.formats.stored_numbers import KEY
from bitnet.models.load import config_from, load_model
from bitnet.quants import registry, types
from bitnet.quants.weight import Deferred, Weight
from bitnet.sheet.model_sheet import describe_model
from bitnet.sheet.plan import plan_path, this_machine

PARITY = "pip install 'bitnet[parity]'"
NAME = "model.layers.0.mlp.up_proj"
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


def torch():
    return pytest.importorskip("torch", reason=PARITY)


def read(folder, tensors, quantization, **config):
    """*tensors* of torch, saved and read again as plain weights by name."""
    pytest.importorskip("safetensors.torch", reason=PARITY).save_file(
        {name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors"
    )
    stored = safetensors.read_file(Inventory(folder), "model.safetensors")
    weights, rest = unpack_quantized(stored, {KEY: quantization, **config}, "m")
    assert KEY not in rest
    return weights


def same_bits(weight, expected):
    """True if *weight* has the numbers of the tensor *expected*, in its type."""
    names = {"torch.bfloat16": "BF16", "torch.float16": "F16", "torch.float32": "F32"}
    assert weight.quant.name == names[str(expected.dtype)]
    assert weight.shape == tuple(expected.shape)
    return np.array_equal(registry.dequantize(weight), expected.float().numpy(), equal_nan=True)


def test_the_numbers_of_8_bit_floats_are_those_of_torch(tmp_path):
    codes = torch().arange(256, dtype=torch().uint8).view(torch().float8_e4m3fn).reshape(1, 256)
    one = torch().ones(1, dtype=torch().float32)
    tensors = {f"{NAME}.weight": codes, f"{NAME}.weight_scale_inv": one}
    weights = read(tmp_path, tensors, {"quant_method": "fp8"}, dtype="float32")
    assert same_bits(weights[f"{NAME}.weight"], codes.float())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("scale_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("grid", [(2, 3), (1, 1)])
def test_fp8_is_what_transformers_dequantizes(tmp_path, dtype, scale_dtype, grid):
    fp8 = pytest.importorskip("transformers.integrations.finegrained_fp8", reason=PARITY)
    torch().manual_seed(3)
    codes = (torch().randn(256, 384) * 40).to(torch().float8_e4m3fn)
    scales = (torch().rand(grid) * 1e-2).to(getattr(torch(), scale_dtype))
    block = [128, 128] if grid != (1, 1) else None
    tensors = {f"{NAME}.weight": codes, f"{NAME}.weight_scale_inv": scales}
    weights = read(tmp_path, tensors, FP8 | {"weight_block_size": block}, torch_dtype=dtype)
    expected = fp8.Fp8Dequantize(None)._dequantize_one(codes, scales, getattr(torch(), dtype))
    assert [*weights] == [f"{NAME}.weight"]
    assert same_bits(weights[f"{NAME}.weight"], expected)


def test_the_last_blocks_of_fp8_may_be_cut(tmp_path):
    torch().manual_seed(3)
    codes = (torch().randn(200, 160) * 40).to(torch().float8_e4m3fn)
    scales = torch().rand(2, 2)
    tensors = {f"{NAME}.weight": codes, f"{NAME}.weight_scale_inv": scales}
    weights = read(tmp_path, tensors, FP8, dtype="float32")
    whole = scales.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)[:, :160]
    assert same_bits(weights[f"{NAME}.weight"], codes.float() * whole)


COMPRESSED = {
    "int4-group": ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32}),
    "int4-asymmetric": (
        "pack-quantized",
        {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False},
    ),
    "int8-packed": ("pack-quantized", {"num_bits": 8, "strategy": "channel"}),
    "int2-group": ("pack-quantized", {"num_bits": 2, "strategy": "group", "group_size": 32}),
    "int8-channel": ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
    "int8-asymmetric": (
        "int-quantized",
        {"num_bits": 8, "strategy": "channel", "symmetric": False},
    ),
    "fp8-tensor": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    "fp8-channel": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "fp8-block": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 64]},
    ),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("case", COMPRESSED)
def test_compressed_tensors_are_what_their_library_decompresses(tmp_path, case, dtype):
    pytest.importorskip("compressed_tensors", reason="pip install compressed-tensors")
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    form, numbers = COMPRESSED[case]
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**numbers))
    torch().manual_seed(5)
    rows = 64
    columns = 128
    grids = {"tensor": (1,), "channel": (rows, 1), "group": (rows, 4), "block": (2, 2)}
    grid = grids[numbers["strategy"]]
    state = {
        "weight": torch().randn(rows, columns).to(getattr(torch(), dtype)),
        "weight_scale": (torch().rand(grid) * 0.1 + 0.01).to(getattr(torch(), dtype)),
    }
    if not numbers.get("symmetric", True):
        state["weight_zero_point"] = torch().randint(-3, 4, grid).to(torch().int8)
    compressor = BaseCompressor.get_value_from_registry(form)
    compressed = compressor.compress(dict(state), scheme)
    expected = compressor.decompress(dict(compressed), scheme)["weight"]
    tensors = {f"{NAME}.{name}": value for name, value in compressed.items()}
    group = json.loads(scheme.model_dump_json())
    quantization = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }
    weights = read(tmp_path, tensors, quantization)
    assert [*weights] == [f"{NAME}.weight"]
    assert same_bits(weights[f"{NAME}.weight"], expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
def test_4_bits_are_what_bitsandbytes_dequantizes(tmp_path, kind, nested, dtype):
    functional = pytest.importorskip("bitsandbytes.functional", reason="pip install bitsandbytes")
    torch().manual_seed(7)
    plain = torch().randn(96, 192).to(getattr(torch(), dtype))
    codes, state = functional.quantize_4bit(plain, quant_type=kind, compress_statistics=nested)
    expected = functional.dequantize_4bit(codes, state)
    tensors = {f"{NAME}.weight": codes, "model.norm.weight": torch().ones(8)}
    tensors |= {
        f"{NAME}.weight.{name}": value for name, value in state.as_dict(packed=True).items()
    }
    weights = read(tmp_path, tensors, NF4)
    assert sorted(weights) == [f"{NAME}.weight", "model.norm.weight"]
    assert same_bits(weights[f"{NAME}.weight"], expected)


def read_packed(folder, tensors, quantization, stem=NAME, **config):
    """The weight of the layer *stem* that GPTQ's or AWQ's *tensors* are, saved and read again."""
    types_of = {"<i4": "I32", "<u2": "BF16", "<f2": "F16"}
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
    assert weight.shape == (64, 96)
    assert packed_matrices.digest(weight.quant.name, weight.data.tobytes()) == recorded[case]


@pytest.mark.parametrize("case", packed_matrices.CASES)
def test_gptq_and_awq_are_what_gptqmodel_dequantizes(tmp_path, case):
    pytest.importorskip("gptqmodel", reason="pip install gptqmodel")
    tensors = draw(case)
    weight = read_packed(tmp_path, tensors, packed_matrices.quantization(case))
    assert same_bits(weight, packed_matrices.library_values(case, tensors))


def module_of(library, path):
    """The module at *path* of a *library*, without the package around it.

    These packages import what later versions of transformers no longer have.
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
    layer = linear.QuantLinear(facts["bits"], facts["group_size"], 96, 64, bias=False)
    for name, values in tensors.items():
        layer.register_buffer(name, torch().from_numpy(np.array(values)))
    expected = layer(torch().eye(96, dtype=torch().float16))
    assert same_bits(read_packed(tmp_path, tensors, facts), expected.T)


def test_the_layers_of_gpt_2_keep_a_row_for_each_input(tmp_path):
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
    facts["dynamic"] = {r"+:.*\.up_proj.*": {"bits": 8, "group_size": 32}, "-:lm_head": {}}
    dynamic = read_packed(tmp_path, tensors, facts)
    assert dynamic.data.tobytes() == usual.data.tobytes()


def tensors_with_the_largest_point(case):
    """Tensors of the *case*, of which one stored zero point is the largest code."""
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
    "change",
    [
        {"version": "gemv"},
        {"version": "gemv_fast"},
        {"version": "marlin"},
        {"format": "llm-awq"},
        {"backend": "llm-awq"},
        {"zero_point": False},
        {"bits": 8},
        {"group_size": 64},
    ],
    ids=json.dumps,
)
def test_awq_of_another_form_is_refused_by_its_key(tmp_path, change):
    with pytest.raises((Unsupported, InvalidFormat)) as failure:
        read_packed(tmp_path, draw("awq"), AWQ | change)
    assert "group" in failure.value.message or next(iter(change)) in failure.value.message


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
    if (part, damage) == ("g_idx", "gone"):
        read_packed(tmp_path, tensors, GPTQ | {"bits": 4})
        return
    with pytest.raises((InvalidFormat, Unsupported), match=rf"{NAME}.*q|scales|g_idx"):
        read_packed(tmp_path, tensors, GPTQ | {"bits": 4, "desc_act": True})


@pytest.mark.parametrize("order", ["mixed", "zeros", "too-large", "negative"])
def test_groups_that_libraries_read_differently_are_refused(tmp_path, order):
    tensors = draw("gptq-ordered")
    facts = GPTQ | {"bits": 4, "desc_act": order != "mixed"}
    if order == "zeros":
        tensors["g_idx"] = np.zeros(96, "<i4")
    elif order != "mixed":
        tensors["g_idx"] = tensors["g_idx"].copy()
        tensors["g_idx"][5] = 3 if order == "too-large" else -1
    with pytest.raises((InvalidFormat, Unsupported), match="g_idx"):
        read_packed(tmp_path, tensors, facts)


def test_a_folder_called_gptq_without_codes_is_refused(tmp_path):
    folder = plain_folder(tmp_path / "m", quantization_config=GPTQ | {"bits": 4})
    with pytest.raises(InvalidFormat, match="no tensor is a qweight"):
        open_checkpoint(folder)


def test_scales_of_an_activation_are_refused(tmp_path):
    tensors = {f"{NAME}.{name}": values for name, values in draw("awq").items()}
    stored = {
        name: _stored(name, values, "F16" if name.endswith("scales") else "I32")
        for name, values in tensors.items()
    }
    stored["model.layers.0.mlp.act.scales"] = stored[f"{NAME}.scales"]
    with pytest.raises(Unsupported, match=r"mlp\.act\.scales belongs to no quantized matrix"):
        unpack_quantized(stored, {KEY: AWQ}, "m")


def plain_folder(folder, **config):
    return tiny_folder(folder, "llama", **config)


@pytest.mark.parametrize("method", ["aqlm", "hqq", "torchao", "quark"])
def test_a_method_that_is_not_read_is_named_with_the_way_out(tmp_path, method):
    folder = plain_folder(tmp_path / "m", quantization_config={"quant_method": method})
    with pytest.raises(Unsupported, match="which is not read") as failure:
        open_checkpoint(folder)
    assert method in failure.value.message
    assert "plain weights" in failure.value.hint


@pytest.mark.parametrize(
    ("quantization", "key"),
    [
        (FP8 | {"fmt": "e5m2"}, "fmt"),
        (FP8 | {"new": 1}, "new"),
        (NF4 | {"load_in_8bit": True}, "load_in_8bit"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "actorder": "group"}}},
            },
            "actorder",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "nvfp4-pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4}}},
            },
            "format",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4}}},
                "kv_cache_scheme": {"num_bits": 8},
            },
            "kv_cache_scheme",
        ),
    ],
    ids=["fmt", "unknown", "8-bit", "order", "nvfp4", "kv-cache"],
)
def test_a_key_that_is_not_followed_is_refused_by_name(tmp_path, quantization, key):
    folder = plain_folder(tmp_path / "m", quantization_config=quantization)
    with pytest.raises(Unsupported, match=key):
        open_checkpoint(folder)


def _stored(name, values, dtype):
    array = np.asarray(values)
    view = array.reshape(-1).view(np.uint8)
    kind = types.QuantType(dtype, -1, 1, 0) if dtype == "F8_E4M3" else types.by_name(dtype)
    return Weight(name, array.shape, kind, view, rounds_input=False)


def test_scales_that_do_not_fit_are_refused():
    tensors = {
        f"{NAME}.weight": _stored(f"{NAME}.weight", np.zeros((4, 6), np.uint8), "F8_E4M3"),
        f"{NAME}.weight_scale_inv": _stored("s", np.ones((3, 2), np.float32), "F32"),
    }
    config = {KEY: {"quant_method": "fp8"}, "dtype": "float32"}
    with pytest.raises(InvalidFormat, match="scales of shape"):
        unpack_quantized(tensors, config, "m")


def test_a_folder_of_8_bit_floats_is_read_without_torch(tmp_path):
    folder = plain_folder(tmp_path / "m", torch_dtype="float32")
    stored = safetensors.read_file(Inventory(folder), "model.safetensors")
    name = next(name for name in stored if name.endswith("up_proj.weight"))
    codes = np.arange(np.prod(stored[name].shape), dtype=np.uint8) % 120
    codes = codes.reshape(stored[name].shape)
    tensors = {
        name: _stored(name, codes, "F8_E4M3"),
        f"{name}_scale_inv": _stored("s", np.full((1, 1), 0.25, np.float32), "F32"),
    }
    weights, _ = unpack_quantized(tensors, {KEY: FP8, "dtype": "float32"}, "m")
    values = registry.dequantize(weights[name])
    assert values[0, 0] == 0
    assert values.flat[56] == 0.25  # the code of one is 56
    assert values.flat[64] == 0.5


def pack_rows(values):
    """*values* as codes of 8 bits with a scale for each row, and their numbers."""
    scales = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    codes = np.rint(values / scales).astype(np.int8)
    return {"weight": ("I8", codes), "weight_scale": scales}, codes.astype(np.float32) * scales


def pack_groups(values, method):
    """*values* as codes of 4 bits of GPTQ or AWQ, in groups of 32 inputs, and their numbers."""
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
    """Folders of the same numbers, as plain ones and as codes of the *method*."""
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


METHODS = ("compressed-tensors", "gptq", "awq")


@pytest.mark.parametrize("method", METHODS)
def test_a_folder_of_quantized_matrices_runs_as_the_folder_of_its_numbers(tmp_path, method):
    plain, packed = plain_and_packed(tmp_path, method)
    theirs = open_checkpoint(plain)
    ours = open_checkpoint(packed)
    assert {*ours.weights} == {*theirs.weights}
    for name, weight in theirs.weights.items():
        assert ours.weights[name].quant == weight.quant
        assert np.array_equal(registry.dequantize(ours.weights[name]), registry.dequantize(weight))
    assert ours.metadata == theirs.metadata


@pytest.mark.parametrize(
    ("method", "name", "facts"),
    [
        ("gptq", "quantize_config.json", {"bits": 4, "group_size": 32, "sym": True}),
        ("awq", "quant_config.json", {"w_bit": 4, "q_group_size": 32, "version": "GEMM"}),
    ],
)
def test_codes_that_only_the_librarys_own_file_describes_are_read(tmp_path, method, name, facts):
    _plain, packed = plain_and_packed(tmp_path, method)
    before = open_checkpoint(packed)
    config = json.loads((packed / "config.json").read_text())
    del config[KEY]
    (packed / "config.json").write_text(json.dumps(config))
    (packed / name).write_text(json.dumps(facts))
    after = open_checkpoint(packed)
    for tensor, weight in before.weights.items():
        assert after.weights[tensor].data.tobytes() == weight.data.tobytes()


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


@pytest.mark.parametrize("method", METHODS)
def test_what_describes_a_quantized_folder_computes_no_matrix(tmp_path, monkeypatch, method):
    plain, packed = plain_and_packed(tmp_path, method)
    read = []
    compute = Deferred.read
    monkeypatch.setattr(Deferred, "read", lambda self: read.append(self) or compute(self))
    machine = this_machine(tmp_path)
    plans = [plan_path(folder, machine).facts() for folder in (plain, packed)]
    describe_model(packed, machine)
    config_from(open_checkpoint(packed))
    assert not read
    assert plans[0]["memory"] == plans[1]["memory"]
    load_model(open_checkpoint(packed))
    assert read
