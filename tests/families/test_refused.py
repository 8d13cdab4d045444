"""Models that no family reads are refused with what they are."""

import gguf
import pytest

from bitnet.families.family import architecture_refusal, of_gguf, of_model_type
from bitnet.families.refused import _BY_NAME, kind_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("t5", "an encoder and a decoder"),
        ("llada-moe", "a diffusion language model"),
        ("rwkv7", "RWKV"),
        ("glm-dsa", "sparse attention"),
    ],
)
def test_a_known_kind_of_model_is_refused_with_what_it_is(name, kind):
    error = architecture_refusal(name, ["llama"])
    assert f"{name}, " in error.message
    assert kind in error.message
    assert "Supported" not in error.message


def test_an_unknown_one_is_refused_with_what_there_is():
    assert kind_of("unheard-of") == ""
    assert "Supported: llama" in architecture_refusal("unheard-of", ["llama"]).message


# Names of llama.cpp b11434 that are neither read nor refused with a reason of their own.
NAMELESS = {
    *("cohere2moe", "deepseek2-ocr", "exaone-moe", "gemma-embedding", "grok", "hy_v3"),
    *("llama-embed", "mistral4", "plamo3", "talkie"),
    *("eurobert", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "nomic-bert"),
    "nomic-bert-moe",
}


# The same of transformers 5.24.
UNDECIDED = """
apertus apertus1p5_text aria_text axk1 axk2 beam biogpt codegen cohere2_moe cohere_compass_text
cpmant cwm dbrx deepseek_v2 diffllama doge dory dots1 exaone_moe flex_olmo flint gpt-sw3 gpt_neo
gpt_neox_japanese hunyuan_v1_moe hy_v3 hyperclovax inkling2_loop_text inkling2_text inkling_text
internlm3 iquestcoder jais2 jetmoe kolibri1 lfm3 longcat_flash mellum minimax_m2 ministral
modernbert-decoder nanochat openai-gpt persimmon phi4_multimodal sarvam_mla sarvam_moe solar_open
vaultgemma xglm youtu zaya
"""


def test_every_architecture_of_llama_cpp_is_read_or_refused_with_a_reason():
    """A name that the installed gguf adds has to be decided; at least 100 are."""
    names = set(gguf.MODEL_ARCH_NAMES.values())
    decided = {name for name in names if of_gguf(name) is not None or kind_of(name)}
    assert names - decided <= NAMELESS
    assert len(decided) > 100


def test_every_decoder_of_transformers_is_read_or_refused_with_a_reason_or_listed():
    auto = pytest.importorskip("transformers.models.auto.modeling_auto", reason="parity extra")
    names = set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    decided = {name for name in names if of_model_type(name) is not None or kind_of(name)}
    assert names - decided <= set(UNDECIDED.split())


def test_nothing_that_a_family_reads_is_in_the_table():
    for name in _BY_NAME:
        assert of_gguf(name) is None
        assert of_gguf(name.replace("_", "-")) is None
        assert of_model_type(name) is None
