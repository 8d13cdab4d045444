"""Aids for typing: lines of earlier sessions, and the editor of the user's choice."""

from __future__ import annotations

import logging
import shlex
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

from bitnet.base import settings
from bitnet.base.errors import UsageError

logger = logging.getLogger(__name__)

MOST_LINES = 1000  # of the history


@contextmanager
def recall_lines():
    """Let ``input`` edit lines and recall those of earlier sessions; new ones are added to them.

    Without readline, or if the file cannot be used, a session works without them.
    """
    try:
        import readline
    except ImportError:  # Windows has none
        yield
        return
    path = settings.history_file()
    readline.clear_history()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        readline.read_history_file(path)
    except OSError as error:
        logger.debug("no history: %s", error)
    before = readline.get_current_history_length()
    try:
        yield
    finally:
        added = readline.get_current_history_length() - before
        readline.set_history_length(MOST_LINES)
        try:
            readline.append_history_file(added, path)  # another session may have added its own
        except OSError as error:
            logger.debug("no history: %s", error)


def edit_text():
    """The text that a person writes in ``$VISUAL`` or ``$EDITOR``.

    Raises:
        UsageError: no editor is set, the editor fails, or the text is empty.
    """
    editor = settings.editor()
    if not editor:
        raise UsageError("!edit needs an editor", hint="export EDITOR=nano")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "message.md"
        path.touch()
        try:
            subprocess.run([*shlex.split(editor), str(path)], check=True)
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise UsageError(f"!edit: {editor} failed: {error}", hint="set $EDITOR") from None
    if not text.strip():
        raise UsageError("!edit: the message is empty", hint="save the file before you leave")
    return text
