"""Findings of ``bitnet.doctor`` on this machine, without the network."""

import errno
import os
import socket
from pathlib import Path

import pytest
from builders import write_gguf
from hf_folders import tiny_folder, tokenizer_folder
from locked_folders import lock_folder
from tiny_models import TOKENS

import bitnet
from bitnet.base import locks
from bitnet.base.errors import InvalidFormat, NetworkError, NoSpace, PermissionDenied
from bitnet.base.findings import Finding
from bitnet.doctor import examine, markdown, verdict
from bitnet.formats.containers import open_checkpoint
from bitnet.server.loading import open_narrated
from bitnet.server.narration import narrator


@pytest.fixture(autouse=True)
def _no_socket(monkeypatch):
    """Fail a test that makes a socket: these checks need no network."""

    def fail(*args, **kwargs):
        raise AssertionError("a socket was made")

    monkeypatch.setattr(socket, "socket", fail)


def by_name(findings):
    """*findings* by their subject."""
    return {finding.subject: finding for finding in findings}


def test_a_healthy_machine_has_nothing_wrong_and_nothing_is_left_behind(tmp_path):
    root = tmp_path / "cache"
    findings = examine(root)
    assert verdict(findings) == "Nothing is wrong."
    assert list(tmp_path.iterdir()) == []
    assert by_name(findings)["locks"].text == "work"


def test_versions_and_backend_are_named(tmp_path):
    names = by_name(examine(tmp_path))
    assert {"bitnet", "Python", "pip", "numpy", "backend", "system", "C++ compiler"} <= set(names)
    assert names["bitnet"].text == "0.1.0"


def test_set_variables_are_listed_and_secrets_are_not_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("BITNET_SEED", "7")
    monkeypatch.setenv("HF_TOKEN", "hf_do_not_show")
    findings = examine(tmp_path)
    assert by_name(findings)["BITNET_SEED"].text == "'7'"
    assert by_name(findings)["access token"].text == "set"
    assert "do_not_show" not in markdown(findings)


def test_the_model_is_described_by_its_header(tmp_path):
    path = write_gguf(
        tmp_path / "model.gguf",
        {"general.architecture": "llama", "tokenizer.ggml.tokens": ["a", "b"]},
    )
    model = by_name(examine(tmp_path, path))["Model"]
    said = "model.gguf: GGUF, architecture llama, 0 tensors (), 0 B, 2 tokens"
    assert model.text == said


def test_a_folder_has_the_tokens_of_its_tokenizer(tmp_path):
    folder = tiny_folder(tmp_path / "model", "llama", tie_word_embeddings=True)
    bare = by_name(examine(tmp_path, folder))["Model"]
    assert bare.text.endswith("no tokenizer in it")
    tokenizer_folder(folder, TOKENS)
    model = by_name(examine(tmp_path, folder))["Model"]
    assert model.text.endswith(f", {len(TOKENS)} tokens")
    (folder / "tokenizer.json").write_text("{")
    assert by_name(examine(tmp_path, folder))["Model"].exit_code == 13  # InvalidFormat


@pytest.mark.parametrize("tokens", [7, [1, 2]])
def test_tokens_other_than_texts_are_damage(tokens, tmp_path):
    keys = {"general.architecture": "llama", "tokenizer.ggml.tokens": tokens}
    path = write_gguf(tmp_path / "model.gguf", keys)
    model = by_name(examine(tmp_path, path))["Model"]
    assert model.exit_code == 13  # InvalidFormat
    assert "should be an array of strings" in model.text
    lines = []
    with pytest.raises(InvalidFormat, match="array of strings"):
        open_narrated(lambda: open_checkpoint(path), narrator(lines.append, form="json"))
    assert "model_load_failed" in lines[-1]


def test_a_model_that_cannot_be_read_is_the_verdict(tmp_path):
    page = tmp_path / "model.gguf"
    page.write_text("<html>Sign in</html>")
    findings = examine(tmp_path, page)
    assert by_name(findings)["Model"].exit_code == 13  # InvalidFormat
    assert verdict(findings).startswith("model.gguf is neither a GGUF file nor safetensors")


def test_a_wrong_variable_is_the_verdict(tmp_path, monkeypatch):
    monkeypatch.setenv("BITNET_OFFLINE", "maybe")
    found = examine(tmp_path)
    assert verdict(found).startswith("environment variable BITNET_OFFLINE is 'maybe'")
    assert "unset BITNET_OFFLINE" in verdict(found)


