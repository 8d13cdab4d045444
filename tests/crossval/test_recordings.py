"""A recording sees what a live reference sees; exit code 15 is a failed verdict."""

import json
from pathlib import Path

import pytest
from tiny_keys import VOCAB
from tiny_models import in_encoding, tiny, write_model

# Keys of the changed model, by the name of the change; the recorded one has 10000 and 1e-5.
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
    done = bitnet("crossval", "--model", "other.gguf", "--recording", "golden.json")
    assert done.code == (15 if change else 0), done.out + done.err


@pytest.fixture
def recorded(bitnet, tmp_path, monkeypatch):
    """A function that compares a model with its recording, after it has changed the recording.

    Another function makes the change, in the first prompt.
    """
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model.gguf", tiny("llama"))
    (tmp_path / "prompts.txt").write_text("abcde\nzyx wvu\n")
    words = ("--model", "model.gguf", "--json")
    record = ("--prompts", "prompts.txt", "--against", "float64", "--record", "golden.json")
    assert bitnet("crossval", *words, *record, "--greedy", 2).code == 0

    def compare(change):
        golden = json.loads((tmp_path / "golden.json").read_text())
        change(golden["prompts"][0])
        (tmp_path / "changed.json").write_text(json.dumps(golden))
        return bitnet("crossval", *words, "--recording", "changed.json")

    return compare


def test_the_report_on_a_recording_is_computed_again(bitnet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model.gguf", tiny("llama"))
    (tmp_path / "prompts.txt").write_text("abcde\nzyx wvu\n")
    words = ("--model", "model.gguf", "--greedy", 3)
    record = ("--prompts", "prompts.txt", "--against", "float64", "--record", "golden.json")
    assert bitnet("crossval", *words, *record).code == 0
    words = ("--model", "model.gguf", "--recording", "golden.json")
    assert bitnet("crossval", *words, "--report-dir", "watched").code == 0
    plan = json.loads(Path("watched/report.json").read_text())["plan"]
    assert plan["greedy"] == 3
    done = bitnet("crossval", *words, "--check", "watched/report.json", "--replay")
    assert done.code == 0, done.err
    assert "everything else computed again" in done.out


def test_ids_that_the_model_does_not_have_fail_with_a_report(recorded):
    def change_prompt(prompt):
        prompt["ids"][1] = VOCAB

    done = recorded(change_prompt)
    assert done.code == 15, done.err
    report = json.loads(done.out)
    assert f"id {VOCAB} is outside the vocabulary of {VOCAB}" in str(report["verdict"]["reasons"])


def test_a_best_token_that_the_model_does_not_have_fails_with_a_report(recorded):
    done = recorded(lambda prompt: prompt["positions"][0]["ids"].__setitem__(0, 12345))
    assert done.code == 15, done.err
    report = json.loads(done.out)
    assert "token 12345 at position 0 is outside" in str(report["verdict"]["reasons"])
