"""The command line as a user meets it: help, errors, exit codes, and the same texts everywhere.

Exit codes: 2 wrong usage, 10 no space, 15 a check failed, 16 the model could not be run, 130
interrupted.
"""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path

import pytest
from invoke.collection import Collection

from bitnet import __version__
from bitnet.__main__ import inv
from bitnet.base import errors
from bitnet.base.options import option
from bitnet.commands import add, load
from bitnet.commands.declare import GROUPS, Output, Task, task
from bitnet.commands.program import Program, command_help
from bitnet.server.serve_options import ServeOptions

CHECKOUT = Path(__file__).parents[2]
COMMANDS = load()
EVERY_COMMAND = sorted(COMMANDS.task_names)


@dataclass(frozen=True)
class Sampling:
    top_k: int = option(40, "keep the K most likely tokens")
    temperature: float = option(0.8, "0 is greedy", synonyms=("temp",))


@task()
def say(
    c,
    model=option("", "model file"),
    prompt=option("", "text to continue"),
    max_tokens=option(16, "tokens to generate", synonyms=("max-new-tokens", "n-predict")),
    source=option("mirror", "where from", choices=("mirror", "official")),
    stream=option(True, "print as it comes"),
    stop=option([], "text that ends it; repeat for more"),
    seed: int | None = option(None, "for sampling"),
    sampling=Sampling(),
    output=Output(),
):
    """Print what was understood."""
    print(
        json.dumps(
            [
                *(prompt, max_tokens, source, stream, list(stop), seed),
                *(sampling.top_k, sampling.temperature, output.verbose),
            ]
        )
    )


@task()
def check(c, path=option(None, "a file", positional=True), fail=option("", "how")):
    """Look at a file."""
    if fail == "error":
        raise errors.VocabMismatch("no match", hint="bitnet tokenizer")
    if fail == "bug":
        raise ZeroDivisionError("oops")
    if fail == "interrupt":
        raise KeyboardInterrupt
    if fail == "full":
        raise OSError(28, "No space left on device", "/tmp/x")
    print(path)


@task(required=["name"])
def greet(c, name=option("", "who"), times=option(1, "how often", bounds=(0, 3))):
    """Say hello."""
    print(f"hello {name}, {c.remainder}")


@task(remainder=True)
def rest(c):
    """Print what follows the dashes."""
    print(c.remainder)


@pytest.fixture
def run(capsys):
    """Run a command line of the commands above; its exit code, stdout and stderr."""
    commands = Collection()
    for command in (say, check, greet, rest):
        add(commands, command)

    def run(*words):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            Program(commands, "bitnet").run(["bitnet", *words])
        shown = capsys.readouterr()
        return stopped.value.code, shown.out, shown.err

    return run


def understood(result):
    """The values that ``say`` received, in the order in which it prints them."""
    code, out, err = result
    assert (code, err) == (0, "")
    return json.loads(out)


def test_options_have_their_types_and_defaults(run):
    assert understood(run("say")) == ["", 16, "mirror", True, [], None, 40, 0.8, 0]
    assert understood(
        run("say", "--prompt", "", "--max-tokens=3", "--no-stream", "--seed=-5", "-vv")
    ) == ["", 3, "mirror", False, [], -5, 40, 0.8, 2]


def test_options_of_a_group_arrive_as_one_object(run):
    assert understood(run("say", "--top-k", "5", "--temp", "0.5"))[6:8] == [5, 0.5]


@pytest.mark.parametrize("name", ["--max-tokens", "--max-new-tokens", "--n-predict"])
def test_synonyms_are_one_option(run, name):
    assert understood(run("say", name, "7"))[1] == 7


def test_a_repeated_option_collects_its_values_if_it_is_a_list(run):
    assert understood(run("say", "--stop", "a", "--stop", "b c"))[4] == ["a", "b c"]


