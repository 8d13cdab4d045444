"""The instruction sets for which the kernels are compiled, and that this processor has."""

from collections.abc import Iterator
from contextlib import contextmanager

from bitnet.base import native

NATIVE = native.module()


def kernel_levels() -> list[str]:
    """Names of the instruction sets, the slowest first; none without the compiled module."""
    return NATIVE.kernel_levels() if NATIVE is not None else []


@contextmanager
def at_level(level: str) -> Iterator[None]:
    """Use the instruction set *level* in the block, and then the previous one again."""
    before = NATIVE.kernel_level()
    assert NATIVE.set_kernel_level(level)
    try:
        yield
    finally:
        NATIVE.set_kernel_level(before)


def each_level() -> Iterator[str]:
    """Each instruction set in turn, which is the one in use until the next is requested."""
    for level in kernel_levels():
        with at_level(level):
            yield level
