"""Keys of ``config.json`` that say which norms a layer has, against the tensors of the folder."""

import re

import pytest
from dense_models import DENSE
from differential import ours
from hf_models import TOKENS, make, set_config
from mixed_models import MIXED
from state_models import STATES

from bitnet.base.errors import InvalidFormat

IN_A_ROW = {"multi_query": False, "parallel_attn": False}
NEW = {"new_decoder_architecture": True, "num_kv_heads": 2}
LOGIT_SCALE = {"logit_scale": 0.25}


@pytest.mark.parametrize(
    ("kind", "options", "key", "value", "there"),
    [
        ("StableLm", {}, "use_parallel_residual", True, "model.layers.0.post_attention_layernorm"),
        (
            "StableLm",
            {"use_parallel_residual": True},
            "use_parallel_residual",
            False,
            "no ffn_norm",
        ),
        ("StableLm", {"qk_layernorm": True}, "qk_layernorm", False, "q_layernorm"),
        ("StableLm", {}, "qk_layernorm", True, "no attn_q_norm"),
        ("Cohere", LOGIT_SCALE | {"use_qk_norm": True}, "use_qk_norm", False, "q_norm"),
        ("Cohere", LOGIT_SCALE, "use_qk_norm", True, "no attn_q_norm"),
        ("Falcon", IN_A_ROW, "parallel_attn", True, "transformer.h.0.post_attention_layernorm"),
        ("Falcon", {"multi_query": False}, "parallel_attn", False, "no ffn_norm"),
        ("Falcon", NEW, "num_ln_in_parallel_attn", 1, "transformer.h.0.ln_attn"),
        (
            "Falcon",
            NEW | {"num_ln_in_parallel_attn": 1},
            "num_ln_in_parallel_attn",
            2,
            "no attn_norm_2",
        ),
        (
            "Falcon",
            NEW | {"num_ln_in_parallel_attn": 1},
            "num_ln_in_parallel_attn",
            None,
            "no attn_norm_2",
        ),
        (*MIXED["glm4moe"], "use_qk_norm", False, "q_norm"),
        (*MIXED["glm4moe-plain"], "use_qk_norm", True, "no attn_q_norm"),
        (*DENSE["hyperclovax"], "use_post_norm", False, "post_norm1"),
        (*DENSE["hyperclovax-granite"], "use_post_norm", True, "no post_attention_norm"),
        (*STATES["falcon-h1"], "mamba_rms_norm", True, "no ssm_norm"),
        (*STATES["falcon-h1-norm-first"], "mamba_rms_norm", False, "mamba.norm"),
        ("Persimmon", {"qk_layernorm": True}, "qk_layernorm", False, "q_layernorm"),
        ("Persimmon", {"qk_layernorm": False}, "qk_layernorm", True, "no attn_q_norm"),
    ],
)
def test_norms_against_the_key_that_transformers_follows_are_refused(
    kind, options, key, value, there, tmp_path
):
    """transformers leaves such tensors out, or fills missing ones with ones."""
    make(kind, options, tmp_path)
    ours(tmp_path, TOKENS)
    set_config(tmp_path, **{key: value})
    shown = {"True": "true", "False": "false", "None": "null"}.get(str(value), value)
    message = rf"layer 0 has .*{re.escape(there)}.*, against {key} = {shown}"
    with pytest.raises(InvalidFormat, match=message):
        ours(tmp_path, TOKENS)
