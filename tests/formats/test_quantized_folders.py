"""Quantized folders: the numbers are those of the method's own library, or the method is named."""

import json
from dataclasses import replace

import numpy as np
import pytest
from quantized_folders import NAME, PARITY, plain_and_packed, plain_folder, same_bits, torch
from stored_weights import stored_weight

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.formats import safetensors
from bitnet.formats.checkpoint import Inventory
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.mlx_folders import repack
from bitnet.formats.quantized_folders import unpack_quantized
from bitnet.formats.stored_numbers import KEY
from bitnet.models.load import config_from, load_model
from bitnet.quants import registry
from bitnet.quants.types import QuantType
from bitnet.quants.weight import Deferred
from bitnet.sheet.model_sheet import describe_model
from bitnet.sheet.plan import plan_path, this_machine

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


def read(folder, tensors, quantization, **config):
    """*tensors* of torch, saved and read again as plain weights by name."""
    pytest.importorskip("safetensors.torch", reason=PARITY).save_file(
        {name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors"
    )
    stored = safetensors.read_file(Inventory(folder), "model.safetensors")
    weights, rest = unpack_quantized(stored, {KEY: quantization, **config}, "m")
    assert KEY not in rest
    return weights


def test_the_numbers_of_8_bit_floats_are_those_of_torch(tmp_path):
    codes = torch().arange(256, dtype=torch().uint8).view(torch().float8_e4m3fn).reshape(1, 256)
    scale = torch().ones(1, dtype=torch().float32)
    tensors = {f"{NAME}.weight": codes, f"{NAME}.weight_scale_inv": scale}
    weights = read(tmp_path, tensors, {"quant_method": "fp8"}, dtype="float32")
    assert same_bits(weights[f"{NAME}.weight"], codes.float())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("scale_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("grid", [(2, 3), (1, 1)])  # blocks of 128 by 128, or the whole matrix
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


# Form of the codes in compressed-tensors, and the scheme of the weights.
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
    # Shapes of the scales; groups have 32 columns, blocks 32 rows and 64 columns.
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


@pytest.mark.parametrize(
    ("form", "group", "said"),
    [
        ("int-quantized", 5, "only activations are quantized"),
        (
            "int-quantized",
            {"weights": {}, "format": ["int-quantized"]},
            r"format is 'int-quantized' with 1 groups",
        ),
        (["int-quantized"], {"weights": {}}, r"format is \['int-quantized'\] with 1 groups"),
    ],
)
def test_groups_and_formats_of_wrong_types_are_refused(form, group, said):
    quantization = {"quant_method": "compressed-tensors", "format": form}
    quantization["config_groups"] = {"group_0": group}
    with pytest.raises(Unsupported, match=said):
        unpack_quantized({}, {KEY: quantization}, "m")


def test_a_state_of_codes_with_an_infinite_number_is_refused():
    state = b'{"shape": [2, 2], "blocksize": Infinity, "dtype": "float16"}'
    name = f"{NAME}.weight"
    tensors = {
        name: stored_weight(name, np.zeros((2, 1), np.uint8), "U8"),
        f"{name}.quant_state.bitsandbytes__nf4": stored_weight(
            "state", np.frombuffer(state, np.uint8), "U8"
        ),
    }
    with pytest.raises(InvalidFormat, match="the state of the codes"):
        unpack_quantized(tensors, {KEY: NF4}, "m")


def test_scales_that_do_not_fit_are_refused():
    tensors = {
        f"{NAME}.weight": stored_weight(f"{NAME}.weight", np.zeros((4, 6), np.uint8), "F8_E4M3"),
        f"{NAME}.weight_scale_inv": stored_weight("s", np.ones((3, 2), np.float32), "F32"),
    }
    config = {KEY: {"quant_method": "fp8"}, "dtype": "float32"}
    with pytest.raises(InvalidFormat, match="scales of shape"):
        unpack_quantized(tensors, config, "m")


@pytest.mark.parametrize("block", [[2], [0, 2], ["2", 2], "2 by 2", 2])
def test_a_block_that_is_not_a_pair_of_sizes_is_refused_by_its_key(block):
    codes = np.zeros((4, 6), np.int8)
    name = f"{NAME}.weight"
    tensors = {
        name: stored_weight(name, codes, "I8"),
        f"{name}_scale": stored_weight("s", np.ones((2, 3), np.float32), "F32"),
    }
    numbers = {"num_bits": 8, "type": "int", "strategy": "block", "block_structure": block}
    group = {"targets": ["Linear"], "weights": numbers}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": group},
    }
    with pytest.raises(InvalidFormat, match="has block_structure"):
        unpack_quantized(tensors, {KEY: quantization, "dtype": "float32"}, "m")


def test_a_folder_of_8_bit_floats_is_read_without_torch(tmp_path):
    folder = plain_folder(tmp_path / "m", torch_dtype="float32")
    stored = safetensors.read_file(Inventory(folder), "model.safetensors")
    name = next(name for name in stored if name.endswith("up_proj.weight"))
    codes = np.arange(np.prod(stored[name].shape), dtype=np.uint8) % 120  # finite and positive
    codes = codes.reshape(stored[name].shape)
    tensors = {
        name: stored_weight(name, codes, "F8_E4M3"),
        f"{name}_scale_inv": stored_weight("s", np.full((1, 1), 0.25, np.float32), "F32"),
    }
    weights, _ = unpack_quantized(tensors, {KEY: FP8, "dtype": "float32"}, "m")
    values = registry.dequantize(weights[name])
    assert values[0, 0] == 0
    assert values.flat[56] == 0.25  # in e4m3, the code of 1 is 56, and that of 2 is 64
    assert values.flat[64] == 0.5


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


@pytest.mark.parametrize("method", METHODS)
def test_describing_a_quantized_folder_computes_no_matrix(tmp_path, monkeypatch, method):
    plain, packed = plain_and_packed(tmp_path, method)
    read_weights = []
    compute = Deferred.read
    monkeypatch.setattr(Deferred, "read", lambda self: read_weights.append(self) or compute(self))
    machine = this_machine(tmp_path)
    plans = [plan_path(folder, machine).facts() for folder in (plain, packed)]
    describe_model(packed, machine)
    config_from(open_checkpoint(packed))
    assert not read_weights
    assert plans[0]["memory"] == plans[1]["memory"]
    load_model(open_checkpoint(packed))
    assert read_weights


BLOCKS = {"quant_method": "compressed-tensors", "format": "float-quantized"}


def blocks_of(structure):
    """Numbers of a matrix ``(4, 6)`` of ones in e4m3, with a scale for each block of *structure*.

    Its four scales fit blocks of 2 rows and 3 columns.
    """
    codes = np.full((4, 6), 56, np.uint8)  # ones
    scales = np.arange(1, 5, dtype="<f4").reshape(2, 2)
    tensors = {
        "w.weight": stored_weight("w.weight", codes, "F8_E4M3"),
        "w.weight_scale": stored_weight("w.weight_scale", scales, "F32"),
    }
    weights = {"type": "float", "num_bits": 8, "block_structure": structure}
    quantization = BLOCKS | {"config_groups": {"group_0": {"weights": weights}}}
    unpacked, _ = unpack_quantized(tensors, {KEY: quantization}, "m")
    return registry.dequantize(unpacked["w.weight"])


def test_the_form_of_blocks_may_be_a_text_as_in_older_folders():
    expected = np.arange(1, 5, dtype="<f4").reshape(2, 2).repeat(2, axis=0).repeat(3, axis=1)
    for structure in ([2, 3], "2x3"):
        np.testing.assert_array_equal(blocks_of(structure), expected)


@pytest.mark.parametrize("structure", ["2", "2x", "2x3x4", "x", "3x2", "0x3", "-2x3", "2 x 3 a"])
def test_another_text_for_the_form_of_blocks_is_refused(structure):
    with pytest.raises(InvalidFormat):
        blocks_of(structure)


def test_a_matrix_with_both_kinds_of_codes_is_refused():
    tensors = {
        "w.weight": stored_weight("w.weight", np.ones((4, 6), np.int8), "I8"),
        "w.weight_packed": stored_weight("w.weight_packed", np.ones((4, 6), np.int8), "I8"),
        "w.weight_scale": stored_weight("w.weight_scale", np.ones(1, "<f4"), "F32"),
    }
    weights = {"type": "int", "num_bits": 8}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": {"weights": weights}},
    }
    with pytest.raises(InvalidFormat, match="w has both weight and weight_packed"):
        unpack_quantized(tensors, {KEY: quantization}, "m")


