"""Plain English and the field's words (CONTRIBUTING, Language) in code, messages and pages."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PYTHON = [
    *(ROOT / "bitnet").rglob("*.py"),
    *(ROOT / "native").rglob("*.py"),
    *(ROOT / "training").rglob("*.py"),
    *(ROOT / "benchmarks").rglob("*.py"),
    *(ROOT / "docs").rglob("*.py"),
    ROOT / "tasks.py",
]
TESTS = [*(ROOT / "tests").rglob("*.py")]
CPP = [
    path
    for folder in ("native", "tests/native")
    for ending in ("cpp", "hpp")
    for path in (ROOT / folder).rglob(f"*.{ending}")
]
PAGES = [
    *(path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"),  # old words stay in it
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "native").rglob("*.md"),
    *(ROOT / "training").rglob("*.md"),
    *(ROOT / "benchmarks").rglob("*.md"),
    *(ROOT / "scripts").rglob("*.sh"),
]

LONG = 500  # characters of a string that is data, such as a text to measure on

# Patterns that prose may not match, and what to write instead: at the beginning of a docstring, and
# anywhere.
OPENINGS = [
    (r"(What|Who|Whose|Which)\b", "begin with a noun: 'Token ids of *text*', or a verb: 'Return'"),
    (r"(Whether|How|Where|When|Why)\b", "'True if ...', 'Number of ...', 'Path of ...'"),
]
PHRASES = [
    (r"(?<!\bthere )\b(?:is|are|was|were) no (?!longer\b|more than\b|\w+er than\b)", "'is not a'"),
    (r"\b(?:nobody|somebody|anybody|everybody|whoever)\b", "'no user', 'a client', 'the caller'"),
    (r"\bfigures\b", "'metrics', 'numbers'"),
    (r"\bpays\b", "'is worth', 'is faster'"),
    (r"\b(?:is|are|was|were|be|as) wanted\b", "'requested', 'expected', 'needed'"),
    (r"\banew\b", "'again'"),
    (r"\bsurely\b", "'certainly', or leave it out"),
    (r"\belse than\b", "'other than'"),
    (r"\bfares\b|\bhow \w+ fares?\b", "'state', 'status'"),
    (r"\b(?:thereof|wherein|whereof|hereby|therein)\b", "'of it', 'in which'"),
]


def _docstrings(nodes):
    """The first statements of *nodes* that are docstrings, as constants."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in nodes:
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            yield node.body[0].value


def _passage(constant, docstring):
    """Line and text of a string, and *docstring*, True if it is one."""
    return constant.lineno, " ".join(constant.value.split()), docstring


def _comments(source):
    """(line, text, False) of each comment in Python *source*; those of adjoining lines are one."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("#: ")
            if found and found[-1][1] == token.start[0] - 1 and token.line.lstrip()[0] == "#":
                found[-1] = (f"{found[-1][0]} {text}", token.start[0])
            else:
                found.append((text, token.start[0]))
    return [(line, text, False) for text, line in found]


def passages(source):
    """Prose in Python *source*, as (line, text, True if it is a docstring).

    It is the docstrings, short strings and comments.
    """
    nodes = [*ast.walk(ast.parse(source))]
    docs = {id(constant) for constant in _docstrings(nodes)}
    for node in nodes:
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and (id(node) in docs or len(node.value) <= LONG):
            yield _passage(node, id(node) in docs)
    yield from _comments(source)


def _prose_of_tests(source):
    """Docstrings, comments and names of tests, as :func:`passages`; strings are often data."""
    nodes = [*ast.walk(ast.parse(source))]
    yield from (_passage(constant, True) for constant in _docstrings(nodes))
    yield from _comments(source)
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name.replace("_", " "), False


def _comments_of_cpp(source):
    """(line, text, False) of each comment in C++ *source*; those of adjoining lines are one."""
    found = []
    for number, line in enumerate(source.splitlines(), 1):
        before, comment, text = line.partition("//")
        if not comment or before.count('"') % 2:
            continue
        if found and found[-1][2] == number - 1 and not before.strip():
            found[-1] = (found[-1][0], f"{found[-1][1]} {text.strip('/ ')}", number)
        else:
            found.append((number, text.strip("/ "), number))
    return [(line, text, False) for line, text, _ in found]


def findings(passages):
    """A line for each of *passages* that matches a pattern; code and quotations do not count."""
    found = []
    for line, text, docstring in passages:
        prose = re.sub(r"``?[^`]+``?", "CODE", re.sub(r'"[^"]*"', "QUOTE", text))
        rules = [(rf"^{opening}", advice) for opening, advice in OPENINGS if docstring]
        for pattern, advice in [*rules, *PHRASES]:
            if match := re.search(pattern, prose, re.IGNORECASE if pattern[0] != "^" else 0):
                found.append(f"line {line}: {match[0]!r} in {prose[:90]!r}: {advice}")
    return found


def problems(paths, passages_of):
    """Findings in all *paths*, with their names."""
    return [
        f"{path.relative_to(ROOT)}: {finding}"
        for path in sorted(paths)
        for finding in findings(passages_of(path.read_text(encoding="utf-8")))
    ]


def test_code_speaks_plain_english():
    assert problems(PYTHON, passages) == []


def test_tests_speak_plain_english():
    assert problems(TESTS, _prose_of_tests) == []


def test_comments_of_cpp_speak_plain_english():
    assert problems(CPP, _comments_of_cpp) == []


def _paragraphs(page):
    """Paragraphs of the text of a page without its blocks of code, as :func:`passages`."""
    text = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    return [(0, " ".join(part.split()), False) for part in text.split("\n\n")]


def test_pages_speak_plain_english():
    assert problems(PAGES, _paragraphs) == []


# A source, and the number of findings in it.
@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('"""What it is."""', 1),
        ('"""Token ids of a text."""', 0),
        ('def f():\n    """Whether it is."""', 1),
        ("# a file is\n# no model", 1),
        ("there = 'there is no model'", 0),
        ("raise ValueError(f'{name} is no model')", 1),
        ("note = 'the answer is no longer read, and takes no more than a second'", 0),
        ("x = 1  # nobody reads it", 1),
    ],
)
def test_the_patterns_find_what_they_are_for(source, count):
    assert len(findings(passages(source))) == count


@pytest.mark.parametrize(
    ("read", "source", "count"),
    [
        (_prose_of_tests, "def test_a_page_is_no_file():\n    x = 'is no file'", 1),
        (_prose_of_tests, "# nobody waits", 1),
        (_comments_of_cpp, "// bytes that are\n// no list\nint a; // other", 1),
        (_comments_of_cpp, 'auto a = "http://is no page";  // the bytes', 0),
    ],
)
def test_tests_and_cpp_are_read_too(read, source, count):
    assert len(findings(read(source))) == count
