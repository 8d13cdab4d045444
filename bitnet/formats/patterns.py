"""Regular expressions in the files of models, which name modules."""

from __future__ import annotations

import re

from bitnet.base.errors import InvalidFormat


def compile_pattern(pattern: str, key: str, *, hint: str) -> re.Pattern[str]:
    """Compile *pattern*, a value of *key* in a file; an error names *key* and has the *hint*."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        # A repetition may be too large, and groups may be nested too deeply.
        problem = f"{key} is not a regular expression: {error}"
        raise InvalidFormat(problem, hint=hint) from error
