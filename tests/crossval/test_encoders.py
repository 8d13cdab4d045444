"""Models that make vectors of texts: no continuations, and a text in one pass."""

import importlib.util
import json

import pytest
from llama_cpp_models import written
from tiny_models import in_encoding, tiny, write_model
from verdicts import check_verdicts

from bitnet.crossval.plan import COMPARED, LONG
from bitnet.crossval.references import LlamaCpp, references_for
from bitnet.formats.containers import open_checkpoint

LENGTH = LONG + 8  # tokens of the context: a text of so many is compared at its end alone


def test_a_model_that_makes_vectors_is_compared_without_continuations(bitnet, tmp_path):
    checkpoint = in_encoding(tiny("bert", context_length=LENGTH), "Q8_0")
    path = write_model(tmp_path / "bert.gguf", checkpoint)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"abc\n{'abcdefghij' * 30}\n")
    words = ("--against", "float64", "--prompts", prompts, "--json")
    done = bitnet("crossval", "--model", path, *words)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["plan"]["greedy"] == 0
    assert "greedy" not in {entry["subject"] for entry in report["verdict"]["findings"]}
    # Of the second prompt, cut to the context, only the last COMPARED positions are compared.
    assert report["prompts"][1]["first"] == LENGTH - COMPARED
    assert report["summary"]["positions"] > COMPARED


def test_a_recording_of_such_a_model_sees_a_change(bitnet, tmp_path):
    for name, more in (("good", {}), ("other", {"attention.layer_norm_epsilon": 1e-3})):
        checkpoint = in_encoding(tiny("bert", context_length=LENGTH, **more), "Q8_0")
        write_model(tmp_path / f"{name}.gguf", checkpoint)
    golden = tmp_path / "golden.json"
    good = ("crossval", "--model", tmp_path / "good.gguf")
    recorded = bitnet(*good, "--against", "float64", "--record", golden)
    assert recorded.code == 0, recorded.err
    assert bitnet(*good, "--recording", golden).code == 0
    values = json.loads(golden.read_text())
    golden.write_text(json.dumps(values | {"model_sha256": ""}))  # the digest alone would tell
    done = bitnet("crossval", "--model", tmp_path / "other.gguf", "--recording", golden)
    assert done.code == 15
    assert "today's pass is not the recorded one" in done.err


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None,
    reason="xllamacpp is not installed: an extra of crossval",
)
@pytest.mark.parametrize("encoding", ["F32", "Q8_0"])
def test_a_decoder_that_sees_later_positions_is_that_of_llama_cpp(encoding, tmp_path):
    keys = {"attention.causal": False}
    path = written(tmp_path / "m.gguf", "qwen2", keys, encoding=encoding).path
    check_verdicts(path, LlamaCpp())


@pytest.mark.parametrize("architecture", ["bert", "qwen2"])
def test_an_engine_that_computes_texts_in_parts_is_not_asked(architecture, tmp_path):
    """ik_llama.cpp: its batches are shorter than a text, and each position sees the later ones."""
    model = tiny(architecture, **{"attention.causal": False})
    checkpoint = open_checkpoint(write_model(tmp_path / "m.gguf", model))
    assert [engine.name for engine in references_for(checkpoint)] == ["llama.cpp", "float64"]
