"""Servers that bitnet.toml names for a project's downloads."""

import pytest

from bitnet.base.errors import UsageError
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.project import Project, mirrors

TABLE = """
[mirrors]
default = "https://hub.example.org"
"org/model" = "https://models.example.org"
"""


def test_the_mirror_of_a_repository_wins_over_the_default_and_an_option_over_both(tmp_path):
    (tmp_path / "bitnet.toml").write_text(TABLE)
    project = Project(tmp_path, tmp_path / "cache", FetchOptions())
    assert project.options_for("org/model").endpoint == "https://models.example.org"
    assert project.options_for("org/other").endpoint == "https://hub.example.org"
    options = FetchOptions(base_url="https://given.example.org")
    assert Project(tmp_path, tmp_path / "cache", options).options_for("org/model") is options


def test_without_bitnet_toml_or_its_table_of_mirrors_the_options_stay(tmp_path):
    assert mirrors(tmp_path) == {}
    (tmp_path / "bitnet.toml").write_text("[other]\nx = 1\n")
    project = Project(tmp_path, tmp_path / "cache", FetchOptions())
    assert project.options_for("org/model") == FetchOptions()


@pytest.mark.parametrize(
    "text", ["mirrors = 3", "[mirrors", "[mirrors]\ndefault = 3", '[mirrors]\n"a/b" = "ftp://x"']
)
def test_an_invalid_table_of_mirrors_is_a_usage_error_that_names_the_file(tmp_path, text):
    (tmp_path / "bitnet.toml").write_text(text)
    with pytest.raises(UsageError, match=r"bitnet\.toml"):
        mirrors(tmp_path)
