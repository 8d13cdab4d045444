"""``--ignore-key``: every command that opens a model takes it, and its report says so."""

import json

import pytest
from tiny_models import tiny_gguf

from bitnet.base.errors import Unsupported, VerificationFailed
from bitnet.formats.containers import open_checkpoint

KEY = "llama.whatever"  # unknown, so that a model with it is refused
IGNORED = ("--ignore-key", KEY)
ANSWERS = ("--prompt", "ab", "--max-tokens", 1)


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    return tiny_gguf(folder / "tiny.gguf", **{KEY: 7})


def document(text):
    """The JSON document that *text* is, or its last line."""
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(text.splitlines()[-1])


def test_verify_names_the_key(model, bitnet):
    assert bitnet("verify", "--model", model).code == VerificationFailed.exit_code
    done = bitnet("verify", "--model", model, *IGNORED, "--json")
    report = document(done.out)
    assert done.code == 0
    assert report["ignored_keys"] == [KEY]
    (metadata,) = (entry for entry in report["findings"] if entry["subject"] == "metadata")
    assert (metadata["severity"], f"ignored: {KEY} = 7" in metadata["text"]) == ("warning", True)


def test_health_names_the_key(model, bitnet):
    assert bitnet("health", "--model-dir", model.parent).code == VerificationFailed.exit_code
    done = bitnet("health", "--model-dir", model.parent, *IGNORED, "--json")
    assert done.code == 0
    assert document(done.out)[0]["ignored_keys"] == [KEY]


def test_convert_leaves_the_key_out(model, bitnet, tmp_path):
    file = tmp_path / "new.gguf"
    words = ("convert", "--model", model, "--output", file, "--type", "Q8_0", "--allow-lossy")
    assert bitnet(*words).code == Unsupported.exit_code
    done = bitnet(*words, *IGNORED, "--json")
    assert done.code == 0
    assert document(done.out)["ignored_keys"] == [KEY]
    assert KEY not in open_checkpoint(file).metadata


def test_a_report_of_crossval_names_the_key(model, bitnet):
    words = ("crossval", "--model", model, "--reference", "float64", "--json")
    assert bitnet(*words).code == Unsupported.exit_code
    report = document(bitnet(*words, *IGNORED).out)
    assert report["model"]["ignored_keys"] == [KEY]


def test_comparing_tokens_alone_names_the_key(model, bitnet):
    words = ("crossval", "--model", model, "--tokenizer-only", "--json", *IGNORED)
    assert document(bitnet(*words).out)["model"]["ignored_keys"] == [KEY]


def test_a_batch_names_the_key(model, bitnet, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "ab", "max_tokens": 1}\n')
    words = ("batch", "--model", model, "--input", rows, "--output", tmp_path / "out.jsonl")
    done = bitnet(*words, *IGNORED, "--json")
    assert done.code == 0
    assert document(done.out)["ignored_keys"] == [KEY]


def test_bench_names_the_key(model, bitnet):
    words = ("bench", "--model", model, "--tests", "pp4", "--repetitions", 1, "--json", *IGNORED)
    assert document(bitnet(*words).out)["model"]["ignored_keys"] == [KEY]


@pytest.mark.parametrize("command", ["infer", "run"])
def test_infer_and_run_name_the_key(command, model, bitnet):
    words = (command, *ANSWERS, "--model", model) if command == "infer" else (command, model, "ab")
    done = bitnet(*words, *IGNORED, "--json")
    assert done.code == 0, done.err
    assert KEY in done.out + done.err


def test_a_server_names_the_key(model):
    pytest.importorskip("fastapi", reason="needs the extra serve")
    from server_process import listening

    with listening(model, ignore_keys=(KEY,)) as running:
        (said,) = running.http.get("/v1/models").json()["data"]
    assert said["ignored_keys"] == [KEY]
