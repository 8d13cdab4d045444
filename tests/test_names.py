"""One name, one meaning: a public class has a name of its own in the whole package."""

import ast
from collections import defaultdict
from pathlib import Path

import bitnet

ROOT = Path(bitnet.__file__).parent

# Words of two fields that never meet: what Invoke calls a program, and the instructions of a
# forward pass; what runs a model, and what runs a tokenizer.
TWICE = {"Engine", "Program"}


def test_no_two_public_classes_have_one_name():
    places = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert len(places) > 200
    assert {name for name, paths in places.items() if len(paths) > 1} == TWICE
