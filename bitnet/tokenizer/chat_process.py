"""Renders chat templates in a process of their own, which is ended at its limits.

What a template costs cannot be told from its text: one operation may take hours or all memory, and
nothing interrupts it inside of the interpreter. The process is started with the first template and
replaced when one went beyond a limit.
"""

from __future__ import annotations

import atexit
import marshal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bitnet.base.errors import InvalidFormat, UsageError
from bitnet.base.forks import renew_in_child
from bitnet.tokenizer import chat_child

__all__ = ["TemplateProcess", "template_process"]

_WALL_S = 30  # of one rendering, where the system does not count processor time
_HINT = "name another template with --chat-template FILE"


class TemplateProcess:
    """One process for the templates of this one; started again when it had to be ended."""

    def __init__(self) -> None:
        self._renew()
        renew_in_child(self, TemplateProcess._abandon)
        atexit.register(self.close)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def _abandon(self) -> None:
        """Leave the process to the parent of this fork."""
        if self._process is not None:
            self._process.returncode = 0
            self._close_pipes(self._process)
        self._renew()

    def render(
        self, template: str, variables: dict[str, Any] | None, *, now: str, source: str
    ) -> str:
        """The text of *template*; empty for variables that are ``None``, when it is only compiled.

        Args:
            template: Jinja source.
            variables: JSON values that the template sees.
            now: the time in ISO 8601.
            source: name of the tokenizer in messages.

        Raises:
            InvalidFormat: the template has a syntax error, fails, or exceeds a limit.
            UsageError: the template refuses the conversation, or a variable is not a JSON value.
        """
        try:
            job = marshal.dumps((chat_child.CPU_MS, template, variables, now))
        except ValueError:
            raise UsageError(
                "the messages or variables hold something that is not a JSON value",
                hint="use texts, numbers, true, false, null, lists and objects",
            ) from None
        with self._lock:
            content = self._answer(job)
        kind, text = content[0], content[1:].decode("utf-8", "surrogatepass")
        if kind == chat_child.TEXT:
            return text
        if kind == chat_child.REFUSED:
            raise UsageError(
                f"the chat template of {source} refuses the conversation: {text}",
                hint="check the roles of the messages and their order",
            )
        what = {chat_child.INVALID: "is not valid", chat_child.STOPPED: "was stopped"}
        raise InvalidFormat(
            f"the chat template of {source} {what.get(kind, 'failed')}: {text}",
            hint=_HINT if kind in what else f"check the messages, or {_HINT}",
        )

    def _answer(self, job: bytes) -> bytes:
        process = self._start()
        overdue = threading.Timer(_WALL_S, process.kill)
        overdue.start()
        try:
            process.stdin.write(len(job).to_bytes(8, "little") + job)
            process.stdin.flush()
            size = int.from_bytes(process.stdout.read(8), "little")
            most = 4 * chat_child.MAX_CHARS + 1
            content: bytes = process.stdout.read(size) if size <= most else b""
        except OSError:  # it has ended
            content = b""
        except BaseException:  # an interrupt: nothing must wait for the answer
            self.close()
            raise
        finally:
            overdue.cancel()
        if content and content[0] != chat_child.STOPPED:
            return content
        self.close()  # its memory may be in pieces
        if content:
            return content
        seconds, memory = chat_child.CPU_MS / 1000, chat_child.MEMORY_BYTES >> 20
        reason = f"more than {seconds:g} s of processor time or {memory} MiB of memory"
        return bytes([chat_child.STOPPED]) + reason.encode()

    def _start(self) -> Any:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            windows = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", chat_child.__file__, *_paths()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt of the terminal is for the parent
                creationflags=windows,
            )
        return self._process

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            self._close_pipes(process)

    @staticmethod
    def _close_pipes(process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


def _paths() -> list[str]:
    """The folders from which this process would import Jinja."""
    origins = (getattr(find_spec(name), "origin", None) for name in ("jinja2", "markupsafe"))
    return list(dict.fromkeys(str(Path(origin).parents[1]) for origin in origins if origin))


@cache
def template_process() -> TemplateProcess:
    """The one process for templates."""
    return TemplateProcess()
