"""``python -m bitnet`` is the ``bitnet`` command."""

from bitnet.cli import main

main()
