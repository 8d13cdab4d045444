"""Imports that the layers allow (docs/architecture), and what a light import may not load."""

import ast
import importlib
import importlib.util
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from tiny_models import tiny_gguf

import bitnet

ROOT = Path(bitnet.__file__).parent

# A module may import from lower layers and from its own package.
LAYERS = [
    ["base"],
    ["sources", "shipped", "quants", "families", "ci", "store"],
    ["formats", "cache", "kernels"],
    ["tokenizer", "models", "hub"],
    ["runtime", "doctor"],
    ["wire", "bench", "convert", "crossval", "verify", "sheet"],
    ["server", "batch", "provision"],
    ["commands"],
    ["adapters", "__main__"],
]
LAYER_OF = {name: level for level, names in enumerate(LAYERS) for name in names}
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
REPOSITORY = Path(__file__).parents[1]
PROGRAMS = [
    path
    for folder in ("benchmarks", "training", "docs", "tests/fuzz", "tests/native")
    for path in sorted((REPOSITORY / folder).glob("*.py"))
]
TESTS = sorted((REPOSITORY / "tests").rglob("*.py"))
SUPPORT = {path.stem: path for path in TESTS if path.parent.name == "support"}
# Modules that Windows lacks, and names that it lacks in others.
POSIX_MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}
SKIPS = tuple(f"pytest.importorskip('{name}'" for name in POSIX_MODULES)
POSIX_NAMES = {
    *("os.O_NOFOLLOW", "os.O_NONBLOCK", "os.fork", "os.geteuid", "os.getuid", "os.killpg"),
    *("os.mkfifo", "os.openpty", "os.sched_getaffinity", "os.setsid", "os.sysconf", "os.uname"),
    *("signal.SIGALRM", "signal.SIGCHLD", "signal.SIGCONT", "signal.SIGHUP", "signal.SIGKILL"),
    *("signal.SIGPIPE", "signal.SIGSTOP", "signal.SIGUSR1", "signal.SIGUSR2", "signal.alarm"),
    "socket.AF_UNIX",
}


def _area(path):
    """Name of the package or module directly in ``bitnet`` that *path* belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def _nodes(path):
    """Every node of the syntax tree of *path*."""
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def _imports(path):
    """Line and full name of everything that *path* imports, also inside functions."""
    for node in _nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            if node.module != "bitnet":
                names.append(node.module)
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            yield node.lineno, name


def _places(is_wrong):
    """The nodes of the package for which *is_wrong*, by file and line."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in MODULES
        for node in _nodes(path)
        if is_wrong(path, node)
    ]


def test_a_module_imports_only_from_layers_below():
    assert {_area(path) for path in MODULES} <= set(LAYER_OF), "give each a layer"
    wrong = []
    for path in MODULES:
        area = _area(path)
        for line, name in _imports(path):
            target = name.split(".")[1] if name.startswith("bitnet.") else None
            if target in (None, area, "__version__", "_native"):
                continue
            if LAYER_OF[target] >= LAYER_OF[area]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong


def test_only_commands_provision_and_adapters_import_the_hub():
    # Programs call `provision` and `adapters`, as users call commands. Inference must not connect.
    allowed = ("hub", "commands", "provision", "adapters")
    users = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in MODULES
        for line, name in _imports(path)
        if name.startswith("bitnet.hub") and _area(path) not in allowed
    ]
    assert not users


def test_only_settings_reads_the_environment():
    def reads(path, node):
        is_read = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
        return is_read and path != ROOT / "base/settings.py"

    assert not _places(reads)


def test_only_commands_and_the_terminal_print_or_exit():
    printing = (ROOT / "base/progress.py", ROOT / "base/terminal.py")

    def prints(path, node):
        if not isinstance(node, ast.Call) or path in printing or _area(path) == "commands":
            return False
        return (isinstance(node.func, ast.Name) and node.func.id in ("print", "exit", "quit")) or (
            isinstance(node.func, ast.Attribute) and ast.unparse(node.func) == "sys.exit"
        )

    assert not _places(prints)


def _taken_from_the_package(path):
    """Modules of the package from which *path* imports by name, each with the name."""
    for node in _nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bitnet":
            yield from ((node.module, alias.name) for alias in node.names)


def _has(module, name):
    """True if the *module* has the *name*, or is a package with a module of that name."""
    imported = importlib.import_module(module)
    return hasattr(imported, name) or importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_what_a_program_beside_the_package_imports_is_there(path):
    for module, name in _taken_from_the_package(path):
        assert _has(module, name), f"{module}.{name}"


def _bound_names(path):
    """Names that the module *path* has after its import: all that it binds outside functions."""
    names = {"__file__", "__name__", "__doc__"}
    left = list(ast.parse(path.read_text(encoding="utf-8")).body)
    while left:
        node = left.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
            continue
        if isinstance(node, ast.alias):
            names.add(node.asname or node.name)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        left.extend(ast.iter_child_nodes(node))
    return names


