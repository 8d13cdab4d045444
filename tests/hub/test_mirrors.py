import pytest

from bitnet.base.errors import UsageError
from bitnet.hub.mirrors import mirrors, with_mirror
from bitnet.hub.options import FetchOptions

TABLE = """
[mirrors]
default = "https://hub.example.org"
"org/model" = "https://models.example.org"
"""


def test_a_repository_wins_over_the_default_and_the_option_over_both(tmp_path):
    (tmp_path / "bitnet.toml").write_text(TABLE)
    assert with_mirror(FetchOptions(), "org/model", tmp_path).endpoint.endswith(
        "models.example.org"
    )
    assert with_mirror(FetchOptions(), "org/other", tmp_path).endpoint.endswith("hub.example.org")
    given = FetchOptions(base_url="https://given.example.org")
    assert with_mirror(given, "org/model", tmp_path) is given


def test_without_a_file_or_a_table_nothing_changes(tmp_path):
    assert mirrors(tmp_path) == {}
    (tmp_path / "bitnet.toml").write_text("[other]\nx = 1\n")
    assert with_mirror(FetchOptions(), "org/model", tmp_path) == FetchOptions()


@pytest.mark.parametrize(
    "text", ["mirrors = 3", "[mirrors", "[mirrors]\ndefault = 3", '[mirrors]\n"a/b" = "ftp://x"']
)
def test_a_table_that_cannot_be_meant_is_a_usage_error_that_names_the_file(tmp_path, text):
    (tmp_path / "bitnet.toml").write_text(text)
    with pytest.raises(UsageError, match=r"bitnet\.toml"):
        mirrors(tmp_path)
