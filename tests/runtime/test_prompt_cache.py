"""Prompts stored as files: answers with the same bits, writing in the background, limits."""

import logging
import os
import threading
from pathlib import Path

import pytest
import waiting
from scheduling import prompt
from stored_prompts import LONG, cache_at, files_in, folder_at, model_of, reused_of, store
from tiny_keys import FAMILIES, HYBRIDS, LAYERED, MIXTURES
from tiny_models import tiny_gguf

from bitnet.base import native
from bitnet.cache import prompts
from bitnet.cache.prompts import PromptFolder, choose_folder
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.runtime import prompt_cache
from bitnet.runtime.language_model import load_checkpoint
from bitnet.runtime.prompt_cache import PromptCache
from bitnet.runtime.prompt_file import PromptFile
from bitnet.runtime.request import Request
from bitnet.runtime.scheduler import Scheduler

pytestmark = [
    pytest.mark.skipif(native.module() is None, reason="the compiled module is not installed"),
    pytest.mark.usefixtures("short_prompts"),
]

ALL = sorted({*FAMILIES, *LAYERED, *HYBRIDS, *MIXTURES})
#: Every way in which a cache holds a prefix: keys, windows, states, latents, shared caches.
REPRESENTATIVES = ("deepseek2", "gemma3", "gemma4", "llama", "qwen35")


def check_bits(architecture, path, kv_type):
    """Check the bits of answers to a stored prompt and to a longer one."""
    model = model_of(architecture, kv_type=kv_type)
    ids = prompt(200, seed=3)
    longer = [*ids, *prompt(30, seed=4)]
    fresh, _ = reused_of(model, ids, None)
    fresh_longer, _ = reused_of(model, longer, None)
    assert store(model, ids, path)
    again, reused = reused_of(model, ids, cache_at(path))
    assert (again, reused) == (fresh, 199)  # the last id of a prompt is always run
    # The prompt's own end is a length that windows and states return to.
    continued, reused = reused_of(model, longer, cache_at(path))
    assert continued == fresh_longer
    assert reused >= 199


@pytest.mark.parametrize("architecture", REPRESENTATIVES)
def test_an_answer_behind_a_stored_prompt_has_the_same_bits(architecture, tmp_path):
    check_bits(architecture, tmp_path, "f16")


@pytest.mark.slow
@pytest.mark.parametrize("kv_type", ["f16", "q8"])
@pytest.mark.parametrize("architecture", ALL)
def test_every_family_has_the_same_bits_behind_a_stored_prompt(architecture, kv_type, tmp_path):
    check_bits(architecture, tmp_path, kv_type)


def test_the_longest_stored_prefix_is_used(llama, tmp_path):
    ids = prompt(300, seed=5)
    # Prompts that share 80, 120 and 200 leading ids with *ids*.
    store(llama, [*ids[:80], 7, 7, 7], tmp_path)
    store(llama, [*ids[:120], 8, 8, 8], tmp_path)
    store(llama, [*ids[:200], 9, 9, 9], tmp_path)
    assert len(files_in(tmp_path)) == 3
    fresh, _ = reused_of(llama, ids, None)
    again, reused = reused_of(llama, ids, cache_at(tmp_path))
    assert (again, reused) == (fresh, 200)


def test_a_short_prompt_is_neither_stored_nor_looked_for(llama, tmp_path):
    assert store(llama, prompt(20), tmp_path / "none") == []
    # A prompt must be longer than SHORTEST, here 32.
    stored = PromptCache(folder_at(tmp_path), lambda _: pytest.fail("the facts were computed"))
    assert stored.find(prompt(32), "", Scheduler(llama).new_cache, lambda _: 0) is None


class _SlowFile:
    """A stand-in for a prompt file, which the test declares to be read."""

    path = Path("stored.kv")
    is_checked = False

    def __init__(self):
        self.is_read = False
        self.waits = 0

    def begin(self):
        pass

    def wait(self):
        self.waits += 1
        self.is_read = True

    def problem(self):
        assert self.is_read, "results before the file was read"
        return ""


def slow_sequence(scheduler, ids):
    """A queued sequence whose prompt is in a file that is not read yet; also that file."""
    sequence = scheduler.prepare(ids, Request(max_tokens=2, temperature=0.0))
    assert sequence.stored is not None
    sequence.stored.backing = file = _SlowFile()
    scheduler.queue(sequence)
    return sequence, file


