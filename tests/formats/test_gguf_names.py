"""Names of GGUF files: parts of split models, and files that are not models."""

import pytest

from bitnet.formats.gguf_names import is_companion, list_models, part_number


@pytest.mark.parametrize(
    ("name", "number"),
    [("a.gguf", 1), ("a-00001-of-00003.gguf", 1), ("a-00003-of-00003.gguf", 3),
     ("a-00002-of-00003.gguf.part", 1), ("a\n-00002-of-00003.gguf", 2),
     ("a-0000٢-of-00003.gguf", 1)],  # with an Arabic digit, which is not one of a part's number
)  # fmt: skip
def test_the_name_of_a_file_has_its_number_in_a_split_model(name, number):
    assert part_number(name) == number


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("mmproj-m.gguf", True),
        ("m-mmproj-f16.gguf", True),
        ("m.MMPROJ.gguf", True),
        ("m-dspark-q8_0.gguf", True),
        ("imatrix.gguf", True),
        ("imatrix_unsloth.gguf", True),
        ("org_m-imatrix.gguf", True),
        ("m.imatrix.gguf", True),
        ("m-Q4_K_M-imatrix.gguf", False),
        ("imatrix-m-IQ4_XS.gguf", False),
        ("m.gguf", False),
        ("mmprojector.gguf", False),
    ],
)
def test_a_file_beside_a_model_is_known_by_its_name(name, is_one):
    assert is_companion(name) is is_one


def test_a_split_model_without_its_first_part_is_the_part_that_is_there(tmp_path):
    for number in (2, 3):
        (tmp_path / f"m-0000{number}-of-00003.gguf").touch()
    (tmp_path / "folder.gguf").mkdir()
    assert list_models(tmp_path) == [tmp_path / "m-00002-of-00003.gguf"]
