"""``run NAME`` in a process of its own: on a terminal, with a prompt, from a pipe."""

import subprocess
import sys

import pytest
from tiny_models import tiny_gguf

pytest.importorskip("pty")
from terminals import OnTerminal

TEMPLATE = "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}assistant."
RUN = [sys.executable, "-m", "bitnet", "run"]


@pytest.fixture
def hub(hub, tmp_path, monkeypatch):
    """A hub with a chat model and one that only continues a text."""
    chats = tiny_gguf(tmp_path / "chats.gguf", **{"tokenizer.chat_template": TEMPLATE})
    hub.add("org/chats", "chats.gguf", chats.read_bytes())
    hub.add("org/base", "base.gguf", tiny_gguf(tmp_path / "base.gguf").read_bytes())
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("BITNET_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    return hub


def on_terminal(folder, *words):
    """``run`` with these words on a terminal, in *folder*."""
    return OnTerminal([*RUN, *words, "--max-tokens", "3"], folder=folder)


def test_on_a_terminal_a_chat_model_is_fetched_and_talks(hub, tmp_path):
    run = on_terminal(tmp_path / "work", "hf:org/chats")
    run.until("> ")
    assert "Fetching org/chats: chats.gguf" in run.shown
    assert run.shown.index("Fetching") < run.shown.index("/help lists commands")
    run.type("a\n")
    run.until("> ", 2)
    run.type("/exit\n")
    assert run.end() == 0
    assert list((tmp_path / "work").iterdir()) == []


def test_on_a_terminal_a_prompt_is_answered_once(hub, tmp_path):
    run = on_terminal(tmp_path / "work", "hf:org/chats", "a")
    assert run.end() == 0
    assert "> " not in run.shown
    assert "/help" not in run.shown


def test_on_a_terminal_a_model_that_cannot_chat_says_so(hub, tmp_path):
    run = on_terminal(tmp_path / "work", "hf:org/base")
    assert run.end() == 2
    assert "no chat template" in run.shown


def test_a_piped_prompt_is_answered_once_and_stdout_has_only_the_answer(hub, tmp_path):
    words = [*RUN, "hf:org/chats", "--max-tokens", "3"]
    done = subprocess.run(
        words, cwd=tmp_path / "work", input="a", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Fetching" in done.stderr
    with_prompt = subprocess.run(
        [*words, "a"], cwd=tmp_path / "work", stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert with_prompt.stdout == done.stdout != ""


def test_the_user_chooses_among_several_models_of_a_repository(hub, tmp_path):
    chats = (tmp_path / "chats.gguf").read_bytes()
    hub.add("org/chats", "chats-Q8_0.gguf", chats + bytes(1000))
    run = on_terminal(tmp_path / "work", "hf:org/chats", "a")
    run.until("which one?")
    assert hub.sent("cdn") == 0
    assert "4.9 MB" in run.shown  # sizes of the files
    run.type("2\n")  # the second in the list
    assert run.end() == 0
    assert "Fetching org/chats: chats.gguf" in run.shown
