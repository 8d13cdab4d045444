"""Exceptions, their exit codes, and what operating-system errors become."""

import errno
import inspect
import os
import re

import pytest
from hints import TEXTS

from bitnet.base import errors
from bitnet.base.errors import EXIT_CODES, BitnetError, NotFound, from_os_error
from bitnet.base.invocation import as_started

CLASSES = [
    member
    for _, member in inspect.getmembers(errors, inspect.isclass)
    if issubclass(member, BitnetError)
]


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_the_exit_code_of_every_exception_is_in_the_table(error):
    assert error.exit_code in EXIT_CODES


def test_every_code_but_success_belongs_to_an_exception():
    assert {error.exit_code for error in CLASSES} == set(EXIT_CODES) - {0}


def test_an_error_keeps_its_message_and_hint():
    error = errors.NotFound("no such thing", hint="look elsewhere")
    assert (str(error), error.message, error.hint) == (
        "no such thing\nhint: look elsewhere",
        "no such thing",
        "look elsewhere",
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, errors.NoSpace),
        (errno.EDQUOT, errors.NoSpace),
        (errno.EFBIG, errors.NoSpace),
        (errno.EACCES, errors.PermissionDenied),
        (errno.EPERM, errors.PermissionDenied),
        (errno.EROFS, errors.PermissionDenied),
        (errno.ENOENT, errors.NotFound),
        (errno.ENOTDIR, errors.NotFound),
        (errno.EISDIR, errors.UsageError),
        (errno.ENOMEM, errors.InferenceError),
        (errno.EIO, BitnetError),
    ],
)
def test_operating_system_errors_become_ours(tmp_path, code, kind):
    error = from_os_error(OSError(code, "whatever"), tmp_path)
    assert type(error) is kind
    assert error.message == f"{os.strerror(code)} (os error {code}): {tmp_path}"


def test_the_texts_that_scripts_search_for_are_kept():
    assert "Permission denied (os error 13)" in from_os_error(OSError(13, ""), "x").message
    assert "No space left on device (os error 28)" in from_os_error(OSError(28, ""), "x").message


def test_an_error_of_the_system_without_a_number_keeps_its_text():
    assert "something odd" in from_os_error(OSError("something odd"), "file").message


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        ("name a tokenizer file: --tokenizer FILE", "name a tokenizer file: tokenizer=FILE"),
        ("allow more with --retries=N, or wait", "allow more with retries=N, or wait"),
        ("leave --base-url out", "leave base_url=... out"),
        ("bitnet convert a.gguf --type Q8_0", "bitnet convert a.gguf --type Q8_0"),
        ("bitnet a --b C, or --lock-memory", "bitnet a --b C, or lock_memory=..."),
        ("uv tool install --with x .", "uv tool install --with x ."),
    ],
)
def test_the_text_of_an_error_names_parameters_of_python_in_place_of_options(hint, shown):
    error = NotFound("missing", hint=hint)
    assert as_started(f"hint: {shown}") in str(error)
    assert error.hint == hint  # the program shows it as it is


def test_no_hint_of_the_program_names_an_option_to_python_code():
    option_pattern = re.compile(r"(?<![\w-])--[a-z]")
    commands = re.compile(r"\b(?:bitnet|pip|uv|pipx|python3?|llama-[\w-]+) [^,;()\n]*")
    hints_with_options = [text for _, text in TEXTS if option_pattern.search(text)]
    assert len(hints_with_options) > 30  # the hints of the source code were found
    for text in hints_with_options:
        shown = str(NotFound("missing", hint=text)).partition("hint: ")[2]
        outside = commands.sub("", shown)  # a command in a hint keeps its options
        assert not option_pattern.search(outside), text


@pytest.mark.parametrize(
    ("error", "text"), [(OSError("no such thing"), "no such thing"), (OSError(), "OSError")]
)
def test_an_error_that_a_library_raises_without_a_number_is_shown_by_text_or_type(error, text):
    assert from_os_error(error, "file").message == f"{text}: file"
