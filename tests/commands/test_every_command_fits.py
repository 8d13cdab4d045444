"""Each command on terminals of 80 and 120 columns: no table is wider, and no digest is whole.

Exit codes: 15 a check failed, 19 not found, 22 no reference engine.
"""

import os
import re
import sys
from pathlib import Path

import pytest
from hub_server import HubServer
from tiny_models import tiny_gguf
from traps import lay_traps, trapped

from bitnet.commands import load

pytest.importorskip("pty")
from terminals import OnTerminal

BITNET = Path(sys.executable).parent / "bitnet"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
STYLE = re.compile(r"\x1b\[([0-9;]*)m")
DIGEST = re.compile(r"[0-9a-f]{64}")

# Words of each command, in this order: some need files that earlier ones wrote.
COMMANDS = {
    "download": "org/a-model-with-a-long-name tiny.gguf",
    "download-model": "org/a-model-with-a-long-name --file tiny.gguf",
    "sync": "",
    "models": "",
    "search": "a-model",
    "plan": "tiny.gguf",
    "show": "tiny.gguf",
    "create": "preset-{columns} --from tiny.gguf --system a",
    "run": "tiny.gguf ab --max-tokens 2",
    "infer": "tiny.gguf --prompt ab --max-tokens 2 --stats --dump-ids",
    "batch": "tiny.gguf --input prompts.jsonl --output answers.jsonl --max-tokens 2",
    "bench": "tiny.gguf --tests pp4 --repetitions 1 --thread-counts 1",
    "embed": "tiny.gguf --input texts.txt --output vectors.npy",
    "inspect-gguf": "tiny.gguf",
    "fix-gguf": "tiny.gguf --set general.name=Mine --output fixed-{columns}.gguf",
    "convert": "tiny.gguf --output converted-{columns}.gguf --type F16 --allow-lossy",
    "render": "tiny.gguf --messages conversation.json",
    "tokenize": "tiny.gguf abc --pieces",
    "export-tokenizer": "tiny.gguf --output exported-{columns}",
    "verify-tokenizer": "exported-{columns}/tokenizer.json --against tiny.gguf",
    "tokenizer": "--compare exported-{columns}/tokenizer.json "
    "--against exported-{columns}/tokenizer.json",
    "compat-check": "tiny.gguf",
    "explain-tokenizer": "tiny.gguf",
    "pre-download-tokenizers": "--model-dir .",
    "verify": "tiny.gguf",
    "health": "--model-dir models",
    "crossval": "tiny.gguf --against float64 --max-positions 4 --greedy 2",
    "bundle export": "--output bundle-{columns}.tar",
    "bundle import": "bundle-{columns}.tar",
    "cache list": "",
    "cache verify": "",
    "cache clean": "--dry-run",
    "doctor": "",
    "exit-codes": "",
    "ci-init": "--dry-run --from git+https://example.org/me/it@" + "0" * 40,
    "ci-lint": "--project .",
}
# Commands that are not run here, and why, or the file that tests them.
NOT_HERE = {
    "chat": "a conversation: test_chat_task.py and test_run_on_a_terminal.py",
    "launch": "its lines are variables and a command to copy: test_launch.py",
    "serve": "its lines are events: tests/server",
    "completion": "prints a script for a shell",
    "attest": "prints a document, whose content is digests",
    "rank": "needs a model with a head for scores: test_score_tasks.py",
    "classify": "as rank",
    "rm": "its lines are those of `cache clean`: tests/hub/test_removal.py",
}
# Allowed exit codes other than 0: the tiny model fails checks, linters or engines may be missing.
ENDS_WITH = {"ci-lint": (0, 15, 19), "verify": (0, 15), "health": (0, 15), "crossval": (0, 15, 22)}


