"""Names of samplers and keys of sampling, against a table and the source of llama.cpp."""

import os
import re
from pathlib import Path

import pytest
from tiny_models import tiny_gguf

from bitnet.base.errors import InvalidFormat
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.generation import read_generation_settings, read_gguf_settings
from bitnet.formats.samplers import SAMPLERS, WITHOUT_EFFECT, find_sampler, read_sequence
from bitnet.runtime.request import Request

#: By key below ``general.sampling``: the field of `common_params_sampling` that llama.cpp b11434
#: sets by it, a value for the tests, and the name of the parameter here.
KEYS = {
    "top_k": ("top_k", 7, "top_k"),
    "top_p": ("top_p", 0.5, "top_p"),
    "min_p": ("min_p", 0.25, "min_p"),
    "xtc_probability": ("xtc_probability", 0.5, "xtc_probability"),
    "xtc_threshold": ("xtc_threshold", 0.25, "xtc_threshold"),
    "temp": ("temp", 0.75, "temperature"),
    "penalty_last_n": ("penalty_last_n", 12, "repeat_last_n"),
    "penalty_repeat": ("penalty_repeat", 1.5, "repetition_penalty"),
    "mirostat": ("mirostat", 2, "mirostat"),
    "mirostat_tau": ("mirostat_tau", 4.5, "mirostat_tau"),
    "mirostat_eta": ("mirostat_eta", 0.25, "mirostat_eta"),
}
# In llama.cpp's source: a key that sets a field, a sampler's name, and another name of a sampler.
_SET = re.compile(
    r"get_(?:int32|float)\(llama_model_meta_key_str\(LLAMA_MODEL_META_KEY_SAMPLING_(\w+)\),"
    r"\s*sparams\.(\w+),"
)
_NAME = re.compile(r'\{ "(\w+)",\s+COMMON_SAMPLER_TYPE_\w+\s*\}')
_ALIAS = re.compile(r'alias_name_map\.insert\(\{"(\w+)",\s+COMMON_SAMPLER_TYPE_(\w+)\}\)')


@pytest.fixture(scope="module")
def common():
    """The folder ``common`` of llama.cpp's source."""
    source = os.environ.get("BITNET_LLAMA_CPP")
    if source is None:
        pytest.skip("BITNET_LLAMA_CPP does not name the source tree of llama.cpp")
    return Path(source) / "common"


def test_the_table_of_keys_is_llama_cpps(common):
    pairs = _SET.findall((common / "common.cpp").read_text())
    assert {key.lower(): field for key, field in pairs} == {
        key: field for key, (field, _, _) in KEYS.items()
    }


def test_every_name_that_llama_cpp_knows_is_the_same_sampler_here(common):
    source = (common / "sampling.cpp").read_text()
    body = source[source.index("common_sampler_types_from_names(") :]
    names = set(_NAME.findall(body))
    assert names == {*SAMPLERS, *WITHOUT_EFFECT, "infill"}  # the last is not run here
    for name in names - {"infill"}:
        spellings = {name, name.replace("_", "-"), name.replace("_", ""), name.upper()}
        assert {find_sampler(spelling) for spelling in spellings} == {name}
    aliases = dict(_ALIAS.findall(body))
    assert {alias: find_sampler(alias) for alias in aliases} == {
        "nucleus": "top_p", "temp": "temperature", "typ": "typ_p"
    }  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_an_answer_follows_each_key_of_a_file(tmp_path, key):
    _, value, name = KEYS[key]
    path = tiny_gguf(tmp_path / "tiny.gguf", **{f"general.sampling.{key}": value})
    request = Request().with_settings(read_generation_settings(open_checkpoint(path)))
    assert getattr(request.sampling, name) == value
    assert request.origins[name] == f"general.sampling.{key}"


@pytest.mark.parametrize("key", ["sequence", *KEYS])
@pytest.mark.parametrize("value", [True, [1.0], float("nan"), -2])
def test_a_value_that_no_sampler_has_is_refused_by_its_key(key, value):
    with pytest.raises(InvalidFormat, match=rf"general\.sampling\.{key} is"):
        read_gguf_settings({f"general.sampling.{key}": value}, "tiny.gguf")


# The text of the key, the samplers that run, and the parts that are not followed.
@pytest.mark.parametrize(
    ("text", "samplers", "unknown"),
    [
        ("top_k", ("top_k",), ()),
        ("Top-K;temp;NUCLEUS", ("top_k", "temperature", "top_p"), ()),
        ("temperature;adaptive-p", ("temperature",), ()),
        ("top_k;infill;min_p", ("top_k", "min_p"), ("infill",)),
        ("top_k; min_p", ("top_k",), (" min_p",)),
        ("", (), ()),
        (";top_k;;min_p;", ("top_k", "min_p"), ()),
    ],
)
def test_a_sequence_has_the_samplers_that_llama_cpp_finds_in_it(text, samplers, unknown):
    assert read_sequence(text) == (samplers, unknown)


def test_an_answer_runs_the_samplers_of_its_file_in_their_order():
    metadata = {"general.sampling.sequence": "xtc;infill;top_k", "general.sampling.temp": 1.0}
    settings = read_gguf_settings(metadata, "tiny.gguf")
    assert settings.not_followed == ("general.sampling.sequence",)
    assert Request().with_settings(settings).sampling.order == ("xtc", "top_k")
    # A request that names samplers, or is greedy, does not follow the file.
    assert Request(samplers=["min_p"]).with_settings(settings).sampling.order == ("min_p",)
    assert Request(temperature=0.0).with_settings(settings).sampling.order == SAMPLERS


@pytest.mark.parametrize("key", ["xtc_probability", "mirostat"])
def test_a_file_with_a_sampler_that_is_on_samples(key):
    settings = read_gguf_settings({f"general.sampling.{key}": 1}, "tiny.gguf")
    assert Request().with_settings(settings).temperature == 1.0
    settings = read_gguf_settings({f"general.sampling.{key}": 0}, "tiny.gguf")
    assert Request().with_settings(settings).temperature == 0.0
