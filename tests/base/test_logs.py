"""Log output: levels, filters of the environment, the form of the lines."""

import logging

import pytest

from bitnet.base import terminal
from bitnet.base.errors import UsageError


@pytest.fixture(autouse=True)
def _levels_as_before():
    """Restore the levels of all loggers after each test."""
    registered = logging.root.manager.loggerDict.items()
    before = {name: log.level for name, log in registered if isinstance(log, logging.Logger)}
    yield
    for name, log in logging.root.manager.loggerDict.items():
        if isinstance(log, logging.Logger) and name.startswith("bitnet"):
            log.setLevel(before.get(name, logging.NOTSET))


def say(name="bitnet.commands"):
    """Log a message of each level to the logger *name*."""
    logger = logging.getLogger(name)
    for level in ("debug", "info", "warning", "error"):
        getattr(logger, level)("a %s message", level)


def shown(capsys):
    """Levels of the messages on stderr, which end with ``LEVEL message``."""
    return [line.split(" ")[-2] for line in capsys.readouterr().err.splitlines()]


@pytest.mark.parametrize(
    ("verbosity", "levels"),
    [
        (0, ["warning", "error"]),
        (1, ["info", "warning", "error"]),
        (2, ["debug", "info", "warning", "error"]),
        (3, ["debug", "info", "warning", "error"]),
    ],
)
def test_one_v_adds_info_and_a_second_v_debug_to_the_log(verbosity, levels, capsys):
    terminal.configure(verbosity)
    say()
    assert shown(capsys) == levels


def test_warnings_can_be_hidden(capsys):
    terminal.configure(warnings=False)
    say()
    assert shown(capsys) == ["error"]


def test_lines_begin_with_their_level(capsys):
    terminal.configure(2)
    say()
    assert capsys.readouterr().err.splitlines() == [
        *("[DEBUG] a debug message", "[INFO] a info message"),
        *("Warning: a warning message", "Error: a error message"),
    ]


class Unreadable:
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("message", "value", "error"),
    [("%d items", "x", "TypeError"), ("%s", Unreadable(), "RuntimeError")],
)
def test_a_message_that_cannot_be_formatted_is_shown_with_its_place_and_error(
    message, value, error
):
    record = logging.LogRecord("x", logging.WARNING, "/a/b.py", 7, message, (value,), None)
    expected = f"{message} (without its values: {error} at b.py:7)"
    assert terminal.text_of_record(record) == expected


def test_configuring_twice_shows_each_message_once(capsys):
    terminal.configure()
    terminal.configure()
    say()
    assert shown(capsys) == ["warning", "error"]


@pytest.mark.parametrize("name", ["BITNET_LOG", "RUST_LOG"])
def test_the_environment_adds_levels(name, monkeypatch, capsys):
    monkeypatch.setenv(name, "debug")
    terminal.configure()
    say()
    assert shown(capsys) == ["debug", "info", "warning", "error"]


def test_the_environment_never_removes_levels_that_the_command_line_adds(monkeypatch, capsys):
    monkeypatch.setenv("BITNET_LOG", "error")
    terminal.configure(1)
    say()
    assert shown(capsys) == ["info", "warning", "error"]


@pytest.mark.parametrize(
    ("text", "area"),  # a filter in the form of Rust's env_logger, and a logger that it opens
    [
        ("bitnet_tokenizers=debug", "bitnet.tokenizer"),
        ("bitnet_tokenizers=debug", "bitnet.hub.fetch"),
        ("bitnet_tokenizers::download=trace", "bitnet.hub"),
        ("bitnet_tokenizers::discovery=debug", "bitnet.tokenizer.discover"),
        ("x=info, bitnet_models=debug", "bitnet.formats"),
        ("bitnet.formats=debug", "bitnet.formats"),
    ],
)
def test_a_filter_adds_levels_to_the_loggers_of_its_area_only(text, area, monkeypatch, capsys):
    monkeypatch.setenv("RUST_LOG", text)
    terminal.configure()
    say(area)
    assert shown(capsys) == ["debug", "info", "warning", "error"]
    say("bitnet.server")
    assert shown(capsys) == ["warning", "error"]


def test_a_filter_can_switch_an_area_off(monkeypatch, capsys):
    monkeypatch.setenv("RUST_LOG", "bitnet_kernels=off")
    terminal.configure()
    say("bitnet.kernels")
    assert shown(capsys) == []


def test_an_unknown_level_in_bitnet_log_is_an_error(monkeypatch):
    monkeypatch.setenv("BITNET_LOG", "bitnet_cli=loud")
    with pytest.raises(UsageError, match="'loud' is not a level"):
        terminal.configure()


@pytest.mark.parametrize("text", ["hyper", "info,my_crate[span]", "warn/regular", "a=b=c"])
def test_a_filter_for_rust_programs_is_skipped_in_rust_log_and_refused_in_bitnet_log(
    text, monkeypatch, capsys
):
    monkeypatch.setenv("RUST_LOG", text)
    terminal.configure()
    say()
    levels = ["info", "warning", "error"]
    assert shown(capsys) == (levels if text.startswith("info") else levels[1:])
    monkeypatch.setenv("BITNET_LOG", text)
    with pytest.raises(UsageError, match="is not a level"):
        terminal.configure()


@pytest.mark.parametrize("debug", ["0", "1"])
def test_a_traceback_is_shown_only_with_bitnet_debug(debug, monkeypatch, capsys):
    monkeypatch.setenv("BITNET_DEBUG", debug)
    terminal.configure()
    try:
        raise ValueError("the cause")
    except ValueError:
        logging.getLogger("bitnet.server").exception("a pass failed")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Error: a pass failed"
    assert (lines[-1] == "ValueError: the cause") is (debug == "1")
    assert (len(lines) > 1) is (debug == "1")
