"""crossval, as a user types it, with a tiny random model.

Exit codes: 2 wrong usage, 13 damaged or malformed data, 15 a check failed, 19 not found, 22 no
reference engine.
"""

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest
from hf_folders import tiny_folder, tokenizer_folder
from hints import NEED_AN_ENGINE, those
from tiny_models import TOKENS, tiny_gguf

import bitnet.crossval.references
from bitnet.base.invocation import extra_command
from bitnet.crossval.crossval_options import REFERENCE_NAMES
from bitnet.crossval.references import REFERENCES

PROMPTS = "abc\nThe quick\nzyx wvu\n"
needs_llama_cpp = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None, reason="the extra `crossval` is not installed"
)


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A model file, and a file with prompts; commands run in an empty folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "prompts.txt").write_text(PROMPTS)
    return tiny_gguf(tmp_path / "tiny.gguf")


@pytest.fixture
def run(bitnet, model, tmp_path):
    def started(*words):
        asked = ("--prompts", tmp_path / "prompts.txt", "--greedy", 4)
        if "--recording" in words:  # which brings both
            asked = ()
        return bitnet("crossval", "--model", model, *asked, *words)

    return started


@pytest.fixture
def none_installed(monkeypatch):
    """A Python that finds no engine to compare with; a test that starts one fails."""
    find = importlib.util.find_spec
    packages = {kind().package for kind in bitnet.crossval.references.CHAIN}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in packages else find(name)
    )
    monkeypatch.setattr(
        bitnet.crossval.references,
        "ask",
        lambda engine, *_, **__: pytest.fail(f"{engine} was started"),
    )


def report_of(done):
    """The JSON report on stdout."""
    return json.loads(done.out)


def test_the_names_on_the_command_line_are_the_references():
    assert set(REFERENCE_NAMES) == {*REFERENCES, "recorded"}


@needs_llama_cpp
def test_a_tiny_model_agrees_with_llama_cpp_and_the_report_is_written_in_each_form(
    run, tmp_path, monkeypatch
):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    folder = tmp_path / "report"
    done = run("--report-dir", folder)
    assert done.code == 0, done.err
    assert done.out.startswith("# Cross-validation: passed\n")
    assert summary.read_text() == "before\n" + done.out + "\n"
    report = json.loads((folder / "report.json").read_text())
    assert report["summary"]["positions"] == sum(len(p["ids"]) for p in report["prompts"]) > 10
    assert report["reference"]["version"].startswith("xllamacpp ")
    assert report["tokenizer_parity"]["total"] > 400  # probe texts of bitnet, besides three prompts
    outcomes = {entry["subject"]: entry["severity"] for entry in report["verdict"]["findings"]}
    assert outcomes["operations"] == "ok"
    assert [*report["operations"]] == ["bitnet", "llama.cpp"]
    assert (folder / "report.md").read_text() == done.out
    page = (folder / "report.html").read_text()
    assert page.count("<details>") == len(report["operations"])
    names = ("Mean KLD", "Maximum KLD", "99.0% KLD", "Median KLD", "RMS Δp", "Same top p")
    assert all(name in text for name in names for text in (page, done.out))
    assert not re.search(r"<script|<link|https?:|src=|@import", page)
    everything = "".join(file.read_text() for file in folder.iterdir())
    assert str(tmp_path) not in everything


@needs_llama_cpp
def test_tokenizers_are_compared_without_a_pass(run):
    report = report_of(run("--tokenizer-only", "--json"))
    assert report["verdict"]["status"] == "passed"
    assert report["rows"] == []
    assert report["tokenizer_parity"]["equal"] == report["tokenizer_parity"]["total"] > 400


def test_comparing_tokenizers_with_a_recording_loads_no_weights(run, tmp_path, monkeypatch):
    import bitnet.runtime.language_model as loader

    golden = tmp_path / "golden.json"
    assert run("--reference", "float64", "--record", golden).code == 0
    monkeypatch.setattr(
        loader, "load_checkpoint", lambda *_, **__: pytest.fail("weights were loaded")
    )
    report = report_of(run("--recording", golden, "--tokenizer-only", "--json"))
    assert report["verdict"]["status"] == "passed"
    assert report["tokenizer_parity"]["total"] == 3  # the prompts of the recording
    assert report["compute_path"] == "none"


def test_a_missing_reference_names_the_extra_that_has_it(bitnet, tmp_path, none_installed):
    folder = tokenizer_folder(tiny_folder(tmp_path / "folder", "llama"), TOKENS)
    done = bitnet("crossval", "--model", folder, "--max-positions", 5)
    assert done.code == 22
    assert f"hint: {extra_command('parity')}" in done.err


def test_the_model_of_the_environment_is_the_default(bitnet, model, monkeypatch):
    monkeypatch.setenv("BITNET_GGUF", str(model))
    done = bitnet("crossval", "--reference", "float64", "--greedy", 2, "--json")
    assert report_of(done)["model"]["file"] == "tiny.gguf"
    assert done.code == 0


@pytest.mark.parametrize("words", [("--report-dir", "file"), ("--record", "file/trace.json")])
def test_a_folder_for_reports_that_cannot_be_made_is_refused_before_the_model_is_opened(
    bitnet, model, words
):
    Path("file").write_text("no folder")
    done = bitnet("crossval", "--model", "missing.gguf", *words)
    assert (done.code, done.out) == (2, "")
    assert "a file is where a folder belongs" in done.err


