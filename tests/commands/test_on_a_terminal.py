"""Commands on terminals of 60 to 120 columns; a pipe gets none of their decoration."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import tiny_gguf

pytest.importorskip("pty")
from terminals import OnTerminal

BITNET = [Path(sys.executable).parent / "bitnet"]
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
DIGEST = re.compile(r"[0-9a-f]{64}")
TEMPLATE = "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}assistant."
SIZES = [(80, 24), (120, 40)]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a chat model, and a cache in which its tokenizer lies compiled."""
    monkeypatch.setenv("BITNET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{BITNET[0].parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("NO_COLOR", raising=False)
    tiny_gguf(tmp_path / "chats.gguf", **{"tokenizer.chat_template": TEMPLATE})
    subprocess.run([*BITNET, "tokenize", "chats.gguf", "a"], cwd=tmp_path, check=True)
    return tmp_path


def shown(place, *words, columns=80, lines=24, **environment):
    """Everything on the terminal of a command that ends with 0."""
    run = OnTerminal([*BITNET, *words], folder=place, columns=columns, lines=lines, **environment)
    assert run.end() == 0, run.shown
    return run.shown


@pytest.mark.parametrize(("columns", "lines"), SIZES)
@pytest.mark.parametrize("words", ["models", "cache list", "--help", "infer --help"])
def test_nothing_is_wider_than_the_terminal(place, words, columns, lines):
    text = ESCAPE.sub("", shown(place, *words.split(), columns=columns, lines=lines))
    # Paths are written whole.
    paths = re.compile(rf".* in {re.escape(str(place))}|\s+{re.escape(str(place))}\S+$")
    lines = [line for line in text.splitlines() if not paths.match(line)]
    # The width is used, and not exceeded.
    assert 40 < max(map(len, lines)) <= columns


def test_names_are_never_cut_at_60_columns(hub, place):
    name = "org/a-model-with-a-very-long-name-as-they-are-usual-today"
    revision = "a" * 64
    content = tiny_gguf(place / "made.gguf").read_bytes()
    file = "a-model-with-a-very-long-name-as-they-are-usual-today-Q4_K_M.gguf"
    hub.add(name, file, content)
    hub.repos[name].revisions[revision] = hub.repos[name].revisions["main"]
    ref = f"hf:{name}@{revision}:{file}"
    environment = {**os.environ, "HF_ENDPOINT": hub.url}
    words = [*BITNET, "run", ref, "a", "--max-tokens", "1"]
    subprocess.run(words, cwd=place, env=environment, check=True, capture_output=True)
    listed = ESCAPE.sub("", shown(place, "models", columns=60)).splitlines()
    words = {word for line in listed for word in line.split()}
    assert {ref, "smollm2-135m", "bitnet-tiny"} <= words
    cached = ESCAPE.sub("", shown(place, "cache", "list", columns=60)).splitlines()
    assert {f"hf:{name}@{revision}", file} <= {word for line in cached for word in line.split()}


@pytest.mark.parametrize("words", [("models",), ("cache", "list")])
def test_a_heading_is_bold_unless_the_environment_says_no(place, words):
    assert "\x1b[1m" in shown(place, *words)
    assert "\x1b" not in shown(place, *words, NO_COLOR="1")
    assert "\x1b" not in shown(place, *words, TERM="dumb")


@pytest.mark.parametrize("words", [("models",), ("cache", "list"), ("cache", "list", "--json")])
def test_a_pipe_gets_everything_and_no_escapes(place, words):
    done = subprocess.run([*BITNET, *words], cwd=place, capture_output=True, check=True)
    assert b"\x1b" not in done.stdout + done.stderr
    assert "…/" not in done.stdout.decode()


def test_a_digest_is_short_in_the_table_and_whole_as_json(place):
    as_text = ESCAPE.sub("", shown(place, "cache", "list"))
    assert "last used" in as_text
    assert DIGEST.search(as_text) is None
    assert DIGEST.search(shown(place, "cache", "list", "--json"))


def test_a_single_file_is_counted_in_the_singular(place):
    assert "would remove 1 file," in shown(place, "cache", "clean", "--dry-run")


def test_infer_with_a_chat_model_suggests_the_option_chat(place):
    words = ("infer", "chats.gguf", "--prompt", "a", "--max-tokens", "1")
    assert "--chat" in shown(place, *words)
    assert "Note: this model" not in shown(place, *words, "--chat")
    assert "Note: this model" not in shown(place, *words, "--json")


def test_steps_of_a_measurement_share_a_line_that_is_erased_at_the_end(place):
    words = ("bench", "chats.gguf", "--tests", "pp4", "--repetitions", "2", "--thread-counts", "1")
    text = shown(place, *words)
    # ESC [K erases the rest of a line; the return before it leads to its beginning.
    assert "\rwarm-up\x1b[K" in text
    assert "\r\x1b[K" in text
    assert not re.search(r"warm-up[^\r]*\n", text)
