"""Option groups shared by several commands."""

from dataclasses import fields
from pathlib import Path
from typing import get_args

from bitnet.base.options import CacheOptions, option
from bitnet.formats.containers import I2SLayout
from bitnet.models.exact_head.head import HeadMode
from bitnet.runtime.options import ModelOptions


def test_cache_dir_option_wins_over_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("BITNET_CACHE_DIR", str(tmp_path / "from-environment"))
    assert CacheOptions(cache_dir=str(tmp_path / "given")).root == tmp_path / "given"
    assert CacheOptions().root == tmp_path / "from-environment"


def test_cache_dir_option_may_be_relative_or_start_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CacheOptions(cache_dir="here").root == tmp_path / "here"
    assert CacheOptions(cache_dir="~/there").root == Path.home() / "there"


def test_an_option_with_a_list_default_gives_every_instance_its_own_list():
    entry = option([], "texts to stop at")
    first, second = entry.default_factory(), entry.default_factory()
    first.append("x")
    assert second == []


def test_an_option_keeps_what_help_shows():
    entry = next(field for field in fields(CacheOptions) if field.name == "cache_dir")
    assert entry.metadata["metavar"] == "DIR"
    assert "BITNET_CACHE_DIR" in entry.metadata["help"]


def test_the_choices_of_a_model_are_those_of_their_types():
    choices = {field.name: field.metadata.get("choices") for field in fields(ModelOptions)}
    assert set(choices["exact_head"]) == set(get_args(HeadMode))
    assert set(choices["i2_s_layout"]) == set(get_args(I2SLayout))
