"""Tasks of a checkout: they work in it wherever they are started, and find every changed file."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
from invoke import Context, Result

from bitnet.base.errors import UsageError

ROOT = Path(__file__).parents[1]


@pytest.fixture
def tasks():
    """``tasks.py`` as a module."""
    spec = importlib.util.spec_from_file_location("tasks_to_test", ROOT / "tasks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def repository(tasks, tmp_path, monkeypatch):
    """A function that runs git in ``tmp_path``, a checkout with one commit, which tasks work in."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    monkeypatch.setattr(tasks, "ROOT", tmp_path)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@b")

    def git(*words):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    git("commit", "--allow-empty", "-m", "first")
    return git


def test_every_file_that_differs_is_one_to_check(tasks, repository, tmp_path):
    repository("tag", "begin")
    for name in ("committed.py", "staged é.py", 'new "quoted".py'):
        (tmp_path / name).touch()
        if not name.startswith("new"):
            repository("add", ".")
        if name.startswith("committed"):
            repository("commit", "-m", "second")
    changed = tasks.changed_files("begin")
    assert changed == ["committed.py", "staged é.py", 'new "quoted".py']


@pytest.mark.parametrize("since", ["origin/none", "", "a; true", "other"])
def test_a_commit_without_a_common_ancestor_is_refused(since, tasks, repository):
    repository("checkout", "--orphan", "other")
    repository("commit", "--allow-empty", "-m", "unrelated")
    repository("checkout", "--orphan", "third")
    repository("commit", "--allow-empty", "-m", "third")
    with pytest.raises(UsageError, match="no common ancestor") as refused:
        tasks.changed_files(since)
    assert "--since" in refused.value.hint


class Recorder(Context):
    """A context that notes each command and the folder it would run in."""

    def __init__(self):
        super().__init__()
        self._set(commands=[])

    def run(self, command, **_options):
        self.commands.append((self.cwd, command))
        return Result()


@pytest.mark.parametrize("name", ["test", "lint", "types", "docs", "native"])
def test_a_task_runs_in_the_checkout(name, tasks, monkeypatch):
    monkeypatch.setattr(tasks, "_tool", lambda name: name)
    recorder = Recorder()
    getattr(tasks, name)(recorder)
    assert recorder.commands
    assert {folder for folder, _ in recorder.commands} == {str(ROOT)}


def test_data_goes_into_a_folder_beside_the_user(tasks):
    recorder = Recorder()
    tasks.test_data(recorder, into="data")
    [(folder, command)] = recorder.commands
    assert folder == ""  # the folder in which the user started it
    assert str(ROOT / "tests/support/fetch_test_data.py") in command
    assert command.endswith("--into data")
