"""Commands in hints name the program as it was started."""

import ast
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hints import DISTINCT
from tiny_models import tiny_gguf
from traps import lay_traps, trapped

from bitnet.base import invocation

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
# Arguments of a command that fails with a hint: the model is missing.
WRONG = ("infer", "--prompt", "a", "--model", "no-such-file.gguf")


def hint(command, cwd, path):
    """The command in the hint of a program that is started as *command* with *path* as its PATH."""
    done = subprocess.run(
        [*map(str, command), *WRONG],
        cwd=cwd,
        env=os.environ | {"PATH": str(path)},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 19, done.stderr  # not found
    return done.stderr.partition("fetch a model: ")[2].strip()


ARGUMENTS = " download-model smollm2-135m"


@pytest.mark.skipif(os.name == "nt", reason="the programs are scripts")
def test_a_hint_names_the_program_as_it_was_started(tmp_path):
    nowhere = tmp_path / "empty"
    nowhere.mkdir()
    assert hint(["bitnet"], tmp_path, BIN) == f"bitnet{ARGUMENTS}"
    assert hint([BIN / "bitnet"], tmp_path, BIN) == f"bitnet{ARGUMENTS}"
    assert hint([BIN / "bitnet"], tmp_path, nowhere) == f"{BIN}/bitnet{ARGUMENTS}"
    assert hint([BIN / "inv"], ROOT, BIN) == f"inv{ARGUMENTS}"
    assert hint([BIN / "python", "-m", "bitnet"], tmp_path, BIN) == f"python -m bitnet{ARGUMENTS}"
    off_path = f"{BIN}/python -m bitnet{ARGUMENTS}"
    assert hint([BIN / "python", "-m", "bitnet"], tmp_path, nowhere) == off_path


@pytest.mark.skipif(os.name == "nt", reason="the programs are scripts")
def test_a_program_that_is_not_on_the_path_is_named_as_it_was_typed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(sys, "argv", [".venv/bin/inv", "verify"])
    assert invocation.program() == ".venv/bin/inv"
    monkeypatch.setattr(sys, "argv", ["my tools/bitnet", "verify"])
    assert invocation.as_started("bitnet verify --model A") == "'my tools/bitnet' verify --model A"


def test_a_program_is_named_by_its_path_if_another_of_its_name_is_on_the_path(
    monkeypatch, tmp_path
):
    (tmp_path / "bitnet").write_text("#!/bin/sh\n")
    (tmp_path / "bitnet").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["/elsewhere/bitnet", "verify"])
    assert shutil.which("bitnet") == str(tmp_path / "bitnet")
    assert invocation.program() == "/elsewhere/bitnet"


# Ways to start bitnet: sys.argv, and the program that hints name.
DOORS = {
    "bitnet": (["/here/bin/bitnet"], "/here/bin/bitnet"),
    "inv": (["/here/bin/inv"], "/here/bin/inv"),
    "module": (["/site/bitnet/__main__.py"], "/here/python -m bitnet"),
    "blanks": (["/my tools/bitnet"], "'/my tools/bitnet'"),
}


@pytest.mark.parametrize("door", DOORS)
def test_naming_the_program_in_a_hint_twice_changes_nothing_more(door, monkeypatch, tmp_path):
    argv, program = DOORS[door]
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", ["/here/python", "-m", "bitnet"])
    assert len(DISTINCT) > 30  # commands in hints of the source code
    for words in DISTINCT:
        text = f"look closer: bitnet {words}"
        once = invocation.as_started(text)
        assert once == f"look closer: {program} {words}"
        assert invocation.as_started(once) == once


@pytest.mark.skipif(os.name == "nt", reason="the programs are scripts")
@pytest.mark.parametrize("command", [["bitnet"], ["inv"], ["python", "-m", "bitnet"]], ids=" ".join)
def test_the_hint_below_a_finding_and_at_the_end_of_a_report_name_the_same_program(
    command, tmp_path
):
    model = tiny_gguf(tmp_path / "tiny.gguf")
    # The last weight is not a number, which `verify` reports.
    model.write_bytes(model.read_bytes()[:-4] + struct.pack("<f", float("nan")))
    done = subprocess.run(
        [BIN / command[0], *command[1:], "verify", model],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    program = " ".join(command)
    expected = f"compare with another engine: {program} crossval {model}, or fetch it again"
    assert f"\n  {expected}\n" in done.stdout
    assert f"\nhint: {expected}\n" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "a file in models/bitnet is not a command",
        "update bitnet, or write the file again",
        "architecture bitnet-b1.58",
        "/home/me/bitnet verify",
    ],
)
def test_the_word_bitnet_outside_of_a_command_is_not_replaced(monkeypatch, text):
    monkeypatch.setattr(sys, "argv", ["inv"])
    assert invocation.as_started(text) == text


def test_every_command_in_a_text_names_the_program(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["inv"])
    text = "free some: bitnet clean-cache, or look (bitnet cache.list); see `bitnet --list`"
    assert invocation.as_started(text) == text.replace("bitnet", "inv")


def test_a_path_is_one_word_of_a_shell():
    assert invocation.shell_quote(Path("my models/a.gguf")) == "'my models/a.gguf'"
    assert invocation.shell_quote("a.gguf") == "a.gguf"


REQUEST = {
    "engine": "transformers",
    "model": "none",
    "threads": 1,
    "arithmetic": "float32",
    "causal": True,
    "headless": False,
}
# Modules that run in processes of their own: arguments, and standard input.
CHILDREN = {
    "pip": (("config", "list"), ""),
    "bitnet.crossval.reference_process": (
        ("answer.json",),
        json.dumps(REQUEST | {"prompts": [], "steps": [], "texts": []}),
    ),
}


@pytest.mark.parametrize("module", CHILDREN)
def test_a_child_imports_nothing_from_the_folder_in_which_it_runs(module, tmp_path, monkeypatch):
    lay_traps(tmp_path)
    words, request = CHILDREN[module]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # the working folder, which isolate must leave out
    done = subprocess.run(
        invocation.isolate(module, *words), input=request, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not trapped(tmp_path)


def test_the_traps_catch_a_child_that_is_not_isolated(tmp_path):
    lay_traps(tmp_path)
    subprocess.run([sys.executable, "-m", "pip", "--version"], cwd=tmp_path, capture_output=True)
    assert trapped(tmp_path)


def test_no_code_starts_a_python_that_is_not_isolated():
    for path in sorted((ROOT / "bitnet").rglob("*.py")):
        lists = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.List)]
        # A command line begins with the interpreter, and then -I isolates it.
        heads = [[*map(ast.unparse, node.elts[:2])] for node in lists]
        starts = [head for head in heads if head and head[0] == "sys.executable"]
        assert all(head[1:] == ["'-I'"] for head in starts), f"{path}: use invocation.isolate"
