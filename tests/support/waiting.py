"""Waiting for what must happen, however busy the machine is."""

import contextlib
import random
import socket
import time

PATIENCE_S = 120


def until(condition, process=None, patience_s=PATIENCE_S):
    """Value of *condition* once it holds; *process*, if any, must not have ended before.

    A file or folder that another process renames or removes under *condition* is looked for again.
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
    """A port on loopback; not one of those the system gives to others by itself."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise AssertionError("a hundred ports in use")
