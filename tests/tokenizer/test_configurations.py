"""``tokenizer.json`` files of any configuration: the library's ids and texts, or a refusal."""

import json
import sys
from pathlib import Path

import pytest
from tokenizer_configurations import differences, random_document

from bitnet import native

FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))
RUNS, EACH = 8, 25


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setenv("RUST_BACKTRACE", "0")


@pytest.mark.skipif(native.module() is None, reason="the native module is missing")
@pytest.mark.parametrize("run", range(RUNS))
def test_random_configurations_are_run_as_the_library_runs_them_or_refused(run, tmp_path):
    refused = 0
    for seed in range(EACH * run, EACH * (run + 1)):
        found = differences(random_document(seed), tmp_path)
        refused += found is None
        assert not found, f"random_document({seed}): {found[:3]}"
    assert refused < EACH / 2


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_a_configuration_that_once_came_out_otherwise_no_longer_does(path, tmp_path):
    assert not differences(json.loads(path.read_text()), tmp_path)


def test_the_fuzzer_finds_what_is_wrong_and_keeps_it(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "fuzz"))
    import fuzz_configurations

    monkeypatch.setattr(fuzz_configurations, "FOUND", tmp_path / "found")
    monkeypatch.setattr(fuzz_configurations, "differences", lambda document, folder: ["a is b"])
    monkeypatch.setattr(sys, "argv", ["fuzz", "--minutes", "0.002"])
    assert fuzz_configurations.main()
    kept = list((tmp_path / "found").iterdir())
    assert kept
    assert f"{kept[0]}: a is b" in capsys.readouterr().out
    assert "model" in json.loads(kept[0].read_text())
