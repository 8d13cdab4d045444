"""Files we write, in llama.cpp: it computes the same, or a warning said before that it does not."""

import importlib.util
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conversions import convert
from engine_logits import distance, llama_cpp
from hf_folders import save_tensors, tiny_folder, tokenizer_folder
from tiny_models import TOKENS, ternary_gguf, tiny_gguf

from bitnet.base.errors import Unsupported
from bitnet.convert.convert_options import ConvertOptions
from bitnet.convert.run import plan_conversion
from bitnet.formats.checkpoint import Inventory
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.safetensors import read_folder
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.quants import registry

with_ik_llama_cpp = pytest.mark.skipif(
    importlib.util.find_spec("ik_llama_cpp") is None,
    reason="the extra `crossval-ternary` is not installed",
)
with_llama_cpp = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None, reason="the extra `crossval` is not installed"
)
# Of the range of the logits: llama.cpp's cache of keys and values holds float16. Where it computes
# another model, its logits differ by 0.01 and more.
SAME = 3e-3
IDS = np.random.default_rng(3).integers(3, 60, 40).tolist()
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LONG = {
    "rope_type": "longrope",
    "short_factor": np.linspace(1, 1.5, 32).tolist(),
    "long_factor": np.linspace(1, 6, 32).tolist(),
}

# Family, keys of config.json, and a part of the warning that llama.cpp computes another model; the
# part is empty if it computes the same one.
CASES = {
    "llama": ("llama", {}, ""),
    "yarn": ("llama", {"rope_scaling": YARN}, ""),
    "yarn-attention-factor": ("llama", {"rope_scaling": YARN | {"attention_factor": 1.7}}, ""),
    "yarn-mscale": (
        "llama",
        {"rope_scaling": YARN | {"mscale": 1.5, "mscale_all_dim": 0.5}},
        "",
    ),
    "yarn-without-truncation": ("llama", {"rope_scaling": YARN | {"truncate": False}}, ""),
    "yarn-betas": (
        "llama",
        {"rope_scaling": YARN | {"beta_fast": 4, "beta_slow": 0.3}},
        "",
    ),
    "linear": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, ""),
    "longrope": (
        "phi3",
        {"rope_scaling": LONG, "original_max_position_embeddings": 48},
        "the long rope factors",
    ),
    "phi3-window": ("phi3", {"sliding_window": 9}, "sliding window of phi3"),
    "mistral-window": ("mistral", {"sliding_window": 9}, "sliding window of llama"),
    "qwen2-window": (
        "qwen2",
        {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1},
        "sliding window of qwen2",
    ),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 64}, ""),
    "gemma2-scale": ("gemma2", {"query_pre_attn_scalar": 5}, "scales the scores of gemma2"),
    "gemma3": ("gemma3", {"query_pre_attn_scalar": 64}, ""),
    "gemma3-scale": ("gemma3", {"query_pre_attn_scalar": 5}, "scales the scores of gemma3"),
}


# A GGUF file means what llama.cpp makes of it. These cases need what no key of GGUF says, so that
# the converted file is another model in every engine, this package included.
LOST_IN_GGUF = {"phi3-window", "mistral-window", "qwen2-window", "gemma2-scale", "gemma3-scale"}


