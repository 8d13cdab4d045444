"""Progress of a transfer: its numbers, and their form on a terminal, in a log and as events."""

import io
import json
import os
import threading

import pytest
import waiting

from bitnet.base.progress import Progress, show_when_slow
from bitnet.base.quantities import human_size, human_time


class Clock:
    """Time that the test sets in ``now``, in seconds."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def stream():
    return io.StringIO()


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (98_362_432, "98.4 MB"),
        (999_949, "999.9 kB"),
        (999_960, "1.0 MB"),
        (2_000_000_000, "2.0 GB"),
        (5e15, "5000.0 TB"),
    ],
)
def test_sizes_read_as_on_download_pages(size, text):
    assert human_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0s"), (7, "7s"), (59.6, "1m00s"), (185, "3m05s"), (3599, "59m59s"), (7620, "2h07m")],
)
def test_times_read_naturally(seconds, text):
    assert human_time(seconds) == text


def test_progress_never_goes_backwards(stream, clock):
    progress = Progress("file", 100, mode="none", stream=stream, clock=clock)
    progress.reach(60)
    progress.reach(10)
    assert progress.done == 60
    assert stream.getvalue() == ""


def test_a_process_without_stderr_shows_nothing(monkeypatch, clock):
    monkeypatch.setattr("sys.stderr", None)  # as Python leaves it in a process without a console
    for mode in ("auto", "bar", "lines", "json"):
        with Progress("file", 100, mode=mode, clock=clock) as progress:
            clock.now += 60
            progress.reach(100)
        assert progress.done == 100


def test_rate_and_time_left_are_computed_from_the_last_seconds_only(stream, clock):
    progress = Progress("file", 1000, mode="none", stream=stream, clock=clock)
    assert (progress.rate, progress.eta_s) == (0.0, None)
    progress.reach(1)
    clock.now += 100
    progress.reach(2)
    clock.now += 5
    progress.reach(502)
    # 500 bytes in the last 5 s; the 100 s before are outside the window of 10 s.
    assert progress.rate == pytest.approx(100)
    assert progress.eta_s == pytest.approx(4.98)


def test_a_log_gets_a_line_every_few_seconds(stream, clock):
    with Progress("file", 1000, mode="auto", stream=stream, clock=clock) as progress:
        progress.reach(100)
        clock.now += 4
        progress.reach(200)
        assert stream.getvalue() == ""
        clock.now += 1
        progress.reach(500)
        # 400 bytes in the 5 s since the first report.
        assert stream.getvalue() == "file: 500 B of 1.0 kB (50%), 80 B/s, 6s left\n"
        progress.reach(1000)
    assert stream.getvalue().splitlines()[1:] == ["file: 1.0 kB in 5s"]


def test_with_mode_json_progress_is_written_as_events(stream, clock):
    with Progress("file", mode="json", stream=stream, clock=clock) as progress:
        clock.now += 1
        progress.reach(10, 20)
        progress.reach(20)
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(event["event"], event["done"], event["total"]) for event in events] == [
        ("progress", 10, 20),
        ("done", 20, 20),
    ]


def transfer_that_breaks(mode, stream):
    """Begin a transfer whose progress goes to *stream*, and fail."""
    with Progress("file", 9, mode=mode, stream=stream) as progress:
        progress.reach(3)
        raise ConnectionResetError


def test_a_failure_is_the_last_event_and_no_summary(stream):
    with pytest.raises(ConnectionResetError):
        transfer_that_breaks("json", stream)
    assert json.loads(stream.getvalue())["event"] == "failed"


def test_a_log_gets_no_summary_of_what_failed(stream):
    with pytest.raises(ConnectionResetError):
        transfer_that_breaks("lines", stream)
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar():
    stream = Terminal()
    with Progress("file", stream=stream) as progress:
        progress.reach(50, 100)
        progress.reach(100)
    assert "file: 100%" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[J")  # it clears itself


def test_progress_goes_to_stderr_by_default(capsys, clock):
    with Progress("file", 10, mode="lines", clock=clock) as progress:
        progress.reach(10)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "file: 10 B in 0s\n")


def test_bytes_of_an_earlier_run_count_neither_for_the_rate_nor_for_the_time_left(stream, clock):
    progress = Progress("file", 1000, mode="lines", stream=stream, clock=clock)
    progress.begin_at(860, 1000)
    clock.now += 2
    progress.reach(900)
    assert progress.rate == 20
    assert progress.eta_s == 5
    clock.now += 5
    progress.reach(1000)
    progress.close()
    assert stream.getvalue().endswith("file: 140 B in 7s (860 B from an earlier run)\n")


def test_a_bar_on_a_terminal_without_a_size_is_not_blank(clock, monkeypatch):
    monkeypatch.setattr("os.get_terminal_size", lambda fd: os.terminal_size((0, 0)))
    monkeypatch.setattr(Terminal, "fileno", lambda self: 2)
    stream = Terminal()
    with Progress("model.gguf", 100, stream=stream, clock=clock) as progress:
        progress.reach(50)
    assert "model.gguf" in stream.getvalue()
    assert "50%" in stream.getvalue()


def test_a_slow_step_is_shown_on_a_terminal_until_it_ends():
    terminal = Terminal()
    with show_when_slow("Loading tiny", "reading", stream=terminal, after_s=0.0):
        waiting.until(lambda: terminal.getvalue() == "Loading tiny: reading")
    assert terminal.getvalue() == "Loading tiny: reading\r\x1b[J"


def test_a_step_that_ends_soon_shows_nothing():
    terminal = Terminal()
    with show_when_slow("Loading tiny", "reading", stream=terminal, after_s=3600.0):
        pass
    assert terminal.getvalue() == ""


def test_a_slow_step_that_fails_leaves_no_line():
    terminal = Terminal()

    def fail():
        with show_when_slow("Loading tiny", "reading", stream=terminal, after_s=0.0):
            waiting.until(terminal.getvalue)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert terminal.getvalue().endswith("\r\x1b[J")


class ImmediateTimer:
    """In place of ``threading.Timer``: calls its function when it is started."""

    def __init__(self, after_s, function):
        self._function = function

    def start(self):
        self._function()

    def cancel(self):
        pass


@pytest.mark.parametrize(
    ("mode", "terminal", "is_shown"),
    [
        *((mode, Terminal, False) for mode in ("none", "json", "lines")),
        *((mode, io.StringIO, False) for mode in ("none", "json", "lines", "auto", "bar")),
        ("auto", Terminal, True),
        ("bar", Terminal, True),
    ],
)
def test_a_slow_step_is_shown_only_where_bars_are(mode, terminal, is_shown, monkeypatch):
    monkeypatch.setattr(threading, "Timer", ImmediateTimer)
    where = terminal()
    with show_when_slow("Loading", "reading", mode=mode, stream=where, after_s=0.0):
        assert where.getvalue() == ("Loading: reading" if is_shown else "")
    assert where.getvalue() == ("Loading: reading\r\x1b[J" if is_shown else "")
