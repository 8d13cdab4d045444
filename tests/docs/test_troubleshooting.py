"""Every problem on the troubleshooting page, reproduced, and solved by the hint that is printed."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from builders import llama_metadata, write_gguf
from hub_server import HubServer, Rule
from tiny_models import tiny_gguf

PAGE = (Path(__file__).parents[2] / "docs/how-to/troubleshooting.md").read_text(encoding="utf-8")
# The text of a problem, and its exit code.
ROWS = re.findall(r"^\| `(.+?)` \| (\d+) \|", PAGE, re.MULTILINE)
MIRROR = "baseten/Meta-Llama-3-tokenizer"
OFFICIAL = "meta-llama/Meta-Llama-3-8B"


def tokenizer_json(size):
    """A ``tokenizer.json`` with *size* tokens."""
    vocab = {f"t{number}": number for number in range(size)}
    return json.dumps({"model": {"type": "BPE", "vocab": vocab, "merges": []}}).encode()


LLAMA3 = tokenizer_json(128_256)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with Llama 3's tokenizer, open and gated, for commands in a folder with ``models``."""
    with HubServer() as server:
        server.add(MIRROR, "tokenizer.json", LLAMA3)
        server.add(OFFICIAL, "tokenizer.json", LLAMA3)
        server.repo(OFFICIAL, gated=True)
        server.tokens["hf_good"] = {OFFICIAL}
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "models").mkdir()
        yield server


@pytest.fixture
def model(hub):
    """A model that has its tokenizer inside."""
    return tiny_gguf(Path("models/model.gguf"))


def bare_model(vocab_size):
    """A model without tokenizer."""
    keys = llama_metadata() | {"llama.vocab_size": vocab_size}
    return write_gguf(Path("models/bare.gguf"), keys)


def problem(done, row):
    """Check that *done* failed as the page says in the row that begins with *row*.

    Returns the hint, and the words of the commands in it.
    """
    text, code = next(entry for entry in ROWS if entry[0].startswith(row))
    assert done.code == int(code), done.err
    parts = [part.strip() for part in re.split(r"\.\.\.|https://", text) if part.strip()]
    assert all(part in done.err for part in parts), done.err
    hint = done.err.split("hint:")[1] if "hint:" in done.err else ""
    commands = re.findall(r"\bbitnet ([a-z][\w.-]*(?: (?:--?[\w-]+|[\w./:-]+))*)", hint)
    return hint, [shlex.split(command) for command in commands]


def test_a_model_without_tokenizer(bitnet, hub):
    model = bare_model(128_256)
    done = bitnet("compat-check", model)
    hint, (command,) = problem(
        done, "No compatible tokenizer found for llama model with vocab_size 1"
    )
    assert "--auto-download" in hint
    assert bitnet(*command).code == 0
    assert bitnet("compat-check", model).code == 0


def test_a_model_with_an_unknown_vocabulary(bitnet, hub):
    model = bare_model(99_999)
    hint, _ = problem(
        bitnet("compat-check", model),
        "No compatible tokenizer found for llama model with vocab_size 9",
    )
    assert "--tokenizer FILE" in hint
    Path("own.json").write_bytes(tokenizer_json(99_999))
    assert bitnet("compat-check", model, "--tokenizer", "own.json").code == 0


def test_the_tokenizer_of_another_model(bitnet, model):
    Path("other.json").write_bytes(tokenizer_json(2))
    done = bitnet("infer", "--model", model, "--prompt", "a", "--tokenizer", "other.json")
    _, (command,) = problem(done, "Vocabulary size mismatch")
    explained = bitnet(*command)
    assert explained.code == 0
    assert re.search(r"chosen\s+embedded", explained.out)
    assert bitnet("infer", "--model", model, "--prompt", "a", "--max-tokens", "1").code == 0


def test_a_file_that_does_not_exist(bitnet, hub):
    hub.add("org/model", "model-Q4_K_M.gguf", b"GGUF...")
    words = ("download-model", "--id", "org/model", "--file")
    done = bitnet(*words, "model-Q4_K.gguf")
    assert "model-Q4_K_M.gguf" in done.err
    problem(done, "HTTP error 404")
    assert bitnet(*words, "model-Q4_K_M.gguf").code == 0


def test_a_hub_that_does_not_answer(bitnet, hub, monkeypatch):
    monkeypatch.setenv("BITNET_SIMULATE_NETWORK_ERROR", "timeout:3")
    hint, commands = problem(bitnet("tokenizer"), "HTTP request failed")
    assert "--retries=N" in hint
    assert ["doctor", "network"] in commands
    assert bitnet("tokenizer", "--retries=4").code == 0


def test_something_other_than_a_tokenizer(bitnet, hub):
    hub.add(MIRROR, "tokenizer.json", b'{"model": {} "x"}')
    _, (command,) = problem(bitnet("tokenizer"), "Invalid JSON")
    hub.add(MIRROR, "tokenizer.json", LLAMA3)
    assert bitnet(*command).code == 0