def test_a_comparison_without_its_reference_never_passes(run, none_installed, tmp_path):
    done = run("--report-dir", tmp_path / "report")
    assert done.code == 22
    assert "crossval not run: reference: the reference llama.cpp is not installed" in done.err
    assert extra_command("crossval") in done.err
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["verdict"]["status"] == "not run"
    assert report["summary"] == {}
    accepted = run("--allow-missing", "--json")
    assert accepted.code == 0
    assert report_of(accepted)["verdict"]["status"] == "not run"
    assert "crossval was not run" in accepted.err
    assert "# Cross-validation: not run" in run("--allow-missing").out
    assert run("--tokenizer-only").code == 22


def test_a_recording_serves_as_the_reference(run, tmp_path):
    file = tmp_path / "trace.json"
    recorded = run("--reference", "float64", "--record", file, "--max-positions", 9)
    assert recorded.code == 0, recorded.err
    done = run("--recording", file, "--json")
    assert done.code == 0, done.err
    report = report_of(done)
    assert report["plan"]["against"] == "recorded"
    assert report["summary"]["positions"] == 9
    assert {"tokenizer", "model", "logits"} < {
        entry["subject"] for entry in report["verdict"]["findings"]
    }


def test_a_recording_without_positions_is_a_failure(run, tmp_path):
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"engine": "e", "prompts": []}))
    done = run("--recording", file)
    assert done.code == 15
    assert "no position was compared" in done.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--reference", "none"), 2, "expects one of llama.cpp"),
        (("--reference", "recorded"), 2, "needs the file"),
        (("--recording", "x", "--reference", "float64"), 2, "a reference by itself"),
        (("--recording", "x", "--prompts", "p.txt"), 2, "leave --prompts out"),
        (("--recording", "x", "--max-positions", 3), 2, "leave --max-positions out"),
        (("--recording", "x", "--greedy", 3), 2, "leave --greedy out"),
        (("--recording", "none.json"), 19, "none.json"),
        (("--reference", "transformers"), 2, "cannot be asked about tiny.gguf"),
        (("--tokenizer-only", "--record", "x"), 2, "--record needs the weights"),
        (("--max-positions", 0), 2, "--max-positions is 0"),
        (("--greedy=-1",), 2, "--greedy is -1"),
        (("--prompts", "none.txt"), 19, "none.txt"),
    ],
)
def test_wrong_options_are_one_error_with_its_exit_code(bitnet, model, words, code, said):
    done = bitnet("crossval", "--model", model, *words)
    assert done.code == code
    assert said in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("architecture", "against", "names"),  # "" for all engines; names of those that read the model
    [
        ("llama", "", ["llama.cpp", "ik_llama.cpp", "float64"]),
        ("llama", "llama.cpp", ["llama.cpp"]),
        ("llama", "transformers", []),
        ("bitnet", "llama.cpp", []),
        ("bitnet", "", ["ik_llama.cpp", "float64"]),
    ],
)
def test_the_engines_that_read_a_model_are_listed(bitnet, tmp_path, architecture, against, names):
    model = tiny_gguf(tmp_path / "m.gguf", **{"general.architecture": architecture})
    words = ("crossval", "--references", "--model", model)
    if against:
        words = (*words, "--against", against)
    done = bitnet(*words)
    assert (done.code, [line.split(": ")[0] for line in done.out.splitlines()]) == (0, names)
    listed = json.loads(bitnet(*words, "--json").out)["references"]
    assert [engine["name"] for engine in listed] == names
    for engine in listed:
        assert engine["installed"] == REFERENCES[engine["name"]]().is_installed()


def test_no_engine_is_listed_for_a_damaged_model(bitnet, tmp_path):
    model = tiny_gguf(tmp_path / "m.gguf")
    model.write_bytes(model.read_bytes()[:1000])
    done = bitnet("crossval", "--references", "--model", model)
    assert (done.code, done.out) == (13, "")


def test_an_empty_file_of_prompts_is_refused(bitnet, model, tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    done = bitnet("crossval", "--model", model, "--prompts", tmp_path / "empty.txt")
    assert done.code == 2
    assert "has no prompt in it" in done.err


@needs_llama_cpp
@pytest.mark.parametrize("words", those(NEED_AN_ENGINE))
def test_every_command_in_a_hint_that_compares_models_succeeds(bitnet, model, words):
    words = words.replace("models/model.gguf", str(model))
    assert bitnet(*shlex.split(words), "--prompts", model.with_name("prompts.txt")).code == 0


@pytest.mark.parametrize("name", ["tok", "alice smith", "a b (c)"])
def test_a_report_names_the_tokenizer_without_its_folders(run, tmp_path, name):
    folder = tokenizer_folder(tiny_folder(tmp_path / name / "tok", "llama"), TOKENS)
    tokenizer = folder / "tokenizer.json"
    for _ in range(2):  # first parsed, then read from its compiled form in the cache
        report = report_of(run("--tokenizer", tokenizer, "--tokenizer-only", "--json"))
        assert report["model"]["tokenizer"] == "tokenizer.json"