def folder_of(case, path):
    """Write a tiny model of *case* with a tokenizer to the folder *path*."""
    family, keys, _ = CASES[case]
    folder = tokenizer_folder(tiny_folder(path, family, **keys), TOKENS)
    # Qwen's class pads with a token of its own, whatever class is named, unless the file has one.
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"pad_token": TOKENS[1], "unk_token": TOKENS[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def ours(path):
    """Logits of this package for the model at *path* after each of IDS, in float64."""
    model = load_model(open_checkpoint(path), ops=ReferenceOps(dtype=np.float64))
    cache = KVCache(model.config, len(IDS), dtype=np.float64)
    return model.forward(IDS, cache, all_positions=True)


@with_llama_cpp
@pytest.mark.parametrize(
    ("family", "keys", "tensor"),
    [
        ("qwen3", {"rope_scaling": YARN | {"truncate": False}}, "rope_freqs.weight"),
        ("qwen3", {"attention_bias": True}, "blk.0.attn_output.bias"),
        (
            "gemma2",
            {"attention_bias": True, "query_pre_attn_scalar": 64},
            "blk.0.attn_output.bias",
        ),
    ],
)
def test_tensors_that_llama_cpp_does_not_know_are_named(family, keys, tensor, tmp_path):
    folder = tiny_folder(tmp_path / "model", family, **keys)
    file = tmp_path / "model.gguf"
    if keys.get("attention_bias"):
        tensors = {
            name: tensor.data.view("<f4").reshape(tensor.shape).copy()
            for name, tensor in read_folder(Inventory(folder)).items()
        }
        for layer in range(2):
            for part in ("q", "k", "v", "o"):
                name = f"model.layers.{layer}.self_attn.{part}_proj"
                rows = len(tensors[f"{name}.weight"])
                tensors[f"{name}.bias"] = np.full(rows, 0.1, np.float32)
        save_tensors(folder / "model.safetensors", tensors)
    done = convert(tokenizer_folder(folder, TOKENS), file, ConvertOptions("F32"))
    (warning,) = done.warnings
    said = f"has no {tensor} in {family} models: it refuses the file or computes without it"
    assert warning.text == said
    assert llama_cpp(file, [IDS], tmp_path) is None


@with_llama_cpp
@pytest.mark.parametrize("case", CASES)
def test_llama_cpp_computes_the_same_or_is_named(case, tmp_path):
    folder = folder_of(case, tmp_path / "model")
    file = tmp_path / "model.gguf"
    done = convert(folder, file, ConvertOptions("F32"))
    said = CASES[case][2]
    engine = "every engine" if case in LOST_IN_GGUF else "llama.cpp"
    assert [warning.subject for warning in done.warnings] == [engine] * bool(said)
    assert said in "".join(warning.text for warning in done.warnings)
    (theirs,) = llama_cpp(file, [IDS], tmp_path)
    # Both read the same GGUF file, in which what it cannot say is lost to both.
    differs = bool(said) and case not in LOST_IN_GGUF
    assert (not distance(ours(file), theirs) <= SAME) == differs  # NaN is not the same


@pytest.mark.parametrize("case", CASES)
def test_the_file_is_read_back_as_the_folder_was_or_its_loss_is_named(case, tmp_path):
    folder = folder_of(case, tmp_path / "model")
    file = tmp_path / "model.gguf"
    convert(folder, file, ConvertOptions("F32"))
    assert (distance(ours(folder), ours(file)) < 1e-6) == (case not in LOST_IN_GGUF)


@with_llama_cpp
@pytest.mark.parametrize("family", ["phi3", "llama"])
@pytest.mark.parametrize("more", [{}, {"attention_factor": 1.4}])
def test_longrope_is_the_same_beyond_its_first_context(family, more, tmp_path):
    scaling = LONG | {"original_max_position_embeddings": 32} | more
    # Phi-3's configuration states it beside the table, and its class reads it only there.
    stated = {"original_max_position_embeddings": 32} if family == "phi3" else {}
    folder = tiny_folder(tmp_path / "model", family, rope_scaling=scaling, **stated)
    file = tmp_path / "model.gguf"
    convert(tokenizer_folder(folder, TOKENS), file, ConvertOptions("F32"))
    (theirs,) = llama_cpp(file, [IDS], tmp_path)
    assert distance(ours(folder), theirs) < SAME


@pytest.mark.parametrize(
    ("family", "keys", "zero"),
    [
        ("gemma2", {"attn_logit_softcapping": None}, "gemma2.attn_logit_softcapping"),
        ("gemma2", {"final_logit_softcapping": None}, "gemma2.final_logit_softcapping"),
    ],
)
def test_a_missing_softcap_that_llama_cpp_would_read_as_zero_is_refused(
    family, keys, zero, tmp_path
):
    folder = tiny_folder(tmp_path / "model", family, **keys)
    file = tmp_path / "out.gguf"
    with pytest.raises(Unsupported, match=f"{zero} would be 0 in the file"):
        convert(folder, file, ConvertOptions("F32", no_tokenizer=True))
    assert not file.exists()


def test_dynamic_rope_is_refused(tmp_path):
    scaling = {"scaling.type": "dynamic", "scaling.original_context_length": 16}
    keys = {f"llama.rope.{key}": value for key, value in scaling.items()}
    source = tiny_gguf(tmp_path / "in.gguf", **keys)
    with pytest.raises(Unsupported, match="its rope scaling is dynamic"):
        convert(source, tmp_path / "out.gguf", ConvertOptions("F32"))
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(("encoding", "changes"), [("F32", True), ("I2_S", False)])
def test_a_file_without_the_rounding_of_bitnet_is_not_called_exact(tmp_path, encoding, changes):
    folder = tiny_folder(tmp_path / "model", "bitnet-b1.58")
    done = convert(folder, tmp_path / "out.gguf", ConvertOptions(encoding, no_tokenizer=True))
    warnings = {warning.subject: warning.text for warning in done.warnings}
    assert "does not load the architecture bitnet-b1.58" in warnings["llama.cpp"]
    assert ("every engine" in warnings) == changes
    assert all(tensor.keeps_rounding for tensor in done.tensors) == (not changes)
    assert not changes or not done.exact
    assert ("another rounding" in "\n".join(done.lines())) == changes


def test_the_plan_warns_of_rows_too_short_for_ik_llama_cpp(tmp_path):
    folder = tiny_folder(tmp_path / "model", "bitnet-b1.58")
    wide = tmp_path / "wide.gguf"
    ternary_gguf(wide)
    for source, is_warned in ((folder, True), (wide, False)):
        plan = plan_conversion(source, ConvertOptions("IQ2_BN", no_tokenizer=True))
        texts = [warning.text for warning in plan.warnings if warning.subject == "ik_llama.cpp"]
        assert (
            any("rows of fewer than 512 weights; here 256" in text for text in texts) == is_warned
        )


def test_a_plan_says_the_types_of_tensors_and_how_large_the_file_gets(tmp_path):
    folder = tiny_folder(tmp_path / "model", "qwen3")
    plan = plan_conversion(folder, ConvertOptions("Q4_0", no_tokenizer=True))
    assert "14 tensors F32 -> Q4_0" in "\n".join(plan.lines())
    done = plan.write(tmp_path / "out.gguf")
    assert done.size_bytes == plan.size_bytes


@pytest.mark.parametrize(("type", "decoded"), [("Q4_0", []), ("TQ2_0", [(16, 256)])])
def test_a_plan_decodes_no_matrix_but_the_first_rows_of_an_embedding(
    type, decoded, tmp_path, monkeypatch
):
    folder = tiny_folder(tmp_path / "m", "llama")
    shapes = []
    dequantize = registry.dequantize

    def noted(weight):
        shapes.append(weight.shape)
        return dequantize(weight)

    monkeypatch.setattr(registry, "dequantize", noted)
    plan_conversion(folder, ConvertOptions(type, no_tokenizer=True))
    assert [shape for shape in shapes if len(shape) > 1] == decoded


def test_what_is_refused_leaves_no_file(tmp_path):
    folder = tiny_folder(tmp_path / "model", "llama")
    source = tmp_path / "in.gguf"
    convert(folder, source, ConvertOptions("Q4_1", no_tokenizer=True))
    # A file of Q4_1 has its embedding in Q6_K.
    with pytest.raises(Unsupported, match="Q6_K -> Q8_0 would not be exact"):
        convert(source, tmp_path / "out.gguf", ConvertOptions("Q8_0"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.gguf", "model"]


@with_ik_llama_cpp
def test_iq2_bn_is_byte_for_byte_what_ik_llama_cpp_makes_of_i2_s(tmp_path):
    source, theirs, ours = (tmp_path / f"{name}.gguf" for name in ("i2_s", "theirs", "ours"))
    ternary_gguf(source)
    package = Path(importlib.util.find_spec("ik_llama_cpp").origin).parent
    words = ["--allow-requantize", "--token-embedding-type", "f16", source, theirs, "iq2_bn"]
    subprocess.run(
        [package / "bin" / "llama-quantize", *words], check=True, capture_output=True, timeout=600
    )
    assert convert(source, ours, ConvertOptions("IQ2_BN")).exact
    expected = open_checkpoint(theirs).weights
    written = open_checkpoint(ours).weights
    # Seven matrices in each of two blocks.
    assert [weight.quant.name for weight in written.values()].count("IQ2_BN") == 14
    for name, weight in written.items():
        assert weight.quant == expected[name].quant
        np.testing.assert_array_equal(weight.data, expected[name].data, err_msg=name)
