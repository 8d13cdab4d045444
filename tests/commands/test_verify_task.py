"""``verify``, ``health`` and the scripts that call them: what they print and how they end.

Exit codes: 2 wrong usage, 13 damaged or malformed data, 15 a check failed, 19 not found.
"""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from builders import UINT16, Tensor, Typed, write_gguf
from hf_folders import tiny_folder, tokenizer_folder
from tiny_keys import metadata
from tiny_models import TOKENS, letters, tiny, tiny_gguf

from bitnet.store.records import Pin, write_lock

SCRIPTS = Path(__file__).parents[2] / "ci/scripts"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Run every test in an empty working folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model(tmp_path):
    (tmp_path / "models").mkdir()
    return tiny_gguf(tmp_path / "models/tiny.gguf")


@pytest.fixture
def broken(model):
    """A model whose last 5,000 bytes are missing, in the same folder."""
    path = model.with_name("broken.gguf")
    path.write_bytes(model.read_bytes()[:-5000])
    return path


def script(name, *words):
    """Run a shipped script with the commands of this checkout in its path."""
    if os.name == "nt":
        pytest.skip("a shell script")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [SCRIPTS / name, *map(str, words)],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": path},
    )


def test_a_sound_model_ends_with_one_line_that_says_so(bitnet, model):
    done = bitnet("verify", "--model", model)
    *lines, last = done.out.splitlines()
    verdict = f"{model} looks sound, UNPINNED: nothing says these are the original bytes"
    assert (done.code, last) == (0, verdict)
    # One line for each check: ✓ is ok, · a note.
    assert [line[0] for line in lines] == list("✓·✓✓✓✓✓✓✓·✓✓")


def test_a_failure_is_named_with_what_helps(bitnet, broken):
    done = bitnet("verify", "--model", broken)
    assert done.code == 15
    assert f"{broken} failed: file" in done.err
    assert "hint:" in done.err
    assert "✗ file: " in done.out


@pytest.mark.parametrize(("which", "code"), [("model", 0), ("broken", 15)])
def test_json_has_every_check_and_the_same_exit_code(bitnet, request, which, code):
    done = bitnet("verify", "--model", request.getfixturevalue(which), "--json")
    report = json.loads(done.out)
    assert (done.code, report["passed"]) == (code, code == 0)
    assert len(report["findings"]) == 12  # the checks of the test above
    assert set(report["findings"][0]) == {"severity", "subject", "text", "hint", "duration_s"}


def test_the_model_may_come_from_the_environment(bitnet, model, monkeypatch):
    assert bitnet("verify").code == 2
    monkeypatch.setenv("BITNET_GGUF", str(model))
    assert bitnet("verify").code == 0
    assert bitnet("verify", "--model", "none.gguf").code == 19


def test_what_the_lock_file_pins_is_compared(bitnet, model):
    entry = Pin("model", "org/tiny", "main", "tiny.gguf", None, "0" * 64, 5, "", "models/tiny.gguf")
    write_lock(Path("bitnet.lock.json"), [entry])
    done = bitnet("verify", "--model", "models/tiny.gguf")
    assert done.code == 15
    assert f"bitnet.lock.json says {'0' * 64}" in done.out


@pytest.mark.parametrize("where", ["models/../models/tiny.gguf", "link.gguf", "models/tiny.gguf"])
@pytest.mark.parametrize("folder", [".", "models", "elsewhere"])
def test_a_pin_is_compared_whatever_path_leads_to_the_model(
    bitnet, model, tmp_path, monkeypatch, where, folder
):
    (tmp_path / "link.gguf").symlink_to(model)
    (tmp_path / "elsewhere").mkdir()
    pin = Pin("model", "org/repo", "main", "tiny.gguf", None, "0" * 64, 1, place="models/tiny.gguf")
    write_lock(tmp_path / "bitnet.lock.json", [pin])
    monkeypatch.chdir(tmp_path / folder)
    done = bitnet("verify", os.path.relpath(tmp_path / where))
    assert done.code == 15
    assert "bitnet.lock.json says" in done.out


