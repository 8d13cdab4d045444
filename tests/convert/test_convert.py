"""Conversions: the same logits from the new file, the same codes, or a refusal."""

import json
from functools import partial

import gguf
import numpy as np
import pytest
from builders import INT32, UINT16, Tensor, Typed, write_gguf
from conversions import convert
from hf_folders import MODEL_TYPES, bf16, save_tensors, tiny_folder, tokenizer_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_keys import VOCAB
from tiny_models import TOKENS, in_encoding, tiny

from bitnet import load
from bitnet.base.errors import (
    InvalidFormat,
    Unsupported,
    UsageError,
    VerificationFailed,
)
from bitnet.convert.convert_options import ConvertOptions
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf import GGUF
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.quants import registry, types
from bitnet.quants.scaled_blocks import SCALED_BLOCKS
from bitnet.quants.ternary import Ternary, pack_i2_s, pack_iq2_bn

IDS = [5, 9, 33, 2, 61, 17, 8, 40]
PACKERS = {
    "I2_S": pack_i2_s,
    "TQ1_0": SCALED_BLOCKS["TQ1_0"].pack,
    "TQ2_0": SCALED_BLOCKS["TQ2_0"].pack,
    "IQ2_BN": pack_iq2_bn,
}
# `general.file_type` of a file in each type, as bitnet.cpp, llama.cpp and ik_llama.cpp number them.
FILE_TYPES = {"I2_S": 40, "TQ1_0": 36, "TQ2_0": 37, "IQ2_BN": 137}

FLOAT_FAMILIES = [family for family in MODEL_TYPES if family != "bitnet-b1.58"]

# Of the range of the logits, in float64: the keys of the file are float32, so that the norms'
# epsilon and the scale of the attention lose their tail.
MAX_DIFFERENCE = 1e-6


def logits(path, dtype=np.float64):
    """Logits of the model at *path* after each of IDS, computed in *dtype*."""
    model = load_model(open_checkpoint(path), ops=ReferenceOps(dtype=dtype))
    return model.forward(IDS, KVCache(model.config, 16, dtype=dtype), all_positions=True)


def save(path, checkpoint, **more):
    """Write *checkpoint* as the GGUF file *path*, with the bytes of its weights unchanged.

    *more* are further metadata.
    """
    tensors = [
        Tensor(name, weight.shape, weight.quant.ggml_id, weight.data.tobytes())
        for name, weight in checkpoint.weights.items()
    ]
    return write_gguf(path, dict(checkpoint.metadata) | more, tensors)


def ternary_file(path, encoding, scale=0.5, *, architecture="bitnet-b1.58"):
    """A GGUF file of a model whose block matrices are ternary in *encoding*.

    *scale* is the scale of every matrix, or a function of the codes ``(rows, columns)`` that
    returns the scales ``(rows, groups)`` and may change the codes. Two more keys tell whether a
    conversion keeps keys that it does not know, and replaces the type of the file.
    """
    checkpoint = tiny(architecture)
    weights = dict(checkpoint.weights)
    for name, weight in weights.items():
        if name.startswith("blk.") and len(weight.shape) == 2:
            codes = np.sign(np.rint(registry.dequantize(weight) * 10)).astype(np.int8)
            scales = np.array([[scale]], "f4") if np.isscalar(scale) else scale(codes)
            packed = PACKERS[encoding](Ternary(codes, scales.astype(np.float32)))
            weights[name] = type(weight)(name, weight.shape, types.by_name(encoding), packed)
    changed = type(checkpoint)(
        path, architecture, checkpoint.metadata, weights, checkpoint.rope_style
    )
    return save(path, changed, **{"x.kept": "yes", "general.file_type": 99})


def matrices(path):
    """Codes and scales of every ternary tensor of a file."""
    return {
        name: registry.unpack_ternary(weight)
        for name, weight in open_checkpoint(path).weights.items()
        if weight.quant.is_ternary
    }


