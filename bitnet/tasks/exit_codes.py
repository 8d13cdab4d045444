"""``inv exit-codes``."""

from __future__ import annotations

import json

from bitnet.tasks.declare import Output, task


@task()
def exit_codes(c, output=Output()):
    """Print what every exit code means."""
    from bitnet.errors import EXIT_CODES

    if output.json:
        print(json.dumps(EXIT_CODES))
        return
    for code, meaning in EXIT_CODES.items():
        print(f"{code:>4}  {meaning}")
