"""Several files of a repository at once: all of them appear in the project, or none."""

import _thread
import contextlib
import io
import os
import re
import subprocess
import sys
import threading

import pytest
from hub_server import HubServer, Rule
from waiting import PATIENCE_S, until

from bitnet.base.errors import NetworkError, NotFound, UsageError
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.http import FILES_AT_ONCE, Limits, at_once, in_threads
from bitnet.hub.project import Project
from bitnet.hub.resolve import download, refs_of
from bitnet.store import records
from bitnet.store.links import Prepared

FILES = {
    "config.json": b"{}" * 200,
    "model-00001-of-00003.safetensors": bytes(range(256)) * 8000,
    "model-00002-of-00003.safetensors": bytes(range(255, -1, -1)) * 8000,
    "model-00003-of-00003.safetensors": bytes(range(255, -1, -1)) * 4000,
    "model.safetensors.index.json": b"{}",
    "tokenizer.json": b"[]" * 300,
}
WHOLE_REPO = refs_of("org/whole")


@pytest.fixture
def project(hub, tmp_path):
    for name, content in FILES.items():
        hub.add("org/whole", name, content)
    (tmp_path / "work").mkdir()
    options = FetchOptions(base_url=hub.url, retries=1)
    return Project(tmp_path / "work", tmp_path / "cache", options, "none")


def seen(project):
    """Bytes of the files in the project's folder of the model, by name."""
    folder = project.folder / "models/org-whole"
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def test_files_are_transferred_at_the_same_time(hub, project):
    """None of the three large ones ends before all of them have begun."""
    hub.rules.append(Rule(where="cdn", method="GET", stall_at=1000, times=3))

    def fetch():
        with contextlib.suppress(NetworkError):
            download(WHOLE_REPO, project)

    fetching = threading.Thread(target=fetch)
    fetching.start()
    until(lambda: hub.stalled == 3)
    assert seen(project) == {}  # none appears before all are there
    hub.close()
    fetching.join(PATIENCE_S)


def test_all_files_appear_and_are_pinned_at_once(project):
    result = download(WHOLE_REPO, project)
    assert seen(project) == FILES
    assert [entry.path.name for entry in result] == sorted(FILES)
    assert [entry.file for entry in records.read_lock(project.lock_path)] == sorted(FILES)
    assert all(entry.cached for entry in download(WHOLE_REPO, project))


def test_when_one_file_fails_none_appears_and_the_others_are_continued_later(hub, project):
    def kept():
        return written(project.cache / "store/partial") == 3 * 500_000

    # The tokenizer fails once the three large files have stopped at 500,000 bytes each.
    missing = Rule(where="hub", method="GET", path="tokenizer.json", status=404, when=kept)
    hub.rules += [missing, Rule(where="cdn", method="GET", stall_at=500_000, times=3)]
    with pytest.raises(NotFound):
        download(WHOLE_REPO, project)
    assert seen(project) == {}
    assert records.read_lock(project.lock_path) == []
    assert [path.name for path in project.folder.joinpath("models").iterdir()] == []
    hub.rules.clear()
    hub.forget()
    download(WHOLE_REPO, project)
    assert seen(project) == FILES
    # Files of 1000 bytes and more come from the storage, the others from the hub itself.
    large = sum(len(content) for content in FILES.values() if len(content) >= 1000)
    assert hub.sent("cdn") == large - 3 * 500_000


def test_in_a_folder_that_is_there_config_json_is_placed_last(project, monkeypatch):
    folder = project.folder / "models/org-whole"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    placed = []
    real = Prepared.commit
    monkeypatch.setattr(
        Prepared, "commit", lambda self: (placed.append(self.target.name), real(self))
    )
    download(WHOLE_REPO, project)
    assert placed[-1] == "config.json"  # without it, the folder is not a model
    assert seen(project) == {**FILES, "notes.txt": b"mine"}


def test_a_users_file_in_the_folder_is_not_replaced_and_no_other_file_appears(project):
    folder = project.folder / "models/org-whole"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("mine")
    with pytest.raises(UsageError, match="it stays"):
        download(WHOLE_REPO, project)
    assert seen(project) == {"tokenizer.json": b"mine"}


def test_several_files_are_downloaded_with_one_connection(hub, project, monkeypatch):
    """Each reply waits a little for a second request, which never comes."""
    from dataclasses import replace

    monkeypatch.setenv("BITNET_CONNECTIONS", "1")
    changed = threading.Condition()
    waiting = 0  # requests without a reply
    most = 0

    def wait_for_others():
        nonlocal waiting, most
        with changed:
            waiting += 1
            most = max(most, waiting)
            changed.notify_all()
            changed.wait_for(lambda: waiting > 1, timeout=0.1)
            waiting -= 1
        return True

    hub.rules.append(Rule(where="cdn", method="GET", when=wait_for_others))
    download(WHOLE_REPO, replace(project, limits=Limits()))
    assert seen(project) == FILES
    assert most == 1


def test_the_first_failure_of_several_calls_is_raised_and_stops_the_others():
    limits = Limits()
    wait_began = threading.Event()

    def fail():
        wait_began.wait(PATIENCE_S)
        raise NotFound("this one")

    def wait():
        wait_began.set()
        limits.sleep(PATIENCE_S)

    with pytest.raises(NotFound, match="this one"):
        at_once([wait, fail, wait], limits)
    assert not limits.is_stopped
    assert at_once([lambda: 1, lambda: 2], limits) == [1, 2]
    assert at_once([], limits) == []
    assert FILES_AT_ONCE > 1


