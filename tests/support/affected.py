"""Test files that a change affects, by what imports what.

A test file is affected if its folder is that of a changed module, or if it, a helper in
``tests/support`` or a ``conftest.py`` above it imports a changed module or one that depends on a
changed one over at most STEPS imports: further away, everything depends on everything. C++ counts
as the modules that call it. A file that no rule knows affects every test.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]
STEPS = 3
# Tests of rules for the whole repository, which any change can break.
HOUSE = (
    "tests/commands/test_hints.py",
    "tests/commands/test_program.py",
    "tests/test_english.py",
    "tests/test_imports.py",
    "tests/test_names.py",
    "tests/test_rooms.py",
)
# Packages that import each of their modules by its file name.
REGISTRIES = ("bitnet.families",)
# By folder of C++: the modules that call it, and its own tests. Other C++ belongs to every folder.
NATIVE = {
    "native/tokenizer": ({"bitnet.tokenizer.compiled"}, {"tests/tokenizer"}),
    "native/kernels": ({"bitnet.kernels.native"}, {"tests/kernels"}),
}
OF_ANY_NATIVE = {"tests/native", "tests/test_native_stub.py"}
BUILD = ("CMakeLists.txt", "native/", "bitnet/_native.pyi")
# Of pages, and of programs beside them that no module imports.
PAGES = ("tests/docs/test_commands_in_prose.py", "tests/docs/test_pages.py")
EVERYTHING = ("tests",)


def affected_tests(changed: Iterable[str]) -> list[str]:
    """Paths of the tests to run after *changed* files, relative to the repository.

    Args:
        changed: paths relative to the repository, also of files that were deleted.
    """
    modules: set[str] = set()
    tests = set(HOUSE)
    for path in changed:
        if path.startswith(("ci/", ".github/", "scripts/")):
            tests.add("tests/ci")
        elif path.startswith(BUILD):
            for folder, (callers, own_tests) in NATIVE.items():
                if path.startswith(f"{folder}/") or not path.startswith(tuple(NATIVE)):
                    modules |= callers
                    tests |= own_tests
            tests |= OF_ANY_NATIVE
        elif path.startswith("bitnet/"):
            modules.add(_module_of_file(path))
            tests.add(f"tests/{PurePosixPath(path).parts[1]}")
            tests.add(f"tests/test_{PurePosixPath(path).parts[1]}")
        elif path.startswith("tests/support/"):
            modules.add(PurePosixPath(path).stem)
        elif path.startswith("tests/") and PurePosixPath(path).name.startswith("test_"):
            tests.add(path)
        elif path.startswith(("docs/", "benchmarks/")) or path.endswith(".md"):
            tests.update(PAGES)
            if path.endswith(".py"):
                tests.add("tests/docs" if path.startswith("docs/") else "tests/bench")
        elif path not in ("mkdocs.yml", ".gitignore", "LICENSE"):
            return list(EVERYTHING)
    users = _users(modules)
    tests.update(path for path in _test_files() if _imports_of_test(path) & users)
    return sorted(path for path in tests if (ROOT / path).exists())


def _module_of_file(path: str) -> str:
    """Dotted name of the module that a file of the package is part of.

    A file that is not Python, such as a table in JSON, belongs to its folder.
    """
    pure = PurePosixPath(path)
    if pure.suffix != ".py" or pure.name == "__init__.py":
        return ".".join(pure.parent.parts)
    return ".".join(pure.with_suffix("").parts)


def _users(modules: set[str]) -> set[str]:
    """The *modules* and those that depend on them over at most STEPS imports."""
    users = set(modules)
    latest = modules
    for _ in range(STEPS):
        importers = [_importers().get(module, set()) for module in latest]
        latest = set().union(*importers) - users
        users |= latest
    return users


@cache
def _importers() -> dict[str, set[str]]:
    """The modules that import each module of the package."""
    importers: dict[str, set[str]] = {}
    for path in sorted((ROOT / "bitnet").rglob("*.py")):
        importer = _module_of_file(path.relative_to(ROOT).as_posix())
        if importer == "bitnet":  # the public names, which lead everywhere
            continue
        for imported in _imports(path):
            importers.setdefault(imported, set()).add(importer)
        package = importer.rpartition(".")[0]
        if package in REGISTRIES:
            importers.setdefault(importer, set()).add(package)
    return importers


@cache
def _imports(path: Path) -> frozenset[str]:
    """Modules that the file at *path* imports, at its top or in a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            # Of ``from bitnet.hub import resolve`` this is a module, of others just a name.
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


@cache
def _test_files() -> tuple[str, ...]:
    """Paths of all files of tests, relative to the repository."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return tuple(path.relative_to(ROOT).as_posix() for path in files)


@cache
def _imports_of_test(path: str) -> frozenset[str]:
    """Modules that a test file uses: its own imports, and those of its helpers and conftests.

    ``tests/conftest.py`` does not count: every test uses it.
    """
    names: set[str] = set()
    folder = (ROOT / path).parent
    while folder != ROOT / "tests":
        if (folder / "conftest.py").exists():
            names |= _imports(folder / "conftest.py")
        folder = folder.parent
    names |= _imports(ROOT / path)
    helpers = list(names)
    seen: set[str] = set()
    while helpers:
        name = helpers.pop()
        helper = ROOT / "tests" / "support" / f"{name}.py"
        if name not in seen and helper.exists():
            names |= _imports(helper)
            helpers.extend(_imports(helper))
        seen.add(name)
    return frozenset(names)