@pytest.mark.parametrize("text", ["ünï 漢字 🎉", "two\nlines", "a=b", "--help"])
def test_any_text_is_a_value(run, text):
    assert understood(run("say", f"--prompt={text}"))[0] == text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["say", "--max-tokens", "abc"], "--max-tokens expects a whole number, got 'abc'"),
        (["say", "--max-tokens=1.5"], "--max-tokens expects a whole number, got '1.5'"),
        (["say", "--temperature=warm"], "--temperature expects a number, got 'warm'"),
        (["say", "--temperature=nan"], "--temperature expects a number, got 'nan'"),
        (["say", "--source", "moon"], "--source expects one of mirror, official, got 'moon'"),
        (["say", "--promt", "x"], "say has no option --promt"),
        (["say", "-t"], "say has no option -t"),
        (["say", "--stream", "false"], "--stream takes no value, got 'false'"),
        (["say", "--prompt"], "--prompt needs a value"),
        (["say", "--prompt", "-v"], "--prompt needs a value"),
        (["say", "--prompt", "a", "--prompt", "b"], "--prompt is given twice"),
        (["say", "--max-tokens=6", "--max-tokens=-5"], "--max-tokens is given twice"),
        (["say", "--prompt", "a", "b"], "say: unexpected argument 'b'"),
        (["say", "--", "x"], "say takes nothing after ' -- ', got 'x'"),
        (["sya"], "no command 'sya'"),
        (["--list", "nowhere"], "Sub-collection 'nowhere' not found!"),
        (["--list", "--list-format=x"], "--list-format expects one of flat, nested, json, got 'x'"),
        (["--config=/no-ending", "greet"], "Config files of type ''"),
        (["--bogus"], "no such option: --bogus"),
        (["check"], "check needs PATH"),
        (["check", "--bogus"], "check has no option --bogus"),
        (["check", "a", "b"], "check: unexpected argument 'b'"),
        (["greet"], "greet needs --name"),
        (["greet", "--name", "a", "--times", "-1"], "--times is -1, expected 0 to 3"),
        (["greet", "--name", "a", "--times", "4"], "--times is 4, expected 0 to 3"),
        (["--command-timeout", "abc", "say"], "bad value for a core option"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(run, words, message):
    code, out, err = run(*words)
    assert code == 2
    assert out == ""
    assert err.startswith(f"Error: {message}")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["say", "--promt", "x"], "did you mean --prompt?"),
        (["say", "--max-new-token", "1"], "--max-new-tokens"),
        (["say", "--no-straem"], "--no-stream"),
        (["sya"], "did you mean say?"),
        (["say", "--prompt", "-v"], "--prompt=-value"),
        (["say", "--zzz"], "bitnet say --help"),
        (["say", "--source", "mirror", "mirror"], "say --source mirror --prompt mirror"),
    ],
)
def test_wrong_usage_has_a_hint_to_what_would_have_worked(run, words, hint):
    assert hint in run(*words)[2]


# Without these options the commands remove, trust or skip more.
@pytest.mark.parametrize(
    "words",
    [
        *("cache clean --key", "cache clean --older-than", "cache clean --cache-dir"),
        *("rm x --cache-dir", "cache verify --model", "serve --api-key", "serve --tls-cert"),
        *("verify --model", "verify x --against", "verify x --key", "verify x --tokenizer"),
        *("attest x --key", "compat-check x --tokenizer", "download-model o/r --rev"),
        *("download-model o/r --sha256", "tokenizer --compare", "tokenizer --against"),
        *("verify-tokenizer x --against y --corpus", "crossval --check", "crossval --prompts"),
        "crossval --recording",
    ],
)
def test_an_unset_variable_of_the_shell_is_not_an_option_that_was_left_out(bitnet, words):
    done = bitnet(*words.split(), "")
    name = words.rpartition("--")[2]
    named = "MODEL" if name == "model" else f"--{name}"
    assert (done.code, done.err.splitlines()[0]) == (2, f"Error: {named} is empty")


@pytest.mark.parametrize("words", [["say", "--help"], ["say", "-h"], ["--help", "say"]])
def test_help_is_shown_in_every_form_and_place(run, words):
    code, out, _ = run(*words)
    assert code == 0
    assert "Print what was understood." in out
    assert "--max-tokens=INT, --max-new-tokens=INT, --n-predict=INT" in out
    assert "--[no-]stream" in out
    assert "(default: 16)" in out


@pytest.mark.parametrize(
    "words", [["check", "--help"], ["check", "a", "--help"], ["say", "--prompt", "--help"]]
)
def test_help_wins_over_positional_and_missing_values(run, words):
    code, out, _ = run(*words)
    assert (code, out.splitlines()[0].split()[:2]) == (0, ["Usage:", "bitnet"])


def test_text_after_the_dashes_reaches_a_command_that_wants_it(run):
    assert run("rest", "--", "-k", "x")[1] == "-k x\n"


@pytest.mark.parametrize(
    ("how", "code", "message"),  # the option --fail of `check`, and how the program ends
    [
        ("error", 15, "Error: no match\nhint: bitnet tokenizer\n"),
        ("bug", 1, "Error: internal error: ZeroDivisionError: oops"),
        ("interrupt", 130, "Error: interrupted"),
        ("full", 10, "Error: No space left on device (os error 28): /tmp/x"),
    ],
)
def test_every_failure_ends_in_its_exit_code_without_a_traceback(run, how, code, message):
    got, out, err = run("check", "x", "--fail", how)
    assert (got, out) == (code, "")
    assert err.startswith(message)
    assert "Traceback" not in err


def test_internal_errors_show_their_traceback_on_request(run, monkeypatch):
    monkeypatch.setenv("BITNET_DEBUG", "1")
    assert "Traceback" in run("check", "x", "--fail", "bug")[2]


