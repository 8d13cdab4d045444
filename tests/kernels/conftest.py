"""The compiled module with one instruction set, or with so many threads."""

import pytest

from bitnet.base import native

NATIVE = native.module()


@pytest.fixture(params=NATIVE.kernel_levels() if NATIVE else ["none"])
def level(request):
    """Each instruction set this processor has, as the one that is used."""
    before = NATIVE.kernel_level()
    NATIVE.set_kernel_level(request.param)
    yield request.param
    NATIVE.set_kernel_level(before)


@pytest.fixture
def threads():
    """Sets the number of threads until the test ends."""
    before = NATIVE.threads()
    yield NATIVE.set_threads
    NATIVE.set_threads(before)