def _used_names(path, modules):
    """Each name of *modules* that *path* imports or takes as an attribute, with its module."""
    nodes = _nodes(path)
    module_by_name = {
        alias.asname or alias.name: alias.name
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in modules
    }
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module in modules and not node.level:
            for alias in node.names:
                yield node.module, alias.name
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in module_by_name:
            yield module_by_name[ast.unparse(node.value)], node.attr


def test_what_tests_take_from_each_other_is_there():
    # The first job of `.ci/run` does not import tests that need torch or a peer.
    paths_by_module = defaultdict(list)
    for path in TESTS:
        paths_by_module[path.stem].append(path)
    # Files of the same name in several folders are tests, which no other test imports.
    bound_by_module = {
        name: _bound_names(paths[0]) for name, paths in paths_by_module.items() if len(paths) == 1
    }
    used = {
        (path.relative_to(REPOSITORY).as_posix(), module, name)
        for path in TESTS
        for module, name in _used_names(path, set(bound_by_module))
    }
    assert len({module for _, module, _ in used}) > 50
    assert [use for use in sorted(used) if use[2] not in bound_by_module[use[1]]] == []


def test_what_tests_import_of_the_package_is_there():
    needs_a_package = {"bitnet.adapters.ray_serve"}
    taken = {pair for path in TESTS for pair in _taken_from_the_package(path)}
    modules = {module for module, _ in taken}
    assert len(modules) > 200
    for module, name in sorted(taken):
        if module not in needs_a_package:
            assert _has(module, name), f"{module}.{name}"


def _evaluated(node):
    """Nodes below *node* that an import evaluates on every system, in their order."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        children = [*node.decorator_list, *node.args.defaults]
    elif isinstance(node, ast.BoolOp):
        children = node.values[:1]
    elif isinstance(node, (ast.If, ast.IfExp, ast.Lambda, ast.Try)):
        children = []
    else:
        children = ast.iter_child_nodes(node)
    for child in children:
        yield child
        yield from _evaluated(child)


@cache
def _lacking_on_windows(path):
    """The first name that *path* needs at its import and Windows lacks; empty if there is none."""
    for node in _evaluated(_nodes(path)[0]):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.Call) and ast.unparse(node).startswith(SKIPS):
            return ""  # on Windows the import ends here
        for name in names:
            if name in POSIX_MODULES or name in POSIX_NAMES:
                return name
            if name in SUPPORT and _lacking_on_windows(SUPPORT[name]):
                return f"{name}: {_lacking_on_windows(SUPPORT[name])}"
    return ""


def test_every_file_of_tests_can_be_imported_on_windows():
    assert _lacking_on_windows(SUPPORT["terminals"]) == "fcntl"
    files = [path for path in TESTS if path not in SUPPORT.values()]
    lacking = {
        str(path.relative_to(REPOSITORY)): name
        for path in files
        if (name := _lacking_on_windows(path))
    }
    assert not lacking


def test_no_file_is_longer_than_500_lines():
    generated = {"unicode_tables.hpp"}
    native = [*(REPOSITORY / "native").rglob("*.[ch]pp")]
    assert len(native) > 50
    long = {
        str(path.relative_to(REPOSITORY)): count
        for path in (*MODULES, *PROGRAMS, *TESTS, *native)
        if (count := len(path.read_text("utf-8").splitlines())) > 500 and path.name not in generated
    }
    assert not long


def test_listing_commands_loads_nothing_heavy():
    code = (
        "import sys; from bitnet.commands import load; load();"
        "print([m for m in ('numpy', 'tokenizers', 'requests', 'gguf', 'tqdm', 'jinja2')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_registry_of_sources_loads_nothing_that_connects():
    code = "import sys, bitnet.sources; print('requests' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("path", sorted((ROOT / "base").glob("[a-z]*.py")), ids=lambda p: p.stem)
def test_each_module_of_the_ground_floor_can_be_imported_first(path):
    code = f"import bitnet.base.{path.stem}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_modules_import_each_other_in_a_circle():
    known = {path.relative_to(ROOT).with_suffix("").as_posix() for path in MODULES}
    imported = {}
    for path in MODULES:
        names = {name.split(".", 1)[-1].replace(".", "/") for _, name in _imports(path)}
        imported[path.relative_to(ROOT).with_suffix("").as_posix()] = names & known
    # What imports nothing that is left is in no circle.
    while ends := {name for name, names in imported.items() if not names & set(imported)}:
        imported = {name: names for name, names in imported.items() if name not in ends}
    assert sorted(imported) == []


LOGITS = """
import sys
import bitnet
with bitnet.load(sys.argv[1]) as model:
    model.logits(model.tokenizer.encode("a"))
heavy = ("bitnet.hub", "bitnet.server", "requests")
print([name for name in sys.modules if name.startswith(heavy)])
"""


def test_the_hub_is_imported_only_when_something_is_fetched(tmp_path):
    command = [sys.executable, "-c", LOGITS, str(tiny_gguf(tmp_path / "tiny.gguf"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]"]
