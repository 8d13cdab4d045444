"""Quantized files: llama-quantize's types and bytes, with an importance matrix too."""

from dataclasses import replace

import gguf
import numpy as np
import pytest
from builders import write_gguf
from conversions import convert
from llama_quantize import INSTALLED, REASON, quantize_rows
from mix_models import MODELS, digest, grid, our_types
from tiny_models import tiny, write_model

from bitnet.base import native
from bitnet.base.errors import InvalidFormat, NotFound, Unsupported, UsageError
from bitnet.convert.convert_options import ConvertOptions
from bitnet.convert.mixes import importance_of, read_importance
from bitnet.convert.run import plan_conversion
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf import GGUF
from bitnet.quants import registry, types

compiled = pytest.mark.skipif(native.module() is None, reason="the native module is not installed")

# By the model's name: digest of the type of every tensor in every mix, as llama-quantize
# chooses them. benchmarks/quantizers.py printed them, with llama.cpp v0.5.0.
DIGESTS = {
    "llama of 20 blocks, four queries to a key": "a30f0ca1bb8d5efe",
    "tied llama of 17 blocks": "58af624e032e1e5a",
    "llama of 80 blocks, eight queries to a key": "15174cdeea955d6f",
    "qwen2 of 80 blocks": "70d7a9f893c4ee78",
    "llama of 9 blocks with 8 experts": "cad344a8100b02f7",
    "qwen3moe of 18 blocks with 16 experts": "26b2b519d3a40bed",
    "rows of 288": "7df611712ec57948",
    "tied rows of 288": "f7ce3ef1bd07dab1",
    "rows of 80": "51467182ac155b61",
    "fused queries, keys and values": "b0e6c5362b8f60b7",
    "states between attention": "0cf4aae5a38b48de",
    "falcon of 34 blocks": "8cd27e8e22f175c2",
    "tied falcon of 16 blocks": "6a7ae8f6d88158f7",
    "jais2 of 68 blocks": "b482dbbc1659ddac",
    "llama-embed of 80 blocks, two queries to a key": "70d7a9f893c4ee78",
    "llama of 80 blocks, nine queries to eight keys": "a51a804b35b6d50a",
    "blocks that run twice": "f7df16f7ad3613e0",
    "bailingmoe3 of latent attention": "36eb84d786480134",
    "deepseek2 of latent attention": "6a03f8b1424d53ca",
}


