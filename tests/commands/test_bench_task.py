"""bench, as a user types it, with a tiny random model.

Exit codes: 2 wrong usage, 17 the benchmark could not be run, 19 not found.
"""

import json

import pytest
from tiny_models import tiny_gguf


@pytest.fixture
def words(tmp_path):
    model = tiny_gguf(tmp_path / "tiny.gguf")
    return ("bench", "--model", model, "--tests", "pp8,tg4", "--repetitions", 1)


def test_the_table_goes_to_stdout_and_steps_to_stderr(bitnet, words):
    done = bitnet(*words)
    assert done.code == 0
    assert "tiny.gguf" in done.out
    assert "\npp8 " in done.out
    assert "\ntg4 " in done.out
    assert "speed 1/1" in done.err
    assert bitnet(*words, "--no-progress").err == ""


def test_a_later_run_is_compared_with_the_json_of_an_earlier_one(bitnet, words, tmp_path):
    first = bitnet(*words, "--json")
    report = json.loads(first.out)
    assert {result["test"] for result in report["results"]} == {"pp8", "tg4"}
    for result in report["results"]:  # as if it had been measured on a far faster machine
        result["tokens_per_s"]["median"] = 1e12
    report["machine"]["cpu"] = "Tomorrow's"
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(report))
    as_text = bitnet(*words, "--compare", earlier)
    assert as_text.code == 0
    assert "x0.00" in as_text.out
    assert "another model or machine: tiny.gguf, Tomorrow's" in as_text.err
    as_json = bitnet(*words, "--compare", earlier, "--json")
    assert as_json.code == 0
    assert json.loads(as_json.out)["changes"][0]["ratio"] < 0.5


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("--compare", "none.json"), 19, "none.json"),
        (("--thread-counts", "0"), 2, "--thread-counts"),
        (("--context", 4), 17, "pp8 needs 8 positions, the context holds 4"),
    ],
)
def test_wrong_options_are_one_error_with_its_exit_code(bitnet, words, more, code, said):
    done = bitnet(*words, *more)
    assert done.code == code
    assert said in done.err
    assert done.out == ""
