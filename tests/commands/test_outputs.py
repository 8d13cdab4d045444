"""Every option that names an output: it replaces neither a model nor a file of the user's.

Exit codes: 2 wrong usage, 15 a check failed.
"""

import ast
import os
from pathlib import Path

import pytest
from tiny_models import tiny_gguf

import bitnet as package
from bitnet.base.errors import UsageError
from bitnet.base.outputs import OutputFile
from bitnet.commands import load
from bitnet.commands.generate import _save
from bitnet.commands.models import NAMES
from bitnet.runtime.dialog import Conversation
from bitnet.runtime.request import Request

COMMANDS = Path(package.__file__).parent / "commands"

# Options that name a file to write, with a command line that reaches the writer. {output} is what
# the test tries; {model}, {texts} and {rows} are inputs.
FILES = {
    ("attest", "output"): "attest {model} --no-trace --output {output}",
    ("attest", "bundle"): "attest {model} --no-trace --bundle {output}",
    ("batch", "output"): "batch {model} --input {rows} --output {output} --max-tokens 1",
    ("bundle export", "output"): "bundle export --output {output}",
    ("convert", "output"): "convert {model} --output {output} --type F16 --allow-lossy",
    ("crossval", "record"): "crossval {model} --against float64 --greedy 1 --max-positions 2 "
    "--record {output}",
    ("embed", "output"): "embed {model} --input {texts} --output {output}",
    ("fix-gguf", "output"): "fix-gguf {model} --set general.name=x --output {output}",
    ("sync", "skipped_to"): "sync --skip-gated --skipped-to {output}",
}
# Options that name a folder to write into, and the files that the command puts there.
FOLDERS = {
    ("crossval", "report_dir"): ("report.json", "report.md", "report.html"),
    ("export-tokenizer", "output"): ("tokenizer.json", "tokenizer_config.json"),
}
# What writes into a folder through the store, which places only files that it has verified.
PLACES = {
    ("ci-init", "project"), ("bundle import", "project"), ("download", "output"),
    ("download-model", "output"), ("tokenizer", "output"),
}  # fmt: skip
# Options that name something to read.
INPUTS = {
    "adapters", "against", "cache_dir", "chat_template", "check", "compare", "corpus",
    "draft_model", "file", "grammar", "imatrix", "input", "json_schema", "key", "lora", "messages",
    "model", "model_dir", "models", "prompt_cache", "prompt_file", "prompts", "recording",
    "tls_cert", "tls_key", "tokenizer", "tools",
}  # fmt: skip
#: Options whose file --force replaces.
FORCED = {("attest", "output"), ("attest", "bundle"), ("embed", "output"), ("crossval", "record")}
#: Methods and functions that write a file, or open one to write.
WRITERS = {
    "append_history_file", "copy", "copy2", "copyfile", "copyfileobj", "copytree", "dump", "fdopen",
    "hardlink_to", "link", "mkstemp", "move", "NamedTemporaryFile", "open", "rename",
    "replace_file", "save", "savez", "symlink", "symlink_to", "touch", "truncate", "write",
    "write_bytes", "write_history_file", "write_text", "writelines",
}  # fmt: skip
_OUTPUT = "an OutputFile"
#: Every such call of a command, and why it is allowed.
WRITES = {
    ("bulk.py", "files.write"): "a row for BatchFiles, which refuses a file of anything else",
    ("bulk.py", "output.write"): _OUTPUT,
    ("cache.py", "Attestation.parse(text, path.name).write"): "only if the file is not there",
    ("cache.py", "GGUF.open"): "opens a model to read it",
    ("check.py", "document.write_text"): _OUTPUT,
    ("check.py", "signed.write_text"): _OUTPUT,
    ("context.py", "path.touch"): "the history of typed lines; a file for an editor",
    ("context.py", "readline.append_history_file"): "the history of typed lines",
    ("context.py", "readline.write_history_file"): "the history of typed lines",
    ("convert.py", "plan.write"): "writes through OutputFile",
    ("crossval.py", "out.write"): "the summary of a job of GitHub Actions",
    ("crossval.py", "record[0].write_text"): _OUTPUT,
    ("crossval.py", "report.write"): "writes each of its documents to an OutputFile",
    ("crossval.py", "summary.open"): "appends to the summary of a job of GitHub Actions",
    ("generate.py", "output.write_text"): _OUTPUT,
    ("generate.py", "write"): "writes to stdout",
    ("launch.py", "log.open"): "a server's log in a temporary folder",
    ("launch.py", "path.write_text"): "files of an agent's setup, in a folder that is new",
    ("models.py", "listing.write_text"): _OUTPUT,
    ("presets.py", "OutputFile(path, _FILE, option='BITNET_PRESETS').write_text"): _OUTPUT,
}


