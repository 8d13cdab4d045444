"""Messages of the tests of this room name no draft of a file."""

from draft_messages import _messages_name_no_draft  # noqa: F401 - a fixture of every test
