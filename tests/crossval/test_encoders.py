"""Models that make vectors of texts: no continuations, and a text in one pass."""

import json

from tiny_models import in_encoding, tiny, write_model

from bitnet.crossval.plan import COMPARED, LONG

LENGTH = LONG + 8


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
    assert "greedy" not in {it["subject"] for it in report["verdict"]["findings"]}
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