def test_json_output_carries_the_error_too(bitnet):
    done = bitnet("exit-codes", "--json", "--bogus")
    assert json.loads(done.out)["error"]["exit_code"] == done.code == 2


def test_underscores_in_command_names_work(bitnet):
    assert bitnet("exit_codes", "--json").code == 0


def test_exit_codes_lists_every_error_class(bitnet):
    listed = json.loads(bitnet("exit-codes", "--json").out)
    used = {each.exit_code for each in vars(errors).values() if hasattr(each, "exit_code")}
    assert {str(code) for code in used} | {"0"} == set(listed)


@pytest.mark.parametrize("name", EVERY_COMMAND)
def test_every_command_describes_itself_and_all_its_options(name):
    command = COMMANDS[name]
    assert isinstance(command, Task)
    first = (command.__doc__ or "").strip().splitlines()[0]
    assert first, "the docstring is the help"
    assert len(first) <= 60
    assert re.fullmatch(r"[A-Z].*\.", first)
    for entry in command.options:
        assert entry.help, f"--{entry.names[0]} has no help"
        shorts = [name for name in entry.names if len(name) == 1]
        allowed = {"verbose": ["v"], "max-tokens": ["n"], "file": ["f"]}.get(entry.names[0], [])
        assert set(shorts) <= set(allowed), "no other short flags"
        assert entry.type is not bool or isinstance(entry.default, bool)
        if entry.choices and entry.default:
            assert entry.default in entry.choices


@pytest.mark.parametrize("name", EVERY_COMMAND)
def test_every_command_shows_its_help(bitnet, name):
    done = bitnet(name, "--help")
    assert (done.code, done.err) == (0, "")
    spellings = re.findall(r"^  (-\S.*?)(?:  |$)", done.out, re.MULTILINE)
    shown = re.findall(r"--(?:\[no-\])?([\w-]+)", "\n".join(spellings))
    for entry in COMMANDS[name].options:
        assert entry.positional or entry.names[0] in shown


def test_the_help_of_the_program_has_each_command_once_by_group(bitnet):
    groups = bitnet("--help").out.split("\n\n")
    for name in EVERY_COMMAND:
        command = COMMANDS[name]
        assert command.group in GROUPS
        assert re.search(r"^bitnet \S", command.example, re.MULTILINE)
        listed = rf"^  {command.command_words}(  |$)"
        (group,) = (text for text in groups if re.search(listed, text, re.M))
        assert group.startswith(f"{command.group}:\n")
    assert not any("--prompt-for-sudo" in one for one in groups)


def test_help_names_commands_as_they_are_typed(bitnet):
    shown = bitnet("--help").out
    for typed in ("cache list", "cache verify", "cache clean", "bundle export", "bundle import"):
        assert f"\n  {typed} " in shown
        assert bitnet(*typed.split(), "--help").out.startswith(f"Usage: bitnet {typed} [--opt")
    assert not re.search(r"^  (\w+\.\w+|clean-cache)", shown, re.MULTILINE)
    assert bitnet("clean-cache", "--bogus").err.startswith("Error: cache clean has no option")


def test_every_option_of_a_server_is_in_one_section(bitnet):
    named = [name for names in ServeOptions.SECTIONS.values() for name in names]
    assert sorted(named) == sorted(entry.name for entry in fields(ServeOptions))
    blocks = bitnet("serve", "--help").out.split("\n\n")
    for section, names in ServeOptions.SECTIONS.items():
        (block,) = (one for one in blocks if one.startswith(f"{section}:\n"))
        assert all(f"--{name.replace('_', '-')}" in block for name in names)
    assert not any(block.startswith("Options:") for block in blocks)


@pytest.mark.parametrize("words", [("cache", "--help"), ("help", "cache"), ("cache", "x", "-h")])
def test_a_group_of_commands_has_a_help_of_its_own(bitnet, words):
    done = bitnet(*words)
    assert (done.code, done.err) == (0, "")
    listed = re.findall(r"^  (\w+ \w+) ", done.out, re.MULTILINE)
    assert listed == ["cache clean", "cache list", "cache verify"]


def test_a_command_without_an_example_has_no_heading_for_one():
    @task()
    def lint(c):
        """Check style."""

    assert "Example:" not in [*command_help(lint)]


def _process(*command, cwd):
    """The finished process of *command* in the folder *cwd*."""
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_inv_in_a_checkout_and_bitnet_elsewhere_print_the_same(tmp_path):
    here = [sys.executable, "-m", "invoke"]
    there = [sys.executable, "-m", "bitnet"]
    for words in (["exit-codes"], ["exit-codes", "--bogus"], ["exit-codes", "--help"]):
        inv = _process(*here, *words, cwd=CHECKOUT)
        own = _process(*there, *words, cwd=tmp_path)
        assert inv.returncode == own.returncode
        assert inv.stdout.replace("-m invoke", "-m bitnet") == own.stdout
        assert inv.stderr.replace("-m invoke", "-m bitnet") == own.stderr


