"""``cache.list``, ``cache.verify`` and ``clean-cache`` as a user meets them.

Exit codes: 2 wrong usage, 13 damaged or malformed data.
"""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import f32, gguf_bytes, llama_metadata

from bitnet.commands import load
from bitnet.commands.program import Program

SCRIPTS = Path(__file__).parents[2] / "ci/scripts"


class Terminal(io.StringIO):
    """Standard input that claims to be a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def run(capsys, monkeypatch):
    """A function that runs a command, and returns its exit code, stdout and stderr."""

    def run(*words, stdin=None):
        monkeypatch.setattr(sys, "stdin", stdin or io.StringIO())
        with pytest.raises(SystemExit) as stop:
            Program(load(), "bitnet").run(["bitnet", *words])
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return run


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with one tokenizer."""
    cache = tmp_path / "cache"
    folder = cache / "tokenizers/gpt2-50k"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text('{"model": {}}')  # 13 bytes
    (cache / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n# bitnet\n")
    monkeypatch.setenv("BITNET_CACHE_DIR", str(cache))
    return cache


def test_list_shows_files_and_their_total(run, cache):
    code, out, _ = run("cache.list")
    assert code == 0
    assert str(cache / "tokenizers/gpt2-50k/tokenizer.json") in out
    assert out.splitlines()[-1] == f"1 file, 13 B in {cache}"


def test_list_as_json_has_the_size_and_the_keys(run, cache):
    facts = json.loads(run("cache.list", "--json")[1])
    assert facts["size_bytes"] == 13
    assert [entry["key"] for entry in facts["entries"]] == ["gpt2-50k"]


def test_verify_reports_valid_json_and_ends_with_0(run, cache):
    code, out, _ = run("cache.verify")
    assert (code, out.startswith("✓ Valid JSON: ")) == (0, True)


def test_verify_ends_with_13_and_the_command_that_removes_a_damaged_file(run, cache):
    (cache / "tokenizers/gpt2-50k/tokenizer.json").write_text("{")
    code, out, err = run("cache.verify")
    assert (code, out.startswith("✗ Invalid JSON: ")) == (13, True)
    assert "cache clean --key gpt2-50k --yes" in err
    code, out, _ = run("cache.verify", "--json")
    assert (code, json.loads(out)[0]["intact"]) == (13, False)


def test_verify_does_not_suggest_an_empty_key_for_a_damaged_file_without_a_key(run, cache):
    stray = cache / "tokenizers/stray.json"
    stray.write_text("{")
    code, _, err = run("cache.verify")
    assert code == 13
    assert f"hint: rm {stray}" in err
    assert "--key" not in err


def test_verify_names_the_tensor_a_truncated_model_lacks(run, cache):
    folder = cache / "models/acme--tiny/main"
    folder.mkdir(parents=True)
    whole = gguf_bytes(llama_metadata(), [f32("output_norm.weight", (128,))])
    (folder / "tiny.gguf").write_bytes(whole)
    assert run("cache.verify")[0] == 0
    (folder / "tiny.gguf").write_bytes(whole[:-100])
    code, out, err = run("cache.verify")
    assert code == 13
    assert "tensor output_norm.weight needs bytes" in out
    # The command of the hint removes the file.
    remedy = err.partition("hint: bitnet ")[2].partition(",")[0]
    assert run(*remedy.split())[0] == 0
    assert not (folder / "tiny.gguf").exists()


def test_clean_removes_nothing_where_no_user_can_be_asked(run, cache):
    code, out, err = run("clean-cache")
    assert code == 2
    assert "would remove" in out
    assert "cache clean --yes" in err
    assert (cache / "tokenizers/gpt2-50k/tokenizer.json").exists()


def test_clean_with_yes_removes_all_files(run, cache):
    code, out, _ = run("clean-cache", "--yes")
    assert (code, out) == (0, "Cache cleanup complete: removed 1 file, 13 B\n")
    assert list((cache / "tokenizers").iterdir()) == []


@pytest.mark.parametrize("option", ["--key", "--older-than", "--cache-dir"])
def test_clean_with_an_empty_value_removes_nothing(run, cache, option):
    code, _, err = run("clean-cache", option, "", "--yes")
    assert (code, err.splitlines()[0]) == (2, f"Error: {option} is empty")
    assert (cache / "tokenizers/gpt2-50k/tokenizer.json").exists()


# What the user types ("": the end of the input), and the files that are left.
@pytest.mark.parametrize(("answer", "left"), [("y\n", 0), ("n\n", 1), ("", 1)])
def test_clean_asks_on_a_terminal(run, cache, answer, left):
    code, out, err = run("clean-cache", stdin=Terminal(answer))
    assert code == 0
    assert "[y/N]" in err
    assert len(list(cache.rglob("tokenizer.json"))) == left
    assert ("Cache cleanup complete" in out) == (not left)


def test_a_dry_run_lists_the_files_and_removes_none(run, cache):
    code, out, _ = run("clean-cache", "--dry-run", "--yes")
    assert (code, "tokenizer.json" in out) == (0, True)
    assert (cache / "tokenizers/gpt2-50k/tokenizer.json").exists()


def test_clean_lists_the_files_when_verbose(run, cache):
    code, out, _ = run("clean-cache", "--yes", "--verbose")
    assert (code, out.count("tokenizer.json")) == (0, 1)


def test_an_empty_cache_is_clean_without_asking(run, tmp_path):
    code, out, _ = run("clean-cache", f"--cache-dir={tmp_path / 'none'}")
    assert code == 0
    assert out.splitlines()[-1].startswith("Cache cleanup complete: removed 0 files")


def test_clean_as_json_prints_one_document(run, cache):
    code, out, _ = run("clean-cache", "--json")
    assert (code, json.loads(out)["error"]["type"]) == (2, "UsageError")
    facts = json.loads(run("clean-cache", "--json", "--dry-run")[1])
    assert (facts["removed"], len(facts["remove"])) == (False, 1)
    facts = json.loads(run("clean-cache", "--json", "--yes")[1])
    assert (facts["removed"], facts["size_bytes"]) == (True, 13)


@pytest.mark.skipif(os.name == "nt", reason="a shell script")
def test_the_cleanup_script_removes_what_is_old(cache):
    path = cache / "tokenizers/gpt2-50k/tokenizer.json"
    bin_folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "KEEP": "0"}
    command = [str(SCRIPTS / "cleanup-tokenizer-cache.sh")]
    # Last used in 1970. KEEP is the number of files that stay however old they are.
    os.utime(path, (0, 0))
    subprocess.run(command, env={**environment, "KEEP": "1"}, check=True, capture_output=True)
    assert path.exists()
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert not path.exists()
    assert "Cache cleanup complete: removed 1 file" in done.stdout
