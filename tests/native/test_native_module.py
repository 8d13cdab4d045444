"""The compiled module is used only where it is the one these sources were written for."""

from __future__ import annotations

import logging

import pytest

from bitnet import native
from bitnet.errors import Unsupported


@pytest.fixture
def outdated(monkeypatch):
    """Sources of a later interface than that of the module that is built."""
    if native.module() is None:
        pytest.skip("the compiled module is not installed or switched off")
    monkeypatch.setattr(native, "INTERFACE", native.INTERFACE + 1)
    forget = (native._import.cache_clear, native._warn_once.cache_clear)
    for one in forget:
        one()
    yield
    for one in forget:
        one()


def test_a_module_built_by_these_sources_is_used(monkeypatch):
    monkeypatch.setenv("BITNET_BACKEND", "auto")
    if (found := native.module()) is None:
        pytest.skip("the compiled module is not installed")
    assert found.INTERFACE == native.INTERFACE


def test_a_module_of_other_sources_is_as_good_as_none(outdated, monkeypatch, caplog):
    monkeypatch.setenv("BITNET_BACKEND", "auto")
    with caplog.at_level(logging.WARNING):
        assert native.module() is None
        assert native.module() is None
    (said,) = caplog.messages
    built, wanted = native.INTERFACE - 1, native.INTERFACE
    assert f"was built for interface {built}, expected {wanted}" in said
    assert said.endswith("inv native")
    assert native.cpu_features() == []
    assert native.backend_name() == "numpy"


def test_it_is_an_error_where_the_compiled_backend_is_demanded(outdated, monkeypatch):
    monkeypatch.setenv("BITNET_BACKEND", "native")
    with pytest.raises(Unsupported, match="interface") as raised:
        native.module()
    assert raised.value.hint.endswith("inv native")
