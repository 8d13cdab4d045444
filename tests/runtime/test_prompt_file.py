"""Files of prompts: damaged, replaced, of another model, or left by a killed process."""

import os
import stat
import subprocess
import sys
import time
import traceback
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import waiting
from scheduling import prompt
from stored_prompts import FACTS, cache_at, files_in, folder_at, model_of, reused_of, store

from bitnet.base import native
from bitnet.cache import prompts
from bitnet.runtime.prompt_cache import PromptCache
from bitnet.runtime.prompt_file import PromptFile, _check_of_page, problem_of
from bitnet.runtime.request import Request
from bitnet.runtime.scheduler import Scheduler

pytestmark = [
    pytest.mark.skipif(native.module() is None, reason="the compiled module is not installed"),
    pytest.mark.usefixtures("short_prompts"),
]


def test_every_changed_byte_of_a_page_changes_its_checksum():
    rng = np.random.default_rng(1)
    page = rng.integers(0, 256, 1300, dtype=np.uint8)  # two sectors of 512 bytes and a rest
    check = _check_of_page(page)
    for place in range(page.size):
        changed = page.copy()
        changed[place] ^= 1 << rng.integers(8)
        assert _check_of_page(changed) != check, place


@pytest.mark.parametrize("size", [512, 1024, 4096])  # bytes of a part: whole sectors
def test_exchanged_parts_of_a_page_change_its_checksum(size):
    page = np.random.default_rng(2).integers(0, 256, 4 * size, dtype=np.uint8)
    for first, second in combinations(range(4), 2):
        changed = page.reshape(4, size).copy()
        changed[[first, second]] = changed[[second, first]]
        assert _check_of_page(changed) != _check_of_page(page)


def offsets_in(path):
    """Offset of a byte in each part of the file *path*, by the name of the part."""
    file = PromptFile.open(path)
    return {
        "start": 0,
        "version": 8,
        "header": 40,
        "first page": file.offset,
        "middle": (file.offset + file.size_bytes) // 2,
        "last byte": file.size_bytes - 1,
    }


@pytest.mark.parametrize("architecture", ["llama", "qwen35"])
@pytest.mark.parametrize(
    "place", ["start", "version", "header", "first page", "middle", "last byte"]
)
def test_a_damaged_file_is_not_used_and_is_reported(architecture, place, tmp_path, caplog):
    model = model_of(architecture)
    ids = prompt(200)
    fresh, _ = reused_of(model, ids, None)
    (path,) = store(model, ids, tmp_path)
    content = bytearray(path.read_bytes())
    content[offsets_in(path)[place]] ^= 0x41
    path.write_bytes(content)
    stored = cache_at(tmp_path)
    again, reused = reused_of(model, ids, stored)
    assert (again, reused) == (fresh, 0)
    assert f"{path} is not used" in caplog.text
    stored.close()
    assert [problem_of(file) for file in files_in(tmp_path)] == [""]  # written again


# Bytes that are left: parts of the head, and all but the last one.
@pytest.mark.parametrize("size", [0, 10, 31, 60, 3000, -1])
def test_a_file_that_ends_early_is_not_used_and_is_reported(llama, size, tmp_path, caplog):
    ids = prompt(100)
    fresh, _ = reused_of(llama, ids, None)
    (path,) = store(llama, ids, tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[:size])
    stored = cache_at(tmp_path)
    again, reused = reused_of(llama, ids, stored)
    assert (again, reused) == (fresh, 0)
    assert f"{path} is not used" in caplog.text
    stored.close()
    assert problem_of(path) == ""  # written again


def stored_length(stored, model, ids):
    """Number of positions that *stored* restores for *ids*; 0 without a file."""
    cache = stored.find(ids, "", Scheduler(model).new_cache, lambda _: 0)
    return 0 if cache is None else cache.length


def test_a_file_that_another_process_replaced_is_read_again(llama, tmp_path, caplog):
    ids, other = prompt(200, seed=3), prompt(200, seed=4)
    (path,) = store(llama, ids, tmp_path / "first")
    (new,) = store(llama, other, tmp_path / "second")
    stored = cache_at(tmp_path / "first")
    assert (stored_length(stored, llama, ids), stored_length(stored, llama, other)) == (199, 0)
    new.replace(path)
    assert (stored_length(stored, llama, ids), stored_length(stored, llama, other)) == (0, 199)
    assert files_in(tmp_path) == [path]
    assert not caplog.text


