"""`inv check` runs the tests that a change can break."""

import shutil
import subprocess
import sys
from pathlib import Path

import affected
import pytest

ROOT = Path(__file__).parents[1]

# A file of the project, and a test file far from it that has to run when the file changes.
FAR_TESTS = {
    "bitnet/families/gemma.py": "tests/models/test_gguf_keys.py",
    "bitnet/wire/anthropic.py": "tests/server/test_fields.py",
    "bitnet/store/links.py": "tests/hub/test_removal.py",
    "bitnet/tokenizer/tokenizer_json.py": "tests/tokenizer/test_load.py",
    "native/kernels/ops/linear.cpp": "tests/kernels/test_native_linear.py",
    "native/tokenizer/bpe.cpp": "tests/tokenizer/test_load.py",
    "CMakeLists.txt": "tests/kernels/test_native_linear.py",
    "bitnet/_native.pyi": "tests/test_native_stub.py",
    "bitnet/ci/templates.py": "tests/commands/test_ci_tasks.py",
    "benchmarks/serve_mixed.py": "tests/bench/test_benchmarks.py",
    "docs/generate.py": "tests/docs/test_generate.py",
}


def selects(paths, test):
    """True if *test* is one of *paths*, or below one of them."""
    return any(test == path or test.startswith(f"{path}/") for path in paths)


@pytest.mark.parametrize(("changed", "test"), FAR_TESTS.items())
def test_a_change_selects_a_test_that_imports_the_file_indirectly(changed, test):
    assert (ROOT / changed).exists()
    assert (ROOT / test).exists()
    assert selects(affected.affected_tests([changed]), test)


def test_every_module_selects_more_than_the_rules_of_the_house():
    modules = [path.relative_to(ROOT).as_posix() for path in (ROOT / "bitnet").rglob("*.py")]
    without_own_tests = [
        module
        for module in modules
        if not set(affected.affected_tests([module])) - set(affected.HOUSE)
    ]
    # The tests of this one are among HOUSE, which run after every change.
    assert without_own_tests == ["bitnet/__main__.py"]


def test_a_file_that_no_rule_knows_selects_every_test():
    assert affected.affected_tests(["pyproject.toml"]) == ["tests"]
    assert affected.affected_tests(["a-new-folder/file.xyz", "README.md"]) == ["tests"]


def test_a_page_selects_the_tests_of_pages_only():
    selected = affected.affected_tests(["docs/how-to/serve.md"])
    assert set(selected) == {*affected.HOUSE, *affected.PAGES}


def test_a_deleted_module_still_selects_its_room():
    assert selects(affected.affected_tests(["bitnet/hub/no_more.py"]), "tests/hub/test_resolve.py")


def test_a_helper_selects_the_tests_that_use_it():
    selected = affected.affected_tests(["tests/support/hub_server.py"])
    assert selects(selected, "tests/hub/test_fetch.py")
    assert not selects(selected, "tests/quants/test_types.py")


# Runs pytest on the package in the working folder: without the finder of an editable installation,
# and in front of an installed package.
RUN = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if not type(each).__name__.startswith("Scikit")]
sys.path.insert(0, ".")
import pytest
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *sys.argv[1:]]))
"""


@pytest.fixture
def mutated(tmp_path):
    """A function that copies the repository with one text of a file replaced."""

    def mutate(path, old, new):
        copy = tmp_path / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "build")
        shutil.copytree(ROOT, copy, ignore=ignored)
        source = (copy / path).read_text(encoding="utf-8")
        assert source.count(old) == 1
        (copy / path).write_text(source.replace(old, new), encoding="utf-8")
        return copy

    return mutate


def run_tests(copy, selected):
    """Run the *selected* tests in the folder *copy*; the finished process."""
    command = [sys.executable, "-c", RUN, *selected]
    return subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_mutant_of_a_family_fails_what_check_runs(mutated):
    """Gemma with its width, instead of the root of that, as the factor of its embeddings."""
    path = "bitnet/families/gemma.py"
    copy = mutated(path, "embedding_scale=math.sqrt(model.dim)", "embedding_scale=model.dim")
    rooms = ("tests/families", "tests/models", "tests/crossval")
    selected = [name for name in affected.affected_tests([path]) if name.startswith(rooms)]
    done = run_tests(copy, selected)
    assert done.returncode == 1, done.stdout[-2000:]
    assert "1 failed" in done.stdout


@pytest.mark.slow
@pytest.mark.needs("c++")
def test_a_mutant_of_a_kernel_fails_what_check_runs(mutated, tmp_path):
    """Products with a scale that is a thousandth too large."""
    pytest.importorskip("scikit_build_core", reason="part of the extra dev, to build C++")
    path = "native/kernels/ops/linear.cpp"
    copy = mutated(path, "args.scale = m.scale;", "args.scale = 1.001f * m.scale;")
    pip = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps"]
    level = "cmake.define.BITNET_COMPILE=best"
    built = tmp_path / "built"
    subprocess.run([*pip, "--target", built, "-C", level, copy], check=True, capture_output=True)
    (module,) = (built / "bitnet").glob("_native*.so")
    shutil.copy(module, copy / "bitnet" / module.name)
    selected = affected.affected_tests([path])
    assert "tests/kernels" in selected
    done = run_tests(copy, ["tests/kernels/test_native_ternary.py"])
    assert done.returncode == 1, done.stdout[-2000:]
    assert "1 failed" in done.stdout