def test_each_part_of_a_split_model_has_its_pin(bitnet, model, tmp_path):
    tensors = [
        Tensor(name, weight.shape, 0, weight.data.tobytes())
        for name, weight in tiny("llama").weights.items()
    ]
    parts = [
        write_gguf(
            tmp_path / f"models/split-0000{number + 1}-of-00002.gguf",
            (metadata("llama") | letters() if number == 0 else {})
            | {"split.no": Typed(UINT16, number), "split.count": Typed(UINT16, 2)},
            tensors[number::2],
        )
        for number in range(2)
    ]
    pins = [
        Pin("model", "org/repo", "main", part.name, None,
               hashlib.sha256(part.read_bytes()).hexdigest(), part.stat().st_size,
               place=f"models/{part.name}")
        for part in parts
    ]  # fmt: skip
    write_lock(tmp_path / "bitnet.lock.json", pins)
    done = bitnet("verify", parts[0])
    assert "SHA-256 as bitnet.lock.json says" in done.out
    write_lock(tmp_path / "bitnet.lock.json", [pins[0], replace(pins[1], sha256="0" * 64)])
    assert bitnet("verify", parts[0]).code == 15


def test_a_file_with_the_name_of_a_packaged_model_must_be_it(bitnet, model):
    renamed = model.rename(model.with_name("SmolLM2-135M-Instruct.Q4_1.gguf"))
    done = bitnet("verify", "--model", renamed)
    assert done.code == 15
    assert "it bears the name of smollm2-135m and is not it: tensor blk.0" in done.out


def test_a_model_without_tokenizer_passes_only_with_allow_mock_and_not_as_checked(bitnet, model):
    tiny_gguf(model, tokenizer=False)
    assert bitnet("verify", "--model", model).code == 15
    done = bitnet("verify", "--model", model, "--allow-mock")
    assert (done.code, "MOCK" in done.out) == (0, True)
    assert "NOT CHECKED: tokenizer, vocabulary, template, stop ids" in done.out.splitlines()[-1]
    done = bitnet("health", "--allow-mock")
    assert (done.code, "✅" in done.out) == (0, False)
    assert done.out.splitlines()[-1].startswith("NOT CHECKED: 1 of 1 models")


def test_health_has_a_line_for_each_model(bitnet, model):
    tiny_gguf(model.with_name("second.gguf"))
    done = bitnet("health")
    assert done.code == 0
    assert [line.split(":")[0] for line in done.out.splitlines()] == [
        "Validating",
        "Validating",
        "✅ All models healthy; 2 of 2 UNPINNED",
    ]


def test_health_names_what_failed(bitnet, model, broken):
    done = bitnet("health", "--model-dir", "models")
    assert done.code == 15
    assert "❌ Failed: models/broken.gguf" in done.out
    assert "❌ Health check failed: models/broken.gguf" in done.err
    assert "✅" not in done.out
    reports = json.loads(bitnet("health", "--json").out)
    assert [report["passed"] for report in reports] == [False, True]


