"""Random tokenizer files: the library's ids, offsets and texts, or a refusal."""

import json
import sys
from pathlib import Path

import pytest
from sentencepiece_configurations import compare_model, random_model
from tokenizer_configurations import Outcome, compare, random_document

from bitnet.base import native
from bitnet.tokenizer import Tokenizer
from bitnet.tokenizer.compiled import NotNative

# Files for which our ids or texts once differed from the library's.
FOUND = Path(__file__).parent / "found"
RUNS = 8  # tests over which the random files are spread
EACH = 25  # files of each

pytestmark = pytest.mark.skipif(native.module() is None, reason="the native module is missing")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    """Leave out backtraces of the library's panics."""
    monkeypatch.setenv("RUST_BACKTRACE", "0")


@pytest.mark.parametrize("run", range(RUNS))
def test_random_configurations_are_run_as_the_library_runs_them_or_refused(run, tmp_path):
    refused = 0
    for seed in range(EACH * run, EACH * (run + 1)):
        outcome = compare(random_document(seed), tmp_path)
        refused += outcome.refused
        assert not outcome.differences, f"random_document({seed}): {outcome.differences[:3]}"
    # Most files are run, and so compared.
    assert refused < EACH / 2


@pytest.mark.parametrize("run", range(RUNS // 2))
def test_random_sentencepiece_models_are_run_as_the_library_runs_them(run, tmp_path):
    refused = 0
    for seed in range(EACH * run, EACH * (run + 1)):
        outcome = compare_model(random_model(seed), tmp_path)
        refused += outcome.refused
        assert not outcome.differences, f"random_model({seed}): {outcome.differences[:3]}"
    assert refused < EACH / 5


@pytest.mark.parametrize(
    "path",
    sorted(path for path in FOUND.iterdir() if path.suffix in (".json", ".model")),
    ids=lambda path: path.stem,
)
def test_a_file_that_once_differed_from_the_library_no_longer_does(path, tmp_path):
    if path.suffix == ".json":
        outcome = compare(json.loads(path.read_text()), tmp_path)
    else:
        outcome = compare_model(path.read_bytes(), tmp_path)
    assert not outcome.differences


def test_an_engine_that_raises_any_exception_differs_from_the_library(tmp_path, monkeypatch):
    def fail(*_args, **_options):
        raise NotNative("no ids")

    for name in ("encode", "spans", "decode", "stream"):
        monkeypatch.setattr(Tokenizer, name, fail)
    for outcome in (
        compare(random_document(2), tmp_path, count=2),
        compare_model(random_model(2), tmp_path, count=2),
    ):
        assert not outcome.refusals
        assert outcome.differences
        assert all("NotNative: no ids" in line for line in outcome.differences)


def test_the_fuzzer_keeps_each_file_that_differs_and_prints_the_difference(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "fuzz"))
    import fuzz_configurations

    wrong = Outcome(differences=["native is b"])
    monkeypatch.setattr(fuzz_configurations, "FOUND", tmp_path / "found")
    for name in ("compare", "compare_model"):
        monkeypatch.setattr(fuzz_configurations, name, lambda *_, **__: wrong)
    monkeypatch.setattr(sys, "argv", ["fuzz", "--configurations", "3"])
    assert fuzz_configurations.main()
    files = sorted((tmp_path / "found").iterdir())
    assert sorted(path.suffix for path in files) == [".json"] * 3 + [".model"] * 3
    assert f"{files[0]}: native is b" in capsys.readouterr().out
