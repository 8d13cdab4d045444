"""A pipe where a file belongs ends every command with an error, for every option and side file.

Exit codes: 15 a check failed, 130 interrupted.
"""

import os
import signal

import pytest
from hf_folders import tiny_folder, tokenizer_folder
from tiny_models import TOKENS, tiny_gguf

from bitnet.commands import load
from bitnet.tokenizer.load import TOKENIZER_FILES
from bitnet.tokenizer.side_files import SIDE_FILES

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has none")

PATIENCE_S = 60  # every command below takes a second or two

# The words of a command that reaches each of its files. The test adds the option and the pipe.
WORDS = {
    "attest": "{model} --no-trace",
    "batch": "{model} --input {rows} --output {out} --max-tokens 1",
    "bench": "{model} --tests pp4 --repetitions 1 --thread-counts 1",
    "bundle import": "{model}",
    "cache clean": "--dry-run",
    "chat": "{model}",
    "ci-init": "--dry-run",
    "classify": "{model} --input {texts}",
    "compat-check": "{model}",
    "create": "pirate --from {model}",
    "convert": "{folder} --output {out} --type F16 --allow-lossy",
    "crossval": "{model} --against float64 --max-positions 4 --greedy 2",
    "doctor": "{model}",
    "download": "org/model",
    "download-model": "org/model",
    "embed": "{model} --input {texts} --output {out}",
    "explain-tokenizer": "{model}",
    "export-tokenizer": "{model} --output {out}",
    "fix-gguf": "{model} --set general.name=Mine --output {out}",
    "infer": "{model} --prompt ab --max-tokens 1",
    "inspect-gguf": "{model}",
    "launch": "opencode --model {model}",
    "plan": "{model}",
    "rank": "{model} --query a --input {texts}",
    "render": "{model} --messages {conversation}",
    "run": "{model} ab --max-tokens 1",
    "serve": "{model} --port 0",
    "show": "{model}",
    "tokenize": "{model} ab",
    "tokenizer": "--compare {tokenizer} --against {tokenizer}",
    "verify": "{model}",
    "verify-tokenizer": "{model} --against {model}",
}
# Words in place of those, for options that need other ones or exclude some.
TOGETHER = {
    ("attest", "key"): "{model} --no-trace --bundle {out}",
    ("attest", "tokenizer"): "{model}",
    ("bench", "against"): "{model} --tests pp4 --repetitions 1 --thread-counts 1",
    ("convert", "imatrix"): "{folder} --output {out} --type Q4_K_M --allow-lossy",
    ("crossval", "check"): "",
    ("crossval", "recording"): "{model}",
    ("infer", "prompt_file"): "{model} --max-tokens 1",
    ("launch", "model"): "--agent opencode",
    ("serve", "models"): "--port 0",
    ("serve", "tls_cert"): "{model} --port 0",
    ("serve", "tls_key"): "{model} --port 0 --tls-cert {rows}",
    ("tokenize", "file"): "{model}",
    ("verify", "key"): "{model} --against {bundle}",
}
# Options whose command ends before it reads the file, and why.
BEFORE = {"crossval --lora": "the option is refused", "verify --key": "needs a signed statement"}
#: Options that name an output.
WRITTEN = {"bundle", "output", "record", "report_dir", "skipped_to"}
#: Beginnings of the placeholders of options that name a file or folder.
PLACES = ("FILE", "PATH", "DIR", "MODEL", "[NAME=]PATH", "SOURCE")


def commands(collection):
    """Every command, once."""
    yield from {id(task): task for task in collection.tasks.values()}.values()
    for inner in collection.collections.values():
        yield from commands(inner)


#: Command, option, whether it is positional, and its flag, for each option that names an input.
READ = sorted(
    (task.command_words, option.name, option.positional, f"--{option.long_names[0]}")
    for task in commands(load())
    for option in task.options
    if option.metavar.startswith(PLACES) and option.name not in (*WRITTEN, "cache_dir")
)


