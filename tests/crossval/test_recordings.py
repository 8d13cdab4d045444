"""A recording sees what a live reference sees."""

import json

import pytest
from tiny_models import in_encoding, tiny, write_model

CHANGES = {
    "theta x1.05": {"rope.freq_base": 10500.0},
    "theta x3": {"rope.freq_base": 30000.0},
    "epsilon x10": {"attention.layer_norm_rms_epsilon": 1e-4},
    "epsilon x100": {"attention.layer_norm_rms_epsilon": 1e-3},
}


@pytest.mark.parametrize("change", ["", *CHANGES])
def test_a_recording_sees_what_is_too_small_for_the_logits(change, bitnet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keys = {"context_length": 1024, "rope.freq_base": 10000.0}
    for name, more in (("good", {}), ("other", CHANGES.get(change, {}))):
        write_model(tmp_path / f"{name}.gguf", in_encoding(tiny("llama", **(keys | more)), "Q8_0"))
    (tmp_path / "prompts.txt").write_text("abcdefgzyx wvu abdcfe hijk\n")
    words = (
        "--prompts",
        "prompts.txt",
        "--against",
        "float64",
        "--greedy",
        0,
        "--record",
        "golden.json",
    )
    recorded = bitnet("crossval", "--model", "good.gguf", *words)
    assert recorded.code == 0, recorded.err
    golden = json.loads((tmp_path / "golden.json").read_text())
    golden["model_sha256"] = ""  # else the digest alone would tell
    (tmp_path / "golden.json").write_text(json.dumps(golden))
    done = bitnet("crossval", "--model", "other.gguf", "--recording", "golden.json", "--greedy", 0)
    assert done.code == (15 if change else 0), done.out + done.err
