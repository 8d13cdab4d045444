"""``inv exit-codes``."""

from __future__ import annotations

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
    for code, meaning in EXIT_CODES.items():
        print(f"{code:>4}  {meaning}")
