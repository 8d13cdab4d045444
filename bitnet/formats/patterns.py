"""Regular expressions in the files of models, which name modules."""

from __future__ import annotations

import re

from bitnet.base.errors import InvalidFormat


def compile_pattern(pattern: str, key: str, *, hint: str) -> re.Pattern[str]:
    """The expression *pattern* of the *key*, which the error names together with the *hint*."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        # A repetition may be too large, and groups may be in one another too often.
        problem = f"{key} is not a regular expression: {error}"
        raise InvalidFormat(problem, hint=hint) from error