@pytest.fixture
def pipe(tmp_path):
    """A pipe without a writer. A command that waits for one is interrupted, and the test fails."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    timeouts = []

    def release(*_):
        timeouts.append(True)
        os.close(os.open(path, os.O_RDWR))
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, release)
    signal.alarm(PATIENCE_S)
    yield path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    assert timeouts == [], "it waits for a pipe"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Files that the commands above read, and the name of a new one."""
    monkeypatch.chdir(tmp_path)
    texts = {
        "rows": '{"id": "1", "prompt": "ab"}\n',
        "texts": "ab\n",
        "conversation": '[{"role": "user", "content": "ab"}]',
        "bundle": '{"dsseEnvelope": 1}',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    model = tiny_gguf(tmp_path / "tiny.gguf")
    folder = tokenizer_folder(tiny_folder(tmp_path / "folder", "llama"), TOKENS)
    tokenizer = folder / "tokenizer.json"
    agent = tmp_path / "bin" / "opencode"
    agent.parent.mkdir()
    agent.write_text("#!/bin/sh\n")
    agent.chmod(0o755)
    monkeypatch.setenv("PATH", f"{agent.parent}:{os.environ['PATH']}")
    return {name: tmp_path / name for name in (*texts, "out")} | {
        "model": model,
        "folder": folder,
        "tokenizer": tokenizer,
    }


def ends_with_an_error(done):
    """True if a command ended with an error of its own, neither internal nor by an interrupt."""
    names_it = "hint:" in done.err or "not a regular file" in done.out
    return names_it and done.code not in (0, 1, 130)


def test_most_commands_read_files():
    assert len(READ) > 60
    assert len({command for command, *_ in READ}) > 25


@pytest.mark.parametrize(
    ("command", "option", "is_positional", "flag"),
    READ,
    ids=[f"{command} {flag}" for command, *_, flag in READ],
)
def test_a_pipe_as_the_value_of_an_option_is_refused(
    bitnet, pipe, files, command, option, is_positional, flag
):
    template = TOGETHER.get((command, option), WORDS.get(command, ""))
    words = [word.format(**files) for word in template.split()]
    value = str(pipe)
    if is_positional and words and not words[0].startswith("-"):
        words[0] = value
    else:
        # Remove the option and its value from the template, if it has them, and append both.
        words = [word for at, word in enumerate(words) if flag not in (word, *words[at - 1 : at])]
        words += [flag, value]
    done = bitnet(*command.split(), *words)
    assert ends_with_an_error(done), (done.code, done.out[-500:], done.err[-500:])
    if f"{command} {flag}" not in BEFORE:
        assert pipe.name in done.out + done.err, "it ended for another reason"


#: Files beside a model that a command may read.
SIDE = sorted({*TOKENIZER_FILES, *SIDE_FILES, "config.json", "merges.txt", "modules.json"})
READERS = ("verify", "attest", "tokenize", "compat-check", "infer", "plan", "explain-tokenizer")


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("name", SIDE)
def test_a_pipe_among_the_files_of_a_model_is_refused(bitnet, pipe, files, command, name):
    (files["folder"] / name).unlink(missing_ok=True)
    (files["folder"] / name).symlink_to(pipe)
    words = [word.format(**files | {"model": files["folder"]}) for word in WORDS[command].split()]
    done = bitnet(command, *words)
    # Not an internal error or an interrupt; commands that need the file end with an error.
    assert done.code not in (1, 130), (done.out, done.err)
    if command in ("verify", "attest"):
        assert ends_with_an_error(done), (done.out, done.err)


@pytest.mark.parametrize("name", ["bitnet.lock.json", "bitnet.toml"])
@pytest.mark.parametrize("command", ["verify {model}", "health --model-dir .", "sync", "models"])
def test_a_pipe_as_a_file_of_the_project_is_refused(bitnet, pipe, files, tmp_path, name, command):
    (tmp_path / name).symlink_to(pipe)
    done = bitnet(*command.format(**files).split())
    assert done.code not in (1, 130), (done.out, done.err)


def test_a_pipe_among_models_fails_alone(bitnet, pipe, files, tmp_path):
    (tmp_path / "a.gguf").symlink_to(pipe)
    done = bitnet("health", "--model-dir", ".")
    assert done.code == 15
    assert "a.gguf: failed: file:" in done.out
    assert "tiny.gguf" in done.out
