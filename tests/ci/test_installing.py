"""The installation that CI makes: from a commit, a folder or a wheel, and nothing by name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ci_project import tool, write_project

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="the scripts need a shell"),
]


@pytest.fixture
def project(tmp_path):
    write_project(tmp_path / "project")
    return tmp_path / "project"


def install(project, source, **environment):
    """Run install.sh with *source*; the finished process, and where it installs ``tool.py``."""
    (project / ".github/bitnet/source.txt").write_text(f"# where from\n{source}\n")
    site = project.parent / "site"
    done = subprocess.run(
        ["sh", ".github/actions/bitnet-setup/install.sh"],
        cwd=project,
        env=os.environ
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PIP_TARGET": str(site),
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        | environment,
        capture_output=True,
        text=True,
    )
    return done, site / "tool.py"


@pytest.mark.needs("git")
def test_a_commit_of_a_repository_is_built_and_installed(project, tmp_path):
    repository = tmp_path / "repository"
    tool(repository)
    git = ["git", "-C", str(repository), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    instead = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{repository.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://example.org/me/tool",
    }
    source = f"git+https://example.org/me/tool@{head.stdout.strip()}"
    done, module = install(project, source, **instead)
    assert done.returncode == 0, done.stderr
    assert module.exists()
    # With another last digit it is a commit that the repository does not have.
    done, _ = install(project, source[:-1] + ("0" if source[-1] != "0" else "1"), **instead)
    assert done.returncode != 0


def test_a_folder_and_a_wheel_of_the_project_are_installed(project):
    done, module = install(project, "tool")
    assert done.returncode == 0, done.stderr
    assert module.exists()
    module.unlink()
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "wheels"]
    subprocess.run([sys.executable, "-m", "pip", *words, "./tool"], cwd=project, check=True)
    done, module = install(project, "wheels/tool-1-py3-none-any.whl")
    assert done.returncode == 0, done.stderr
    assert module.exists()


@pytest.mark.parametrize(
    "source",
    ["git+https://example.org/me/tool@main", "bitnet-xtask", "git+https://e.org/t@" + "g" * 40],
)
def test_a_branch_and_a_name_are_refused(project, source):
    done, module = install(project, source)
    assert done.returncode == 2
    assert "::error::" in done.stdout
    assert not module.exists()


def test_a_requirement_without_its_digest_is_refused(project):
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "wheels"]
    subprocess.run([sys.executable, "-m", "pip", *words, "./tool"], cwd=project, check=True)
    (project / ".github/bitnet/requirements.txt").write_text("tool==1\n")
    done, module = install(project, "tool", PIP_FIND_LINKS="wheels")
    assert done.returncode != 0
    assert "hash" in done.stderr.lower()
    assert not module.exists()
