"""The names other people's code imports."""

import importlib

import pytest

PACKAGES = ["bitnet", "bitnet.tokenizer", "bitnet.errors"]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_there_once_and_sorted(name):
    package = importlib.import_module(name)
    assert len(set(package.__all__)) == len(package.__all__)
    assert list(package.__all__) == sorted(
        package.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n)
    )
    for public in package.__all__:
        assert getattr(package, public) is not None


@pytest.mark.parametrize("name", PACKAGES[:2])
def test_an_unknown_name_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = importlib.import_module(name).no_such_name
