"""Find the tests of each module: the file of its name, or those that tests/README.md names.

    inv test --index

writes that page. It runs a few cases of every test, and records for each file of tests which lines
inside functions of the package it ran.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "tests/README.md"
ROW = re.compile(r"^\| `(bitnet/[\w/]+\.py)` \| (.*) \|$", re.MULTILINE)
CASES = 3  # of each parametrized test; more of them rarely reach another line
MOST_FILES = 3
# A further file is named if it adds this share of the module's lines that tests run.
WORTH_NAMING = 0.1
# Tests of modules that run in processes of their own, whose lines are not traced.
IN_PROCESSES = {
    "bitnet/hub/pip_child.py": ["tests/hub/test_as_pip_does.py"],
    "bitnet/tokenizer/chat_child.py": ["tests/tokenizer/test_chat.py"],
}

TEXT = """# Tests

`bitnet/hub/fetch.py` has `tests/hub/test_fetch.py`, or several files whose names begin so. A
module without such a file is tested through others: this table names those that run most of its
lines. `inv test --index` writes it, and `tests/test_mirror.py` requires a file or a row for every
module with functions.

| module | tests |
|---|---|
"""


def modules() -> list[str]:
    """Files of the package that have functions, relative to the repository."""
    paths = sorted(path for path in (ROOT / "bitnet").rglob("*.py"))
    return [path.relative_to(ROOT).as_posix() for path in paths if lines_of_functions(path)]


def mirrors(module: str) -> list[Path]:
    """Files of tests that have the name of *module*, or begin with it."""
    *folders, name = Path(module).with_suffix("").parts[1:]
    if name == "__init__" and folders:
        name = folders[-1]
    folder = ROOT.joinpath("tests", *folders)
    return [*folder.glob(f"test_{name}.py"), *folder.glob(f"test_{name}_*.py")]


def rows() -> dict[str, list[str]]:
    """The table of the page: the files of tests of each module in it."""
    text = PAGE.read_text(encoding="utf-8")
    return {module: re.findall(r"`([^`]+)`", files) for module, files in ROW.findall(text)}


@cache
def lines_of_functions(path: Path) -> frozenset[int]:
    """Lines inside the functions of a file; the others run when it is imported."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines.update(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
    return frozenset(lines)


class Recorder:
    """A plugin of pytest that writes the page from what every file of tests runs."""

    def __init__(self) -> None:
        """Trace the lines of the package from now on."""
        import coverage

        self.coverage = coverage.Coverage(data_file=None, source=["bitnet"], branch=False)
        self.coverage.start()

    def pytest_collection_modifyitems(self, items: list) -> None:
        """Keep the first cases of every test."""
        cases: Counter[str] = Counter()
        chosen = []
        for item in items:
            name = item.nodeid.partition("[")[0]
            cases[name] += 1
            if cases[name] <= CASES:
                chosen.append(item)
        items[:] = chosen

    def pytest_runtest_setup(self, item) -> None:
        """Count the lines that run from now on for the file of *item*."""
        self.coverage.switch_context(item.path.relative_to(ROOT).as_posix())

    def pytest_sessionfinish(self) -> None:
        """Write the page."""
        self.coverage.stop()
        data = self.coverage.get_data()
        table = []
        for module in modules():
            if mirrors(module):
                continue
            reached: dict[str, set[int]] = defaultdict(set)
            for line, files in data.contexts_by_lineno(str(ROOT / module)).items():
                if line in lines_of_functions(ROOT / module):
                    for test in files:
                        reached[test].add(line)
            reached.pop("", None)  # lines that ran outside of a test
            tests = IN_PROCESSES.get(module) or _most_of(module, reached)
            names = ", ".join(f"`{test}`" for test in tests)
            table.append(f"| `{module}` | {names} |\n")
        PAGE.write_text(TEXT + "".join(table), encoding="utf-8")


def _most_of(module: str, reached: dict[str, set[int]]) -> list[str]:
    """Few files of tests that together run most of *module*; those of its folder win a tie."""
    room = f"tests/{Path(module).parts[1]}/"
    missing = set().union(*reached.values())
    enough = WORTH_NAMING * len(missing)
    chosen: list[str] = []
    while missing and len(chosen) < MOST_FILES:
        best = max(reached, key=lambda test: (len(reached[test] & missing), test.startswith(room)))
        if chosen and len(reached[best] & missing) < enough:
            break
        chosen.append(best)
        missing -= reached[best]
    return chosen