def test_a_file_that_is_replaced_while_it_is_opened_is_not_deleted(llama, tmp_path, monkeypatch):
    ids = prompt(200)
    (path,) = store(llama, ids, tmp_path / "first")
    (new,) = store(llama, prompt(200, seed=4), tmp_path / "second")
    stored = cache_at(tmp_path / "first")
    candidates = PromptCache._candidates

    def replaced_after(*arguments):
        files = candidates(*arguments)
        new.replace(path)
        return files

    with monkeypatch.context() as patch:
        patch.setattr(PromptCache, "_candidates", replaced_after)
        assert stored_length(stored, llama, ids) == 0
    assert files_in(tmp_path) == [path]
    assert stored_length(stored, llama, prompt(200, seed=4)) == 199


def test_a_damaged_file_that_was_replaced_meanwhile_is_not_deleted(llama, tmp_path):
    ids = prompt(200)
    (path,) = store(llama, ids, tmp_path / "first")
    (new,) = store(llama, ids, tmp_path / "second")
    content = bytearray(path.read_bytes())
    content[-1] ^= 0x41
    path.write_bytes(content)
    stored = cache_at(tmp_path / "first")
    scheduler = Scheduler(llama, prompt_cache=stored)
    sequence = scheduler.prepare(ids, Request(max_tokens=2))
    assert sequence.stored is not None
    new.replace(path)
    scheduler.queue(sequence)
    assert scheduler.step() == []  # the pages are damaged: the sequence starts over
    assert files_in(tmp_path) == [path]
    assert sequence.reused_tokens == 0


def test_a_file_cut_short_while_it_is_used_changes_no_answer(llama, tmp_path, caplog):
    ids = prompt(300)
    fresh, _ = reused_of(llama, ids, None)
    (path,) = store(llama, ids, tmp_path)
    scheduler = Scheduler(llama, prompt_cache=cache_at(tmp_path))
    sequence = scheduler.submit(ids, Request(max_tokens=5, temperature=0.0, logprobs=8))
    pieces = [piece for _, piece in scheduler.step()]
    os.truncate(path, 8192)  # pages of 4,096 bytes behind this end can no longer be read
    while scheduler.busy:
        pieces += [piece for _, piece in scheduler.step()]
    assert [(piece.token, piece.logprob, piece.top_logprobs) for piece in pieces] == fresh
    assert sequence.error is None
    assert f"{path} is not used" in caplog.text


@pytest.mark.parametrize("name", ["version", "kernels", "program", "tokenizer"])
def test_a_file_of_another_version_is_not_used_and_is_reported(llama, name, tmp_path, caplog):
    ids = prompt(100)
    facts = {**FACTS, "kernels": "a", "program": "b", "tokenizer": "c"}
    fresh, _ = reused_of(llama, ids, None)
    (path,) = store(llama, ids, tmp_path, facts)
    again, reused = reused_of(llama, ids, cache_at(tmp_path, {**facts, name: "another"}))
    assert (again, reused) == (fresh, 0)
    assert f"{path} is not used: it was made with another {name}" in caplog.text
    assert path.exists()  # kept: another installation may use it


@pytest.mark.parametrize("name", ["adapters", "kv_type"])
def test_files_of_other_adapters_or_kv_types_are_not_used_and_not_reported(
    llama, name, tmp_path, caplog
):
    ids = prompt(100)
    store(llama, ids, tmp_path)
    _, reused = reused_of(llama, ids, cache_at(tmp_path, {**FACTS, name: "another"}))
    assert reused == 0
    assert "not used" not in caplog.text


def test_a_file_with_pages_of_another_shape_is_not_used(llama, tmp_path, caplog):
    (path,) = store(model_of("deepseek2"), prompt(100), tmp_path)
    fresh, _ = reused_of(llama, prompt(100), None)
    again, reused = reused_of(llama, prompt(100), cache_at(tmp_path))
    assert (again, reused) == (fresh, 0)
    assert f"{path} is not used" in caplog.text


