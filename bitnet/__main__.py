"""``python -m bitnet`` is the ``bitnet`` command."""

import sys

from bitnet.base.errors import Interrupted


def main() -> None:
    """Run the command line and exit; the console script."""
    try:
        from bitnet.commands import program

        program.main()
    except KeyboardInterrupt:  # before there is a command to report it
        sys.stderr.write("Error: interrupted\n")
        raise SystemExit(Interrupted.exit_code) from None


def inv() -> None:
    """Run ``inv`` in the environment of a checkout: Invoke, which reads ``tasks.py``."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        main()
    from invoke.main import program

    program.run()


if __name__ == "__main__":
    main()
