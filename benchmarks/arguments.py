"""Types of command-line values that several programs take; argparse names a wrong value."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TEST = re.compile(r"(?:pp|tg)[1-9]\d*(?:@\d+)?")


def at_least(least: int) -> Callable[[str], int]:
    """The type of a whole number from *least* on."""

    def count(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value}, expected {least} or more")
        return value

    return count


def tests_with_depths(text: str) -> list[str]:
    """The tests in *text*, such as ``pp128,tg32@4096``."""
    tests = text.split(",")
    for test in tests:
        if not TEST.fullmatch(test):
            raise argparse.ArgumentTypeError(f"{test!r}, expected tests such as pp128,tg32@4096")
    return tests


def plain_tests(text: str) -> list[str]:
    """The tests in *text*, such as ``pp128,tg32``, without a depth."""
    tests = tests_with_depths(text)
    for test in tests:
        if "@" in test:
            raise argparse.ArgumentTypeError(f"{test!r}, expected tests without a depth")
    return tests
