"""Phi-3.5-MoE: the factors on rotated queries and keys, ``short_mscale`` and ``long_mscale``."""

import numpy as np
import pytest
from differential import ours
from hf_models import LONGROPE, TOKENS, make, torch
from mixed_models import PHIMOE

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.families.config_json import describe

MSCALES = {"short_mscale": 1.2, "long_mscale": 1.2}
SCALED = {**LONGROPE, "original_max_position_embeddings": 64}
CONFIG = {
    "model_type": "phimoe",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def factor_by(rope):
    """The factor on rotated queries and keys with this table *rope*; None without one."""
    described = describe(CONFIG | {"rope_parameters": rope}, model="m")
    return described.value("rope.scaling.attn_factor")


def test_without_a_scaling_transformers_reads_no_mscale(tmp_path):
    rope = {"rope_type": "default", "rope_theta": 10000.0, **MSCALES}
    model = make("Phimoe", PHIMOE | {"rope_parameters": rope}, tmp_path)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    assert np.abs(ours(tmp_path, TOKENS) - expected).max() < 1e-4
    assert factor_by(rope) is None


def test_with_longrope_they_replace_its_own_factor():
    assert factor_by(SCALED | MSCALES | {"attention_factor": 3.0}) == 1.2
    assert factor_by({**SCALED, "rope_type": None, "type": "longrope", **MSCALES}) == 1.2


@pytest.mark.parametrize(
    ("rope", "error", "words"),
    [
        (SCALED | {"short_mscale": 1.2}, InvalidFormat, "no long_mscale"),
        (SCALED, InvalidFormat, "no short_mscale"),
        (SCALED | MSCALES | {"long_mscale": 1.3}, Unsupported, "only equal mscales"),
        (SCALED | dict.fromkeys(MSCALES, "1.2"), InvalidFormat, "short_mscale is '1.2'"),
        (SCALED | dict.fromkeys(MSCALES, True), InvalidFormat, "short_mscale is true"),
        (SCALED | dict.fromkeys(MSCALES, 0), InvalidFormat, "short_mscale is 0"),
        (MSCALES | {"rope_type": "yarn", "factor": 2.0}, Unsupported, 'rope_type = "yarn"'),
        (MSCALES | {"rope_type": "linear", "factor": 2.0}, Unsupported, 'rope_type = "linear"'),
    ],
)
def test_other_mscales_and_scalings_are_refused_by_name(rope, error, words):
    with pytest.raises(error, match=words):
        factor_by(rope)
