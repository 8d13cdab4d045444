"""The scripts of the templates pass a right model of each kind of block, and fail a wrong one."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_keys import KEYS, VOCAB
from tiny_models import TEXT, TOKENS, taught, tiny, write_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="shell scripts"),
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None,
        reason="the extra `crossval` is not installed",
    ),
]

SCRIPTS = Path(__file__).parents[2] / "scripts"
# Architecture with such blocks, and GGUF keys that differ from those of tiny_keys.
KINDS = {
    "dense": ("llama", {}),
    "window": ("gemma3", {}),
    "experts": ("olmoe", {"attention.head_count_kv": 4}),
    "states": ("lfm2", {}),
    "latent attention": ("deepseek2", {}),
    "fused QKV": ("phi3", {}),
}


@pytest.fixture
def model(bitnet, tmp_path, monkeypatch):
    """A function that writes ``models/m.gguf``, a tiny model of an architecture in Q8_0.

    It predicts the text of ``verify`` better than by guessing, which a random model does not.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "models").mkdir()

    def make(architecture, keys):
        checkpoint = tiny(architecture, **({"vocab_size": VOCAB} | keys))
        ids = [TOKENS.index(character) for character in TEXT if character in TOKENS]
        whole = tmp_path / "whole.gguf"
        write_model(whole, taught(checkpoint, ids[: KEYS["context_length"]]))
        words = ("--output", "models/m.gguf", "--type", "Q8_0", "--allow-lossy")
        done = bitnet("convert", "--model", whole, *words)
        assert done.code == 0, done.err
        return tmp_path / "models/m.gguf"

    return make


def run(script):
    """The exit code of *script*, run on each model as the templates run it, and its output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", SCRIPTS / "each-model.sh", "sh", SCRIPTS / script],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": path, "BITNET_OFFLINE": "1"},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_the_smoke_test_and_the_weekly_comparison_pass_a_right_model(model, tmp_path, kind):
    model(*KINDS[kind])
    for script in ("parity_smoke.sh", "compare.sh"):
        code, output = run(script)
        assert code == 0, output
    passed = (tmp_path / "summary.md").read_text().splitlines()
    assert [line for line in passed if line.startswith("- ") and "models/" in line] == [
        "- passed: models/m.gguf",
        "- passed: models/m.gguf",
    ]
    assert not (tmp_path / "reports/not-checked.txt").exists()


def test_the_smoke_test_and_the_weekly_comparison_fail_a_damaged_model(model, tmp_path):
    path = model(*KINDS["dense"])
    path.write_bytes(path.read_bytes()[:-5000])
    assert run("parity_smoke.sh")[0] == 15  # verify finds it
    assert run("compare.sh")[0] == 13  # the file cannot be read
    assert "passed" not in (tmp_path / "summary.md").read_text()
