"""A hint is pasted into a terminal: every command in one is understood, runs, and helps."""

import ast
import re
import shlex
import shutil
from pathlib import Path

import pytest
from command_lines import check_command
from hints import (
    CLEAN,
    COMMANDS,
    DISTINCT,
    EXTRA,
    FILLED,
    NEED_A_REAL_MODEL,
    NEED_AN_ENGINE,
    RUN_UNTIL_STOPPED,
    SOURCES,
    TEXTS,
    commands,
    filled,
    texts,
    those,
)
from hub_server import HubServer
from tiny_models import tiny_gguf

from bitnet.base import settings
from bitnet.commands import load

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+(?![\w{-])")
VARIABLE = re.compile(r"\b(?:BITNET|HF|HUGGING)_[A-Z_]*[A-Z]\b")
# Options of Invoke itself, and --options, the placeholder in usage lines.
GENERAL = {"--help", "--list", "--list-format", "--config", "--options"}
# Command lines of other programs, and a style sheet: their options are not ours.
OTHER_PROGRAM = re.compile(
    r"\b(?:pip|uv|ensurepip|llama-gguf-split|model_signing) .*|:root\{.*", re.DOTALL
)
# Texts of several words, without pages and without invocation.py, which has options of pip.
SENTENCES = [
    (place, OTHER_PROGRAM.sub("", text))
    for place, text in TEXTS
    if " " in text and not re.search(r"\.html:|^base/invocation\.py:", place)
]


def test_the_collection_is_not_empty():
    """Guard against tests below that would pass without any command."""
    assert len(COMMANDS) > 80
    assert len(DISTINCT) > 30
    assert {path.suffix for path in SOURCES} == {".py", ".cpp", ".hpp", ".html"}


WAYS_TO_WRITE_A_COMMAND = """
raise Error("failed", hint="bitnet first")
hint = f"look at {path}: bitnet second {shell_quote(path)}"
hint = f"{'bitnet third' if it else ''}, or so"
say(_TEXT)
_TEXT = ("in parts: "
         "bitnet fourth")
TABLE = {"key": ["nothing", "bitnet fifth"]}
"""


def test_a_command_is_found_however_it_is_written():
    found = [
        words.split()[0] for _, _, words in commands(texts(ast.parse(WAYS_TO_WRITE_A_COMMAND)))
    ]
    assert sorted(found) == ["fifth", "first", "fourth", "second", "third"]


def test_no_command_is_assembled_from_parts_that_the_collection_cannot_read():
    cut_off = re.compile(r"(?<![\w./-])(?:bitnet|inv) (?:$|%[sd]|\{\})")
    assert [place for place, text in TEXTS if cut_off.search(text)] == []


@pytest.mark.parametrize(("place", "program", "words"), COMMANDS, ids=[c[0] for c in COMMANDS])
def test_a_command_in_a_text_is_one_that_we_understand(place, program, words):
    assert program == "bitnet", "inv works in a checkout only; bitnet is said as it was started"
    meant = filled(words)
    assert not re.search(r"[{}]|\b[A-Z]{2,}\b", meant), f"{meant}: give its words a meaning"
    check_command(meant, load())


@pytest.mark.parametrize(("place", "program", "words"), COMMANDS, ids=[c[0] for c in COMMANDS])
def test_a_path_in_a_command_is_one_word_of_the_shell(place, program, words):
    for written in re.findall(r"\{(.+?)\}", words):
        is_ours = f"{{{written}}}" in "".join(FILLED)
        assert written.startswith("shell_quote(") or is_ours, f"{written} may have blanks in it"


def test_every_option_in_a_text_is_an_option_of_some_command():
    arguments = [entry for name in load().task_names for entry in load()[name].options]
    options = GENERAL | {
        f"--{name.replace('_', '-')}" for entry in arguments for name in entry.names
    }
    options |= {f"--no-{name[2:]}" for name in options}
    mentions = {(place, name) for place, text in SENTENCES for name in OPTION.findall(text)}
    assert len(mentions) > 100
    assert {(place, name) for place, name in mentions if name not in options} == set()


def test_every_environment_variable_in_a_text_is_a_setting():
    variables = {name for setting in settings.ALL for name in setting.names}
    mentions = {(place, name) for place, text in SENTENCES for name in VARIABLE.findall(text)}
    assert len(mentions) > 20
    assert {(place, name) for place, name in mentions if name not in variables} == set()


def test_every_extra_in_a_text_is_one_of_the_package():
    extras = set(re.findall(r"^([\w-]+) = \[", PYPROJECT.read_text(encoding="utf-8"), re.MULTILINE))
    sources = [path.read_text(encoding="utf-8") for path in SOURCES if path.suffix == ".py"]
    named = {name or extra for source in sources for name, extra in EXTRA.findall(source)}
    assert {"serve", "structured", "crossval-ternary"} <= named <= extras
    by_name = [place for place, text in TEXTS if re.search(r"bitnet-xtask\[[a-z]", text)]
    assert by_name == [], "no index has the package: use extra_command"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A working folder with a model that was fetched, on a hub that has what hints fetch."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    template = {"tokenizer.chat_template": "{{ messages[0].content }}"}
    path = tiny_gguf(tmp_path / "models/model.gguf", **template)
    shutil.copyfile(path, tmp_path / "tiny.gguf")
    (tmp_path / "texts.txt").write_text("a\nb\n")
    (tmp_path / "conversation.json").write_text('[{"role": "user", "content": "a"}]')
    with HubServer() as server:
        server.add("org/tiny", "tiny.gguf", path.read_bytes())
        vocab = ", ".join(f'"t{number}": {number}' for number in range(128_256))
        llama3 = f'{{"model": {{"type": "BPE", "vocab": {{{vocab}}}, "merges": []}}}}'.encode()
        server.add("baseten/Meta-Llama-3-tokenizer", "tokenizer.json", llama3)
        server.add("openai-community/gpt2", "tokenizer.json", b"{}")
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("BITNET_GGUF", "models/model.gguf")
        yield server


def test_every_command_in_a_text_that_runs_here_succeeds(bitnet, hub):
    assert bitnet("export-tokenizer", "models/model.gguf", "--into", ".").code == 0
    assert bitnet("attest", "--model", "models/model.gguf", "--output", "a.json").code == 0
    assert bitnet("download-model", "--id", "org/tiny", "--file", "tiny.gguf").code == 0
    elsewhere = those(NEED_A_REAL_MODEL + NEED_AN_ENGINE + RUN_UNTIL_STOPPED)
    # These run after all others, and of them those that remove a single entry first.
    last = sorted(those(CLEAN), key=lambda words: "--key" not in words)
    runnable = [words for words in DISTINCT if words not in elsewhere + last]
    # `ci-init --from` comes first: it records the source for the others.
    runnable.sort(key=lambda words: "--from" not in words)
    assert len(runnable) > 25
    failed = {}
    for words in runnable:
        if (done := bitnet(*shlex.split(words))).code:
            failed[words] = f"{done.code}: {done.err}"
    for words in last:  # without --yes a person is asked
        if (done := bitnet(*shlex.split(words), *[] if "--yes" in words else ["--yes"])).code:
            failed[words] = f"{done.code}: {done.err}"
    assert not failed, "\n".join(f"{words} {said}" for words, said in failed.items())
