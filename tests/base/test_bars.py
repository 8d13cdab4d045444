"""Bars on a terminal: within its width, below the messages, and gone at the end."""

import io
import os
import re
import threading
import time

import pyte
import pytest

from bitnet.base.bars import FREE_COLUMNS, Bars, render
from bitnet.base.columns import cut, width_of
from bitnet.base.progress import Progress


class Shown:
    """A bar whose label, measures and share are given."""

    def __init__(self, label, measures=("  5%", "1.2 MB/s", "7s left"), share=0.05):
        self.label = label
        self._measures = measures
        self._share = share

    def measures(self):
        return self._measures

    def share(self):
        return self._share


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def screen():
    """A stream whose ``lines()`` are those that a terminal of 80 columns shows."""
    picture = pyte.Screen(80, 12)
    reader = pyte.Stream(picture)

    class Screen(Terminal):
        def write(self, text):
            reader.feed(text.replace("\n", "\r\n"))
            return len(text)

    stream = Screen()
    stream.lines = lambda: [line.rstrip() for line in picture.display if line.strip()]
    return stream


LABELS = ("m.gguf", "smollm2-135m", "gemma3-270m 2/4", "model-00001-of-00003.safetensors",
          "org/a-long-name/with-a-folder/model-Q4_K_M-00001-of-00003.gguf")  # fmt: skip


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("columns", range(40, 121))
def test_every_width_shows_percent_and_rate_and_fits(label, columns):
    line = render(Shown(label), columns - FREE_COLUMNS)
    assert len(line) <= columns - FREE_COLUMNS
    assert "  5%" in line
    assert "1.2 MB/s" in line
    assert line.startswith(label[:4])
    # The end of the label is shown, too: its number or its quantization.
    assert cut(label, 12)[-6:].rpartition("…")[2] in line


# Labels with letters that take two columns, or that Latin-1 or ASCII must escape.
WIDE = ("org/モデル-の-名前/日本語-Q4_K_M-00001-of-00003.gguf", "é" * 80, "m.gguf")


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
@pytest.mark.parametrize("label", WIDE)
def test_a_line_fits_in_every_encoding_and_with_wide_letters(label, encoding):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
    for columns in range(40, 121):
        line = render(Shown(label), columns, stream)
        written = line.encode(encoding, "backslashreplace").decode(encoding)
        assert width_of(written) <= columns
        assert "  5%" in written


def test_a_wide_terminal_shows_all_measures_and_a_bar():
    line = render(Shown("m.gguf", share=0.5), 77)
    assert line.startswith("m.gguf:   5%  1.2 MB/s  7s left  [")
    assert abs(line.count("#") - line.count("-")) <= 1  # half of the bar is full
    assert len(line) == 77


def test_a_narrow_terminal_shows_the_whole_name_of_a_model_percent_and_rate(monkeypatch):
    monkeypatch.setattr("os.get_terminal_size", lambda fd: os.terminal_size((40, 24)))
    monkeypatch.setattr(Terminal, "fileno", lambda self: 2, raising=False)
    stream = Terminal()
    with Progress("smollm2-135m", 100, stream=stream) as progress:
        progress.reach(100)
    assert "smollm2-135m: 100%  " in stream.getvalue()
    assert "B/s" in stream.getvalue()
    assert all(len(line) <= 40 for line in stream.getvalue().split("\r"))


def test_a_terminal_without_escape_sequences_gets_lines_instead_of_a_bar(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with Progress("m.gguf", 100, stream=stream) as progress:
        progress.reach(100)
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().startswith("m.gguf: 100 B in ")


def test_a_message_has_a_line_of_its_own_above_the_bars(screen):
    bars = Bars()
    for label in ("one.gguf", "two.gguf"):
        bars.add(Shown(label), screen)
    screen.write("^C")  # as a terminal shows it
    with bars.above(screen):
        screen.write("Warning: it was interrupted\n")
    lines = screen.lines()
    assert lines[0] == "Warning: it was interrupted"
    assert [line.partition(":")[0] for line in lines[1:]] == ["one.gguf", "two.gguf"]
    bars.end()
    assert screen.lines() == ["Warning: it was interrupted"]


def test_removed_bars_disappear_from_the_screen_and_the_others_stay(screen):
    bars = Bars()
    three_bars = [Shown(label) for label in ("one", "two", "three")]
    for bar in three_bars:
        bars.add(bar, screen)
    bars.remove(three_bars[1])
    assert [line.partition(":")[0] for line in screen.lines()] == ["one", "three"]
    bars.refresh()
    assert len(screen.lines()) == 2
    bars.remove(three_bars[0])
    bars.remove(three_bars[2])
    bars.remove(three_bars[2])  # a second time has no effect
    assert screen.lines() == []


def test_after_the_end_of_bars_nothing_more_is_drawn():
    bars = Bars()
    stream = Terminal()
    bar = Shown("one")
    bars.add(bar, stream)
    bars.end()
    before = stream.getvalue()
    bars.refresh()
    bars.remove(bar)
    assert stream.getvalue() == before


def test_bars_and_messages_of_several_threads_never_mix(screen, monkeypatch):
    """Each write lets other threads run in its middle, so those without a lock would mix."""
    bars = Bars()
    every = [Shown(f"file-{number}") for number in range(4)]
    write = screen.write
    written = []

    def write_slowly(text):
        for part in (text[: len(text) // 2], text[len(text) // 2 :]):
            written.append(part)
            write(part)
            time.sleep(0)

    monkeypatch.setattr(screen, "write", write_slowly)

    def work(bar):
        bars.add(bar, screen)
        for number in range(20):
            bars.refresh()
            with bars.above(screen):
                screen.write(f"message {number} about ")
                screen.write(f"{bar.label}\n")
        bars.remove(bar)

    threads = [threading.Thread(target=work, args=(bar,)) for bar in every]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Bars and messages are between the sequences that clear the bars.
    drawn = re.split(r"(?:\x1b\[\dA)?\r\x1b\[J", "".join(written))
    lines = [line for part in drawn for line in part.split("\n") if line]
    messages = [line for line in lines if line.startswith("message")]
    expected = [f"message {n} about {bar.label}" for n in range(20) for bar in every]
    assert sorted(messages) == sorted(expected)
    whole_bars = {render(bar, 80 - FREE_COLUMNS) for bar in every}
    assert {line for line in lines if not line.startswith("message")} == whole_bars
    # The bars are gone; of the 12 lines of the screen they took at most four.
    shown = screen.lines()
    assert len(shown) >= 8
    assert shown == messages[-len(shown) :]


def test_a_closed_terminal_is_not_an_error_for_bars():
    bars = Bars()
    stream = Terminal()
    bars.add(Shown("one"), stream)
    stream.close()
    bars.refresh()
    bars.end()