def test_an_empty_file_names_another_source(bitnet, hub, monkeypatch):
    hub.add(MIRROR, "tokenizer.json", b"")
    hint, _ = problem(bitnet("tokenizer"), "Downloaded tokenizer file is empty")
    assert "try another source or mirror" in hint
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert bitnet("tokenizer", "--source", "official").code == 0


def test_the_official_source_without_a_token(bitnet, hub, monkeypatch):
    hint, commands = problem(bitnet("tokenizer", "--source", "official"), "HF_TOKEN environment")
    assert "HF_TOKEN" in hint
    assert all(bitnet(*command).code == 0 for command in commands)
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert bitnet("tokenizer", "--source", "official", "--into", "official").code == 0


def test_offline_and_never_fetched(bitnet, hub, monkeypatch):
    monkeypatch.setenv("BITNET_OFFLINE", "1")
    _, (command,) = problem(bitnet("tokenizer"), "offline:")
    monkeypatch.delenv("BITNET_OFFLINE")
    assert bitnet(*command).code == 0
    monkeypatch.setenv("BITNET_OFFLINE", "1")
    assert bitnet("tokenizer").code == 0


def test_a_damaged_file_in_the_cache(bitnet, hub):
    assert bitnet("tokenizer").code == 0
    cached = Path.home() / ".cache/bitnet/tokenizers/llama3-128k/tokenizer.json"
    cached.chmod(0o644)
    cached.unlink()
    cached.write_bytes(LLAMA3.replace(b"t1", b"T1", 1))
    _, (command,) = problem(bitnet("cache.verify"), "1 of 2 files in")
    assert bitnet(*command).code == 0
    assert bitnet("tokenizer").code == 0
    assert bitnet("cache.verify").code == 0


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_another_user(bitnet, hub, tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    hint, _ = problem(bitnet("tokenizer", "--cache-dir", locked / "c"), "Permission denied")
    assert "BITNET_CACHE_DIR=DIR" in hint
    assert bitnet("tokenizer", "--cache-dir", tmp_path / "own").code == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_ends_with_a_hint(bitnet, hub):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [Path(sys.executable).parent / "bitnet", "exit-codes"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    finished = type(bitnet("exit-codes"))(done.returncode, "", done.stderr)
    hint, _ = problem(finished, "No space left on device")
    assert hint.strip() == "free some space, or choose another disk"  # the cache has no part in it


def test_the_partial_file_of_an_interrupted_download_may_be_deleted(bitnet, hub):
    hub.rules.append(Rule(where="cdn", reset_at=100_000, times=1))
    assert bitnet("tokenizer", "--retries=1").code == 14  # NetworkError
    partial = Path.home() / ".cache/bitnet/store/partial"
    unfinished = [path for path in partial.rglob("tokenizer.json.partial*") if path.is_file()]
    assert unfinished
    for path in unfinished:
        path.unlink()
    assert bitnet("tokenizer").code == 0


def test_the_log_says_the_model_type_and_what_could_be_fetched(bitnet, hub):
    done = bitnet("compat-check", bare_model(128_256), "-v", "-v")
    assert "model type" in done.err
    assert "Discovering tokenizer strategy for llama model (vocab_size: 128256)" in done.err
    assert f"Can download compatible tokenizer from: {MIRROR}" in done.err


def test_a_mock_is_refused_unless_it_is_allowed(bitnet, hub, monkeypatch):
    model = tiny_gguf(Path("models/bare.gguf"), tokenizer=False)
    words = ("infer", "--model", model, "--prompt", "a", "--max-tokens", "1")
    assert bitnet(*words).code == 19  # TokenizerNotFound
    allowed = bitnet(*words, "--allow-mock")
    assert "MOCK" in allowed.err
    monkeypatch.setenv("BITNET_STRICT_TOKENIZERS", "1")
    assert bitnet(*words, "--allow-mock").code == 19


def test_what_is_not_an_error_is_only_said(bitnet, model):
    done = bitnet("infer", "--model", model, "--prompt", "a", "--max-tokens", "1", "--stats")
    assert done.code == 0
    assert "GPU operations: 0, CPU operations: " in done.err + done.out


def test_every_row_of_the_page_is_reproduced_here():
    source = Path(__file__).read_text(encoding="utf-8")
    built = "The compiled module of bitnet was not built"  # tests/native/test_native_module.py
    errors = [text for text, code in ROWS if code != "0" and not text.startswith(built)]
    assert len(errors) == 12
    for text in errors:  # a test calls problem() with the beginning of the text
        start = re.split(r"\.\.\.|https://|1 of 2", text)[0].strip() or "1 of 2 files in"
        assert any(f'"{start[:length]}"' in source for length in range(8, len(start) + 1)), text
