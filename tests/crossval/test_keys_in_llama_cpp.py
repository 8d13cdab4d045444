"""GGUF files with a key left out or changed: refused, or computed as llama.cpp computes them."""

import importlib.util
import shutil

import pytest
from added_keys import with_keys_added
from cases_of_engines import DECODERS, OF_VECTORS
from edited_files import with_each_key_changed, without_each_key
from engine_logits import distance, llama_cpp_of_each, own_logits
from llama_cpp_models import CASES, IDS, written

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.formats.containers import open_checkpoint

# Of the range of the logits. A default that is not llama.cpp's changes some by a tenth and more.
SAME = 5e-3
# By architecture, keys for which llama.cpp has constants: another value changes our logits alone.
# `convert` warns of a model that has other values.
_CONSTANT = {
    "falcon": {"falcon.attention.max_alibi_bias"},
    "gemma3n": {
        "gemma3n.activation_sparsity_scale",
        "gemma3n.altup.active_idx",
        "gemma3n.attention.shared_kv_layers",
        "gemma3n.final_logit_softcapping",
    },
    "laguna": {"laguna.attention.sliding_window_pattern"},
    # It normalizes keys with the epsilon of the other norms.
    "qwen35": {"qwen35.attention.layer_norm_rms_epsilon"},
    "qwen35moe": {"qwen35moe.attention.layer_norm_rms_epsilon"},
    "qwen3next": {"qwen3next.attention.layer_norm_rms_epsilon"},
    "kimi-linear": {"kimi-linear.attention.layer_norm_rms_epsilon"},
    "bailingmoe3": {"bailingmoe3.attention.layer_norm_rms_epsilon"},
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None,
        reason="xllamacpp is not installed: an extra of crossval",
    ),
]


@pytest.fixture
def folder(tmp_path):
    """An empty folder that is deleted after the test, which writes a quarter of a gigabyte."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def ours(path):
    """Logits for all of IDS; ``None`` if the file is refused."""
    try:
        return own_logits(open_checkpoint(path), IDS)
    except (InvalidFormat, Unsupported):
        return None


def keys_with_other_logits(files, folder):
    """Keys of *files* for which this package and llama.cpp compute different logits.

    *files* are pairs of a changed key and a path. A file that either of the two refuses is left
    out.
    """
    paths = {}
    logits = {}
    for key, path in files:
        computed = ours(path)
        if computed is None:
            path.unlink()
        else:
            paths[key] = path
            logits[key] = computed
    # On a file that is refused here, llama.cpp may run without end: it is not asked.
    theirs = llama_cpp_of_each([paths[key] for key in logits], IDS, folder)
    different = []
    n_compared = 0
    for (key, computed), expected in zip(logits.items(), theirs, strict=True):
        if isinstance(expected, str):  # the reason why llama.cpp has no logits
            continue
        n_compared += 1
        if not distance(computed, expected) < SAME:  # nor is NaN the same
            different.append(key)
    assert n_compared
    return different


@pytest.mark.parametrize("case", DECODERS)
def test_a_key_that_is_left_out_means_what_it_means_to_llama_cpp(case, folder):
    written(folder / "tiny.gguf", *DECODERS[case])
    assert keys_with_other_logits(without_each_key(folder / "tiny.gguf", folder), folder) == []


# Models of more than twelve layers repeat the same layers, and take long.
_SHALLOW = [name for name, (_, keys) in DECODERS.items() if keys.get("block_count", 0) <= 12]


@pytest.mark.parametrize("case", _SHALLOW)
def test_a_key_of_another_value_means_what_it_means_to_llama_cpp(case, folder):
    written(folder / "tiny.gguf", *DECODERS[case])
    different = keys_with_other_logits(with_each_key_changed(folder / "tiny.gguf", folder), folder)
    assert set(different) <= _CONSTANT.get(DECODERS[case][0], set())


@pytest.mark.parametrize("case", _SHALLOW)
def test_a_key_that_is_added_means_what_it_means_to_llama_cpp(case, folder):
    written(folder / "tiny.gguf", *DECODERS[case])
    different = keys_with_other_logits(with_keys_added(folder / "tiny.gguf", folder), folder)
    # Each is KEY#NUMBER, with the number of the addition.
    names = {name.partition("#")[0] for name in different}
    assert names <= _CONSTANT.get(DECODERS[case][0], set())


@pytest.mark.parametrize("case", [name for name in CASES if CASES[name][0] in OF_VECTORS])
def test_a_key_that_is_left_out_of_a_model_of_vectors_means_the_same(case, bitnet, folder):
    written(folder / "tiny.gguf", *CASES[case])
    prompts = folder / "prompts.txt"
    prompts.write_text("abc\ndef ghi jkl mnop\n")
    n_compared = 0
    for key, path in without_each_key(folder / "tiny.gguf", folder):
        words = ("--against", "llama.cpp", "--prompts", prompts)
        done = bitnet("crossval", "--model", path, *words)
        if done.code == 13 or "the engine does not load the file" in done.err:
            continue  # refused here (InvalidFormat) or in llama.cpp
        n_compared += 1
        assert done.code == 0, f"{key}: {done.err}"
    assert n_compared