def test_inv_lists_every_command_of_bitnet():
    listed = _process(sys.executable, "-m", "invoke", "--list", cwd=CHECKOUT).stdout
    assert {f"  {name} " in listed for name in EVERY_COMMAND} == {True}


def test_version_names_the_backend(bitnet):
    done = bitnet("--version")
    backend = r"(native \(.*\)|numpy)"
    version = r"\d+\.\d+\.\d+"
    assert re.fullmatch(rf"bitnet {version} \({backend}, Python {version}\)\n", done.out)


def test_a_reader_that_leaves_early_is_not_an_error():
    """``head`` closes the pipe after a byte; PIPESTATUS has the exit code of ``bitnet``."""
    done = subprocess.run(
        f"{sys.executable} -m bitnet exit-codes | head -c 1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


#: A device that every write to fails as on a full disk.
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")


def through_a_shell(words, **environment):
    """The finished process of a command line of the shell with ``bitnet`` *words*."""
    return subprocess.run(
        f"{sys.executable} -m bitnet {words}",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


@needs_full
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["exit-codes", "exit-codes --json", "doctor --json --bogus"])
def test_a_full_disk_behind_stdout_is_reported(words, unbuffered):
    done = through_a_shell(f"{words} >/dev/full", PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == (2 if "bogus" in words else 10)
    assert ("option --bogus" if "bogus" in words else "No space left on device") in done.stderr
    assert "Traceback" not in done.stderr


@needs_full
def test_a_full_disk_behind_stderr_keeps_result_and_exit_code():
    done = through_a_shell("exit-codes 2>/dev/full")
    assert (done.returncode, done.stdout) == (0, through_a_shell("exit-codes").stdout)
    assert through_a_shell("exit-codes --bogus 2>/dev/full").returncode == 2


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX")
def test_closed_streams_do_not_change_the_exit_code():
    assert through_a_shell("exit-codes --json >&-").returncode == 0
    done = through_a_shell("exit-codes --bogus <&- 2>&-")
    assert (done.returncode, done.stdout) == (2, "")
    done = through_a_shell("infer --prompt-file - <&-")
    assert (done.returncode, done.stderr[:27]) == (2, "Error: the prompt is empty\n")


def test_ctrl_c_before_there_is_a_command_gives_no_traceback():
    # The import of the commands raises KeyboardInterrupt, as if the key were pressed then.
    code = (
        "import sys\n"
        "class Key:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'bitnet.commands':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Key())\n"
        "from bitnet.__main__ import main\n"
        "main()"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "Error: interrupted\n")


def test_a_terminal_that_knows_ascii_only_gets_ascii_and_no_error(monkeypatch):
    written = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", written)
    Program(COMMANDS, "bitnet").run(["bitnet", "doctor"], exit=False)
    assert b"ok bitnet: " in written.buffer.getvalue()


def test_usage_has_optional_words_in_brackets(run, capsys):
    assert "Usage: bitnet check [--options] PATH\n" in run("check", "--help")[1]
    Program(COMMANDS, "bitnet").run(["bitnet", "doctor", "--help"], exit=False)
    assert "Usage: bitnet doctor [--options] [AREA] [MODEL]\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("door", "another"), [("inv", r"\bbitnet (?!is\b)[a-z-]+"), ("bitnet", r"\binv\b")]
)
def test_help_names_commands_of_the_program_that_was_started_and_not_of_the_other(
    door, another, monkeypatch, capsys
):
    monkeypatch.setattr("sys.argv", [f"/nowhere/{door}"])
    commands = load()
    for name in ["", *commands.task_names]:
        with pytest.raises(SystemExit):
            Program(commands, door).run([door, *filter(None, name.split(".")), "--help"])
        page = capsys.readouterr().out
        assert f"{door} " in page
        assert re.findall(another, page) == []


def test_inv_prints_our_version(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["inv", "--version"])
    with pytest.raises(SystemExit):
        inv()
    assert capsys.readouterr().out.startswith(f"bitnet {__version__} (")


def test_a_command_imports_invoke_without_modules_that_only_its_tests_need():
    code = (
        "import sys\n"
        "from bitnet.__main__ import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as stop:\n"
        "    print(stop.code, *({'asyncio', 'email', 'zipfile'} & sys.modules.keys()))\n"
        # The program has removed the stand-ins with which it imported Invoke.
        "import importlib.metadata\n"
        "import unittest.mock\n"
        "print(unittest.mock.Mock(return_value=5)(), importlib.metadata.version('invoke')[0])\n"
    )
    command = [sys.executable, "-c", code, "exit-codes"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["0", f"5 {version('invoke')[0]}"]
