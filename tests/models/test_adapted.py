"""Models with low-rank adapters: the logits of merged weights and of llama.cpp, or a refusal."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from adapter_files import adapter_file, factors, peft_folder
from builders import f32, write_gguf
from conversions import convert
from engine_logits import distance, llama_cpp
from hf_folders import tiny_folder
from llama_quantize import INSTALLED, REASON
from tiny_models import in_encoding, tiny, write_model

from bitnet.base import native
from bitnet.base.errors import InvalidFormat, NotFound, Unsupported, UsageError
from bitnet.convert.convert_options import ConvertOptions
from bitnet.formats.adapters import read_adapter
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import NativeOps
from bitnet.kernels.program import Segment
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.adapted import parse_adapter, split_adapters, with_adapters
from bitnet.models.load import load_model
from bitnet.quants import registry, types

compiled = pytest.mark.skipif(native.module() is None, reason="the native module is not installed")
IDS = [5, 9, 33, 2, 61, 17, 8, 40]
EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
ADAPTED = ("attn_q", "attn_v", "attn_output", "ffn_up", "ffn_down")
# Names of these matrices in folders.
HF = {
    "attn_q": "self_attn.q_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Bounds on differences, as shares of the range of the logits. Ours are computed in float64, but
# scaled factors are stored as float32.
SAME = 1e-6
# llama.cpp's cache holds float16.
NEAR = 3e-3


def logits(checkpoint, ops=None):
    """Logits of *checkpoint* for all of IDS; by default on the reference backend, in float64."""
    ops = ops or ReferenceOps(dtype=np.float64)
    model = load_model(checkpoint, ops=ops)
    cache = KVCache(model.config, 16, dtype=np.float64 if isinstance(ops, ReferenceOps) else None)
    return model.forward(IDS, cache, all_positions=True)


def pairs_of(checkpoint, seed=0, rank=4):
    """Factors for the adapted matrices of every block."""
    return {
        f"blk.{block}.{part}.weight": factors(
            *checkpoint.weights[f"blk.{block}.{part}.weight"].shape, rank, seed + block
        )
        for block in range(2)
        for part in ADAPTED
    }


def by_module(pairs):
    """*pairs* by the names of the modules of a folder."""
    names = {}
    for name, pair in pairs.items():
        _, block, part, _ = name.split(".")
        names[f"model.layers.{block}.{HF[part]}"] = pair
    return names


def merged(checkpoint, pairs, scale):
    """*checkpoint* with ``W + scale * B A`` as its weights, rounded to float32."""
    weights = dict(checkpoint.weights)
    for name, (a, b) in pairs.items():
        values = registry.dequantize(weights[name]) + scale * (b.astype(float) @ a)
        weights[name] = registry.quantize(name, values.astype("f4"), types.by_name("F32"))
    return replace(checkpoint, weights=weights)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "minicpm", "mistral3"])
def test_logits_are_those_of_merged_weights(family, tmp_path):
    model = tiny(family)
    pairs = pairs_of(model)
    file = adapter_file(tmp_path / "lora.gguf", pairs, architecture=family)
    adapted = logits(with_adapters(replace(model, gguf=True), [(file, 0.5)]))
    expected = logits(merged(model, pairs, 0.5 * 6 / 4))  # factor, alpha, rank
    assert distance(expected, adapted) < SAME
    assert distance(logits(model), adapted) > 1e-2  # the adapter has an effect


def test_several_adapters_are_added_up(tmp_path):
    model = replace(tiny("llama"), gguf=True)
    files = []
    expected = model
    for seed, rank in ((0, 4), (7, 8)):
        pairs = pairs_of(model, seed, rank)
        files.append((adapter_file(tmp_path / f"{seed}.gguf", pairs, alpha=8.0), 1.0))
        expected = merged(expected, pairs, 8 / rank)
    assert distance(logits(expected), logits(with_adapters(model, files))) < SAME


@compiled
@pytest.mark.parametrize("encoding", ["F32", "Q4_0", "Q8_0"])
def test_the_compiled_pass_agrees_with_the_reference(encoding, tmp_path):
    model = replace(in_encoding(tiny("llama"), encoding), gguf=True)
    file = adapter_file(tmp_path / "lora.gguf", pairs_of(model, rank=5))
    adapted = with_adapters(model, [(file, 1.0)])
    # Products with Q4_0 and Q8_0 round activations.
    assert distance(logits(adapted, ReferenceOps()), logits(adapted, NativeOps(threads=2))) < 2e-2


@compiled
def test_a_token_has_the_same_bits_in_any_batch_and_cut(tmp_path):
    model = replace(tiny("llama"), gguf=True)
    file = adapter_file(tmp_path / "lora.gguf", pairs_of(model, rank=5))
    runner = load_model(with_adapters(model, [(file, 1.0)]), ops=NativeOps(threads=2))
    alone = runner.forward(IDS, KVCache(runner.config, 16), all_positions=True)
    cache = KVCache(runner.config, 16)
    cut = [runner.forward(part, cache, all_positions=True) for part in (IDS[:3], IDS[3:4], IDS[4:])]
    together = runner.run(
        [
            Segment(IDS[:5], KVCache(runner.config, 16), "all"),
            Segment(IDS, KVCache(runner.config, 16), "all"),
        ]
    )
    np.testing.assert_array_equal(np.concatenate(cut), alone)
    np.testing.assert_array_equal(together[1], alone)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_folder_and_a_file_take_peft_folders_and_gguf_adapters(family, tmp_path):
    folder = tiny_folder(tmp_path / "model", family)
    file = tmp_path / "model.gguf"
    convert(folder, file, ConvertOptions("F32", no_tokenizer=True))
    pairs = pairs_of(open_checkpoint(folder))
    peft = peft_folder(tmp_path / "peft", by_module(pairs))
    file_pairs = in_gguf_order(pairs) if family == "llama" else pairs
    lora = adapter_file(tmp_path / "lora.gguf", file_pairs, architecture=family)
    expected = logits(merged(open_checkpoint(folder), pairs, 6 / 4))
    for base in (folder, file):
        for adapter in (peft, lora):
            adapted = logits(with_adapters(open_checkpoint(base), [(adapter, 1.0)]))
            assert distance(expected, adapted) < SAME


def in_gguf_order(pairs):
    """*pairs* with the rows of queries as llama.cpp's converter orders them.

    The two halves of each of the four heads, 32 rows each, take turns row by row.
    """
    return {
        name: (a, b.reshape(4, 2, 32, -1).swapaxes(1, 2).reshape(b.shape))
        if ".attn_q." in name
        else (a, b)
        for name, (a, b) in pairs.items()
    }


@pytest.mark.skipif(not INSTALLED, reason=REASON)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_llama_cpp_gives_the_same_logits_with_an_adapter(family, tmp_path):
    file = write_model(tmp_path / "model.gguf", tiny(family))
    checkpoint = open_checkpoint(file)
    lora = adapter_file(tmp_path / "lora.gguf", pairs_of(checkpoint), architecture=family)
    (theirs,) = llama_cpp(file, [IDS], tmp_path, adapters=[(str(lora), 0.7)])
    ours = logits(with_adapters(checkpoint, [(lora, 0.7)]))
    assert distance(ours, theirs) < NEAR
    assert distance(logits(checkpoint), theirs) > 4 * NEAR


def test_scales_are_those_of_peft(tmp_path):
    pairs = {
        "model.layers.0.mlp.up_proj": factors(8, 6, 4),
        "model.layers.1.mlp.up_proj": factors(8, 6, 2),
    }
    patterns = {
        "rank_pattern": {r"layers\.1\.mlp\.up_proj": 2},
        "alpha_pattern": {r"1\.mlp\.up_proj": 10},
    }
    adapter = read_adapter(peft_folder(tmp_path / "plain", pairs, **patterns))
    assert [pair.scale for pair in adapter.pairs.values()] == [6 / 4, 10 / 2]
    adapter = read_adapter(peft_folder(tmp_path / "rs", pairs, use_rslora=True, **patterns))
    assert [pair.scale for pair in adapter.pairs.values()] == [6 / 4**0.5, 10 / 2**0.5]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"bias": "all"}, "bias"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"something_new": {"a": 1}}, "something_new"),
    ],
)
def test_an_option_beyond_low_rank_products_is_refused_by_name(config, named, tmp_path):
    folder = peft_folder(tmp_path / "peft", {"model.layers.0.mlp.up_proj": factors(8, 6)}, **config)
    with pytest.raises(Unsupported, match=named):
        read_adapter(folder)


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        ("base_model.model.lm_head.bias", Unsupported),
        ("base_model.model.model.embed_tokens.lora_embedding_A", InvalidFormat),
        ("base_model.model.model.layers.0.mlp.gate_proj.lora_magnitude_vector", InvalidFormat),
        ("base_model.model.model.layers.0.mlp.gate_proj.lora_A.weight", InvalidFormat),
    ],
)
def test_other_tensors_of_a_folder_are_refused(tensor, reason, tmp_path):
    pairs = {"model.layers.0.mlp.up_proj": factors(8, 6)}
    folder = peft_folder(tmp_path / "peft", pairs, {tensor: np.ones((4, 6), "f4")})
    with pytest.raises(reason, match=r"lm_head|embed_tokens|magnitude|gate_proj"):
        read_adapter(folder)


def test_a_dora_without_magnitudes_is_refused(tmp_path):
    pairs = {"model.layers.0.mlp.up_proj": factors(8, 6)}
    folder = peft_folder(tmp_path / "peft", pairs, use_dora=True)
    with pytest.raises(InvalidFormat, match="use_dora, and not all factors have magnitudes"):
        read_adapter(folder)


def test_a_whole_matrix_of_a_block_is_refused_by_name(tmp_path):
    whole = {"base_model.model.model.layers.0.input_layernorm.weight": np.ones(256, "f4")}
    folder = peft_folder(tmp_path / "peft", {}, whole)
    with pytest.raises(Unsupported, match=r"input_layernorm\.weight, which is not .* saved whole"):
        with_adapters(tiny("llama"), [(folder, 1.0)])


@pytest.mark.parametrize(
    ("name", "shape", "reason"),
    [
        ("output.weight", (64, 256), "output.weight, which is not a matrix"),
        ("token_embd.weight", (64, 256), "token_embd.weight, which is not a matrix"),
        ("blk.9.attn_q.weight", (256, 256), "blk.9.attn_q.weight, which is not a matrix"),
        ("blk.0.attn_norm.weight", (256, 1), "blk.0.attn_norm.weight, which is not a matrix"),
    ],
)
def test_a_tensor_that_takes_no_adapter_is_refused(name, shape, reason, tmp_path):
    file = adapter_file(tmp_path / "lora.gguf", {name: factors(*shape)})
    with pytest.raises(Unsupported, match=reason):
        with_adapters(replace(tiny("llama"), gguf=True), [(file, 1.0)])


def test_an_adapter_of_another_model_is_refused(tmp_path):
    model = replace(tiny("llama"), gguf=True)
    other = adapter_file(tmp_path / "qwen.gguf", pairs_of(model), architecture="qwen3")
    with pytest.raises(InvalidFormat, match="architecture qwen3, tiny-llama is llama"):
        with_adapters(model, [(other, 1.0)])
    narrow = adapter_file(tmp_path / "narrow.gguf", {"blk.0.attn_q.weight": factors(256, 128)})
    with pytest.raises(
        InvalidFormat, match=r"shape \(256, 128\), that of tiny-llama has \(256, 256\)"
    ):
        with_adapters(model, [(narrow, 1.0)])


def test_models_whose_products_round_their_inputs_are_refused(tmp_path):
    bitnet = replace(in_encoding(tiny("bitnet-b1.58"), "I2_S"), gguf=True)
    pairs = {"blk.0.attn_q.weight": factors(256, 256)}
    file = adapter_file(tmp_path / "lora.gguf", pairs, architecture="bitnet-b1.58")
    with pytest.raises(Unsupported, match="whose products round their inputs"):
        with_adapters(bitnet, [(file, 1.0)])


def test_a_damaged_adapter_is_refused(tmp_path):
    a, b = factors(256, 256)
    name = "blk.0.attn_q.weight"
    with pytest.raises(InvalidFormat, match="shapes"):
        read_adapter(adapter_file(tmp_path / "rank.gguf", {name: (a, b[:, :2].copy())}))
    with pytest.raises(InvalidFormat, match="infinite or NaN"):
        read_adapter(adapter_file(tmp_path / "nan.gguf", {name: (a * np.float32(np.nan), b)}))
    with pytest.raises(InvalidFormat, match=r"its adapter\.type is 'control'"):
        read_adapter(adapter_file(tmp_path / "kind.gguf", {name: (a, b)}, kind="control"))
    with pytest.raises(Unsupported, match="is not a factor"):
        read_adapter(adapter_file(tmp_path / "more.gguf", {name: (a, b)}, tensors={name: a}))
    with pytest.raises(NotFound, match="does not exist"):
        read_adapter(tmp_path / "missing.gguf")
    with pytest.raises(NotFound, match=r"adapter_config\.json"):
        read_adapter(tmp_path)
    folder = peft_folder(tmp_path / "peft", {"model.layers.0.mlp.up_proj": (a, b)}, r=8)
    with pytest.raises(InvalidFormat, match=r"has the rank 4, adapter_config\.json says 8"):
        read_adapter(folder)


def test_a_number_after_a_colon_is_the_scale_of_the_adapter(tmp_path):
    file = adapter_file(tmp_path / "a:b.gguf", {"blk.0.attn_q.weight": factors(256, 256)})
    assert parse_adapter(f"{file}:0.5") == (file, 0.5)
    assert parse_adapter(str(file)) == (file, 1.0)
    assert parse_adapter("lora.gguf:-2") == (Path("lora.gguf"), -2.0)
    for wrong in ("lora.gguf:half", "lora.gguf:nan"):
        with pytest.raises(UsageError, match="neither a path nor PATH:SCALE"):
            parse_adapter(wrong)


# Values that each key of adapter_config.json must not have.
WRONG_NUMBERS = {
    "r": (0, "4", [4], None, 10**400),
    "lora_alpha": ("6", [6], None, True, 10**400, 1e39, float("nan"), {"a": 1}),
    "rank_pattern": ([1], "x", {"(": 4}, {"a{99999999999999999999}": 4}, {"(" * 5000: 4}),
    "alpha_pattern": (5, {"(": 6}, {"up_proj": "6"}, {"up_proj": 10**400}),
}


@pytest.mark.parametrize(
    ("key", "value"), [(k, v) for k in WRONG_NUMBERS for v in WRONG_NUMBERS[k]]
)
def test_a_wrong_number_of_a_folder_is_refused_by_its_key(key, value, tmp_path):
    pairs = {"model.layers.0.mlp.up_proj": factors(8, 6)}
    folder = peft_folder(tmp_path / "peft", pairs, **{key: value})
    # The rank is refused where the factors contradict it.
    words = {"r": "has the rank 4", "alpha_pattern": "alpha"}.get(key, key)
    with pytest.raises(InvalidFormat, match=words):
        read_adapter(folder)


def test_factors_of_the_rank_0_are_refused(tmp_path):
    pairs = {"model.layers.0.mlp.up_proj": factors(8, 6, rank=0)}
    with pytest.raises(InvalidFormat, match="rank 0"):
        read_adapter(peft_folder(tmp_path / "peft", pairs, r=0))


@pytest.mark.parametrize("alpha", ["6", [6.0], True, float("nan"), float("inf")])
def test_a_wrong_alpha_of_a_file_is_refused_by_its_key(alpha, tmp_path):
    keys = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    names = {"blk.0.attn_q.weight.lora_a": (4, 256), "blk.0.attn_q.weight.lora_b": (256, 4)}
    tensors = [f32(name, shape) for name, shape in names.items()]
    file = write_gguf(tmp_path / "lora.gguf", {**keys, "adapter.lora.alpha": alpha}, tensors)
    with pytest.raises(InvalidFormat, match=r"adapter\.lora\.alpha is .*expected a number"):
        read_adapter(file)


def test_an_adapter_whose_products_exceed_float32_is_refused(tmp_path):
    model = tiny("llama")
    matrix = "blk.0.attn_q.weight"
    file = adapter_file(tmp_path / "lora.gguf", {matrix: factors(256, 256)}, alpha=3e38)
    with pytest.raises(InvalidFormat, match=f"{matrix} to numbers that a float32 cannot store"):
        with_adapters(replace(model, gguf=True), [(file, 1e3)])
    shape = model.weights[EMBEDDING].shape
    a, b = factors(*shape)
    base = "base_model.model.model.embed_tokens.lora_embedding_"
    outer = {f"{base}A": np.ascontiguousarray(b.T) * 1e3, f"{base}B": np.ascontiguousarray(a.T)}
    folder = peft_folder(tmp_path / "peft", {}, outer, lora_alpha=3e38)
    with pytest.raises(InvalidFormat, match=f"{EMBEDDING} to numbers that a float32"):
        with_adapters(model, [(folder, 1.0)])


@pytest.mark.parametrize("ops", [ReferenceOps, pytest.param(NativeOps, marks=compiled)])
@pytest.mark.parametrize("head", [EMBEDDING, HEAD])
def test_a_changed_embedding_leaves_the_head_that_the_models_share(head, ops, tmp_path):
    tied = tiny("llama")
    own_head = replace(tied.weights[EMBEDDING], name=HEAD)
    checkpoint = (
        tied if head == EMBEDDING else replace(tied, weights=tied.weights | {HEAD: own_head})
    )
    a, b = factors(*checkpoint.weights[EMBEDDING].shape)
    name = "base_model.model.model.embed_tokens.lora_embedding_"
    pair = {f"{name}A": np.ascontiguousarray(b.T), f"{name}B": np.ascontiguousarray(a.T)}
    adapted = with_adapters(checkpoint, [(peft_folder(tmp_path / "peft", {}, pair), 1.0)])
    model = load_model(checkpoint, ops=ops())
    beside = load_model(adapted, base=model)  # shares the tensors that the adapter leaves
    assert beside.weight(HEAD) is model.weight(head)
    assert beside.weight(EMBEDDING) is not model.weight(EMBEDDING)
    alone = load_model(adapted, ops=ops())
    expected, actual = (
        runner.forward(IDS, KVCache(runner.config, 16), all_positions=True)
        for runner in (alone, beside)
    )
    np.testing.assert_array_equal(actual, expected)


def test_hints_quote_the_path_of_an_adapter(tmp_path):
    folder = tmp_path / "a model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"lora_adaptations": ["first task"]}))
    quoted = f"--lora '{folder / 'first task'}'"
    with pytest.raises(UsageError) as failure:
        read_adapter(folder)
    assert failure.value.hint == f"name one of them: {quoted}"
    with pytest.raises(NotFound) as failure:
        read_adapter(folder / "other")
    assert failure.value.hint == quoted


def test_an_adapter_in_the_working_folder_is_named_in_messages(tmp_path, monkeypatch):
    folder = peft_folder(tmp_path / "peft", {"model.layers.0.mlp.up_proj": factors(8, 6)}, r=5)
    monkeypatch.chdir(folder)
    with pytest.raises(InvalidFormat, match="peft: "):
        read_adapter(Path())


@pytest.mark.parametrize("text", ["", " ", "name=", "name= "])
def test_an_empty_path_is_not_the_current_folder(tmp_path, monkeypatch, text):
    monkeypatch.chdir(
        peft_folder(tmp_path / "peft", {"model.layers.0.mlp.up_proj": factors(256, 256)})
    )
    with pytest.raises(UsageError, match="an adapter has no path"):
        split_adapters([text])