@pytest.mark.parametrize("size", [10**13, 2**64, 10**400])
def test_a_block_larger_than_the_matrix_takes_no_memory(size):
    codes = np.full((4, 6), 56, np.uint8)  # ones
    tensors = {
        "w.weight": stored_weight("w.weight", codes, "F8_E4M3"),
        "w.weight_scale_inv": stored_weight("s", np.full((1, 2), 2, "<f4"), "F32"),
    }
    described = {"quant_method": "fp8", "weight_block_size": [size, 3]}
    weights, _ = unpack_quantized(tensors, {KEY: described, "dtype": "float32"}, "m")
    np.testing.assert_array_equal(registry.dequantize(weights["w.weight"]), np.full((4, 6), 2))


@pytest.mark.parametrize("shape", [(), (0, 8), (8, 0), (2,), (1, 2, 8)])
def test_words_of_mlx_that_are_not_a_matrix_are_refused(shape):
    words = np.zeros(shape, "<u4")
    numbers = np.ones((1, 1), "<f4")
    tensors = {
        # The table of types has no U32; MLX packs its codes into words of 32 bits.
        "w.weight": replace(stored_weight("w", words, "F32"), quant=QuantType("U32", -1, 1, 0)),
        "w.scales": stored_weight("s", numbers, "F32"),
        "w.biases": stored_weight("b", -numbers, "F32"),
    }
    with pytest.raises(InvalidFormat, match="w: codes of shape"):
        repack(tensors, 2)


def test_packed_zero_points_of_a_matrix_with_one_row_are_unpacked():
    codes, zeros = np.arange(64) % 16, np.array([3, 12])  # as stored: 8 more than the numbers
    words = (codes.reshape(1, 8, 8).astype("<u4") << np.arange(0, 32, 4, dtype="<u4")).sum(-1)
    tensors = {
        "w.weight_packed": stored_weight("w", words.astype("<i4"), "I32"),
        "w.weight_scale": stored_weight("s", np.full((1, 2), 2, "<f4"), "F32"),
        "w.weight_zero_point": stored_weight("z", zeros.reshape(1, 2).astype("<i4"), "I32"),
        "w.weight_shape": stored_weight("n", np.array([1, 64], "<i8"), "I64"),
    }
    numbers = {"num_bits": 4, "type": "int", "symmetric": False, "group_size": 32}
    group = {"targets": ["Linear"], "weights": {**numbers, "strategy": "group"}}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "quantization_status": "compressed",
    }
    weights, _ = unpack_quantized(tensors, {KEY: quantization, "dtype": "float32"}, "m")
    expected = (codes - zeros.repeat(32)).reshape(1, 64) * 2
    np.testing.assert_array_equal(registry.dequantize(weights["w.weight"]), expected)