@pytest.mark.parametrize("name", MODELS)
def test_types_are_those_of_llama_quantize(name):
    lines = [line for mix, options in grid() for line in our_types(name, mix, options)]
    assert digest(lines) == DIGESTS[name]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A GGUF file of a LLaMA whose rows are whole blocks of every type, 256 weights and more."""
    model = tiny("llama", embedding_length=256, feed_forward_length=512)
    return write_model(tmp_path_factory.mktemp("source") / "model.gguf", model)


def sums_of(checkpoint):
    """Sums of squared inputs ``(columns,)`` over three calls, for each matrix of the blocks."""
    rng = np.random.default_rng(5)
    return {
        name: rng.random(weight.shape[-1], dtype="f4") * 3
        for name, weight in checkpoint.weights.items()
        if len(weight.shape) == 2 and name.startswith("blk.")
    }


def gguf_file(path, sums, counts=(3,)):
    """Write *sums* as an importance matrix of llama.cpp; *counts* are calls of each expert."""
    writer = gguf.GGUFWriter(path, "imatrix")
    writer.add_array("imatrix.datasets", ["text.txt"])
    writer.add_uint32("imatrix.chunk_count", 7)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, squares in sums.items():
        writer.add_tensor(f"{name}.in_sum2", squares.reshape(len(counts), -1))
        writer.add_tensor(f"{name}.counts", np.array(counts, "f4").reshape(-1, 1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@compiled
@pytest.mark.skipif(not INSTALLED, reason=REASON)
@pytest.mark.parametrize("mix", ["Q4_K_M", "Q3_K_L", "Q2_K", "IQ4_XS"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_file_has_the_bytes_of_llama_cpps_quantizers(source, mix, weighted, tmp_path):
    before = open_checkpoint(source).weights
    sums = sums_of(open_checkpoint(source)) if weighted else {}
    request = ConvertOptions(mix)
    if weighted:
        request = replace(request, imatrix=gguf_file(tmp_path / "imatrix.gguf", sums))
    convert(source, tmp_path / "out.gguf", request)
    n_rounded = 0
    for name, weight in open_checkpoint(tmp_path / "out.gguf").weights.items():
        if weight.quant == before[name].quant:
            np.testing.assert_array_equal(weight.data, before[name].data)
            continue
        n_rounded += 1
        values = registry.dequantize(before[name])
        importance = sums[name] / np.float32(3) if name in sums else None  # a mean over the calls
        expected = quantize_rows(weight.quant.name, values, importance)
        np.testing.assert_array_equal(weight.data, expected)
    assert n_rounded == 1 + 2 * 7  # the embedding, which is the head, and 7 matrices in 2 blocks


@compiled
def test_matrices_that_the_importance_matrix_lacks_are_named(source, tmp_path):
    matrix = gguf_file(tmp_path / "imatrix.gguf", sums_of(open_checkpoint(source)))
    plan = plan_conversion(source, ConvertOptions("Q4_K_S", imatrix=matrix))
    plan.write(tmp_path / "out.gguf")
    with GGUF.open(tmp_path / "out.gguf") as file:
        assert file.metadata["general.file_type"] == 14  # MOSTLY_Q4_K_S
    (warning,) = (entry for entry in plan.warnings if entry.subject == "--imatrix")
    assert warning.text == "has nothing for 1 tensor, such as token_embd.weight"


@compiled
def test_a_quantized_file_is_quantized_again_only_on_request(source, tmp_path):
    convert(source, tmp_path / "q8.gguf", ConvertOptions("Q8_0"))
    with pytest.raises(Unsupported, match="Q8_0 -> Q6_K would not be exact"):
        convert(tmp_path / "q8.gguf", tmp_path / "q4.gguf", ConvertOptions("Q4_K_M"))
    convert(tmp_path / "q8.gguf", tmp_path / "q4.gguf", ConvertOptions("Q4_K_M", allow_lossy=True))


@compiled
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_infinite_weights_and_nan_are_refused_by_name(bad, tmp_path):
    model = tiny("llama", embedding_length=256, feed_forward_length=512)
    weight = model.weights["blk.1.ffn_up.weight"]
    values = registry.dequantize(weight).copy()
    values[3, 7] = bad
    model.weights[weight.name] = registry.quantize(weight.name, values, types.by_name("F32"))
    broken = write_model(tmp_path / "broken.gguf", model)
    with pytest.raises(Unsupported, match=r"blk\.1\.ffn_up\.weight: some of its weights are inf"):
        convert(broken, tmp_path / "out.gguf", ConvertOptions("Q4_K_M"))
    assert not (tmp_path / "out.gguf").exists()


@compiled
def test_a_scale_that_is_too_large_is_refused(tmp_path):
    model = tiny("llama", embedding_length=256, feed_forward_length=512)
    weight = model.weights["blk.0.attn_q.weight"]
    values = registry.dequantize(weight) * np.float32(1e9)
    model.weights[weight.name] = registry.quantize(weight.name, values, types.by_name("F32"))
    large = write_model(tmp_path / "large.gguf", model)
    with pytest.raises(Unsupported, match=r"blk\.0\.attn_q\.weight: Q4_K cannot hold"):
        convert(large, tmp_path / "out.gguf", ConvertOptions("Q4_K_S"))
    assert [path.name for path in tmp_path.iterdir()] == ["large.gguf"]


def test_experts_have_importance_of_their_own(tmp_path):
    sums = {"blk.0.ffn_up_exps.weight": np.arange(12, dtype="f4")}
    file = gguf_file(tmp_path / "imatrix.gguf", sums, [2, 0, 4])
    expert = registry.quantize(
        "blk.0.ffn_up_exps.weight", np.zeros((6, 4), "f4"), types.by_name("F32")
    )
    values = importance_of(read_importance(file), replace(expert, shape=(3, 2, 4)))
    # Sums by the calls of each expert; an expert without a call weights all inputs alike.
    np.testing.assert_array_equal(values, [[0, 0.5, 1, 1.5], [1, 1, 1, 1], [2, 2.25, 2.5, 2.75]])


def test_a_damaged_importance_matrix_is_refused(tmp_path):
    whole = gguf_file(tmp_path / "whole.gguf", {"w": np.ones(4, "f4")}).read_bytes()
    damaged = tmp_path / "damaged.gguf"
    for size in (0, 3, 12, len(whole) // 2):
        damaged.write_bytes(whole[:size])
        with pytest.raises(InvalidFormat, match=r"damaged\.gguf"):
            read_importance(damaged)
    gguf_file(damaged, {"w": np.array([1, np.nan], "f4")})
    with pytest.raises(InvalidFormat, match="numbers for w are not all finite"):
        read_importance(damaged)
    with pytest.raises(NotFound, match="does not exist"):
        read_importance(tmp_path / "missing.gguf")
    with pytest.raises(NotFound, match="is a folder, expected a GGUF file"):
        read_importance(tmp_path)
    write_gguf(damaged, {"general.architecture": "imatrix"})
    with pytest.raises(InvalidFormat, match="it has no sums"):
        read_importance(damaged)


def test_an_importance_matrix_of_another_model_is_refused(source, tmp_path):
    name = "blk.0.ffn_down.weight"
    for sums, reason in (
        ({name: np.ones(7, "f4")}, f"7 numbers for {name}, expected 512"),
        ({"blk.90.ffn_up.weight": np.ones(7, "f4")}, "nothing for any of the 15 matrices"),
    ):
        matrix = gguf_file(tmp_path / "other.gguf", sums)
        with pytest.raises(InvalidFormat, match=reason):
            plan_conversion(source, ConvertOptions("Q4_K_M", imatrix=matrix))


@pytest.mark.parametrize(
    ("type_", "options", "reason"),
    [
        ("F16", {"imatrix": "i.gguf"}, "--imatrix goes with types such as Q4_K_M"),
        ("Q2_K_S", {}, "Q2_K_S needs an importance matrix"),
        ("Q4_K", {}, "--type is 'Q4_K'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(type_, options, reason):
    with pytest.raises(UsageError, match=reason):
        ConvertOptions(type_, **options)