def test_others_are_answered_while_a_stored_prompt_is_read(llama, tmp_path):
    ids = prompt(200, seed=3)
    store(llama, ids, tmp_path)
    scheduler = Scheduler(llama, prompt_cache=cache_at(tmp_path))
    other = scheduler.submit(prompt(10, seed=4), Request(20, temperature=0.0, lookup=0))
    sequence, file = slow_sequence(scheduler, ids)
    pieces = [piece for _ in range(5) for piece in scheduler.step()]
    assert {id(writer) for writer, _ in pieces} == {id(other)}
    assert len(pieces) == 5
    file.is_read = True
    pieces = scheduler.step()
    assert {id(writer) for writer, _ in pieces} == {id(other), id(sequence)}
    assert not file.waits  # the scheduler never blocked on the file


def test_a_stored_prompt_alone_is_waited_for(llama, tmp_path):
    ids = prompt(200, seed=3)
    store(llama, ids, tmp_path)
    scheduler = Scheduler(llama, prompt_cache=cache_at(tmp_path))
    sequence, file = slow_sequence(scheduler, ids)
    assert [writer for writer, _ in scheduler.step()] == [sequence]
    assert file.waits == 1


def test_an_embedding_is_not_stored(llama, tmp_path):
    stored = cache_at(tmp_path)
    scheduler = Scheduler(llama, prompt_cache=stored)
    list(scheduler.generate(prompt(100), Request(embed=True)))
    stored.close()
    assert files_in(tmp_path) == []


def test_the_state_in_memory_is_preferred_when_it_is_as_long(llama, tmp_path):
    ids = prompt(200)
    stored = cache_at(tmp_path)
    scheduler = Scheduler(llama, prompt_cache=stored)
    request = Request(max_tokens=2)
    list(scheduler.generate(ids, request))
    stored.close()
    sequence = scheduler.prepare(ids, request)
    assert sequence.stored is not None
    list(scheduler.run(sequence))
    assert sequence.reused_tokens == 199
    assert all(cache.backing is None for cache in scheduler.caches._caches)  # of no file


def test_sequences_of_one_batch_use_one_file(llama, tmp_path):
    ids = prompt(200)
    fresh = [reused_of(llama, [*ids, last], None)[0] for last in (5, 6, 7)]
    store(llama, ids, tmp_path)
    scheduler = Scheduler(llama, prompt_cache=cache_at(tmp_path), max_batch=3)
    shared_request = Request(max_tokens=5, temperature=0.0, logprobs=8)
    sequences = [scheduler.submit([*ids, last], shared_request) for last in (5, 6, 7)]
    pieces = {sequence: [] for sequence in sequences}
    while scheduler.busy:
        for sequence, piece in scheduler.step():
            pieces[sequence].append((piece.token, piece.logprob, piece.top_logprobs))
    assert [pieces[sequence] for sequence in sequences] == fresh
    assert [sequence.reused_tokens for sequence in sequences] == [200, 200, 200]


def test_a_file_is_written_by_a_thread_for_which_answers_do_not_wait(llama, tmp_path, monkeypatch):
    writers = []
    may_write = threading.Event()

    def write(self, model, name, parts):
        writers.append(threading.current_thread().name)
        assert may_write.wait(waiting.PATIENCE_S)
        return "a full disk"

    monkeypatch.setattr(PromptFolder, "write", write)
    stored = cache_at(tmp_path)
    scheduler = Scheduler(llama, prompt_cache=stored)
    # The write waits for the event, but these answers end before it is set.
    for seed in range(3):
        assert list(scheduler.generate(prompt(100, seed=seed), Request(max_tokens=2)))
    may_write.set()
    stored.close()
    assert set(writers) == {"bitnet-prompt-writer"}


def test_a_file_has_the_state_at_the_end_of_its_sequence_although_the_cache_changes_later(
    llama, tmp_path, monkeypatch
):
    may_write = threading.Event()
    write = PromptFolder.write

    def wait_and_write(self, model, name, parts):
        assert may_write.wait(waiting.PATIENCE_S)
        return write(self, model, name, parts)

    monkeypatch.setattr(PromptFolder, "write", wait_and_write)
    ids = prompt(200)
    fresh, _ = reused_of(llama, ids, None)
    stored = cache_at(tmp_path)
    scheduler = Scheduler(llama, prompt_cache=stored, max_batch=1)
    list(scheduler.generate(ids, Request(max_tokens=2)))
    # Takes over and changes the only cache, before the first prompt is written.
    list(scheduler.generate([*ids[:150], *prompt(80, seed=9)], Request(max_tokens=2)))
    may_write.set()
    stored.close()
    again, reused = reused_of(llama, ids, cache_at(tmp_path))
    assert (again, reused) == (fresh, 199)


