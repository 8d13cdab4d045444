"""Marks for tests that run other libraries: warnings of these do not fail the test."""

import pytest

QUIET = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
]