def test_an_unusable_backend_is_the_verdict(tmp_path, monkeypatch):
    monkeypatch.setenv("BITNET_BACKEND", "quantum")
    assert by_name(examine(tmp_path))["backend"].exit_code == 2  # UsageError


def test_a_cache_folder_that_is_a_file_is_found(tmp_path):
    (tmp_path / "cache").write_text("")
    problem = by_name(examine(tmp_path / "cache"))["cache folder"]
    assert problem.exit_code == PermissionDenied.exit_code
    assert "BITNET_CACHE_DIR=DIR" in problem.hint


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere"
)
def test_a_read_only_cache_folder_is_found(tmp_path):
    tmp_path.chmod(0o500)
    problem = by_name(examine(tmp_path / "cache"))["cache folder"]
    assert problem.exit_code == PermissionDenied.exit_code


def test_a_full_disk_is_not_taken_for_a_missing_permission(tmp_path, monkeypatch):
    def fill(*_arguments, **_options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(locks, "hold", fill)
    assert by_name(examine(tmp_path))["cache folder"].exit_code == NoSpace.exit_code


def test_a_cache_folder_that_may_not_be_looked_up_is_found(tmp_path, monkeypatch):
    lock_folder(monkeypatch, tmp_path / "locked")
    findings = by_name(examine(tmp_path / "locked" / "cache"))
    assert findings["cache folder"].exit_code == PermissionDenied.exit_code
    assert "BITNET_CACHE_DIR=DIR" in findings["cache folder"].hint
    assert "access token" in findings


def test_a_token_that_is_switched_off_with_a_device_is_not_set(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN_PATH", "/dev/null")
    assert by_name(examine(tmp_path))["access token"].text == "not set"


def test_the_variable_that_counts_is_listed(tmp_path, monkeypatch):
    """A setting may have several variables; an empty one, or one that is off, does not count."""
    monkeypatch.setenv("BITNET_THREADS", "")
    monkeypatch.setenv("RAYON_NUM_THREADS", "2")
    monkeypatch.setenv("BITNET_OFFLINE", "0")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    findings = by_name(examine(tmp_path))
    assert findings["RAYON_NUM_THREADS"].text == "'2'"
    assert findings["HF_HUB_OFFLINE"].text == "'1'"
    assert not {"BITNET_THREADS", "BITNET_OFFLINE"} & set(findings)


def test_every_wrong_variable_is_a_failure_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("BITNET_OFFLINE", "maybe")
    monkeypatch.setenv("HF_HUB_OFFLINE", "perhaps")
    findings = by_name(examine(tmp_path))
    for name, text in (("BITNET_OFFLINE", "maybe"), ("HF_HUB_OFFLINE", "perhaps")):
        assert findings[name].failed
        assert f"{name} is '{text}'" in findings[name].text


def test_a_full_disk_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("bitnet.doctor.SPACE_BYTES", 1 << 62)  # more than any disk has free
    assert by_name(examine(tmp_path))["disk"].exit_code == NoSpace.exit_code


def test_the_verdict_is_one_sentence_about_the_first_problem():
    findings = [
        Finding("ok", "a", "fine", duration_s=0.25),
        Finding.of("b", NetworkError("b broke.\nmore", hint="run c")),
        Finding.of("d", NoSpace("d is full")),
    ]
    assert verdict(findings) == "b broke: run c."
    assert verdict(findings[2:]) == "d is full."
    assert str(findings[0]) == "✓ a: fine (250 ms)"


def test_the_report_is_a_block_that_can_be_pasted(tmp_path):
    lines = markdown(examine(tmp_path)).splitlines()
    assert lines[0] == "### bitnet doctor"
    assert (lines[2], lines[-2], lines[-1]) == ("```", "Nothing is wrong.", "```")


def test_pip_is_a_dependency_and_doctor_fails_without_it(monkeypatch):
    from bitnet import doctor

    project = (Path(bitnet.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    required = project.partition("dependencies = [")[2].partition("\n]")[0]
    assert '"pip>=' in required
    assert not by_name(doctor._versions())["pip"].failed
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert by_name(doctor._versions())["pip"].failed


def test_without_compiled_kernels_something_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr("bitnet.base.native.problem", lambda: ("it was not built", "inv native"))
    facts = examine(tmp_path)
    backend = by_name(facts)["backend"]
    assert (backend.severity, backend.exit_code) == ("warning", 0)
    assert verdict(facts).startswith("It works, but backend is numpy, up to a hundred times slower")
    assert verdict(facts).endswith("inv native.")
