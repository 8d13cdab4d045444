import pytest

from bitnet.errors import NotFound, UsageError
from bitnet.hub.candidates import candidates, choose, is_pattern
from bitnet.hub.repository import RepoFile

FILES = [
    RepoFile("README.md", 10),
    RepoFile("m-IQ2_XS.gguf", 2_000_000),
    RepoFile("m.Q4_K_M.gguf", 4_000_000),
    RepoFile("big/m-BF16-00002-of-00002.gguf", 8_000_000),
    RepoFile("big/m-BF16-00001-of-00002.gguf", 9_000_000),
    RepoFile("ggml-model-i2_s.gguf", 1_000_000),
]


def test_without_a_pattern_every_gguf_model_is_one_candidate_with_its_encoding():
    found = {c.name: (c.encoding, c.size, len(c.files)) for c in candidates(FILES, "")}
    assert found == {
        "big/m-BF16-*-of-00002.gguf": ("BF16", 17_000_000, 2),
        "ggml-model-i2_s.gguf": ("I2_S", 1_000_000, 1),
        "m-IQ2_XS.gguf": ("IQ2_XS", 2_000_000, 1),
        "m.Q4_K_M.gguf": ("Q4_K_M", 4_000_000, 1),
    }


@pytest.mark.parametrize("pattern", ["big/*", "*BF16*", "m-BF16-*-of-00002.gguf"])
def test_a_split_model_is_chosen_whole_and_in_order(pattern):
    chosen = choose("o/r", candidates(FILES, pattern), pattern, fits=lambda size: True)
    assert [name[-19:-14] for name in chosen.files] == ["00001", "00002"]


def test_the_largest_one_that_fits_is_suggested():
    with pytest.raises(UsageError) as caught:
        choose("o/r", candidates(FILES, ""), "", fits=lambda size: size < 5_000_000)
    assert "does not fit in RAM" in caught.value.message
    assert caught.value.hint == "name one: --file 'm.Q4_K_M.gguf'"


def test_nothing_that_matches_is_not_found():
    with pytest.raises(NotFound, match="no file that matches"):
        choose("o/r", candidates(FILES, "*.bin"), "*.bin", fits=lambda size: None)


def test_a_plain_name_is_not_a_pattern():
    assert not is_pattern("a.gguf")
    assert all(map(is_pattern, ("", "*.gguf", "a?", "[ab]")))
