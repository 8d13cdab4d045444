"""Fixtures that set the instruction set and the number of threads of the compiled module."""

import pytest
from kernel_levels import at_level, kernel_levels

from bitnet.base import native

NATIVE = native.module()


@pytest.fixture(params=kernel_levels() or ["none"])
def level(request):
    """Run the test with each instruction set of this processor; its name."""
    with at_level(request.param):
        yield request.param


@pytest.fixture
def threads():
    """A function that sets the number of threads until the test ends."""
    before = NATIVE.threads()
    yield NATIVE.set_threads
    NATIVE.set_threads(before)
