"""Check that no message of a test names a draft: the user knows only the name of the output.

A draft is the unfinished ``.partial`` file of :mod:`bitnet.base.outputs`.
"""

import logging
import re

import pytest

from bitnet.base.errors import BitnetError

_DRAFT = re.compile(r"\.partial\b")


@pytest.fixture(autouse=True)
def _messages_name_no_draft(monkeypatch, caplog):
    """Fail a test in which a log record or an error names a draft."""
    errors = []
    initialize = BitnetError.__init__

    def record(self, message, *, hint=""):
        initialize(self, message, hint=hint)
        errors.append(self)

    monkeypatch.setattr(BitnetError, "__init__", record)
    caplog.set_level(logging.INFO, logger="bitnet")
    yield
    messages = [f"{error.message} {error.hint}" for error in errors]
    messages += [entry.getMessage() for entry in caplog.get_records("call")]
    assert not [message for message in messages if _DRAFT.search(message)]
