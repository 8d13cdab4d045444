"""Wait for events, with a patience that suffices on a busy machine."""

import contextlib
import random
import socket
import time

PATIENCE_S = 600  # a busy machine is not a failure


def until(condition, process=None, patience_s=PATIENCE_S):
    """Wait until *condition* returns a true value, and return it.

    *process*, if any, must not end before. A ``FileNotFoundError`` of *condition* counts as false:
    another process may rename or remove the files that it examines.
    """
    deadline = time.monotonic() + patience_s
    while True:
        ended = process is not None and process.poll() is not None
        with contextlib.suppress(FileNotFoundError):
            if found := condition():
                return found
        assert not ended, "the process ended first"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def free_port():
    """A free port on loopback, outside the range from which the system assigns ports itself."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError("a hundred ports in use")
