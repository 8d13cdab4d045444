"""``ci-init`` and ``ci-lint`` as a user meets them.

Exit codes: 2 wrong usage, 15 a check failed, 19 not found.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest

from bitnet.base.invocation import extra_command
from bitnet.ci.templates import LINTERS

IMAGE = f"python:3.12-bookworm@sha256:{'ab' * 32}"

ROOT = Path(__file__).parents[2]


SOURCE = ("--from", "git+https://example.org/me/bitnet@" + "ab12" * 10)


@pytest.fixture(autouse=True)
def _in_a_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def linters():
    """Every linter is installed beside this Python."""
    beside = str(Path(sys.executable).parent)
    missing = [name for name in LINTERS if shutil.which(name, path=beside) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; pip install 'bitnet-xtask[ci]'")


def test_linters_that_pip_installed_for_the_user_are_found(bitnet, tmp_path, monkeypatch):
    bitnet("ci-init", *SOURCE)
    scripts = tmp_path / "user" / "bin"
    scripts.mkdir(parents=True)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(scripts))
    assert bitnet("ci-lint").code == 19
    for name in LINTERS:
        (scripts / name).write_text("#!/bin/sh\nexit 0\n")
        (scripts / name).chmod(0o755)
    assert bitnet("ci-lint").code == 0


def test_ci_init_lists_the_files_it_wrote_and_those_that_are_unchanged(bitnet):
    dry_run = bitnet("ci-init", "--with", "parity-smoke", "--dry-run", *SOURCE)
    assert dry_run.code == 0
    assert not Path(".github").exists()
    done = bitnet("ci-init", "--with", "parity-smoke", *SOURCE)
    first = done.out.splitlines()[0]
    assert first == "wrote     .github/workflows/parity-smoke.yml"
    again = json.loads(bitnet("ci-init", "--with", "parity-smoke", "--json").out)
    assert {entry["state"] for entry in again} == {"unchanged"}


def test_ci_init_needs_the_source_from_which_ci_installs_the_program(bitnet):
    done = bitnet("ci-init")
    assert (done.code, Path(".github").exists()) == (2, False)
    assert "hint: bitnet ci-init --from git+https://" in done.err


def test_a_changed_file_is_named_and_kept(bitnet):
    bitnet("ci-init", *SOURCE)
    path = Path(".github/workflows/cache-warm.yml")
    path.write_text("mine\n")
    done = bitnet("ci-init")
    assert (done.code, str(path) in done.err) == (2, True)
    assert "overwrite .github/workflows/cache-warm.yml" in bitnet("ci-init", "--dry-run").out
    assert path.read_text() == "mine\n"
    assert "overwrote .github/workflows/cache-warm.yml" in bitnet("ci-init", "--force").out


def test_the_workflows_that_ci_init_writes_pass_every_linter(bitnet, linters):
    words = [w for name in ("wheels", "release", "docker") for w in ("--with", name)]
    words += ["--image", IMAGE]
    assert bitnet("ci-init", *SOURCE).code == bitnet("ci-init", *words).code == 0
    done = bitnet("ci-lint")
    assert (done.code, done.out.splitlines()) == (0, [f"✓ {name}: no problem" for name in LINTERS])


def test_this_projects_workflows_pass_every_linter(bitnet, linters):
    assert bitnet("ci-lint", "--project", ROOT).code == 0


@pytest.mark.parametrize(
    ("linter", "old", "new"),  # a text of the workflow, and the mistake in its place
    [
        ("zizmor", "@3d3c42e5aac5ba805825da76410c181273ba90b1", "@v7"),
        ("check-jsonschema", "runs-on: ubuntu-24.04", "runs-on: 24"),
        ("zizmor", "persist-credentials: false", "fetch-depth: 0"),
        ("actionlint", "steps.bitnet.outputs", "steps.nothing.outputs"),
        ("actionlint", '2> "$drill/said.txt"', "2> $drill/said.txt"),
    ],
)
def test_each_linter_finds_the_mistake_that_it_is_for(bitnet, linters, linter, old, new):
    bitnet("ci-init", *SOURCE)
    path = Path(".github/workflows/parity-smoke.yml")
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    done = bitnet("ci-lint")
    assert done.code == 15
    assert f"✗ {linter}:" in done.out


def test_a_script_is_linted_too(bitnet, linters):
    bitnet("ci-init", *SOURCE)
    script = Path("scripts/compare.sh")
    quoted = '--report-dir "$report"'
    assert quoted in script.read_text()
    script.write_text(script.read_text().replace(quoted, "--report-dir $report"))
    done = bitnet("ci-lint")
    assert (done.code, "✗ shellcheck:" in done.out) == (15, True)


def test_a_linter_that_is_missing_is_not_a_success(bitnet, monkeypatch):
    bitnet("ci-init", *SOURCE)
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    done = bitnet("ci-lint")
    assert done.code == 19
    assert "- zizmor: not installed" in done.out
    assert extra_command("ci") in " ".join(done.err.split())
    facts = json.loads(bitnet("ci-lint", "--json").out)
    # One for each linter.
    assert [entry["severity"] for entry in facts] == ["skipped"] * 4


def test_without_workflows_there_is_nothing_to_check(bitnet):
    assert bitnet("ci-lint").code == 19
