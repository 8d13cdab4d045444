"""A newer version is known from files of this machine, without git and without a connection."""

import json

import pytest

import bitnet
from bitnet import doctor
from bitnet.base import invocation

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def installed(monkeypatch):
    def install(**facts):
        monkeypatch.setattr(doctor, "direct_url", lambda: facts)
        return doctor.check_updates()

    return install


@pytest.fixture
def checkout(tmp_path):
    """A checkout of a branch that follows the same commit of its origin."""
    for name in ("refs/heads", "refs/remotes/origin", "logs/refs/heads"):
        (tmp_path / ".git" / name).mkdir(parents=True)
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    for name in ("refs/heads/main", "refs/remotes/origin/main"):
        (tmp_path / ".git" / name).write_text(f"{OLD}\n")
    (tmp_path / ".git/logs/refs/heads/main").write_text(f"{'0' * 40} {OLD} clone\n")
    return tmp_path


def of(installed, folder, *, editable=True):
    return installed(url=folder.as_uri(), dir_info={"editable": editable})


def test_a_checkout_with_all_that_was_fetched_is_current(installed, checkout):
    assert of(installed, checkout).severity == "ok"


@pytest.mark.parametrize("packed", [False, True])
def test_a_commit_that_was_fetched_and_not_merged_is_newer(installed, checkout, packed):
    ref = checkout / ".git/refs/remotes/origin/main"
    if packed:
        ref.unlink()
        (checkout / ".git/packed-refs").write_text(f"# pack-refs\n{NEW} refs/remotes/origin/main\n")
    else:
        ref.write_text(f"{NEW}\n")
    finding = of(installed, checkout)
    assert finding.severity == "note"
    assert finding.hint.startswith("git pull; then: ")


def test_commits_of_ones_own_are_not_an_update(installed, checkout):
    (checkout / ".git/refs/heads/main").write_text(f"{NEW}\n")
    (checkout / ".git/logs/refs/heads/main").write_text(f"{OLD} {NEW} commit\n")
    assert of(installed, checkout).severity == "ok"


def test_a_folder_with_another_version_says_how_to_install_it(installed, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "reinstall_command", invocation.reinstall_command)
    (tmp_path / "bitnet").mkdir()
    (tmp_path / "bitnet/__init__.py").write_text('__version__ = "99.0"\n')
    finding = of(installed, tmp_path, editable=False)
    assert finding.severity == "note"
    assert f"has version 99.0, installed is {bitnet.__version__}" in finding.text
    assert finding.hint.startswith("install it again: ")


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"url": "https://example.org/me/bitnet", "vcs_info": {"commit_id": OLD}},
        {"url": "file:///no/such/folder", "dir_info": {}},
    ],
    ids=json.dumps,
)
def test_what_no_file_tells_is_not_looked_up(installed, facts):
    assert installed(**facts).severity == "skipped"
