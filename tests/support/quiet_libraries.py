"""Marks for tests that run other libraries, whose warnings do not fail them."""

import pytest

QUIET = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
]
