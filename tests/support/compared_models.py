"""Expected lines in the summary of the workflow parity-smoke, with and without another engine."""

import importlib.util

TINY = "models/org-tiny/tiny.gguf"  # what the tests pin
PASSED = f"- passed: {TINY}"
WITHOUT_ENGINE = f"- NOT CHECKED: {TINY}: "
HAS_ENGINE = importlib.util.find_spec("xllamacpp") is not None
COMPARED = PASSED if HAS_ENGINE else WITHOUT_ENGINE  # a sound model in the summary of parity-smoke
