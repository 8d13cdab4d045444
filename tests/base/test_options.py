"""Option groups shared by several commands."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Optional, Union, get_args

import pytest

from bitnet.base.errors import UsageError, WrongType
from bitnet.base.options import (
    CacheOptions,
    check_bounds,
    check_ids,
    option,
    types_of,
    without_none,
)
from bitnet.formats.containers import I2SLayout
from bitnet.models.exact_head.head import HeadMode
from bitnet.runtime.model_options import ModelOptions


def test_cache_dir_option_wins_over_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("BITNET_CACHE_DIR", str(tmp_path / "from-environment"))
    assert CacheOptions(cache_dir=str(tmp_path / "given")).root == tmp_path / "given"
    assert CacheOptions().root == tmp_path / "from-environment"


def test_cache_dir_option_may_be_relative_or_start_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CacheOptions(cache_dir="here").root == tmp_path / "here"
    assert CacheOptions(cache_dir="~/there").root == Path.home() / "there"


@pytest.mark.parametrize("ids", [[True], [1, False], [1.0], ["1"]])
def test_a_value_that_is_not_a_token_id_is_refused(ids):
    with pytest.raises(WrongType, match="a token id"):
        check_ids("ids", ids)


def test_an_option_with_a_list_default_gives_every_instance_its_own_list():
    entry = option([], "texts to stop at")
    first = entry.default_factory()
    second = entry.default_factory()
    first.append("x")
    assert second == []


def test_an_option_keeps_the_metavariable_and_text_for_its_help():
    entry = next(field for field in fields(CacheOptions) if field.name == "cache_dir")
    assert entry.metadata["metavar"] == "DIR"
    assert "BITNET_CACHE_DIR" in entry.metadata["help"]


def test_the_choices_of_model_options_are_those_of_their_literal_types():
    choices = {field.name: field.metadata.get("choices") for field in fields(ModelOptions)}
    assert set(choices["exact_head"]) == set(get_args(HeadMode))
    assert set(choices["i2_s_layout"]) == set(get_args(I2SLayout))


Count = int


@dataclass(frozen=True)
class Bounded:
    """Numbers whose types have other spellings than ``int``, beside one that nothing defines."""

    renamed: "Count" = option(1, "a whole number", bounds=(1, None))
    optional: "Optional[int]" = option(None, "a whole number or None", bounds=(0, 9))  # noqa: UP045
    united: "Union[float, None]" = option(None, "a number or None", bounds=(0, 1))  # noqa: UP007
    interval: "float" = option(0.5, "a number, though the name of the field begins like int")
    unresolved: "Nowhere" = None  # noqa: F821


def test_values_are_checked_by_type_and_bounds_however_an_annotation_is_spelled():
    check_bounds(Bounded(renamed=3, optional=4, united=0.25))
    check_bounds(Bounded(optional=None, united=None))
    with pytest.raises(WrongType, match="renamed is of type float, expected a whole number"):
        check_bounds(Bounded(renamed=1.5))
    with pytest.raises(WrongType, match="optional is of type float, expected a whole number or No"):
        check_bounds(Bounded(optional=1.5))
    with pytest.raises(WrongType, match="united is of type str, expected a number or None"):
        check_bounds(Bounded(united="1"))
    with pytest.raises(UsageError, match="united is nan, expected 0 to 1"):
        check_bounds(Bounded(united=float("nan")))


def test_only_the_named_fields_of_a_dataclass_need_types_that_resolve():
    assert types_of(Bounded, "renamed", "interval") == {"renamed": int, "interval": float}
    with pytest.raises(NameError):
        types_of(Bounded, "unresolved")


def test_none_is_removed_from_a_type_that_is_optional_and_has_one_other_member():
    assert without_none(int | None) is int
    assert without_none(float) is float
    assert without_none(int | str) == int | str
    assert without_none(int | str | None) == int | str | None