# --- from safetensors ------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("family", FLOAT_FAMILIES)
def test_every_family_gives_the_same_logits_from_the_converted_file(tmp_path, family, encoding):
    folder = tiny_folder(tmp_path / "model", family, as_bf16=True)
    output = tmp_path / "out.gguf"
    done = convert(folder, output, ConvertOptions(encoding, no_tokenizer=True))
    # bfloat16 reaches below float16's smallest numbers; nothing else is rounded.
    assert done.exact or encoding == "F16"
    assert max(tensor.error for tensor in done.tensors) < 1e-7
    expected = logits(folder)
    converted = logits(output)
    assert np.abs(converted - expected).max() < MAX_DIFFERENCE * np.ptp(expected)


@pytest.mark.parametrize("family", FLOAT_FAMILIES)
def test_float32_is_exact_whatever_the_weights_are(tmp_path, family):
    folder = tiny_folder(tmp_path / "model", family)
    output = tmp_path / "out.gguf"
    assert convert(folder, output, ConvertOptions("F32", no_tokenizer=True)).exact
    expected = logits(folder)
    converted = logits(output)
    assert np.abs(converted - expected).max() < MAX_DIFFERENCE * np.ptp(expected)
    with GGUF.open(output) as file:
        assert {info.type.name for info in file.tensors.values()} == {"F32"}


def test_bitnet_masters_become_the_ternary_weights_they_are_run_as(tmp_path):
    folder = tiny_folder(tmp_path / "model", "bitnet-b1.58", as_bf16=True)
    output = tmp_path / "out.gguf"
    done = convert(folder, output, ConvertOptions("I2_S", no_tokenizer=True))
    assert {(t.before, t.after) for t in done.tensors if t.name.startswith("blk.0.ffn_up")} == {
        ("PACKED_U8", "I2_S")
    }
    assert all(tensor.exact for tensor in done.tensors if tensor.after == "I2_S")
    expected = logits(folder)
    converted = logits(output)
    # The embedding is F16, which now and then rounds an activation to the next int8.
    assert np.abs(converted - expected).max() < 1e-2 * np.ptp(expected)


@pytest.mark.parametrize("linear_class", ["autobitlinear", "bitlinear"])
def test_packed_bitnet_weights_become_i2_s(tmp_path, linear_class):
    folder = tiny_folder(tmp_path / "model", "bitnet-b1.58")
    source = open_checkpoint(folder).weights
    tensors = {}
    for name, tensor in _float_tensors(folder).items():
        tensors[name] = tensor
        if "proj" in name:
            weight = registry.quantize(name, tensor, registry.PACKED_U8)
            packed = weight.data.reshape(tensor.shape[0] // 4, -1)
            tensors |= {name: ("U8", packed), f"{name}_scale": bf16([0.75])}
    save_tensors(folder / "model.safetensors", tensors)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitnet", "linear_class": linear_class}
    (folder / "config.json").write_text(json.dumps(config))
    convert(folder, tmp_path / "out.gguf", ConvertOptions("I2_S", no_tokenizer=True))
    # An AutoBitLinear multiplies by its stored scale, a BitLinear divides by it.
    scale = np.float32(0.75 if linear_class == "autobitlinear" else 1 / 0.75)
    converted = matrices(tmp_path / "out.gguf")
    assert len(converted) == 14  # seven matrices in each of two blocks
    for name, ternary in converted.items():
        assert ternary.scales.tolist() == [[scale]]
        expected = registry.unpack_ternary(source[name]).codes
        np.testing.assert_array_equal(ternary.codes, expected)


def _float_tensors(folder):
    """Float32 arrays of a folder's tensors, by their names in the folder; they may be changed."""
    from bitnet.formats.checkpoint import Inventory
    from bitnet.formats.safetensors import read_folder

    return {
        name: tensor.data.view("<f4").reshape(tensor.shape).copy()
        for name, tensor in read_folder(Inventory(folder)).items()
    }


@pytest.mark.parametrize("encoding", ["Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"])
def test_blocks_are_what_ggml_makes_of_the_weights(tmp_path, encoding):
    folder = tiny_folder(tmp_path / "model", "qwen3")
    convert(folder, tmp_path / "out.gguf", ConvertOptions(encoding, no_tokenizer=True))
    reader = gguf.GGUFReader(tmp_path / "out.gguf")
    (tensor,) = [t for t in reader.tensors if t.name == "blk.1.ffn_down.weight"]
    values = registry.dequantize(open_checkpoint(folder).weights[tensor.name])
    expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType[encoding])
    np.testing.assert_array_equal(tensor.data, expected)
    # Norms stay numbers, as llama.cpp expects them.
    norm = next(t for t in reader.tensors if t.name == "output_norm.weight")
    assert norm.tensor_type == gguf.GGMLQuantizationType.F32


