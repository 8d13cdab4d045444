"""A hint is pasted into a terminal: every command in one is understood, runs, and helps.

A command in a text begins with ``bitnet`` and ends with the text, or before a comma, a semicolon, a
bracket or a redirection.
"""

import ast
import re
import shlex
import shutil
from pathlib import Path

import pytest
from hub_server import HubServer
from tiny_models import tiny_gguf

import bitnet as package
from bitnet.cli import Program
from bitnet.tasks import load

ROOT = Path(package.__file__).parent
COMMAND = re.compile(
    r"(?<![\w./-])(?P<program>bitnet|inv) (?P<words>(?:[a-z]|--)(?:\{[^{}]*\}|[^;,()>`\n])*)"
)
# Sentences that speak of the program, of its name or of a command, and hint at nothing.
PROSE = re.compile(r"serve` must send|bitnet (?:from|again|was)\b")

# What stands for something of the reader, or of the moment.
FILLED = {
    "{EVERY[0]}": "release",
    " --from git+https://HOST/OWNER/REPO@COMMIT": "",
    "{word(first.key)}{models}": "llama3-128k",
    "{known[0]}": "mirror",
    "--source {source}": "--source mirror",
    "bundle.export --output FILE": "bundle.export --output bundle.tar",
    "{model.id}": "smollm2-135m",
    "{name}": "verify",
    "{self.name.replace('_', '-')}": "verify",
    "{source.repo}": "org/tiny",
    "{word(self.packaged)}": "smollm2-135m",
    "{word(self.repo)}{more}": "org/tiny --file tiny.gguf",
    "{word(source.file)}": "tiny.gguf",
    "{word(self.explicit)}": "tokenizer.json",
    "{word(folder)}": "models",
    "ORG/REPO": "org/tiny",
    "--file FILE": "--file tiny.gguf",
    "--compare A --with B": "--compare tokenizer.json --with tokenizer.json",
    "--against FILE": "--against a.json",
    "--output FILE": "--output a.json",
    "--record FILE": "--record trace.json",
    "--report-dir DIR": "--report-dir reports",
    "--model-dir DIR": "--model-dir models",
}
MODEL = re.compile(
    r"\{word\([\w.]*(?:path|failed\[0\])\)\}|\b(?:MODEL|ORIGINAL|PATH|F)\b|(?<=--model )FILE"
)
# Not run here, and where they are.
ELSEWHERE = {
    "plan --id smollm2-135m": "tests/tasks/test_plan_task.py: a package index on loopback",
    "download-model --id smollm2-135m": "tests/hub/test_packaged.py: a package index on loopback",
    "run": "tests/tasks/test_run_task.py: a hub on loopback",
    "ci-init": "tests/tasks/test_ci_tasks.py: an editable install does not say where it is from",
    "bench": "tests/tasks/test_bench_task.py: takes long with the tests it chooses",
    "crossval": "tests/tasks/test_crossval_task.py: needs another engine",
    "clean-cache": "last: what it removes is what others need",
}


def _text(node):
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _texts(tree):
    """Every text in *tree* with its line, but for docstrings and the parts of other texts."""
    parts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts |= {id(part) for value in node.values for part in ast.walk(value)} - {id(node)}
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts.add(id(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in parts:
            yield node.lineno, _text(node)


def _commands():
    """Every command in a text of the program: where it is, its program, its words as written."""
    for path in sorted(ROOT.rglob("*.py")):
        for line, text in _texts(ast.parse(path.read_text(encoding="utf-8"))):
            for match in COMMAND.finditer(text):
                starts = (match.start(), match.start("words"))
                if not any(PROSE.match(text, start) for start in starts):
                    yield (
                        f"{path.relative_to(ROOT)}:{line}",
                        match["program"],
                        match["words"].strip(),
                    )


def _filled(words):
    for written, meant in FILLED.items():
        words = words.replace(written, meant)
    return MODEL.sub("models/model.gguf", words)


COMMANDS = [(place, program, words) for place, program, words in _commands()]
DISTINCT = sorted({_filled(words) for _, _, words in COMMANDS})


def test_the_collection_is_not_empty():
    assert len(COMMANDS) > 60
    assert len(DISTINCT) > 30


@pytest.mark.parametrize(("place", "program", "words"), COMMANDS, ids=[c[0] for c in COMMANDS])
def test_a_command_in_a_text_is_one_that_we_understand(place, program, words):
    assert program == "bitnet", "inv works in a checkout only; bitnet is said as it was started"
    filled = _filled(words)
    assert not re.search(r"[{}]|\b[A-Z]{2,}\b", filled), f"{filled}: give its words a meaning above"
    parsed = Program(load(), "bitnet")
    parsed.create_config()
    parsed.parse_core(["bitnet", *shlex.split(filled)])
    parsed.parse_collection()
    if parsed.core.unparsed:
        parsed.parse_tasks()
        assert len(parsed.tasks) == 1, f"more than a command: {words}"


@pytest.mark.parametrize(("place", "program", "words"), COMMANDS, ids=[c[0] for c in COMMANDS])
def test_a_path_in_a_command_is_one_word_of_the_shell(place, program, words):
    for written in re.findall(r"\{(.+?)\}", words):
        is_ours = f"{{{written}}}" in "".join(FILLED)
        assert written.startswith("word(") or is_ours, f"{written} may have blanks in it"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A working folder with a model that was fetched, on a hub that has what hints fetch."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    path = tiny_gguf(tmp_path / "models/model.gguf")
    shutil.copyfile(path, tmp_path / "tiny.gguf")
    with HubServer() as server:
        server.add("org/tiny", "tiny.gguf", path.read_bytes())
        vocab = ", ".join(f'"t{number}": {number}' for number in range(128_256))
        llama3 = f'{{"model": {{"type": "BPE", "vocab": {{{vocab}}}, "merges": []}}}}'.encode()
        server.add("baseten/Meta-Llama-3-tokenizer", "tokenizer.json", llama3)
        server.add("openai-community/gpt2", "tokenizer.json", b"{}")
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("BITNET_GGUF", "models/model.gguf")
        yield server


def test_every_command_in_a_text_does_what_it_says(bitnet, hub, capsys):
    assert bitnet("export-tokenizer", "models/model.gguf", "--into", ".").code == 0
    assert bitnet("attest", "--model", "models/model.gguf", "--output", "a.json").code == 0
    assert bitnet("download-model", "--id", "org/tiny", "--file", "tiny.gguf").code == 0
    failed = {}
    for words in DISTINCT:
        known = any(words == name or words.split()[0] == name for name in ELSEWHERE)
        if not known and (done := bitnet(*shlex.split(words))).code:
            failed[words] = f"{done.code}: {done.err}"
    assert not failed, "\n".join(f"{words} {said}" for words, said in failed.items())
    assert bitnet("clean-cache", "--yes").code == 0
