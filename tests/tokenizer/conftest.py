"""A fixture for both engines that run a tokenizer."""

import pytest

from bitnet.base import native


@pytest.fixture(params=["native", "portable"])
def engine(request, monkeypatch):
    """Name of the engine in use: the compiled one, or the libraries without it."""
    if request.param == "native" and native.module() is None:
        pytest.skip("the native module is not installed")
    if request.param == "portable":
        monkeypatch.setenv("BITNET_BACKEND", "reference")
    return request.param
