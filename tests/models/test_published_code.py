"""Families whose code is in their folders, against the equations of that code."""

import json

import numpy as np
import pytest
from conversions import convert
from published_code import PUBLISHED, VOCAB, write_folder

from bitnet.base.errors import BitnetError
from bitnet.convert.convert_options import ConvertOptions
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model

IDS = np.random.default_rng(3).integers(3, VOCAB, 24).tolist()
# Weights are the same, and both compute in float64.
MAX_RELATIVE_DIFFERENCE = 1e-5


def ours(path):
    """Logits of all of IDS by the model at *path*, in float64."""
    model = load_model(open_checkpoint(path), ops=ReferenceOps(dtype=np.float64))
    return model.forward(IDS, KVCache(model.config, 64, dtype=np.float64), all_positions=True)


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_folder_and_the_file_made_of_it_give_the_logits_of_its_code(kind, tmp_path):
    # The folder comes with the equations of its code, a function of ids.
    expected = write_folder(kind, tmp_path / "folder")(IDS)
    of_folder = ours(tmp_path / "folder")
    assert np.abs(of_folder - expected).max() / np.ptp(expected) < MAX_RELATIVE_DIFFERENCE
    file = tmp_path / "model.gguf"
    convert(tmp_path / "folder", file, ConvertOptions("F32", no_tokenizer=True))
    of_file = ours(file)
    assert np.abs(of_file - expected).max() / np.ptp(expected) < MAX_RELATIVE_DIFFERENCE


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("deepseek", {"norm_topk_prob": True}, "norm_topk_prob"),
        ("deepseek", {"scoring_func": "sigmoid"}, "scoring_func"),
        ("deepseek", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("jais", {"position_embedding_type": "learned"}, "position_embedding_type"),
        ("jais", {"mup_scale_qk_dot_by_d": False}, "mup_scale_qk_dot_by_d"),
        ("jais", {"activation_function": "gelu"}, "activation_function"),
        ("jais", {"alibi_scaling": {"type": "linear", "factor": 2.0}}, "alibi_scaling"),
        ("jais", {"width_scale": 3.0}, "width_scale"),
        ("openelm", {"ffn_with_glu": False}, "ffn_with_glu"),
        ("openelm", {"normalize_qk_projections": False}, "normalize_qk_projections"),
        ("openelm", {"num_query_heads": None}, "num_query_heads"),
        ("plamo", {"n_shared_head": 3}, "n_shared_head"),
        ("gpt_refact", {"multi_query": False}, "multi_query"),
        ("spark2_5", {"gate_attn_act_mode": "silu"}, "gate_attn_act_mode"),
        ("spark2_5", {"hidden_act": "silu"}, "hidden_act"),
        ("spark2_5", {"headwise_attn_output_gate": False}, "headwise_attn_output_gate"),
        ("spark2_5", {"layer_types": None}, "layer_types"),
    ],
)
def test_a_folder_that_its_code_computes_otherwise_is_refused_by_its_key(
    kind, changes, named, tmp_path
):
    write_folder(kind, tmp_path / "folder", **changes)
    with pytest.raises(BitnetError, match=named):
        open_checkpoint(tmp_path / "folder")


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("deepseek", "norm_topk_prob"),
        ("jais", "mup_scale_qk_dot_by_d"),
        ("jais", "position_embedding_type"),
        ("openelm", "normalize_qk_projections"),
        ("plamo", "n_shared_head"),
        ("gpt_refact", "layer_norm_epsilon"),
        ("spark2_5", "hidden_act"),
        ("spark2_5", "gate_attn_act_mode"),
    ],
)
def test_a_folder_without_a_key_that_its_code_has_another_default_for_is_refused(
    kind, key, tmp_path
):
    write_folder(kind, tmp_path / "folder")
    path = tmp_path / "folder" / "config.json"
    config = json.loads(path.read_text())
    del config[key]
    path.write_text(json.dumps(config))
    with pytest.raises(BitnetError, match=key):
        open_checkpoint(tmp_path / "folder")
