"""``doctor`` as a user meets it.

Exit codes: 2 wrong usage, 19 not found.
"""

import json

import pytest


def test_a_report_without_problems_ends_with_that_sentence(bitnet):
    done = bitnet("doctor")
    assert (done.code, done.out.splitlines()[-1]) == (0, "Nothing is wrong.")


def test_the_exit_code_is_that_of_the_first_problem(bitnet, monkeypatch):
    monkeypatch.setenv("BITNET_SEED", "x")
    done = bitnet("doctor", "--json")
    facts = json.loads(done.out)
    assert done.code == 2
    assert [entry["subject"] for entry in facts["findings"] if entry["severity"] == "failed"] == [
        "BITNET_SEED"
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "network"),
        ("doctor", "--report", "network"),
        ("doctor", "network", "--report"),
        ("doctor", "--retries", "1", "network"),
        ("doctor", "--area=network"),
    ],
)
def test_the_area_network_is_checked_if_it_is_named_in_any_form(bitnet, monkeypatch, words):
    monkeypatch.setenv("BITNET_OFFLINE", "1")
    done = bitnet(*words)
    assert done.code == 0
    assert "nothing was opened" in done.out


def test_the_model_is_the_one_given_else_that_of_the_environment(bitnet, monkeypatch, tmp_path):
    monkeypatch.setenv("BITNET_GGUF", str(tmp_path / "a.gguf"))
    assert f"✗ Model: no such file or folder: {tmp_path / 'a.gguf'}" in bitnet("doctor").out
    done = bitnet("doctor", "--report", "--model", tmp_path / "b.gguf")
    assert f"✗ Model: no such file or folder: {tmp_path / 'b.gguf'}" in done.out
    assert done.code == 19


def test_a_word_that_is_neither_an_area_nor_a_model_is_refused(bitnet):
    done = bitnet("doctor", "netwrok")
    assert done.code == 19
    assert done.err.startswith("Error: no such file or folder, and no model of that name: netwrok")
