"""Commands in the texts of the program: hints, errors and help, wherever they are written.

A command in a text begins with ``bitnet`` and ends with the text, or before a comma, a semicolon, a
bracket or a redirection.
"""

import ast
import os
import re
from pathlib import Path

import bitnet as package

ROOT = Path(package.__file__).parent
NATIVE = Path(__file__).parents[2] / "native"
COMMAND = re.compile(
    r"(?<![\w./-])(?P<program>bitnet|inv) (?P<words>(?=[a-z{]|--)(?:\{[^{}]*\}|[^;,()>`\n])*)"
)
PROGRAM = re.compile(r"(?<![\w./-])(?:bitnet|inv) (?!import)")
EXTRA = re.compile(r"""extra_command\("([\w-]+)"\)|\bextra = "([\w-]+)\"""")
CPP_TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"')
# Sentences that speak of the program, of its name or of a command, and hint at nothing.
PROSE = re.compile(
    r"serve` must send|bitnet (?:from|again|was)\b|bitnet \{(?:[\w.]*version|escape)"
)

# Values for placeholders and expressions in the written commands, so that they can be parsed.
FILLED = {
    "{EVERY[0]}": "release",
    "HOST/OWNER/REPO@COMMIT": f"example.org/me/bitnet@{'0' * 40}",
    "{shell_quote(first.key)}{models_option}": "llama3-128k",
    "{names[0]}": "mirror",
    "--source {source}": "--source mirror",
    "bundle export MODEL --output FILE": "bundle export smollm2-135m --output bundle.tar",
    "{model.id}": "smollm2-135m",
    "run {shell_quote(name)}": "run smollm2-135m",
    "{shell_quote(name or 'smollm2-135m')}": "models/model.gguf",
    "{shell_quote(model.model or 'bitnet-tiny')}": "models/model.gguf",
    "{shell_quote(model)}": "models/model.gguf",
    "run {shell_quote(self.name)}": "run smollm2-135m",
    "inspect-gguf {text}": "inspect-gguf bitnet-tiny",
    "{meant}": "models",
    "run {shlex.join(words)}": "run smollm2-135m",
    "serve {shlex.join(words)} --port 0": "serve models/model.gguf --port 0",
    "search {shell_quote(text)}": "search tiny",
    "search qwen3": "search tiny",
    "search bge-reranker": "search tiny",
    "search distilbert-sst-2": "search tiny",
    "{first}": "cache",
    "{word} COMMAND [--options]": "cache --help",
    "{command.command_words}": "verify",
    "{name}": "verify",
    "{self.command_words}": "verify",
    "{source.repo}": "org/tiny",
    "{shell_quote(self.packaged)}": "smollm2-135m",
    "create {shell_quote(name)}": "create mine",
    "{shell_quote(name)}{more}": "org/tiny --file tiny.gguf",
    "{shell_quote(self.tokenizer)}": "tokenizer.json",
    "{shell_quote(folder)}": "models",
    "ORG/REPO": "org/tiny",
    "--file FILE": "--file tiny.gguf",
    "--compare A --against B": "--compare tokenizer.json --against tokenizer.json",
    "--against FILE": "--against a.json",
    "--output FILE": "--output a.json",
    "--bundle FILE": "--bundle a.sigstore.json",
    "--record FILE": "--record trace.json",
    "--report-dir DIR": "--report-dir reports",
    "--model-dir DIR": "--model-dir models",
}
MODEL = re.compile(r"\{shell_quote\([\w.]*(?:path|failed\[0\])\)\}|\b(?:MODEL|ORIGINAL|PATH|F)\b")


def _text(node):
    """Text of a constant or an f-string, whose expressions are written in braces.

    An expression with a text of several words is ``{...}``: its texts are texts of their own.
    """
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.FormattedValue):
        inner = (_text(part) for part in ast.walk(node.value) if isinstance(part, ast.Constant))
        return "{...}" if any(" " in text for text in inner) else f"{{{ast.unparse(node.value)}}}"
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def texts(tree):
    """Yield line and text of all strings in *tree*, except docstrings and pieces of f-strings.

    The examples of commands are left out, too: they are blocks of docs/reference/commands.md, which
    other tests run. Texts inside the braces of an f-string are texts of their own.
    """
    pieces = set()
    nodes = [*ast.walk(tree)]
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            pieces |= {id(part) for part in node.values if isinstance(part, ast.Constant)}
        elif isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            pieces.add(id(node.format_spec))
        elif (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) or (
            isinstance(node, ast.keyword) and node.arg == "example"
        ):
            pieces.add(id(node.value))
    for node in nodes:
        if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in pieces:
            yield node.lineno, _text(node)


def texts_of(path):
    """Yield line and text of everything in the file *path* that a user may see.

    A file that does not name the program yields nothing.
    """
    source = path.read_text(encoding="utf-8")
    if not PROGRAM.search(source):
        return
    if path.suffix == ".py":
        yield from texts(ast.parse(source))
        return
    pattern = CPP_TEXT if path.suffix in (".cpp", ".hpp") else re.compile(".+")
    for match in pattern.finditer(source):
        yield source.count("\n", 0, match.start()) + 1, match[0].strip('"')


def commands(texts_by_place):
    """Yield place, program and words as written of every command in *texts_by_place*."""
    for place, text in texts_by_place:
        for match in COMMAND.finditer(text):
            starts = (match.start(), match.start("words"))
            if not any(PROSE.match(text, start) for start in starts):
                yield place, match["program"], match["words"].strip()


def filled(words):
    """*words* with a value for each placeholder, so that they can be parsed."""
    for written, meant in FILLED.items():
        words = words.replace(written, meant)
    return MODEL.sub("models/model.gguf", words)


SOURCES = [
    path
    for folder, endings in ((ROOT, (".py", ".html")), (NATIVE, (".cpp", ".hpp")))
    for path in sorted(folder.rglob("*"))
    if path.suffix in endings
]
TEXTS = [
    (f"{os.path.relpath(path, ROOT)}:{line}", text)
    for path in SOURCES
    for line, text in texts_of(path)
]
COMMANDS = list(commands(TEXTS))
DISTINCT = sorted({filled(words) for _, _, words in COMMANDS})

# Commands that the tests of hints cannot run, by the reason.
NEED_A_REAL_MODEL = ("bench", "download-model smollm2-135m", "run", "bundle export smollm2-135m")
NEED_AN_ENGINE = ("crossval",)
RUN_UNTIL_STOPPED = ("serve",)
CLEAN = ("cache clean",)


def those(beginnings):
    """The distinct commands that begin like one of *beginnings*."""
    return [
        words
        for words in DISTINCT
        if any(words == start or words.startswith(f"{start} ") for start in beginnings)
    ]
