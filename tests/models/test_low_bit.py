"""Qwen3 in Q1_0, Q2_0, PQ2_0 and PTQ1_0, from folders and files, against transformers."""

import numpy as np
import pytest
from conversions import convert
from hf_models import MAX_RELATIVE_DIFFERENCE, random_model, save, torch
from low_bit_models import SHAPE, TOKENS, as_mlx, unpacked_hybrid, unpacked_model

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.convert.convert_options import ConvertOptions
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model

# Kinds of weights, as :mod:`low_bit_models` numbers them: 1 is -1 and 1, 2 is ternary, and 4, which
# a test below uses, is -1 to 2.
LEVELS = {"Q1_0": 1, "Q2_0": 2, "PQ2_0": 2, "PTQ1_0": 2}


def reference_logits(path, dtype=np.float32):
    """Logits of all of TOKENS by the reference backend."""
    model = load_model(open_checkpoint(path), ops=ReferenceOps(dtype=dtype))
    return model.forward(TOKENS, KVCache(model.config, 64, dtype=dtype), all_positions=True)


def transformers_logits(model):
    """Logits of all of TOKENS by *model*, of transformers."""
    with torch.no_grad():
        return model(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()


def encodings(path):
    """Names of the encodings of the matrices of the model at *path*."""
    return {w.quant.name for w in open_checkpoint(path).weights.values() if len(w.shape) == 2}


@pytest.mark.parametrize("encoding", LEVELS)
def test_an_unpacked_qwen3_is_repacked_without_loss(tmp_path, encoding):
    model = unpacked_model(tmp_path / "model", levels=LEVELS[encoding])
    output = tmp_path / "model.gguf"
    conversion = convert(tmp_path / "model", output, ConvertOptions(encoding, no_tokenizer=True))
    assert conversion.exact
    assert encodings(output) == {encoding}  # embedding and head, too
    actual = reference_logits(output)
    expected = transformers_logits(model)
    assert np.abs(actual - expected).max() < MAX_RELATIVE_DIFFERENCE * np.ptp(expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("encoding", ["PQ2_0", "PTQ1_0"])
def test_an_unpacked_qwen35_with_a_vision_tower_is_repacked_without_loss(tmp_path, encoding):
    """As Ternary-Bonsai 27B: the language model is a part of the folder's model.

    GGUF files order the heads otherwise than folders.
    """
    model = unpacked_hybrid(tmp_path / "model")
    expected = transformers_logits(model)
    actual = reference_logits(tmp_path / "model")
    assert np.abs(actual - expected).max() < MAX_RELATIVE_DIFFERENCE * np.ptp(expected)
    output = tmp_path / "model.gguf"
    assert convert(tmp_path / "model", output, ConvertOptions(encoding, no_tokenizer=True)).exact
    assert encodings(output) == {encoding, "F32"}  # the convolutions are not products
    actual = reference_logits(output)
    assert np.abs(actual - expected).max() < MAX_RELATIVE_DIFFERENCE * np.ptp(expected)


def test_every_encoding_of_a_model_decodes_to_the_same_numbers(tmp_path):
    unpacked_model(tmp_path / "model")
    source = tmp_path / "model"
    logits_by_encoding = {}
    for encoding in ("PQ2_0", "PTQ1_0", "Q2_0", "F16"):
        output = tmp_path / f"{encoding}.gguf"
        assert convert(source, output, ConvertOptions(encoding, no_tokenizer=True)).exact
        logits_by_encoding[encoding] = reference_logits(output)
        source = output  # each from the one before: blocks are split, and joined again
    again = tmp_path / "again.gguf"
    request = ConvertOptions("PTQ1_0", no_tokenizer=True)
    assert convert(tmp_path / "Q2_0.gguf", again, request).exact
    logits_by_encoding["again"] = reference_logits(again)
    for logits in logits_by_encoding.values():
        np.testing.assert_array_equal(logits, logits_by_encoding["PQ2_0"])


def test_weights_of_four_levels_fit_encodings_of_two_bits_only(tmp_path):
    model = unpacked_model(tmp_path / "model", levels=4)
    output = tmp_path / "model.gguf"
    request = ConvertOptions("PQ2_0", no_tokenizer=True)
    assert convert(tmp_path / "model", output, request).exact
    actual = reference_logits(output)
    expected = transformers_logits(model)
    assert np.abs(actual - expected).max() < MAX_RELATIVE_DIFFERENCE * np.ptp(expected)
    for encoding in ("PTQ1_0", "Q1_0"):
        with pytest.raises(Unsupported, match="has no code for"):
            convert(output, tmp_path / "no.gguf", ConvertOptions(encoding, no_tokenizer=True))


@pytest.mark.parametrize("encoding", LEVELS)
def test_weights_that_are_not_low_bit_are_refused(tmp_path, encoding):
    unpacked_model(tmp_path / "model", levels=1 if encoding == "Q1_0" else 2)
    folder = tmp_path / "model"
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    matrix = tensors["model.layers.1.mlp.down_proj.weight"]
    matrix[3, 200] *= 1.5  # no longer 0 or the scale of its block
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(Unsupported, match=r"blk\.1\.ffn_down\.weight .* is not ternary"):
        convert(folder, tmp_path / "no.gguf", ConvertOptions(encoding, no_tokenizer=True))
    assert not (tmp_path / "no.gguf").exists()


# --- MLX ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "encoding"), [(1, "Q1_0"), (2, "PQ2_0")])
def test_mlx_folders_are_read_and_repacked_without_loss(tmp_path, bits, encoding):
    model = unpacked_model(tmp_path / "model", levels=bits)
    as_mlx(tmp_path / "model", bits)
    assert encodings(tmp_path / "model") == {encoding}
    output = tmp_path / "model.gguf"
    request = ConvertOptions(encoding, no_tokenizer=True)
    assert convert(tmp_path / "model", output, request).exact
    expected = transformers_logits(model)
    actual = reference_logits(output)
    np.testing.assert_array_equal(reference_logits(tmp_path / "model"), actual)
    assert np.abs(actual - expected).max() < MAX_RELATIVE_DIFFERENCE * np.ptp(expected)


@pytest.mark.parametrize("damage", ["bias", "group_size", "bits", "missing", "shape"])
def test_other_mlx_packings_are_refused(tmp_path, damage):
    import json

    from safetensors.numpy import load_file, save_file

    folder = tmp_path / "model"
    unpacked_model(folder)
    as_mlx(folder, 2)
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    stem = "model.layers.0.mlp.up_proj"
    if damage == "bias":
        tensors[f"{stem}.biases"][1, 1] *= 2
    elif damage == "missing":
        del tensors[f"{stem}.scales"]
    elif damage == "shape":
        tensors[f"{stem}.scales"] = tensors[f"{stem}.scales"][:, :1].copy()
    else:
        config["quantization"][damage] = {"group_size": 64, "bits": 4}[damage]
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises((InvalidFormat, Unsupported), match=r"quantization|up_proj"):
        open_checkpoint(folder)


# --- TriLM, BitCPM -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Llama", "MiniCPM"])
@pytest.mark.parametrize("encoding", ["TQ1_0", "TQ2_0"])
def test_ternary_weights_with_a_scale_per_shard_are_repacked_without_loss(tmp_path, kind, encoding):
    """As TriLM has them: each matrix was ternary on several processors, with a scale on each."""
    minicpm_keys = (
        {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 64} if kind == "MiniCPM" else {}
    )
    options = SHAPE | {"intermediate_size": 512} | minicpm_keys
    del options["head_dim"]
    model = random_model(kind, options)
    rng = np.random.default_rng(9)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "layers" in name:
                scales = rng.uniform(0.02, 0.3, (2, 1)).repeat(len(parameter) // 2, axis=0)
                ternary = rng.integers(-1, 2, parameter.shape) * scales.astype(np.float16)
                parameter.copy_(torch.from_numpy(ternary.astype(np.float32)))
            else:
                parameter.copy_(parameter.half().float())
    save(kind, options, model, tmp_path / "model")
    output = tmp_path / "model.gguf"
    request = ConvertOptions(encoding, no_tokenizer=True)
    assert convert(tmp_path / "model", output, request).exact
    assert encodings(output) == {encoding, "F16"}
    actual = reference_logits(output)
    expected = transformers_logits(model)
    assert np.abs(actual - expected).max() < MAX_RELATIVE_DIFFERENCE * np.ptp(expected)