def test_a_prompt_that_grew_by_little_is_written_once_it_is_idle(llama, tmp_path, monkeypatch):
    # The second prompt grows by 41 of 200 positions, less than a half.
    monkeypatch.setattr(prompt_cache, "GROWTH", 2)
    monkeypatch.setattr(prompt_cache, "IDLE_S", 0.01)
    attempts = []  # True: the prompt was idle
    write = PromptCache._write

    def record_and_write(self, pending, *, is_idle):
        attempts.append(is_idle)
        return write(self, pending, is_idle=is_idle)

    monkeypatch.setattr(PromptCache, "_write", record_and_write)
    ids = prompt(200)
    stored = cache_at(tmp_path)
    scheduler = Scheduler(llama, prompt_cache=stored)
    list(scheduler.generate(ids, Request(max_tokens=1)))
    waiting.until(lambda: stored._thread is None)
    list(scheduler.generate([*ids, *prompt(40, seed=1)], Request(max_tokens=2)))
    waiting.until(lambda: stored._thread is None)
    stored.close()
    (path,) = files_in(tmp_path)  # the shorter one is part of it
    # 240 ids of the prompt and the first of two tokens; the last one was not run.
    assert len(PromptFile.open(path).ids) == 241
    assert attempts == [False, False, True]  # the second prompt was written in the third attempt


def test_a_prompt_that_a_file_covers_is_not_written_again(llama, tmp_path):
    ids = prompt(200)
    (path,) = store(llama, ids, tmp_path)
    before = path.stat().st_mtime_ns
    store(llama, [*ids[:190], 4, 4, 4], tmp_path)
    assert files_in(tmp_path) == [path]
    assert path.stat().st_mtime_ns == before


def test_the_least_recently_used_file_is_deleted_at_the_limit_of_the_folder(llama, tmp_path):
    (first,) = store(llama, prompt(100, seed=1), tmp_path)
    size = first.stat().st_size
    limit = {"limit_bytes": 2.5 * size}  # room for two files
    store(llama, prompt(100, seed=2), tmp_path, **limit)
    os.utime(first, (1, 1))  # times of the last use, in seconds since 1970
    second = next(path for path in files_in(tmp_path) if path != first)
    os.utime(second, (2, 2))
    assert reused_of(llama, prompt(100, seed=1), cache_at(tmp_path, **limit))[1] == 99  # used now
    store(llama, prompt(100, seed=3), tmp_path, **limit)
    assert first.exists()
    assert not second.exists()
    assert len(files_in(tmp_path)) == 2


def test_a_prompt_larger_than_the_folder_is_not_stored(llama, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    assert store(llama, prompt(100), tmp_path, limit_bytes=1000) == []
    assert "is not stored" in caplog.text


def test_a_disk_without_room_stores_nothing_and_answers(llama, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(prompts, "SPARE_BYTES", 1 << 62)  # more free bytes than any disk has
    assert store(llama, prompt(100), tmp_path) == []
    assert "is not stored" in caplog.text


def test_a_folder_that_cannot_be_made_stores_nothing_and_answers(llama, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    (tmp_path / "file").write_text("not a folder")
    assert store(llama, prompt(100), tmp_path / "file" / "prompts") == []
    assert "is not stored" in caplog.text


def test_without_memory_for_a_copy_nothing_is_stored_and_the_answer_is_whole(
    llama, tmp_path, monkeypatch, caplog
):
    def copy_prefix(self, source, length):
        raise MemoryError

    expected, _ = reused_of(llama, prompt(100), None)
    stored = cache_at(tmp_path)
    monkeypatch.setattr(KVCache, "copy_prefix", copy_prefix)
    found, _ = reused_of(llama, prompt(100), stored)
    stored.close()
    assert found == expected
    assert files_in(tmp_path) == []
    assert "a prompt is not stored: there is not enough memory" in caplog.text


@pytest.mark.parametrize(
    ("choice", "root"), [("auto", "cache/prompts"), ("off", None), ("{}/mine", "mine")]
)
def test_the_option_names_a_folder(choice, root, tmp_path):
    chosen = choose_folder(choice.format(tmp_path), tmp_path / "cache")
    assert (chosen and chosen.root) == (root and tmp_path / root)


def test_a_size_limit_of_zero_turns_stored_prompts_off(tmp_path, monkeypatch):
    monkeypatch.setenv("BITNET_PROMPT_CACHE_SIZE", "0")
    assert choose_folder("auto", tmp_path) is None


def test_a_loaded_model_stores_its_prompts_when_it_is_closed(tmp_path):
    path = tiny_gguf(tmp_path / "tiny.gguf", **{"llama.context_length": LONG})
    folder = folder_at(tmp_path / "prompts")
    ids = prompt(100)
    with load_checkpoint(open_checkpoint(path), prompt_folder=folder) as model:
        first = model.generate(ids, max_tokens=3, temperature=0.0)
    with load_checkpoint(open_checkpoint(path), prompt_folder=folder) as model:
        again = model.stream(ids, max_tokens=3, temperature=0.0)
        assert "".join(again) == first
        assert again.sequence.reused_tokens == 99
