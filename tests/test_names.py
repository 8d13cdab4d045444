"""One name, one meaning: a public class has a name of its own in the whole package."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import bitnet

ROOT = Path(bitnet.__file__).parent

# Words of two fields that never meet: what Invoke calls a program, and the instructions of a
# forward pass; what runs a model, and what runs a tokenizer.
TWICE = {"Engine", "Program"}

# A variable is named by what it holds, a function by what it does (CONTRIBUTING). These are the
# names that still say something else; the two numbers may only become smaller.
PRONOUNS = {"found", "one", "said", "told", "given", "known", "shown", "kept", "other"}
MOST_PRONOUNS = 301
MOST_PARTICIPLES = 293
SHORT = 5  # lines in which a reader still sees where a name comes from
IRREGULAR = {
    *(
        "told",
        "made",
        "given",
        "known",
        "shown",
        "kept",
        "found",
        "said",
        "held",
        "written",
        "taken",
    ),
    *("sent", "left", "met", "drawn", "begun", "built", "bound", "brought", "done", "gone", "got"),
    *(
        "had",
        "heard",
        "laid",
        "led",
        "lost",
        "meant",
        "paid",
        "seen",
        "spent",
        "understood",
        "chosen",
    ),
}
VERBS_IN_ED = {"embed", "feed", "need", "proceed", "seed", "shed", "speed"}


def _functions():
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def long_lived_pronouns(function):
    """Lines at which *function* binds a pronoun that it uses more than SHORT lines later."""
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    for name in PRONOUNS & {node.id for node in names}:
        lines = [node.lineno for node in names if node.id == name]
        if max(lines) - min(lines) >= SHORT:
            yield from (
                node.lineno for node in names if node.id == name and isinstance(node.ctx, ast.Store)
            )


def is_participle(name):
    """True if a function called *name* says what happened instead of what it does."""
    word = name.lstrip("_").split("_")[0]
    regular = word.endswith("ed") and len(word) > 3 and word not in VERBS_IN_ED
    return regular or word in IRREGULAR


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
    assert len(places) <= MOST_PRONOUNS, sorted(places)


def test_functions_are_named_by_verbs():
    places = [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"
        for path, function in _functions()
        if is_participle(function.name)
    ]
    assert len(places) <= MOST_PARTICIPLES, places


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
