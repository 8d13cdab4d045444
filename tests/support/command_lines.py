"""Check that the program understands the command lines in texts."""

import contextlib
import shlex

from invoke.exceptions import Exit

from bitnet.commands.program import Program


def check_command(words, namespace, binary="bitnet"):
    """Parse *words*, a command with its options; raises the error that the program would report."""
    parser = Program(namespace, binary)
    parser.create_config()
    with contextlib.suppress(Exit):  # an option such as --version, which needs no command
        parser.parse_core([binary, *shlex.split(words)])
        parser.parse_collection()
        if parser.core.unparsed:
            parser.parse_tasks()
            assert len(parser.tasks) == 1, f"more than a command: {words}"
