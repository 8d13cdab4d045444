"""The command lines of the guides this program replaces, word for word, and texts they printed.

Exit codes that are not 0: 2 wrong options, 11 access refused, 13 damaged, 14 network, 15 a check
failed, 19 not found, 20 not supported, 22 not compared.
"""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from builders import llama_metadata, write_gguf
from docs_sandbox import MIRROR, OFFICIAL, Sandbox, llama_folder
from hub_server import HubServer, Rule
from tiny_models import tiny_gguf

LLAMA2 = "meta-llama/Llama-2-7b-hf"
BITNET = "microsoft/bitnet-b1.58-2B-4T-gguf"
GGUF = "ggml-model-i2_s.gguf"
URL = "https://huggingface.co/org/repo/resolve/main/tokenizer.json"
INFER = "inv infer --model models/model.gguf"

# The command, and the exit code it must end with.
COMMANDS = (
    (f"inv download-model --id {BITNET} --file {GGUF}", 0),
    (f"inv download-model --id {BITNET} --file {GGUF} --out there --rev main --sha256 $SHA256 "
     "--force --no-progress -v --json --retries 3 --timeout 60 --base-url=$HF_ENDPOINT", 0),
    ("inv download-model --id org/tiny --file tiny.gguf --ref main --quiet --verbose --offline", 0),
    ("inv tokenizer --into models/ --source mirror", 0),
    ("inv tokenizer --into out/mirror --source mirror --force --verbose", 0),
    ("inv tokenizer --into out/official --source official", 11),
    ("HF_TOKEN=hf_good inv tokenizer --into out/official --source official", 0),
    ("inv tokenizer --compare out/mirror/tokenizer.json --with out/official/tokenizer.json", 0),
    ('inv infer --model models/model.gguf --prompt "Hello" --max-tokens 1 --auto-download', 0),
    ('inv infer --model models/model.gguf --prompt "Hello" --max-tokens 1', 0),
    ('inv infer --model models/model.gguf --prompt "a" --max-new-tokens 1 --features gpu', 0),
    ('inv infer --model models/model.gguf --prompt "a" --n-predict 1 --no-default-features '
     "--features cpu", 0),
    ('inv infer --model models/model.gguf --prompt "a" --max-tokens 1 '
     "--tokenizer original/tokenizer.json", 0),
    (f'{INFER} --prompt "a" --max-tokens 1 --tokenizer "{URL}"', 0),
    ('inv infer --model models/model.gguf --prompt "a" --max-tokens 1 >/dev/null 2>&1', 0),
    ('inv infer --model models/none.gguf --prompt "a" --max-tokens 1 >/dev/null 2>&1', 19),
    ("inv verify --model models/model.gguf", 0),
    ('inv verify --model models/model.gguf --allow-mock || echo "❌ Failed: $model"', 0),
    ("bitnet compat-check models/model.gguf", 0),
    ("bitnet inspect-gguf models/model.gguf", 0),
    ("inv pre-download-tokenizers --model-dir models/", 0),
    ("inv cache.list --json", 0),
    ("inv cache.verify", 0),
    ("inv health --model-dir models", 0),
    ("bitnet doctor --report", 0),
    ("./scripts/parity_smoke.sh models/model.gguf models/tokenizer.json", 0),
    ("./scripts/parity_smoke.sh models/none.gguf models/tokenizer.json", 19),
    ("./scripts/tokenizer-health-check.sh models", 0),
    ("inv clean-cache --older-than 30d --keep 10 --key llama2-32k --tokenizers-only --dry-run", 0),
    ("MAX_AGE_DAYS=30 KEEP=10 ./scripts/cleanup-tokenizer-cache.sh", 0),
    ("inv clean-cache", 2),  # no user can be asked here
)  # fmt: skip


def llama(size):
    """A ``tokenizer.json`` with *size* tokens."""
    vocab = {f"t{number}": number for number in range(size)}
    return json.dumps({"model": {"type": "BPE", "vocab": vocab, "merges": []}}).encode()


@pytest.fixture(scope="module")
def full_hub(tmp_path_factory):
    """A hub with everything that the command lines fetch."""
    model = tiny_gguf(tmp_path_factory.mktemp("hub") / "tiny.gguf").read_bytes()
    with HubServer() as server:
        server.add(MIRROR, "tokenizer.json", llama(128_256))
        server.add(OFFICIAL, "tokenizer.json", llama(128_256))
        server.repo(OFFICIAL, gated=True)
        server.tokens["hf_good"] = {OFFICIAL}
        server.add("org/tiny", "tiny.gguf", model)
        server.add(BITNET, GGUF, model)
        yield server