def path_options():
    """Every option of every command whose value may be a path: command, name, whether it writes."""
    commands = load()
    for name in commands.task_names:
        command = commands[name]
        for option in command.options:
            if any(kind in option.placeholder for kind in ("FILE", "DIR", "PATH")):
                yield command.command_words, option.name, option.writes


def test_every_option_that_names_a_path_is_known_as_input_or_output():
    for command, name, writes in path_options():
        is_output = (command, name) in {*FILES, *FOLDERS}
        assert writes == is_output, (command, name)
        is_known = is_output or (command, name) in PLACES or name in INPUTS
        is_known = is_known or (command, name) == ("ci-lint", "project")
        assert is_known, f"is `{command} --{name}` read or written? add it here"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working folder with a model and inputs, and without a lock file."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    tiny_gguf(folder / "model.gguf", **{"tokenizer.chat_template": "{{ messages[0].content }}"})
    (folder / "rows.jsonl").write_text('{"prompt": "ab"}\n')
    (folder / "texts.txt").write_text("ab\n")
    return folder


def words(case, output):
    """Words of the command line in FILES for *case*, with the file *output*."""
    names = {"model": "model.gguf", "texts": "texts.txt", "rows": "rows.jsonl", "output": output}
    return FILES[case].format(**names).split()


def suffix(case):
    """Suffix that a file needs for the command of *case*."""
    return ".npy" if case[0] == "embed" else ""


@pytest.mark.parametrize("case", FILES, ids=" --".join)
@pytest.mark.parametrize("way", ["itself", "hard link", "symbolic link"])
def test_the_model_is_never_replaced(case, way, place, bitnet):
    model = place / "model.gguf"
    output = place / "model.gguf"
    before = model.read_bytes()
    if way != "itself":
        output = place / f"other{suffix(case)}"
        (os.link if way == "hard link" else os.symlink)(model, output)
    force = ["--force"] if case in FORCED else []
    for more in ([], force):
        done = bitnet(*words(case, output.name), *more)
        assert done.code != 0, done.out
        assert "Traceback" not in done.err
        assert model.read_bytes() == before
        assert output.samefile(model)


@pytest.mark.parametrize("case", FILES, ids=" --".join)
@pytest.mark.parametrize(
    "content",
    [b"my notes\n", b'{"name": "a document of mine"}\n', b'{"a": 1}', b"no newline", b"\n", b"[1]"],
)
def test_a_file_of_the_users_is_never_replaced(case, content, place, bitnet):
    output = place / f"mine{suffix(case)}"
    output.write_bytes(content)
    done = bitnet(*words(case, output.name))
    # These two fail before: the folder pins nothing.
    assert done.code == 2 or case[0] in ("sync", "bundle export"), done.err
    assert done.code != 0
    assert output.read_bytes() == content
    assert sorted(path.name for path in place.iterdir()) == sorted(
        ["model.gguf", "rows.jsonl", "texts.txt", output.name]
    )


@pytest.mark.parametrize("case", sorted(FORCED), ids=" --".join)
def test_force_replaces_a_file_of_the_users_and_a_second_run_needs_no_force(case, place, bitnet):
    """A second run finds its own output. 15: a random model need not pass a comparison."""
    output = place / f"mine{suffix(case)}"
    output.write_text("my notes\n")
    assert bitnet(*words(case, output.name), "--force").code in (0, 15)
    first = output.read_bytes()
    assert first != b"my notes\n"
    assert bitnet(*words(case, output.name)).code in (0, 15)


def test_a_report_replaces_a_report_and_no_other_page(place, bitnet):
    line = "crossval model.gguf --against float64 --greedy 1 --max-positions 2 --report-dir"
    folder = place / "reports"
    assert bitnet(*line.split(), folder).code in (0, 15)
    assert bitnet(*line.split(), folder).code in (0, 15)
    for name in FOLDERS["crossval", "report_dir"]:
        report = (folder / name).read_bytes()
        (folder / name).write_text("<html>mine</html>")
        others = {path.name: path.read_bytes() for path in folder.iterdir()}
        done = bitnet(*line.split(), folder)
        assert (done.code, {path.name: path.read_bytes() for path in folder.iterdir()}) == (
            2,
            others,
        )
        (folder / name).write_bytes(report)


