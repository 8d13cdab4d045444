"""Run ``bitnet serve`` as a process."""

import contextlib
import os
import re
import subprocess
import sys

import httpx
from waiting import PATIENCE_S

#: Keys of a model, and the body of a request for it, whose answer ends only when it is cut off: it
#: fills the context without the token that would end it.
ENDLESS_MODEL = {"llama.context_length": 10**6}
ENDLESS = {"prompt": "ab", "max_tokens": 10**6 - 9, "logit_bias": {"1": -1000}}


class Process:
    """A server process; *lines* are the lines of stderr that were read so far."""

    def __init__(self, *words, env=None):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bitnet", "serve", *map(str, words)],
            stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | (env or {}),
        )  # fmt: skip
        self.lines = []
        self.port = 0

    def until(self, pattern):
        """Read stderr up to a line with *pattern*, and return the match."""
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if match := re.search(pattern, line):
                return match
        raise AssertionError("\n".join(self.lines))

    def listen(self):
        """Wait until the server listens, and return this object."""
        match = self.until(r"INFO HTTP server listening on [^ ]+:(\d+)$")
        self.port = int(match[1])
        return self

    @property
    def address(self):
        """Address of the server."""
        return f"http://127.0.0.1:{self.port}"

    def post(self, body, path="/v1/inference"):
        """The reply to *body*, sent as JSON."""
        return httpx.post(self.address + path, json=body, timeout=PATIENCE_S, verify=False)

    def stream(self, body, path="/v1/inference"):
        """The streamed reply as a context manager, which waits for the headers when entered.

        The server sends them with the first token.
        """
        return httpx.stream(
            "POST", self.address + path, json=body, timeout=PATIENCE_S, verify=False
        )

    def end(self, signal_number=None):
        """Send the signal *signal_number*, if any, wait for the end, and return the exit code."""
        if signal_number is not None:
            self.process.send_signal(signal_number)
        outputs = self.process.communicate(timeout=PATIENCE_S)
        self.lines += outputs[1].splitlines()
        return self.process.returncode

    def kill(self):
        """Kill the process if it runs, and close its streams."""
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


@contextlib.contextmanager
def serving(*words, env=None):
    """A worker that listens; it is killed at the end if it has not ended by then."""
    worker = Process(*words, env=env)
    try:
        yield worker.listen()
    finally:
        worker.kill()