def prepare(sandbox):
    """Files that the guides take for granted: a model, its tokenizer in ``original``, a pin."""
    (sandbox.folder / "models").mkdir()
    tiny_gguf(sandbox.folder / "models/model.gguf", **{"tokenizer.ggml.pre": "qwen2"})
    sandbox.bitnet("export-tokenizer", "models/model.gguf", "--into", "original")
    sandbox.bitnet("download-model", "--id", "org/tiny", "--file", "tiny.gguf")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="command lines for a POSIX shell")
def test_every_command_line_of_the_guides_works(tmp_path, full_hub):
    sandbox = Sandbox(tmp_path, full_hub)
    prepare(sandbox)
    own = (sandbox.folder / "original/tokenizer.json").read_bytes()
    full_hub.add("org/repo", "tokenizer.json", own)
    sandbox.environment["SHA256"] = (
        full_hub.repos[BITNET].commits[full_hub.repos[BITNET].revisions["main"]][GGUF].sha256
    )
    old = sandbox.cache / "tokenizers/llama2-32k/tokenizer.json"
    old.parent.mkdir(parents=True)
    old.write_bytes(llama(32_000))
    problems = []
    for command, code in COMMANDS:
        if "models/tokenizer.json" in command:
            (sandbox.folder / "models/tokenizer.json").unlink(missing_ok=True)
            shutil.copyfile(
                sandbox.folder / "original/tokenizer.json",
                sandbox.folder / "models/tokenizer.json",
            )
        done = sandbox.run(command.replace("https://huggingface.co", full_hub.url))
        if done.returncode != code or "Traceback" in done.stdout:
            problems.append(f"{command}\n  expected {code}, got {done.returncode}\n{done.stdout}")
    assert not problems, "\n".join(problems)