def test_a_report_never_replaces_the_model_under_its_name(place, bitnet):
    (place / "reports").mkdir()
    for name in FOLDERS["crossval", "report_dir"]:
        os.link(place / "model.gguf", place / "reports" / name)
        done = bitnet("crossval", "model.gguf", "--report-dir", "reports", "--force")
        assert (done.code, "is an input" in done.err) == (2, True), done.err
        (place / "reports" / name).unlink()


def test_a_tokenizer_is_not_exported_over_itself(place, bitnet):
    assert bitnet("export-tokenizer", "model.gguf", "--output", "out").code == 0
    before = {path.name: path.read_bytes() for path in (place / "out").iterdir()}
    for source in ("out", "out/tokenizer.json"):
        done = bitnet("export-tokenizer", source, "--output", "out", "--force")
        assert (done.code, "is an input" in done.err) == (2, True), done.err
    assert {path.name: path.read_bytes() for path in (place / "out").iterdir()} == before


def test_an_input_file_is_not_the_output(place, bitnet):
    os.link(place / "rows.jsonl", place / "same.jsonl")
    for name in ("rows.jsonl", "same.jsonl"):
        done = bitnet("batch", "model.gguf", "--input", "rows.jsonl", "--output", name)
        assert (done.code, "is an input of this command" in done.err) == (2, True)
    line = "crossval model.gguf --against float64 --greedy 1 --max-positions 2 --record trace.json"
    assert bitnet(*line.split()).code in (0, 15)
    before = (place / "trace.json").read_bytes()
    again = "crossval model.gguf --recording trace.json --record trace.json"
    assert bitnet(*again.split()).code == 2
    assert (place / "trace.json").read_bytes() == before


def test_a_conversation_is_saved_over_a_conversation_only(place):
    model = package.load("model.gguf")
    with model:
        talk = Conversation(model, Request())
        _save(talk, place / "talk.json")
        _save(talk, place / "talk.json")
        (place / "notes.json").write_text('{"mine": 1}')
        for name in ("model.gguf", "notes.json"):
            before = (place / name).read_bytes()
            with pytest.raises(package.UsageError, match="is not overwritten"):
                _save(talk, place / name)
            assert (place / name).read_bytes() == before


def calls_that_write(tree):
    """Calls in *tree*, a parsed module, that could write a file: ``path.open`` for each."""
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute):
            name = node.func.attr
            modes = node.args
        elif isinstance(node.func, ast.Name) and node.func.id in {"open", *imported}:
            name = node.func.id
            modes = node.args[1:]  # behind the path
        else:
            continue
        if name == "open":
            # A mode that is not a text here could be any.
            modes = [*modes, *(word.value for word in node.keywords if word.arg in ("mode", None))]
            texts = [str(mode.value) if isinstance(mode, ast.Constant) else "w" for mode in modes]
            if not any(set("wax+") & set(text) for text in texts):
                continue
        if name in WRITERS:
            yield ast.unparse(node.func)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("path.write_text('a')", ["path.write_text"]),
        ("open(path, 'w')", ["open"]),
        ("open(path, mode='ab')", ["open"]),
        ("path.open(mode='x')", ["path.open"]),
        ("path.open('r+')", ["path.open"]),
        ("path.open(mode)", ["path.open"]),
        ("path.open(**options)", ["path.open"]),
        ("from shutil import copyfile as copy\ncopy(a, b)", ["copy"]),
        ("open('wax')", []),
        ("open(path)", []),
        ("path.open('rb', encoding=None)", []),
        ("write(piece)", []),  # defined in the module itself
    ],
)
def test_a_call_that_could_write_a_file_is_found(line, found):
    assert list(calls_that_write(ast.parse(line))) == found


def test_no_command_writes_a_file_except_through_outputfile():
    """Every call that could write a file is in the table, and every entry there is such a call."""
    found = set()
    for path in sorted(COMMANDS.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found |= {(path.name, call) for call in calls_that_write(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "bitnet.base.files":
                assert not {alias.name for alias in node.names} & {"write_text", "write_bytes"}
    assert found == WRITES.keys()


def test_a_list_of_skipped_files_is_replaced_whatever_their_names_are(tmp_path):
    """A repository may have a file with a space in its name."""
    path = tmp_path / "skipped.txt"
    path.write_text("org/tiny/model card.md\norg/tiny/folder/model.gguf\n")
    OutputFile(path, NAMES).check()
    path.write_text("some notes of mine\n")
    with pytest.raises(UsageError, match="not overwritten"):
        OutputFile(path, NAMES).check()
