"""Run reference engines in the process of a test: to start a process for each takes seconds.

Other tests cover the reasons for a process of its own: crashes and time limits.
"""

import json
from pathlib import Path
from typing import Any

from bitnet.crossval import references
from bitnet.crossval.ask import INTERMEDIATES, _read_intermediates
from bitnet.crossval.reference_process import answer


def ask_here(
    _engine: str, request: dict[str, Any], folder: Path, **_rest: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer of an engine to *request*, as :func:`bitnet.crossval.ask.ask` returns it."""
    values = answer(json.loads(json.dumps(request)), folder / INTERMEDIATES)
    return json.loads(json.dumps(values)), _read_intermediates(folder)


def share_this_process(patch: Any) -> None:
    """Ask reference engines here until the MonkeyPatch *patch* is undone."""
    patch.setattr(references, "ask", ask_here)
