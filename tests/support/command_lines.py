"""Check that the program understands the command lines in texts."""

import contextlib
import shlex

from invoke.exceptions import Exit

from bitnet.commands.program import Program


def understood(words, namespace, binary="bitnet"):
    """Parse *words*, a command with its options; raises the error that the program would report."""
    parsed = Program(namespace, binary)
    parsed.create_config()
    with contextlib.suppress(Exit):  # an option such as --version, which needs no command
        parsed.parse_core([binary, *shlex.split(words)])
        parsed.parse_collection()
        if parsed.core.unparsed:
            parsed.parse_tasks()
            assert len(parsed.tasks) == 1, f"more than a command: {words}"
