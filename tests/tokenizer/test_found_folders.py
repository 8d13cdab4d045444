"""Folders in which a difference from transformers was found, with what it makes of them."""

import json

import pytest
from folder_expectations import RECORDED, outcome, write

# Part of the refusal of each case, by its name: a seed, with the version of transformers that
# saved the folder. All other cases are equal.
REFUSED = {
    "553": "twice, with normalized: true",
    "1294": "T5Tokenizer",
    "1413": "twice, with normalized: true",
    "1546": "twice, with normalized: true",
    "3420": "twice, with normalized: true",
    "0@4.46.3": "extra_special_tokens",
}
CASES = {case["case"]: case for case in map(json.loads, RECORDED.read_text("utf-8").splitlines())}


@pytest.mark.parametrize("name", sorted(CASES.keys() - REFUSED.keys()))
def test_a_folder_gives_the_recorded_ids_texts_and_templates(name, tmp_path):
    case = CASES[name]
    # Decoded texts are those of transformers 5, whichever version wrote the folder.
    assert outcome(write(case, tmp_path), case, ids_only="@" in name) == "equal"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_folder_that_is_not_read_alike_is_refused_with_the_reason(name, tmp_path):
    result = outcome(write(CASES[name], tmp_path), CASES[name])
    assert result.startswith("refused: ")
    assert REFUSED[name] in result


def test_the_recorded_folders_are_of_three_versions_of_transformers():
    versions = {name.partition("@")[2] for name in CASES}
    assert versions == {"", "4.46.3", "4.57.1"}
