"""Every test runs in a job of ``.ci/run`` that has what it would be skipped without."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
# A module that a test looks for, or an extra of this package that it asks for.
NEEDED = re.compile(
    r"""(?:importorskip|find_spec)\(\s*"(\w+)|pip install 'bitnet-xtask\[([\w,-]+)\]'"\)"""
)
PROGRAMS = re.compile(r"""mark\.needs\("([\w+-]+)"\)""")
OURS_OR_PYTHONS = {"bitnet", *sys.stdlib_module_names}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(path):
    """Text of *path*; a line that ends in a backslash is joined with the next one."""
    return path.read_text(encoding="utf-8").replace("\\\n", " ")


def packages_of(extras):
    """*extras* and the packages that they install, with underscores as modules have them."""
    names = set(extras)
    for extra in extras:
        for requirement in PROJECT["optional-dependencies"][extra]:
            name, inner = re.match(r"([\w-]+)(?:\[([\w,-]+)\])?", requirement).groups()
            if name == PROJECT["name"]:
                names |= packages_of(inner.split(","))
            else:
                names.add(name.replace("-", "_"))
    return names


def runs():
    """Each run of pytest in a job: paths, packages, programs, and the kinds of its tests."""
    readme = re.search(r"<!-- tests -->\n```sh\n(.*)\n", read(ROOT / "README.md"))[1]
    script = read(ROOT / ".ci/run").replace("$(readme_command tests)", f"\n{readme}\n")
    for job in re.findall(r"^\w+\(\) \{(.*?)^\}", script, re.MULTILINE | re.DOTALL):
        packages = {"numpy"}
        programs = set(" ".join(re.findall(r"^ +need (.*)", job, re.MULTILINE)).split())
        for line in job.splitlines():
            for extras in re.findall(
                r"environment ([\w,-]+)|(?<!litellm)\[([a-z][a-z,-]+)\]", line
            ):
                packages |= packages_of("".join(extras).split(","))
            for package in re.findall(r"([\w-]+)==", line):
                packages.add(package.replace("-", "_"))
            if re.search(r"\binv test\b|\bpytest\b.* tests/", line):
                paths = re.findall(r" tests/([\w/.]+)", line)
                places = [TESTS / path for path in paths] or [TESTS]
                if words := re.search(r" -k '([\w ]+)'", line):
                    places = [*modules_with(words[1].split(" or "), places)]
                yield places, set(packages), programs, kinds_of_run(line)


def modules_with(words, places):
    """Modules in *places* that have one of *words* in their name or in that of a test."""
    for place in places:
        for path in [place] if place.is_file() else place.rglob("test_*.py"):
            names = [path.name, *re.findall(r"^def (test_\w+)", read(path), re.MULTILINE)]
            if any(word in name for word in words for name in names):
                yield path


def kinds_of_run(command):
    """Kinds of the tests that *command* runs: slow ones, the others, or both."""
    if "--slow" in command:
        return {"slow"}
    return {"other"} if re.search(r"\binv test\b|not slow", command) else {"slow", "other"}


def kinds_of(path):
    """Kinds of the tests in the module at *path*."""
    text = read(path)
    if "mark.slow" not in text:
        return {"other"}
    of_all = re.search(r"^pytestmark = (?:\[\n(?: .*\n)*|.*)", text, re.MULTILINE)
    n_tests, n_slow = (
        len(re.findall(pattern, text, re.MULTILINE))
        for pattern in (r"^def test_", r"^@pytest\.mark\.slow")
    )
    is_slow = n_slow == n_tests or (of_all is not None and "mark.slow" in of_all[0])
    return {"slow"} if is_slow else {"slow", "other"}


def texts_of(path):
    """The module at *path*, and the helpers that it uses."""
    text = read(path)
    helpers = (
        TESTS / f"support/{name}.py" for name in re.findall(r"^(?:from|import) (\w+)", text, re.M)
    )
    beside = path.with_name("conftest.py")
    return [text, *(read(file) for file in (*helpers, beside) if file.exists())]


def needs_of(path):
    """Packages and extras without which a test in the module at *path* is skipped."""
    needed = {name or extra for text in texts_of(path) for name, extra in NEEDED.findall(text)}
    return needed - OURS_OR_PYTHONS


def programs_of(path):
    """Programs without which a test in the module at *path* is skipped."""
    return {program for text in texts_of(path) for program in PROGRAMS.findall(text)}


RUNS = list(runs())
MODULES = {
    str(path.relative_to(TESTS)): needs
    for path in sorted(TESTS.rglob("test_*.py"))
    if (needs := needs_of(path))
}
WITH_PROGRAMS = {
    str(path.relative_to(TESTS)): programs
    for path in sorted(TESTS.rglob("test_*.py"))
    if (programs := programs_of(path))
}


def test_the_jobs_and_the_needs_are_found():
    assert len(RUNS) >= 8
    assert len(MODULES) >= 20
    assert {"torch", "transformers"} <= MODULES["models/test_transformers_parity.py"]
    assert WITH_PROGRAMS["commands/test_completion.py"] == {"fish", "zsh"}


def test_a_run_without_slow_tests_does_not_run_a_module_that_has_no_others():
    assert kinds_of_run(".venv/bin/inv test") == {"other"}
    assert kinds_of_run("inv test --slow") == {"slow"}
    assert kinds_of_run("pytest -q tests/hub -m 'not slow'") == {"other"}
    assert kinds_of_run("pytest -q tests/models") == {"slow", "other"}
    assert kinds_of(TESTS / "models/test_transformers_parity.py") == {"slow"}
    assert kinds_of(TESTS / "ci/test_workflows.py") == {"slow"}
    assert kinds_of(TESTS / "docs/test_jobs.py") == {"slow", "other"}
    assert kinds_of(TESTS / "docs/test_pages.py") == {"other"}


def test_a_run_of_tests_by_their_names_is_of_the_modules_that_have_them():
    (module,) = modules_with(["are_missing_fails", "nowhere"], [TESTS / "docs"])
    assert module == TESTS / "docs/test_jobs.py"


@pytest.mark.parametrize("module", MODULES)
def test_a_job_has_what_a_test_needs(module):
    path = TESTS / module
    kinds = kinds_of(path)
    for need in MODULES[module]:
        assert any(
            any(path.is_relative_to(place) for place in places)
            # The name of a module may be a part of its package's, between underscores.
            and any(f"_{need}_" in f"_{package}_" for package in packages)
            and kinds & kinds_of_the_run
            for places, packages, _, kinds_of_the_run in RUNS
        ), f"{need} is in no job of .ci/run that runs tests/{module}"


@pytest.mark.parametrize("module", WITH_PROGRAMS)
def test_a_job_requires_the_programs_that_a_test_needs(module):
    path = TESTS / module
    kinds = kinds_of(path)
    for program in WITH_PROGRAMS[module]:
        assert any(
            any(path.is_relative_to(place) for place in places)
            and program in programs
            and kinds & kinds_of_the_run
            for places, _, programs, kinds_of_the_run in RUNS
        ), f"no job of .ci/run that runs tests/{module} needs {program}"


def test_a_test_names_extras_of_this_package_to_install():
    command = re.compile(r"pip install '([\w-]+)\[([\w,-]+)\]'")
    commands = {match for path in TESTS.rglob("*.py") for match in command.findall(read(path))}
    assert len(commands) > 3
    for package, extras in commands:
        assert package == PROJECT["name"]
        assert {*extras.split(",")} <= {*PROJECT["optional-dependencies"]}


def test_no_test_looks_for_a_program_by_itself():
    """A test that is skipped without a program has the marker, which the jobs are held to."""
    for path in TESTS.rglob("test_*.py"):
        assert not re.search(r"skip\w*\(\s*shutil\.which", read(path)), path


@pytest.mark.skipif(sys.platform == "win32", reason=".ci/run is a script of bash")
@pytest.mark.slow
@pytest.mark.needs("git")
@pytest.mark.parametrize(
    ("job", "program"),
    [("change", "python3"), ("server", "chromium"), ("shells", "fish"), ("native", "clang++")],
)
def test_a_job_whose_programs_are_missing_fails(job, program, tmp_path):
    # A PATH with what the script itself uses, and without what the job needs.
    for name in ("bash", "dirname", "git", "mkdir", "mktemp", "rm", "tar"):
        (tmp_path / name).symlink_to(shutil.which(name))
    script = tmp_path / "clone/.ci/run"
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / ".ci/run", script)
    subprocess.run(["git", "init", "-q", tmp_path / "clone"], check=True)
    command = [tmp_path / "bash", script, job]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{job} needs {program}, which is not here" in done.stderr
