"""``inv exit-codes``."""

from __future__ import annotations

from bitnet.tables import table
from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json


@task(
    group="Check",
    example="bitnet exit-codes",
)
def exit_codes(c, output=Output()):
    """Print what every exit code means."""
    from bitnet.errors import EXIT_CODES

    if output.json:
        print(as_json(EXIT_CODES))
        return
    rows = [(str(code), meaning) for code, meaning in EXIT_CODES.items()]
    print(*table(("code", "meaning"), rows, right=(0,), wrap=1), sep="\n")