def test_the_comparison_with_an_engine_takes_its_model_from_the_environment(
    bitnet, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITNET_GGUF", str(tiny_gguf(tmp_path / "model.gguf")))
    # The float64 pass has no tokenizer of its own, so there is nothing to compare, and it says so.
    done = bitnet("crossval", "--tokenizer-only", "--reference", "float64")
    assert (done.code, "Cross-validation: not run" in done.out) == (22, True)
    assert "model.gguf (llama)" in done.out


def test_the_gpu_feature_runs_on_the_cpu_and_says_so(bitnet, tmp_path):
    model = tiny_gguf(tmp_path / "model.gguf")
    words = ("infer", "--model", model, "--prompt", "a", "--max-tokens", "1", "--features", "gpu")
    done = bitnet(*words, "--stats")
    assert done.code == 0
    assert "the device is the CPU" in done.err
    assert re.search(r"GPU operations: 0, CPU operations: \d+, GPU efficiency: 0.0%", done.err)


# Texts that were printed then, for which users' scripts may search.


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with a gated Llama 2, for commands that run in an empty folder."""
    with HubServer() as server:
        server.add(LLAMA2, "tokenizer.json", llama(32_000))
        server.repo(LLAMA2, gated=True)
        server.tokens["hf_good"] = {LLAMA2}
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.chdir(tmp_path)
        yield server


def model_without_tokenizer(architecture, vocab_size):
    """A file ``model.gguf`` that has the size of its vocabulary alone."""
    keys = llama_metadata(architecture) | {f"{architecture}.vocab_size": vocab_size}
    return write_gguf(Path("model.gguf"), keys)


def test_finding_and_fetching_a_tokenizer_is_told_step_by_step(bitnet, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    model = model_without_tokenizer("llama", 32_000)
    done = bitnet("compat-check", model, "-v")
    assert done.code == 19
    lines = (
        "[INFO] Discovering tokenizer strategy for llama model (vocab_size: 32000)",
        f"[INFO] Can download compatible tokenizer from: {LLAMA2}",
        "Error: No compatible tokenizer found for llama model with vocab_size 32000 (strict mode)",
    )
    assert all(line in done.err for line in lines)
    fetched = bitnet("pre-download-tokenizers", "--model-dir", ".", "-v")
    assert f"[INFO] Downloading tokenizer for repo: {LLAMA2}" in fetched.err
    path = Path.home() / ".cache/bitnet/tokenizers/llama2-32k/tokenizer.json"
    assert f"[INFO] Successfully downloaded tokenizer: {path}" in fetched.err


def test_an_unknown_vocabulary_is_refused_and_not_guessed(bitnet, hub):
    done = bitnet("compat-check", model_without_tokenizer("transformer", 99_999))
    assert done.code == 19
    text = "No compatible tokenizer found for transformer model with vocab_size 99999 (strict mode)"
    assert f"Error: {text}" in done.err


def test_a_missing_repository_names_the_address(bitnet, hub):
    hub.repo("unknown/repo")
    done = bitnet("download-model", "--id", "unknown/repo", "--file", "tokenizer.json")
    assert done.code == 19
    assert f"Error: HTTP error 404: {hub.url}/unknown/repo/" in done.err


def test_a_time_out_names_the_address_and_the_reason(bitnet, hub, monkeypatch):
    monkeypatch.setenv("BITNET_SIMULATE_NETWORK_ERROR", "timeout:3")
    done = bitnet("tokenizer", "--retries=3")
    assert done.code == 14
    assert re.search(r"Error: HTTP request failed for http://\S+: timeout", done.err)


@pytest.mark.parametrize(("strict", "code", "said"), [("0", 0, "Warning: "), ("1", 15, "Error: ")])
def test_another_vocabulary_warns_or_fails(bitnet, hub, monkeypatch, strict, code, said):
    model = tiny_gguf(Path("model.gguf"), tokenizer=False)
    vocab = {chr(33 + number): number for number in range(65)}  # one token more than the model has
    other = {"model": {"type": "BPE", "vocab": vocab, "merges": []}}
    Path("other.json").write_text(json.dumps(other))
    monkeypatch.setenv("BITNET_STRICT_TOKENIZERS", strict)
    done = bitnet(
        "infer",
        "--model",
        model,
        "--prompt",
        "t1",
        "--max-tokens",
        "1",
        "--tokenizer",
        "other.json",
    )
    assert done.code == code, done.err
    assert f"{said}Vocabulary size mismatch: expected 64, got 65" in done.err
    assert ("Model: 64, Tokenizer: 65" in done.err) == (code == 15)


def test_a_large_vocabulary_on_a_cpu_is_mentioned_and_can_be_hidden(bitnet, hub, test_data):
    llama_folder(Path("llama"), test_data / "tokenizers/llama3/tokenizer.json")
    words = ("infer", "--model", "llama", "--prompt", "a", "--max-tokens", "1")
    said = "Large vocabulary (128256) running on CPU - consider GPU acceleration"
    assert bitnet(*words, "-v").err.count(f"Warning: {said}") == 1
    assert said not in bitnet(*words, "-v", "--no-warnings").err
    assert said not in bitnet(*words).err


def test_no_tokenizer_at_a_path_says_what_was_expected(bitnet, hub):
    model = tiny_gguf(Path("model.gguf"))
    done = bitnet("compat-check", model, "--tokenizer", "nowhere")
    assert (done.code, 'No tokenizer found at "nowhere". Expected tokenizer.json' in done.err) == (
        19,
        True,
    )


def test_a_folder_with_neither_kind_lists_both(bitnet, hub):
    Path("empty").mkdir()
    model = tiny_gguf(Path("model.gguf"))
    done = bitnet("compat-check", model, "--tokenizer", "empty")
    assert done.code == 19
    assert (
        "No compatible tokenizer found. Looked for:\n"
        " - tokenizer.model (SentencePiece)\n - tokenizer.json (HuggingFace format)" in done.err
    )


def test_a_file_without_tokenizer_names_the_key_that_is_missing(bitnet, hub):
    model = tiny_gguf(Path("bare.gguf"), tokenizer=False)
    done = bitnet("export-tokenizer", model, "--into", "out")
    assert (done.code, "Missing tokenizer.ggml.tokens" in done.err) == (19, True)
    done = bitnet("export-tokenizer", tiny_gguf(Path("own.gguf")), "--into", "out", "-v")
    assert "Detected GGUF file, extracting embedded tokenizer" in done.err


def test_an_unknown_family_is_named(bitnet, hub):
    model = tiny_gguf(Path("model.gguf"), **{"general.architecture": "rwkv7"})
    done = bitnet("infer", "--model", model, "--prompt", "a", "--max-tokens", "1")
    assert (done.code, "Unsupported quantized architecture: rwkv7" in done.err) == (20, True)


def test_the_metadata_that_is_absent_says_so_and_where_the_size_comes_from(bitnet, hub):
    done = bitnet("inspect-gguf", tiny_gguf(Path("model.gguf")))
    assert "general.architecture: llama" in done.out
    for key in ("tokenizer.ggml.vocab_size", "llama.vocab_size"):
        assert f"{key}: absent (normal); derived from tokenizer.ggml.tokens: 64" in done.out


def test_the_cache_says_valid_and_invalid_json(bitnet, hub):
    folder = Path.home() / ".cache/bitnet/tokenizers/llama3-128k"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_bytes(b'{"model": {}}')
    assert "✓ Valid JSON" in bitnet("cache.verify").out
    (folder / "tokenizer.json").write_bytes(b'{"model"')
    done = bitnet("cache.verify")
    assert (done.code, "✗ Invalid JSON" in done.out) == (13, True)


def test_a_connection_that_breaks_off_is_continued(bitnet, hub):
    hub.add(MIRROR, "tokenizer.json", llama(128_256))
    hub.rules.append(Rule(where="cdn", reset_at=50_000, times=1))
    done = bitnet("tokenizer", "-v")
    assert done.code == 0
    assert "✓ Downloaded tokenizer to: models/tokenizer.json" in done.err
