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
    assert "Supported" not in error.message  # the list is only for unknown names


def test_an_unknown_architecture_is_refused_with_the_supported_ones():
    assert kind_of("unheard-of") == ""
    assert "Supported: llama" in architecture_refusal("unheard-of", ["llama"]).message


def test_every_architecture_of_llama_cpp_is_read_or_refused_with_a_reason():
    """A name that the installed gguf adds has to be decided; at least 100 are."""
    names = set(gguf.MODEL_ARCH_NAMES.values())
    decided = {name for name in names if of_gguf(name) is not None or kind_of(name)}
    assert not names - decided
    assert len(decided) > 100


def test_every_decoder_of_transformers_is_read_or_refused_with_a_reason():
    auto = pytest.importorskip(
        "transformers.models.auto.modeling_auto", reason="pip install 'bitnet-xtask[parity]'"
    )
    names = set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    decided = {
        name for name in names if of_model_type(name) is not None or kind_of(name, is_folder=True)
    }
    assert not names - decided


def test_the_table_of_refused_models_has_none_that_a_family_reads():
    # Folders spell names with underscores, GGUF files some with hyphens.
    for name in _BY_NAME:
        assert of_gguf(name) is None
        assert of_gguf(name.replace("_", "-")) is None
        assert of_model_type(name) is None