@pytest.fixture(scope="module", params=[80, pytest.param(120, marks=pytest.mark.slow)])
def shown(request, tmp_path_factory):
    """Output of each command on a terminal of so many columns, in a folder full of traps."""
    columns = request.param
    place = tmp_path_factory.mktemp("place")
    lay_traps(place)
    tiny_gguf(place / "tiny.gguf", **{"tokenizer.chat_template": "{{ messages[0].content }}"})
    (place / "prompts.jsonl").write_text('{"prompt": "ab"}\n')
    (place / "texts.txt").write_text("ab\n")
    (place / "conversation.json").write_text('[{"role": "user", "content": "ab"}]')
    outputs = {}
    with HubServer() as hub:
        hub.add("org/a-model-with-a-long-name", "tiny.gguf", (place / "tiny.gguf").read_bytes())
        environment = {"BITNET_CACHE_DIR": str(place / "cache"), "HF_ENDPOINT": hub.url}
        environment["BITNET_PRESETS"] = str(place / "presets.toml")
        for name, words in COMMANDS.items():
            words = [*name.split(), *words.format(columns=columns).split()]
            run = OnTerminal([BITNET, *words], folder=place, columns=columns, **environment)
            assert run.end() in ENDS_WITH.get(name, (0,)), run.shown
            outputs[name] = run.shown
            assert not trapped(place), f"{name} imports from the folder in which it runs"
    return columns, outputs


def test_every_command_is_run_here_or_listed_with_the_reason_why_not():
    commands = load()
    typed = {commands[name].command_words for name in commands.task_names}
    assert typed == {*COMMANDS, *NOT_HERE}


#: Commands that print a table.
TABLES = ["models", "bench", "cache list", "inspect-gguf", "tokenize"]


@pytest.mark.parametrize("name", TABLES)
def test_no_table_is_wider_than_the_terminal_except_for_a_long_name(shown, name):
    columns, outputs = shown
    # A table begins with its bold heading and ends before an empty line.
    rows = outputs[name].partition("\x1b[1m")[2].partition("\r\n\r\n")[0]
    for line in re.split(r"\r?\n|\r", ESCAPE.sub("", rows)):
        is_name = name in ("models", "cache list") and "a-model-with-a-long-name" in line
        assert len(line) <= columns or is_name, line


def test_no_digest_is_shown_whole(shown):
    for name, text in shown[1].items():
        assert DIGEST.search(ESCAPE.sub("", text)) is None, f"{name}: {text}"


def test_output_is_styled_in_bold_and_without_colours(shown):
    styles = {name: set(STYLE.findall(text)) for name, text in shown[1].items()}
    # Only reset ("" and 0) and bold (1) are used, which have no colour.
    assert {name: used for name, used in styles.items() if used - {"", "0", "1"}} == {}
    assert "1" in styles["models"]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_a_bold_heading(shown, name):
    assert "\x1b[1m" in shown[1][name]


def test_a_noun_after_the_number_1_is_singular(shown):
    wrong = re.compile(r"(?<![\d,.])1 (?:files|tensors|models|threads|weights|tokens|checks)\b")
    for name, text in shown[1].items():
        assert wrong.search(text) is None, f"{name}: {text}"


@pytest.mark.parametrize("words", [["models"], ["models", "--help"]], ids=["models", "help"])
def test_models_and_its_help_fit_forty_columns(words, tmp_path):
    # The program is started by its name: help shows how, and a long path is not cut.
    by_name = os.pathsep.join([str(BITNET.parent), os.environ["PATH"]])
    environment = {"BITNET_CACHE_DIR": str(tmp_path / "cache"), "PATH": by_name}
    run = OnTerminal(["bitnet", *words], folder=tmp_path, columns=40, **environment)
    assert run.end() == 0
    for line in re.split(r"\r?\n|\r", ESCAPE.sub("", run.shown)):
        assert len(line) <= 40, line


def test_eighty_columns_cut_no_path_of_the_cache(tmp_path):
    cache = tmp_path / "a cache folder whose name is long, with blanks"
    path = cache / "tokenizers/some-tokenizer-with-a-long-name/tokenizer.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    run = OnTerminal([BITNET, "cache", "list"], folder=tmp_path, BITNET_CACHE_DIR=str(cache))
    assert run.end() == 0
    assert str(path) in re.sub(r"\r?\n", "\n", run.shown)


def test_verify_breaks_its_sentences_at_spaces(tmp_path):
    run = OnTerminal([BITNET, "verify", "bitnet-tiny"], folder=tmp_path, columns=60)
    assert run.end() == 0
    lines = re.split(r"\r?\n", ESCAPE.sub("", run.shown))
    # Lines of checks, and their further lines, except those with commands, which are not broken.
    checks = [line for line in lines if re.match(r"[✓!·✗-] |  \S", line) and "bitnet " not in line]
    assert len(checks) > 10
    assert all(len(line) <= 60 for line in checks)
