"""Run a process on a terminal of a given size, and record its output."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time

from waiting import PATIENCE_S


def _without_size(variables):
    """*variables* without the size of another terminal, such as that of the tests."""
    return {name: text for name, text in variables.items() if name not in ("COLUMNS", "LINES")}


class OnTerminal:
    """A process whose streams are all one terminal.

    Attributes:
        shown: everything that was written to the terminal so far, escapes included.
    """

    def __init__(self, words, *, folder=None, columns=80, lines=24, **environment):
        self.ours, tty = pty.openpty()
        fcntl.ioctl(tty, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.shown = ""
        self.process = subprocess.Popen(
            [str(word) for word in words],
            cwd=folder, stdin=tty, stdout=tty, stderr=tty, start_new_session=True,
            env={**_without_size(os.environ), "TERM": "xterm-256color", **environment},
        )  # fmt: skip
        os.close(tty)

    def until(self, text, count=1):
        """Read until *text* was shown *count* times; the process must not end before."""
        deadline = time.monotonic() + PATIENCE_S
        while self.shown.count(text) < count:
            assert time.monotonic() < deadline, self.shown
            chunk = self._read()
            assert chunk, f"it ended first: {self.shown}"

    def type(self, text):
        """Type *text*; a line needs its own end."""
        os.write(self.ours, text.encode())

    def end(self):
        """Read the rest of the output, and return the exit code."""
        while self._read():
            pass
        os.close(self.ours)
        return self.process.wait(PATIENCE_S)

    def _read(self):
        """The next output, added to *shown*; empty once the process has closed the terminal."""
        assert select.select([self.ours], [], [], PATIENCE_S)[0], self.shown
        try:
            chunk = os.read(self.ours, 65536)
        except OSError:
            return b""
        self.shown += chunk.decode(errors="replace")
        return chunk