def _write(path, content=b"GGUF"):
    """Write *content* to *path*, in a folder that need not exist."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


#: By kind: a function that adds something to the folder *models* that is not a whole model.
SPOILED = {
    "a link to nothing": lambda models: (models / "gone.gguf").symlink_to(models / "nothing"),
    "capitals": lambda models: _write(models / "OTHER.GGUF"),
    "a second part alone": lambda models: _write(models / "big-00002-of-00003.gguf"),
    "no weights": lambda models: _write(models / "only/config.json", b"{}"),
    "no configuration": lambda models: _write(models / "weights/model.safetensors"),
    "a hidden folder": lambda models: _write(models / ".hidden/model.gguf"),
    "a linked folder": lambda models: (
        _write(models.parent / "elsewhere/model.gguf"),
        (models / "linked").symlink_to(models.parent / "elsewhere"),
    ),
    "a broken attestation": lambda models: _write(models / "tiny.gguf.attestation.json", b"{"),
    "a lost attestation": lambda models: (models / "tiny.gguf.attestation.json").symlink_to("no"),
    "an attestation that is a folder": lambda models: (
        models / "tiny.gguf.attestation.json"
    ).mkdir(),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_what_is_not_a_whole_model_is_not_healthy(bitnet, model, spoil):
    assert bitnet("health").code == 0
    spoil(model.parent)
    assert bitnet("health").code == 15


def test_a_folder_without_models_is_not_healthy(bitnet):
    assert bitnet("health", "--model-dir", "none").code == 19


#: A line of the smoke test once the model has run.
CHECKED = "CHECKED: the file, its tokenizer, a run of it"
needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None, reason="the extra `crossval` is not installed"
)


@needs_engine
def test_the_smoke_test_runs_the_model_and_compares_it(model):
    done = script("parity_smoke.sh", model)
    assert done.returncode == 0, done.stderr
    assert CHECKED in done.stdout.splitlines()
    assert "# Cross-validation: passed" in done.stdout.splitlines()


def test_the_smoke_test_does_not_pass_a_model_that_nothing_was_compared_with(
    model, tmp_path, monkeypatch
):
    hidden = "import sys\nsys.modules.update(xllamacpp=None, ik_llama_cpp=None)\n"
    (tmp_path / "sitecustomize.py").write_text(hidden)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = script("parity_smoke.sh", model)
    assert done.returncode == 0, done.stderr
    assert "passed" not in done.stdout
    lines = done.stdout.splitlines()
    assert CHECKED in lines
    assert any(line.startswith("NOT CHECKED: reference, answers, ") for line in lines)


def test_a_model_is_left_out_for_its_missing_tokenizer_and_never_for_its_damage(
    model, broken, tmp_path, monkeypatch
):
    bare = tiny_gguf(model.with_name("bare.gguf"), tokenizer=False)
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("SKIPPED", "org/gated/tokenizer.json")
    done = script("each-model.sh", "bitnet", "verify", "--model")
    assert done.returncode == 15, done.stderr
    assert summary.read_text().splitlines() == [
        f"- NOT CHECKED: models/{bare.name}: its tokenizer needs a token: org/gated/tokenizer.json",
        f"- FAILED, exit code 15: models/{broken.name}",
        f"- passed: models/{model.name}",
    ]


def test_the_script_for_each_model_fails_without_any_model():
    done = script("each-model.sh", "true")
    assert (done.returncode, done.stdout) == (
        19,
        "NOT CHECKED: no list of the models below models\n",
    )


#: As SPOILED, for the script that runs a command for each model.
UNREADABLE = {
    "a cut file in capitals": lambda models: _write(models / "x.GGUF", b"GGUF\3\0"),
    "an index without its shards": lambda models: _write(
        models / "m/model.safetensors.index.json", b'{"weight_map": {"a": "b.safetensors"}}'
    ),
    "a link to nothing": lambda models: (models / "lost.gguf").symlink_to("nowhere.gguf"),
    "only a configuration": lambda models: _write(models / "m/config.json", b"{}"),
    "like an option": lambda models: _write(models / "--help.gguf"),
}


# Every other case is run with the name of a tokenizer that was not downloaded.
@pytest.mark.parametrize(
    ("spoil", "skipped"),
    list(zip(UNREADABLE.values(), cycle(["", "org/gated/tokenizer.json"]), strict=False)),
    ids=UNREADABLE,
)
def test_a_script_passes_no_model_that_the_health_check_fails(
    bitnet, model, monkeypatch, spoil, skipped
):
    spoil(model.parent)
    monkeypatch.setenv("SKIPPED", skipped)
    assert bitnet("health").code == 15
    assert script("each-model.sh", "bitnet", "verify").returncode != 0


def test_models_are_listed_as_arguments_for_any_program(bitnet, model, monkeypatch):
    _write(model.parent / "--help.gguf")
    monkeypatch.chdir(model.parent)
    done = bitnet("health", "--list", "--model-dir", ".")
    assert (done.code, done.out) == (0, f"./--help.gguf\n{model.name}\n")
    monkeypatch.setenv("MODEL_DIR", ".")
    assert script("each-model.sh", "bitnet", "verify").returncode == 15


def test_a_folder_inside_a_models_folder_is_not_listed_as_a_model(tmp_path):
    for name in ("config.json", "model.safetensors", "modules.json", "1_Pooling/config.json"):
        (tmp_path / "models/m" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "models/m" / name).touch()
    done = script("each-model.sh", "echo")
    # ``echo`` prints the name of each model.
    assert [line for line in done.stdout.splitlines() if line[0] == "m"] == ["models/m"]
    assert done.returncode == 0


def test_a_command_that_leaves_something_out_passes_no_model(model, tmp_path, monkeypatch):
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    tiny_gguf(model, tokenizer=False)
    words = ("each-model.sh", "bitnet", "verify", "--allow-mock", "--model")
    done = script(*words)
    assert done.returncode == 0, done.stderr
    gaps = "tokenizer, vocabulary, template, stop ids; looks sound"
    assert summary.read_text().startswith(f"- NOT CHECKED: models/tiny.gguf: {gaps}")


@pytest.mark.parametrize(("which", "code"), [("broken", 15), ("absent", 19)])
def test_the_smoke_test_ends_with_the_code_of_what_failed(model, broken, which, code):
    done = script("parity_smoke.sh", {"broken": broken, "absent": "none.gguf"}[which])
    assert done.returncode == code
    assert "passed" not in done.stdout


def test_the_smoke_test_takes_a_tokenizer_and_refuses_a_wrong_one(model, tmp_path):
    (tmp_path / "tokenizer.json").write_text(
        '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": []}'
    )
    assert script("parity_smoke.sh", model, tmp_path / "tokenizer.json").returncode == 15
    assert script("parity_smoke.sh", model, model).returncode == 0


def test_the_smoke_test_without_a_model_takes_the_one_of_this_package(monkeypatch):
    monkeypatch.setenv("BITNET_OFFLINE", "1")
    done = script("parity_smoke.sh")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    # Only this engine reads BitNet models.
    compared = importlib.util.find_spec("ik_llama_cpp") is not None
    assert CHECKED in lines
    assert ("# Cross-validation: passed" in lines) == compared


def test_the_smoke_test_shows_its_usage_for_too_many_arguments():
    done = script("parity_smoke.sh", "a", "b", "c")
    assert done.returncode == 2
    assert "usage:" in done.stderr


def test_the_script_for_health_checks_models_and_cache(model, broken):
    assert script("tokenizer-health-check.sh", "models").returncode == 15
    broken.unlink()
    done = script("tokenizer-health-check.sh")
    assert (done.returncode, "✅ All models healthy" in done.stdout) == (0, True)
    damaged = Path(os.environ["XDG_CACHE_HOME"]) / "bitnet/tokenizers/llama3-128k/tokenizer.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text('{"model": ')
    done = script("tokenizer-health-check.sh")
    assert (done.returncode, "✗ Invalid JSON" in done.stdout) == (13, True)


@needs_engine
def test_the_weekly_comparison_converts_folders_and_says_what_an_engine_does_not_read(
    tmp_path, monkeypatch
):
    folders = tmp_path / "models/folder", tmp_path / "models/torn"
    for folder in folders:
        tokenizer_folder(tiny_folder(folder, "llama", tie_word_embeddings=True), TOKENS)
    weights = folders[1] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    ternary = tiny_gguf(tmp_path / "models/ternary.gguf", **{"general.architecture": "bitnet"})
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    done = script("each-model.sh", "sh", SCRIPTS / "compare.sh")
    assert done.returncode == 13, done.stdout
    assert [line for line in summary.read_text().splitlines() if "models/" in line] == [
        "- passed: models/folder",
        f"- NOT CHECKED: models/{ternary.name}: llama.cpp does not read such models",
        "- FAILED, exit code 13: models/torn",
    ]
    report = json.loads(Path("reports/llama.cpp/models-folder/report.json").read_text())
    assert report["verdict"]["status"] == "passed"
    assert report["ours"]["arithmetic"] == "float"
    assert "ternary.gguf" in Path("reports/not-checked.txt").read_text()


def test_the_model_of_the_package_is_the_original(bitnet):
    done = bitnet("verify", "bitnet-tiny")
    assert (done.code, "identity: SHA-256 as this package says" in done.out) == (0, True)
    assert "UNPINNED" not in done.out
