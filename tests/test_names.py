"""One name, one meaning: a public class has a name of its own in the whole package."""

import ast
import fnmatch
import re
from collections import defaultdict
from pathlib import Path

import pytest

import bitnet

ROOT = Path(bitnet.__file__).parent

# The only name of two classes: the command line's program, as Invoke calls it, and the instructions
# of a forward pass. No file uses both.
TWICE = {"Program"}

# A variable is named by what it holds, a function by what it does (CONTRIBUTING). These are the
# names that say something else.
PRONOUNS = {"found", "one", "said", "told", "given", "known", "shown", "kept", "other"}
# Those that are never the name of a variable, however short its life.
NEVER = {"it", "its"}
SHORT = 5  # lines in which a reader still sees where a name comes from
# Participles that do not end in "ed".
IRREGULAR = {
    "told", "made", "given", "known", "shown", "kept", "found", "said", "held", "written", "taken",
    "sent", "left", "met", "drawn", "begun", "built", "bound", "brought", "done", "gone", "got",
    "had", "heard", "laid", "led", "lost", "meant", "paid", "seen", "spent", "understood", "chosen",
}  # fmt: skip
VERBS_IN_ED = {"embed", "feed", "need", "proceed", "seed", "shed", "speed"}

MENTION = re.compile(r"\bbitnet((?:\.\w+)+)")  # a dotted name below the package
ENDINGS = {"cpp", "fish", "json", "lock", "py", "toml"}  # of files, not of modules
SOURCE = re.compile(r"[\w./*-]*\w\.(?:hpp|cpp)\b")
ENGINE = re.compile(r"(?:^|[/_])(?:bitnet|llama)\.cpp$")  # a program, not a file


def _functions():
    """Each function of the package, with the path of its file."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def long_lived_pronouns(function):
    """Lines at which *function* binds a pronoun that it uses at least SHORT lines later."""
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    for name in PRONOUNS & {node.id for node in names}:
        lines = [node.lineno for node in names if node.id == name]
        if max(lines) - min(lines) >= SHORT:
            yield from (
                node.lineno for node in names if node.id == name and isinstance(node.ctx, ast.Store)
            )


def long_lived_parameters(function):
    """Pronouns that *function* takes and uses at least SHORT lines later."""
    for parameter in ast.walk(function.args):
        if isinstance(parameter, ast.arg) and parameter.arg in PRONOUNS:
            names = (node for node in ast.walk(function) if isinstance(node, ast.Name))
            lines = [node.lineno for node in names if node.id == parameter.arg]
            if max(lines, default=0) - parameter.lineno >= SHORT:
                yield parameter.arg


def is_participle(name):
    """True if a function called *name* says what happened instead of what it does."""
    word = name.lstrip("_").split("_")[0]
    regular = word.endswith("ed") and len(word) > 3 and word not in VERBS_IN_ED
    return regular or word in IRREGULAR


def states_a_fact(function):
    """True for a property that returns a bool, which is read without a call: ``finding.failed``."""
    decorators = {ast.unparse(each).rpartition(".")[2] for each in function.decorator_list}
    is_property = decorators & {"property", "cached_property"}
    has_type = function.returns is not None
    return bool(is_property) and has_type and ast.unparse(function.returns) == "bool"


def test_no_two_public_classes_have_one_name():
    places = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert len(places) > 200
    assert {name for name, paths in places.items() if len(paths) > 1} == TWICE


def test_names_that_live_long_say_what_they_hold():
    places = {
        f"{path.relative_to(ROOT)}:{line}"
        for path, function in _functions()
        for line in long_lived_pronouns(function)
    }
    assert not places


def test_pronouns_are_not_variables():
    places = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Name) and node.id in NEVER)
        or (isinstance(node, ast.arg) and node.arg in NEVER)
    }
    assert not places


def test_parameters_that_live_long_say_what_they_hold():
    places = {
        f"{path.relative_to(ROOT)}:{function.lineno} {name}"
        for path, function in _functions()
        for name in long_lived_parameters(function)
    }
    assert not places


def test_functions_are_named_by_verbs():
    places = [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"
        for path, function in _functions()
        if is_participle(function.name) and not states_a_fact(function)
    ]
    assert not places


def missing_names(text):
    """Dotted names of the package in *text* that lead nowhere."""
    for mention in MENTION.findall(text):
        place = ROOT
        rest = mention.strip(".").split(".")
        if rest[0] in ENDINGS:
            continue
        while rest and (place / rest[0]).is_dir():
            place /= rest.pop(0)
        if rest and place.joinpath(f"{rest[0]}.py").is_file():
            place = place / f"{rest.pop(0)}.py"
        module = place / "__init__.py" if place.is_dir() else place
        if rest and not re.search(rf"\b{rest[0]}\b", module.read_text(encoding="utf-8")):
            yield f"bitnet{mention}"


def test_docstrings_name_what_is_there():
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, kinds)
        for name in missing_names(ast.get_docstring(node) or "")
    ]
    assert missing == []


def missing_sources(text):
    """Names of our C++ files in *text* that no path ends with; a ``*`` stands for a name."""
    paths = [
        f"/{path.relative_to(ROOT.parent)}"
        for folder in ("native", "tests/native")
        for path in ROOT.parent.joinpath(folder).rglob("*.*pp")
    ]
    for name in SOURCE.findall(text):
        theirs = ENGINE.search(name) or name.startswith(("src/", "ggml"))
        if not theirs and not fnmatch.filter(paths, f"*/{name}"):
            yield name


def test_files_of_c_plus_plus_are_named_by_where_they_are():
    patterns = {"bitnet": "*.py", "native": "*.*pp", "docs": "*.md", "tests/native": "*.*p*"}
    missing = [
        f"{path.relative_to(ROOT.parent)}: {name}"
        for folder, pattern in patterns.items()
        for path in sorted(ROOT.parent.joinpath(folder).rglob(pattern))
        if "__pycache__" not in path.parts
        for name in missing_sources(path.read_text(encoding="utf-8"))
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("see :mod:`bitnet.hub`, `bitnet.cpp` and bitnet.load", []),
        ("bitnet.hub.ref.Ref and bitnet.hub.nowhere", ["bitnet.hub.nowhere"]),
        ("bitnet.nothing.at.all", ["bitnet.nothing.at.all"]),
    ],
)
def test_a_name_that_leads_nowhere_is_found(text, names):
    assert list(missing_names(text)) == names


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("def f():\n    found = 1\n    return found", 0),
        ("def f():\n    found = 1\n\n\n\n\n    return found", 1),
        ("def f():\n    candidate = 1\n\n\n\n\n    return candidate", 0),
    ],
)
def test_a_pronoun_counts_where_it_lives_long(source, count):
    assert len(list(long_lived_pronouns(ast.parse(source).body[0]))) == count


def test_verbs_are_told_from_participles():
    assert [is_participle(name) for name in ("_answered", "kept_ids", "loaded")] == [True] * 3
    assert [is_participle(name) for name in ("answer", "embed", "read_line", "ed")] == [False] * 4


@pytest.mark.parametrize(
    ("source", "states"),
    [
        ("@property\ndef failed(self) -> bool: ...", True),
        ("@functools.cached_property\ndef failed(self) -> bool: ...", True),
        ("@property\ndef failed(self) -> int: ...", False),
        ("@property\ndef failed(self): ...", False),
        ("def failed(self) -> bool: ...", False),
    ],
)
def test_only_a_property_that_is_true_or_false_may_be_an_adjective(source, states):
    assert states_a_fact(ast.parse(source).body[0]) == states
