"""The compiled module with one instruction set, or with so many threads."""

import pytest
from kernel_levels import at_level, kernel_levels

from bitnet.base import native

NATIVE = native.module()


@pytest.fixture(params=kernel_levels() or ["none"])
def level(request):
    """Each instruction set this processor has, as the one that is used."""
    with at_level(request.param):
        yield request.param


@pytest.fixture
def threads():
    """Sets the number of threads until the test ends."""
    before = NATIVE.threads()
    yield NATIVE.set_threads
    NATIVE.set_threads(before)