def test_links_and_files_of_other_users_are_not_used(llama, tmp_path, monkeypatch):
    (path,) = store(llama, prompt(100), tmp_path / "a")
    linked = tmp_path / "b" / path.parent.name
    linked.mkdir(parents=True)
    (linked / path.name).symlink_to(path)
    assert reused_of(llama, prompt(100), cache_at(tmp_path / "b"))[1] == 0
    assert reused_of(llama, prompt(100), cache_at(tmp_path / "a"))[1] == 99
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # the files are now another user's
    assert reused_of(llama, prompt(100), cache_at(tmp_path / "a"))[1] == 0


def test_files_and_folders_are_private_from_the_first_byte(llama, tmp_path, monkeypatch):
    modes = []
    replace_file = Path.replace

    def observe(self, target):
        if target.is_relative_to(tmp_path):  # not a file that another test still writes
            modes.append(stat.S_IMODE(self.stat().st_mode))
        return replace_file(self, target)

    monkeypatch.setattr(Path, "replace", observe)
    mask = os.umask(0)  # so that only the code itself restricts the modes
    try:
        (path,) = store(llama, prompt(100), tmp_path / "prompts")
    finally:
        os.umask(mask)
    assert modes == [0o600]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "prompts").stat().st_mode) == 0o700


# Writes a prompt file and is killed by a limit on the size of files, or before the renaming.
WRITE_AND_DIE = """
import os, resource, signal, sys
from pathlib import Path
from bitnet.cache.prompts import PromptFolder

folder = PromptFolder(Path(sys.argv[1]), limit_bytes=1e9)
if sys.argv[2] == "while writing":
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
else:
    Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
content = Path(sys.argv[3]).read_bytes()
folder.write("ab" * 16, "cd" * 16, [content[:40_000], content[40_000:]])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("moment", ["while writing", "before it is renamed"])
def test_a_process_killed_while_it_writes_leaves_nothing_that_is_read(
    llama, moment, tmp_path, monkeypatch
):
    ids = prompt(200)
    fresh, _ = reused_of(llama, ids, None)
    (path,) = store(llama, ids, tmp_path / "whole")
    folder = tmp_path / "prompts"
    command = [sys.executable, "-c", WRITE_AND_DIE, str(folder), moment, str(path)]
    completed = subprocess.run(command, check=False, timeout=waiting.PATIENCE_S)
    assert completed.returncode < 0  # it was ended by a signal
    (temporary,) = [file for file in folder.rglob("*") if file.is_file()]
    assert temporary.suffix == ".tmp"
    again, reused = reused_of(llama, ids, cache_at(folder))
    assert (again, reused) == (fresh, 0)

    # A temporary file of any age counts as abandoned, and the next write deletes it.
    monkeypatch.setattr(prompts, "ABANDONED_S", -1.0)
    assert len(store(llama, ids, folder)) == 1
    assert not temporary.exists()


def test_drafts_that_another_process_removes_first_do_not_keep_the_others(tmp_path, monkeypatch):
    folder = folder_at(tmp_path)
    assert not folder.write("a" * 32, "b" * 32, [b"content"])
    (path,) = files_in(tmp_path)
    drafts = [path.with_name(f".{path.name}.{number}-ab.tmp") for number in range(20)]
    for draft in drafts:
        draft.write_bytes(b"unfinished")
    now_s = time.time()

    def long_afterwards():
        """A time at which the drafts are abandoned; another process has removed half of them."""
        for draft in drafts[::2]:
            draft.unlink(missing_ok=True)
        return now_s + prompts.ABANDONED_S + 60

    monkeypatch.setattr(prompts.time, "time", long_afterwards)
    assert not folder.write("a" * 32, "c" * 32, [b"content"])
    assert [draft for draft in drafts if draft.exists()] == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_two_processes_share_the_files(llama, tmp_path):
    ids = prompt(200)
    fresh, _ = reused_of(llama, ids, None)
    stored = cache_at(tmp_path)
    child = os.fork()
    if not child:
        try:
            store(llama, ids, tmp_path)
        except BaseException:  # noqa: BLE001 - the child ends here
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    (path,) = files_in(tmp_path)
    again, reused = reused_of(llama, ids, stored)
    assert (again, reused) == (fresh, 199)
    stored.close()
    assert files_in(tmp_path) == [path]