@pytest.mark.parametrize("encoding", ["F16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "TQ2_0"])
def test_gguf_py_reads_what_was_written(tmp_path, encoding):
    folder = tokenizer_folder(tiny_folder(tmp_path / "my-model", "llama"), TOKENS)
    convert(folder, tmp_path / "out.gguf", ConvertOptions(encoding, allow_lossy=True))
    reader = gguf.GGUFReader(tmp_path / "out.gguf")
    names = {tensor.name for tensor in reader.tensors}
    assert names == set(open_checkpoint(folder).weights)
    keys = {name: field.contents() for name, field in reader.fields.items()}
    assert keys["general.architecture"] == "llama"
    assert keys["general.name"] == "my-model"
    assert keys["llama.vocab_size"] == VOCAB
    assert keys["llama.block_count"] == 2
    assert keys["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)
    assert keys["tokenizer.ggml.model"] == "gpt2"
    assert keys["tokenizer.ggml.tokens"] == list(TOKENS)
    assert "llama.attention.sliding_window" not in keys  # the folder sets none
    assert gguf.LlamaFileType(keys["general.file_type"]).name == f"MOSTLY_{encoding}"


def test_scaled_rope_is_converted_with_its_factors(tmp_path):
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    folder = tiny_folder(tmp_path / "model", "llama", rope_scaling=scaling)
    convert(folder, tmp_path / "out.gguf", ConvertOptions("F32", no_tokenizer=True))
    assert "rope_freqs.weight" in open_checkpoint(tmp_path / "out.gguf").weights
    expected = logits(folder)
    converted = logits(tmp_path / "out.gguf")
    assert np.abs(converted - expected).max() < MAX_DIFFERENCE * np.ptp(expected)


# --- between ternary encodings ---------------------------------------------------------------


@pytest.mark.parametrize("after", PACKERS)
@pytest.mark.parametrize("before", PACKERS)
def test_codes_and_scales_survive_every_conversion_between_ternary_types(tmp_path, before, after):
    source = ternary_file(tmp_path / "in.gguf", before)
    done = convert(source, tmp_path / "out.gguf", ConvertOptions(after))
    assert done.exact
    first = matrices(source)
    second = matrices(tmp_path / "out.gguf")
    assert len(first) == len(second) == 14  # seven matrices in each of two blocks
    for name, ternary in second.items():
        np.testing.assert_array_equal(ternary.codes, first[name].codes)
        assert set(ternary.scales.flat) == {np.float32(0.5)}
    with GGUF.open(tmp_path / "out.gguf") as file:
        assert file.metadata["x.kept"] == "yes"
        assert file.metadata["general.file_type"] == FILE_TYPES[after]
        assert file.tensors["token_embd.weight"].type.name == "F32"


def test_i2_s_by_way_of_tq1_0_has_the_same_bytes_again(tmp_path):
    source = ternary_file(tmp_path / "in.gguf", "I2_S")
    convert(source, tmp_path / "tq.gguf", ConvertOptions("TQ1_0"))
    convert(tmp_path / "tq.gguf", tmp_path / "back.gguf", ConvertOptions("I2_S"))
    with GGUF.open(source) as first, GGUF.open(tmp_path / "back.gguf") as second:
        for name in first.tensors:
            assert bytes(first.tensor_bytes(name)) == bytes(second.tensor_bytes(name))


@given(
    st.floats(2**-14, 60000, width=16),  # normal numbers of float16
    st.sampled_from([("I2_S", "TQ2_0"), ("TQ2_0", "I2_S"), ("TQ1_0", "TQ2_0")]),
)
@settings(max_examples=12, deadline=None)
def test_any_scale_of_float16_survives(tmp_path_factory, scale, pair):
    folder = tmp_path_factory.mktemp("any")
    source = ternary_file(folder / "in.gguf", pair[0], scale)
    assert convert(source, folder / "out.gguf", ConvertOptions(pair[1])).exact


def test_blocks_of_zeros_take_any_scale(tmp_path):
    """I2_S has one scale for a tensor: that of the blocks that are not empty."""

    def zero_scales(codes):
        """Scales ``(rows, blocks)``: 0.5, and 0 for the first block of a row, which is emptied."""
        scales = np.full((len(codes), codes.shape[1] // 256), 0.5)
        codes[:, :256] = 0
        scales[:, 0] = 0  # as llama.cpp writes an empty block
        return scales

    source = ternary_file(tmp_path / "in.gguf", "TQ2_0", zero_scales)
    assert convert(source, tmp_path / "out.gguf", ConvertOptions("I2_S")).exact
    for name, ternary in matrices(tmp_path / "out.gguf").items():
        # Matrices of one block per row are zeros throughout.
        assert ternary.scales.item() == 0.5 or not ternary.codes.any(), name


def test_a_scale_that_would_be_rounded_is_refused_unless_allowed(tmp_path):
    scale = float(np.float32(0.1))  # between two numbers of float16
    source = ternary_file(tmp_path / "in.gguf", "I2_S", scale)
    with pytest.raises(Unsupported, match=r"holds as 0\.0999755859") as error:
        convert(source, tmp_path / "out.gguf", ConvertOptions("TQ2_0"))
    assert "--allow-lossy" in error.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.gguf"]
    done = convert(source, tmp_path / "out.gguf", ConvertOptions("TQ2_0", allow_lossy=True))
    assert not done.exact
    errors = [tensor.error for tensor in done.tensors if tensor.after == "TQ2_0"]
    assert errors == pytest.approx([abs(float(np.float16(scale)) - scale) / scale] * 14, rel=1e-3)


def test_several_scales_do_not_fit_i2_s(tmp_path):
    def by_row(codes):
        """Scales ``(rows, blocks)``: 0.25 and 0.5 in turn from row to row."""
        groups = codes.shape[1] // 256
        return np.where(np.arange(len(codes))[:, None] % 2, 0.5, 0.25).repeat(groups, axis=1)

    source = ternary_file(tmp_path / "in.gguf", "TQ2_0", by_row)
    with pytest.raises(Unsupported, match="2 different scales"):
        convert(source, tmp_path / "out.gguf", ConvertOptions("I2_S"))
    with pytest.raises(Unsupported, match="2 different scales"):
        convert(source, tmp_path / "out.gguf", ConvertOptions("I2_S", allow_lossy=True))


def test_iq2_bn_holds_a_scale_per_row_and_no_more(tmp_path):
    def by_row(codes):
        """Scales ``(rows, blocks)``: 0.25 and 0.1 in turn from row to row."""
        groups = codes.shape[1] // 256
        return np.where(np.arange(len(codes))[:, None] % 2, 0.1, 0.25).repeat(groups, axis=1)

    source = ternary_file(tmp_path / "rows.gguf", "TQ2_0", by_row)
    done = convert(source, tmp_path / "out.gguf", ConvertOptions("IQ2_BN"))
    assert done.exact
    for ternary in matrices(tmp_path / "out.gguf").values():
        assert ternary.scales.shape == (len(ternary.codes), 1)
        assert set(ternary.scales.flat) == {np.float32(0.25), np.float32(np.float16(0.1))}

    def by_block(codes):
        """Scales ``(rows, blocks)``: 0.25 and 0.1 in turn from block to block."""
        return np.resize([0.25, 0.1], codes.shape[1] // 256) + np.zeros((len(codes), 1))

    blocks = ternary_file(tmp_path / "blocks.gguf", "TQ2_0", by_block)
    with pytest.raises(Unsupported, match="2 different scales, IQ2_BN holds one per row"):
        convert(blocks, tmp_path / "no.gguf", ConvertOptions("IQ2_BN"))


def test_a_scale_too_large_for_float16_is_refused_for_good(tmp_path):
    # No option helps: the largest number of float16 is 65,504.
    source = ternary_file(tmp_path / "in.gguf", "I2_S", 1e6)
    with pytest.raises(Unsupported, match="does not fit into the float16"):
        convert(source, tmp_path / "out.gguf", ConvertOptions("TQ2_0", allow_lossy=True))


def test_ternary_weights_in_float32_are_recognised(tmp_path):
    source = ternary_file(tmp_path / "in.gguf", "I2_S", 0.3)
    convert(source, tmp_path / "wide.gguf", ConvertOptions("F32"))
    back = convert(tmp_path / "wide.gguf", tmp_path / "back.gguf", ConvertOptions("I2_S"))
    assert all(tensor.exact for tensor in back.tensors)
    first = matrices(source)
    second = matrices(tmp_path / "back.gguf")
    for name, ternary in first.items():
        np.testing.assert_array_equal(ternary.dequantize(), second[name].dequantize())


def test_codes_in_the_arm_order_are_written_in_the_usual_order(tmp_path):
    source = ternary_file(tmp_path / "in.gguf", "I2_S")
    convert(source, tmp_path / "out.gguf", ConvertOptions("I2_S", i2_s_layout="arm"))
    arm = open_checkpoint(source, i2_s_layout="arm").weights
    for name, ternary in matrices(tmp_path / "out.gguf").items():
        np.testing.assert_array_equal(ternary.codes, registry.unpack_ternary(arm[name]).codes)


def test_i2_s_in_the_arm_order_runs_right_only_with_the_option_that_names_it(tmp_path, monkeypatch):
    usual = ternary_file(tmp_path / "usual.gguf", "I2_S")
    monkeypatch.setitem(PACKERS, "I2_S", partial(pack_i2_s, arm=True))
    arm = ternary_file(tmp_path / "arm.gguf", "I2_S")

    def load_and_run(path, **more):
        with load(path, allow_mock=True, **more) as model:
            return model.logits(IDS)

    expected = load_and_run(usual)
    np.testing.assert_array_equal(load_and_run(arm, i2_s_layout="arm"), expected)
    assert not np.array_equal(load_and_run(arm), expected)
    with pytest.raises(UsageError, match="expected x86 or arm"):
        load_and_run(arm, i2_s_layout="riscv")


def test_the_parts_of_a_split_model_become_one_file(tmp_path):
    whole = tiny("llama")
    names = list(whole.weights)
    total = {"split.count": Typed(UINT16, 2), "split.tensors.count": Typed(INT32, len(names))}
    for number, part in enumerate((names[:7], names[7:])):
        tensors = [
            Tensor(name, whole.weights[name].shape, 0, whole.weights[name].data.tobytes())
            for name in part
        ]
        keys = (dict(whole.metadata) if not number else {}) | total
        keys["split.no"] = Typed(UINT16, number)
        write_gguf(tmp_path / f"m-0000{number + 1}-of-00002.gguf", keys, tensors)
    done = convert(tmp_path / "m-00002-of-00002.gguf", tmp_path / "m.gguf", ConvertOptions("F32"))
    assert done.exact
    with GGUF.open(tmp_path / "m.gguf") as file:
        assert list(file.tensors) == names
        assert not [key for key in file.metadata if key.startswith("split.")]


# --- what is refused -------------------------------------------------------------------------


def test_a_model_that_is_not_ternary_is_made_so_only_on_request(tmp_path):
    source = save(tmp_path / "in.gguf", tiny("llama"))
    with pytest.raises(Unsupported, match="is not ternary") as error:
        convert(source, tmp_path / "out.gguf", ConvertOptions("TQ2_0"))
    assert "--allow-lossy" in error.value.hint
    assert not (tmp_path / "out.gguf").exists()
    done = convert(source, tmp_path / "out.gguf", ConvertOptions("TQ2_0", allow_lossy=True))
    assert max(tensor.error for tensor in done.tensors) > 0.1  # the loss is reported


def test_rounding_what_is_rounded_already_is_refused_unless_allowed(tmp_path):
    source = save(tmp_path / "in.gguf", in_encoding(tiny("llama"), "Q4_K"))
    assert convert(source, tmp_path / "wide.gguf", ConvertOptions("F32")).exact
    with pytest.raises(Unsupported, match="would not be exact"):
        convert(source, tmp_path / "out.gguf", ConvertOptions("Q8_0"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.gguf", "wide.gguf"]


def test_weights_beyond_float16_are_refused(tmp_path):
    folder = tiny_folder(tmp_path / "model", "llama")
    tensors = _float_tensors(folder)
    tensors["model.layers.0.mlp.up_proj.weight"][3, 4] = 1e5
    save_tensors(folder / "model.safetensors", tensors)
    with pytest.raises(Unsupported, match="cannot hold its largest weights"):
        convert(folder, tmp_path / "out.gguf", ConvertOptions("F16", no_tokenizer=True))
    assert not (tmp_path / "out.gguf").exists()


def test_an_incomplete_model_is_refused(tmp_path):
    checkpoint = tiny("llama")
    del checkpoint.weights["blk.1.ffn_up.weight"]
    with pytest.raises(InvalidFormat, match=r"such as blk\.1\.ffn_up\.weight"):
        convert(
            save(tmp_path / "in.gguf", checkpoint), tmp_path / "out.gguf", ConvertOptions("F16")
        )


def test_an_existing_file_is_never_replaced(tmp_path):
    source = save(tmp_path / "in.gguf", tiny("llama"))
    (tmp_path / "out.gguf").write_text("precious")
    with pytest.raises(UsageError, match="exists"):
        convert(source, tmp_path / "out.gguf", ConvertOptions("F16"))
    assert (tmp_path / "out.gguf").read_text() == "precious"


def test_a_number_that_no_gguf_file_has_is_refused_by_its_key(tmp_path):
    folder = tiny_folder(tmp_path / "m", "llama", rope_theta=1e308)
    options = ConvertOptions("F32", no_tokenizer=True)
    with pytest.raises(Unsupported, match=r"m: llama\.rope\.freq_base: 1e\+308 cannot be stored"):
        convert(folder, tmp_path / "out.gguf", options)
    assert not (tmp_path / "out.gguf").exists()


def test_a_disk_that_changes_codes_is_noticed(tmp_path, monkeypatch):
    from bitnet.convert import run

    source = ternary_file(tmp_path / "in.gguf", "I2_S")
    open_written = run.open_gguf

    def damage_and_open(path):
        """Change one code of the file that was written, then open it to be read back."""
        with GGUF.open(path) as file:
            at = file.tensors["blk.0.attn_q.weight"].offset  # four codes of two bits
        content = bytearray(path.read_bytes())
        content[at] ^= 2 if content[at] & 2 else 1  # another valid code
        path.write_bytes(content)
        return open_written(path)

    plan = run.plan_conversion(source, ConvertOptions("TQ2_0"))
    monkeypatch.setattr(run, "open_gguf", damage_and_open)
    with pytest.raises(VerificationFailed, match=r"blk\.0\.attn_q\.weight: what was read back"):
        plan.write(tmp_path / "out.gguf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.gguf"]


@pytest.mark.parametrize(
    "options",
    [
        {"type": "Q4_K"},  # of one tensor; a file has a mix such as Q4_K_M
        {"type": "F16", "no_tokenizer": True, "pre": "gpt-2"},  # a part of the tokenizer left out
    ],
)
def test_a_request_that_makes_no_sense_is_refused(options):
    with pytest.raises(UsageError):
        ConvertOptions(**options)