def test_an_interrupt_before_all_calls_have_begun_ends_those_that_have():
    stopped = threading.Event()

    def calls():
        yield lambda: stopped.wait(PATIENCE_S)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_threads(calls(), 2, stopped.set)
    assert stopped.is_set()


def test_a_signal_that_does_not_wake_the_main_thread_still_ends_the_calls():
    """As a signal whose handler ran just before the main thread began to wait."""
    stopped = threading.Event()
    waited = []

    def call():
        _thread.interrupt_main()
        waited.append(stopped.wait(PATIENCE_S))

    with pytest.raises(KeyboardInterrupt):
        in_threads([call, call], 2, stopped.set)
    assert all(waited)  # each call saw the stop before its patience ended


def written(folder):
    """Bytes in partial files of 500,000 bytes in *folder*, the size at which the rules stall."""
    files = (path for path in folder.glob("*/model-*.partial.*") if path.suffix != ".json")
    return sum(size for size in map(os.path.getsize, files) if size == 500_000)


FETCH = """
import sys
from bitnet.commands.program import main
sys.argv = ["bitnet", "download-model", "--id", "org/whole"]
main()
"""


@pytest.mark.skipif(os.name == "nt", reason="a terminal of POSIX systems")
def test_every_file_has_a_bar_of_its_own(tmp_path):
    import pty

    with HubServer() as hub:
        for name, content in FILES.items():
            hub.add("org/whole", name, content)
        our_end, their_end = pty.openpty()
        environment = os.environ | {"HF_ENDPOINT": hub.url, "BITNET_CACHE_DIR": str(tmp_path / "c")}
        process = subprocess.Popen(
            [sys.executable, "-c", FETCH],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=their_end,
        )  # fmt: skip
        os.close(their_end)
        shown = io.BytesIO()
        while True:
            try:
                chunk = os.read(our_end, 65536)
            except OSError:  # EIO: the process has closed the terminal
                break
            if not chunk:
                break
            shown.write(chunk)
        process.communicate(timeout=PATIENCE_S)
        os.close(our_end)
    text = shown.getvalue().decode()
    assert process.returncode == 0, text
    bars = set(re.findall(r"(model-0000\d-of-00003\.safetensors): +\d+%", text))
    assert bars == {name for name in FILES if name.startswith("model-")}


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX systems")
def test_ctrl_c_ends_all_transfers_and_keeps_the_received_bytes(tmp_path):
    import signal

    with HubServer() as hub:
        for name, content in FILES.items():
            hub.add("org/whole", name, content)
        hub.rules.append(Rule(where="cdn", method="GET", stall_at=500_000, times=3))
        environment = os.environ | {
            "HF_ENDPOINT": hub.url,
            "BITNET_CACHE_DIR": str(tmp_path / "c"),
        }
        process = subprocess.Popen(
            [sys.executable, "-c", FETCH],
            cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        partial = tmp_path / "c/store/partial"
        until(lambda: written(partial) == 3 * 500_000, process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130, errors  # 128 + SIGINT
        assert errors.count("are kept, the same command continues there") == 3
        assert not (tmp_path / "models/org-whole").exists()
        hub.rules.clear()
        second_run = subprocess.run(
            [sys.executable, "-c", FETCH],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert second_run.returncode == 0, second_run.stderr
        assert hub.sent("cdn") <= sum(map(len, FILES.values()))


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX systems")
@pytest.mark.parametrize("files", [["model.gguf"], sorted(FILES)], ids=["one", "several"])
@pytest.mark.parametrize("where", [("hub", "HEAD"), ("cdn", "GET")], ids=["HEAD", "GET"])
def test_ctrl_c_does_not_wait_for_a_server_that_is_silent(where, files, tmp_path):
    """The server answers only after the process has ended."""
    import signal

    from terminals import OnTerminal

    host, method = where
    large = b"GGUF" + bytes(1_000_000)
    with HubServer() as hub:
        for name in files:
            hub.add("org/whole", name, FILES.get(name, large))
        hub.rules.append(Rule(where=host, method=method, when=hub.closing.wait))
        environment = {"HF_ENDPOINT": hub.url, "BITNET_CACHE_DIR": str(tmp_path / "c")}
        environment["BITNET_STALL_TIMEOUT"] = "3600"
        run = OnTerminal([sys.executable, "-c", FETCH], folder=tmp_path, **environment)
        # Of several files, at least two requests wait.
        until(lambda: hub.in_flight >= min(2, len(files)), run.process)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        lines = re.split(r"\r|\n|\x1b\[J", run.shown)
        assert "Error: interrupted" in lines, run.shown  # no bar is on its line
        hub.rules.clear()


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX systems")
def test_a_message_about_a_file_is_on_a_line_of_its_own(tmp_path):
    import signal

    from terminals import OnTerminal

    with HubServer() as hub:
        for name, content in FILES.items():
            hub.add("org/whole", name, content)
        hub.rules.append(Rule(where="cdn", method="GET", stall_at=500_000, times=3))
        environment = {"HF_ENDPOINT": hub.url, "BITNET_CACHE_DIR": str(tmp_path / "c")}
        run = OnTerminal([sys.executable, "-c", FETCH], folder=tmp_path, **environment)
        partial = tmp_path / "c/store/partial"
        until(lambda: written(partial) == 3 * 500_000, run.process)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        lines = re.split(r"\r|\n|\x1b\[J", run.shown)
        messages = [line for line in lines if "are kept" in line]
        assert len(messages) == 3, run.shown
        assert all(line.startswith("Warning: model-") for line in messages)
