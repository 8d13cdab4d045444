"""Prompts that outlive a scheduler as files: the same bits, or not used and reported."""

import logging
import os
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import waiting
from scheduling import prompt
from tiny_models import FAMILIES, HYBRIDS, LAYERED, MIXTURES, in_encoding, tiny, tiny_gguf

from bitnet.base import native
from bitnet.cache import prompts
from bitnet.cache.prompts import PromptFolder, choose_folder
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.native import NativeOps
from bitnet.models.load import load_model
from bitnet.runtime import prompt_cache
from bitnet.runtime.language_model import load_checkpoint
from bitnet.runtime.prompt_cache import PromptCache
from bitnet.runtime.prompt_facts import PromptFacts, open_prompt_cache
from bitnet.runtime.prompt_file import PromptFile, _check_of_page, problem_of
from bitnet.runtime.request import Request
from bitnet.runtime.scheduler import Scheduler

pytestmark = pytest.mark.skipif(
    native.module() is None, reason="the compiled module is not installed"
)

LONG = 400  # positions of the tiny models here: several pages, and more than a window
ALL = sorted({*FAMILIES, *LAYERED, *HYBRIDS, *MIXTURES})
#: Every way in which a cache holds a prefix: keys, windows, states, latents, shared caches.
REPRESENTATIVES = ("deepseek2", "gemma3", "gemma4", "llama", "qwen35")
FACTS = {"weights": "ab" * 32, "version": "1", "adapters": "", "kv_type": "f16"}


@pytest.fixture(autouse=True)
def _short_prompts(monkeypatch):
    """A few positions are worth a file, as 256 are for larger models."""
    monkeypatch.setattr(prompt_cache, "SHORTEST", 32)


def model_of(architecture, *, kv_type="f16"):
    checkpoint = in_encoding(tiny(architecture, context_length=LONG), "Q8_0")
    return load_model(replace(checkpoint, kv_type=kv_type), ops=NativeOps(threads=1))


@pytest.fixture(scope="module")
def llama():
    return model_of("llama")


def folder_at(path, limit_bytes=1e9):
    return PromptFolder(path, limit_bytes=limit_bytes)


def cache_at(path, facts=FACTS, **limits):
    return PromptCache(folder_at(path, **limits), lambda _adapter: facts)


def reused_of(model, ids, stored, **options):
    """Bits of an answer to *ids* with the prompts *stored*, and the number of reused ids."""
    scheduler = Scheduler(model, prompt_cache=stored, **options)
    sequence = scheduler.prepare(ids, Request(max_tokens=5, temperature=0.0, logprobs=8))
    pieces = list(scheduler.run(sequence))
    bits = [(piece.token, piece.logprob, piece.top_logprobs) for piece in pieces]
    return bits, sequence.reused_tokens


def store(model, ids, path, facts=FACTS, **limits):
    """Answer *ids*, and have what was computed written; the files below *path*."""
    stored = cache_at(path, facts, **limits)
    reused_of(model, ids, stored)
    stored.close()
    return files_in(path)


def files_in(path):
    return sorted(path.rglob("*.kv"))


def bits_survive(architecture, path, kv_type):
    model = model_of(architecture, kv_type=kv_type)
    ids = prompt(200, seed=3)
    longer = [*ids, *prompt(30, seed=4)]
    fresh, _ = reused_of(model, ids, None)
    fresh_longer, _ = reused_of(model, longer, None)
    assert store(model, ids, path)
    again, reused = reused_of(model, ids, cache_at(path))
    assert (again, reused) == (fresh, 199)
    # The prompt's own end is a length that windows and states return to.
    continued, reused = reused_of(model, longer, cache_at(path))
    assert continued == fresh_longer
    assert reused >= 199


@pytest.mark.parametrize("architecture", REPRESENTATIVES)
def test_an_answer_behind_a_stored_prompt_has_the_same_bits(architecture, tmp_path):
    bits_survive(architecture, tmp_path, "f16")


@pytest.mark.slow
@pytest.mark.parametrize("kv_type", ["f16", "q8"])
@pytest.mark.parametrize("architecture", ALL)
def test_every_family_has_the_same_bits_behind_a_stored_prompt(architecture, kv_type, tmp_path):
    bits_survive(architecture, tmp_path, kv_type)


def test_the_longest_stored_prefix_is_used(llama, tmp_path):
    ids = prompt(300, seed=5)
    store(llama, [*ids[:80], 7, 7, 7], tmp_path)
    store(llama, [*ids[:120], 8, 8, 8], tmp_path)
    store(llama, [*ids[:200], 9, 9, 9], tmp_path)
    assert len(files_in(tmp_path)) == 3
    fresh, _ = reused_of(llama, ids, None)
    again, reused = reused_of(llama, ids, cache_at(tmp_path))
    assert (again, reused) == (fresh, 200)


def test_a_short_prompt_is_neither_stored_nor_looked_for(llama, tmp_path):
    assert store(llama, prompt(20), tmp_path / "none") == []
    stored = PromptCache(folder_at(tmp_path), lambda _: pytest.fail("the facts were computed"))
    assert stored.find(prompt(32), "", Scheduler(llama).new_cache, lambda _: 0) is None


def test_every_changed_byte_of_a_page_changes_its_checksum():
    rng = np.random.default_rng(1)
    page = rng.integers(0, 256, 1300, dtype=np.uint8)  # two sectors and a rest
    check = _check_of_page(page)
    for place in range(page.size):
        changed = page.copy()
        changed[place] ^= 1 << rng.integers(8)
        assert _check_of_page(changed) != check, place


@pytest.mark.parametrize("size", [512, 1024, 4096])
def test_parts_of_a_page_that_changed_places_are_found(size):
    page = np.random.default_rng(2).integers(0, 256, 4 * size, dtype=np.uint8)
    for first, second in combinations(range(4), 2):
        changed = page.reshape(4, size).copy()
        changed[[first, second]] = changed[[second, first]]
        assert _check_of_page(changed) != _check_of_page(page)


class _SlowFile:
    """A file whose reading ends when it is told to."""

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
    """A queued sequence whose prompt is in a file that is not read yet, and that file."""
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
    assert not file.waits


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
    wanted = Request(max_tokens=2)
    list(scheduler.generate(ids, wanted))
    stored.close()
    sequence = scheduler.prepare(ids, wanted)
    assert sequence.stored is not None
    list(scheduler.run(sequence))
    assert sequence.reused_tokens == 199
    assert all(cache.backing is None for cache in scheduler.caches._caches)


def test_sequences_of_one_batch_use_one_file(llama, tmp_path):
    ids = prompt(200)
    fresh = [reused_of(llama, [*ids, last], None)[0] for last in (5, 6, 7)]
    store(llama, ids, tmp_path)
    scheduler = Scheduler(llama, prompt_cache=cache_at(tmp_path), max_batch=3)
    wanted = Request(max_tokens=5, temperature=0.0, logprobs=8)
    sequences = [scheduler.submit([*ids, last], wanted) for last in (5, 6, 7)]
    pieces = {sequence: [] for sequence in sequences}
    while scheduler.busy:
        for sequence, piece in scheduler.step():
            pieces[sequence].append((piece.token, piece.logprob, piece.top_logprobs))
    assert [pieces[sequence] for sequence in sequences] == fresh
    assert [sequence.reused_tokens for sequence in sequences] == [200, 200, 200]


# --- what is not used, and said -------------------------------------------------------------------


def places_in(path):
    """A byte in each part of the file *path*."""
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
@pytest.mark.parametrize("place", ["start", "version", "header", "first page", "last byte"])
def test_a_damaged_file_is_not_used_and_is_reported(architecture, place, tmp_path, caplog):
    model = model_of(architecture)
    ids = prompt(200)
    fresh, _ = reused_of(model, ids, None)
    (path,) = store(model, ids, tmp_path)
    content = bytearray(path.read_bytes())
    content[places_in(path)[place]] ^= 0x41
    path.unlink()
    path.write_bytes(content)
    path.chmod(0o600)
    stored = cache_at(tmp_path)
    again, reused = reused_of(model, ids, stored)
    assert (again, reused) == (fresh, 0)
    assert f"{path} is not used" in caplog.text
    stored.close()
    assert [problem_of(its) for its in files_in(tmp_path)] == [""]  # written again


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


def test_a_file_cut_short_while_it_is_used_changes_no_answer(llama, tmp_path, caplog):
    ids = prompt(300)
    fresh, _ = reused_of(llama, ids, None)
    (path,) = store(llama, ids, tmp_path)
    scheduler = Scheduler(llama, prompt_cache=cache_at(tmp_path))
    sequence = scheduler.submit(ids, Request(max_tokens=5, temperature=0.0, logprobs=8))
    pieces = [piece for _, piece in scheduler.step()]
    os.truncate(path, 8192)
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
    assert path.exists()  # another installation may use it


@pytest.mark.parametrize("name", ["adapters", "kv_type"])
def test_files_of_other_adapters_or_forms_are_not_used(llama, name, tmp_path, caplog):
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


def test_files_of_other_users_and_links_are_left_out(llama, tmp_path, monkeypatch):
    (path,) = store(llama, prompt(100), tmp_path / "a")
    linked = tmp_path / "b" / path.parent.name
    linked.mkdir(parents=True)
    (linked / path.name).symlink_to(path)
    assert reused_of(llama, prompt(100), cache_at(tmp_path / "b"))[1] == 0
    assert reused_of(llama, prompt(100), cache_at(tmp_path / "a"))[1] == 99
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert reused_of(llama, prompt(100), cache_at(tmp_path / "a"))[1] == 0


# --- what a file is bound to ----------------------------------------------------------------------


def facts_of(checkpoint, tokenizer="t", ops=None):
    model = load_model(checkpoint, ops=ops or NativeOps(threads=1))
    return PromptFacts(model, checkpoint, tokenizer).values


def test_facts_are_the_same_for_the_same_model_loaded_twice():
    first = facts_of(in_encoding(tiny("gemma4"), "Q8_0"))
    assert first == facts_of(in_encoding(tiny("gemma4"), "Q8_0"))
    assert set(first) == {
        *("weights", "tokenizer", "adapters", "version", "kv_type", "kernels", "program")
    }


def test_each_thing_that_bits_depend_on_changes_a_fact(tmp_path):
    checkpoint = in_encoding(tiny("llama"), "Q8_0")
    facts = facts_of(checkpoint)

    def differing(other):
        return {name for name in facts if other[name] != facts[name]}

    assert differing(facts_of(in_encoding(tiny("llama", seed=1), "Q8_0"))) == {"weights"}
    assert differing(facts_of(in_encoding(tiny("llama"), "Q4_0"))) == {"weights"}
    assert differing(facts_of(checkpoint, "another")) == {"tokenizer"}
    assert "kv_type" in differing(facts_of(replace(checkpoint, kv_type="q8")))
    keys = {**checkpoint.metadata, "llama.rope.freq_base": 5000.0}
    assert differing(facts_of(replace(checkpoint, metadata=keys))) == {"program"}


def test_facts_of_a_file_are_those_of_its_bytes(tmp_path):
    first = facts_of(open_checkpoint(tiny_gguf(tmp_path / "a.gguf")))
    copy = facts_of(open_checkpoint(tiny_gguf(tmp_path / "b.gguf")))
    changed = bytearray((tmp_path / "a.gguf").read_bytes())
    changed[-1] ^= 1
    (tmp_path / "c.gguf").write_bytes(changed)
    assert first == copy
    assert facts_of(open_checkpoint(tmp_path / "c.gguf"))["weights"] != first["weights"]


def test_a_model_replaced_since_it_was_loaded_has_the_facts_of_its_own_bytes(tmp_path):
    path = tiny_gguf(tmp_path / "a.gguf")
    expected = facts_of(open_checkpoint(path))
    checkpoint = open_checkpoint(path)
    model = load_model(checkpoint, ops=NativeOps(threads=1))
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    (tmp_path / "new").write_bytes(changed)
    (tmp_path / "new").replace(path)
    assert PromptFacts(model, checkpoint, "t").values == expected


def test_a_backend_whose_bits_depend_on_chunks_stores_nothing(tmp_path):
    checkpoint = tiny("llama")
    model = load_model(checkpoint)
    assert open_prompt_cache(folder_at(tmp_path), {"": (model, checkpoint)}, "t") is None


# --- writing --------------------------------------------------------------------------------------


def test_a_file_is_written_by_another_thread_while_the_model_runs(llama, tmp_path, monkeypatch):
    writers, may_write = [], threading.Event()

    def write(self, model, name, parts):
        writers.append(threading.current_thread().name)
        assert may_write.wait(waiting.PATIENCE_S)
        return "a full disk"

    monkeypatch.setattr(PromptFolder, "write", write)
    stored = cache_at(tmp_path)
    scheduler = Scheduler(llama, prompt_cache=stored)
    for seed in range(3):
        assert list(scheduler.generate(prompt(100, seed=seed), Request(max_tokens=2)))
    may_write.set()
    stored.close()
    assert set(writers) == {"bitnet-prompt-writer"}


def test_what_is_written_is_what_the_sequence_held_when_it_ended(llama, tmp_path, monkeypatch):
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
    list(scheduler.generate([*ids[:150], *prompt(80, seed=9)], Request(max_tokens=2)))
    may_write.set()
    stored.close()
    again, reused = reused_of(llama, ids, cache_at(tmp_path))
    assert (again, reused) == (fresh, 199)


def test_a_prompt_that_grew_a_little_is_written_when_it_is_idle(llama, tmp_path, monkeypatch):
    monkeypatch.setattr(prompt_cache, "GROWTH", 2)
    monkeypatch.setattr(prompt_cache, "IDLE_S", 0.01)
    ids = prompt(200)
    stored = cache_at(tmp_path)
    scheduler = Scheduler(llama, prompt_cache=stored)
    list(scheduler.generate(ids, Request(max_tokens=1)))
    waiting.until(lambda: stored._thread is None)
    list(scheduler.generate([*ids, *prompt(40, seed=1)], Request(max_tokens=2)))
    waiting.until(lambda: stored._thread is None)
    stored.close()
    (path,) = files_in(tmp_path)  # the shorter one is part of it
    assert len(PromptFile.open(path).ids) == 241


def test_what_a_file_covers_is_not_written_again(llama, tmp_path):
    ids = prompt(200)
    (path,) = store(llama, ids, tmp_path)
    before = path.stat().st_mtime_ns
    store(llama, [*ids[:190], 4, 4, 4], tmp_path)
    assert files_in(tmp_path) == [path]
    assert path.stat().st_mtime_ns == before


def test_files_and_folders_are_private_from_the_first_byte(llama, tmp_path, monkeypatch):
    modes = []
    replace_file = Path.replace

    def observe(self, target):
        modes.append(stat.S_IMODE(self.stat().st_mode))
        return replace_file(self, target)

    monkeypatch.setattr(Path, "replace", observe)
    mask = os.umask(0)
    try:
        (path,) = store(llama, prompt(100), tmp_path / "prompts")
    finally:
        os.umask(mask)
    assert modes == [0o600]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "prompts").stat().st_mode) == 0o700


def test_the_folder_is_bounded_and_the_least_recently_used_goes(llama, tmp_path):
    (first,) = store(llama, prompt(100, seed=1), tmp_path)
    size = first.stat().st_size
    limit = {"limit_bytes": 2.5 * size}
    store(llama, prompt(100, seed=2), tmp_path, **limit)
    os.utime(first, (1, 1))
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
    monkeypatch.setattr(prompts, "SPARE_BYTES", 1 << 62)
    assert store(llama, prompt(100), tmp_path) == []
    assert "is not stored" in caplog.text


def test_a_folder_that_cannot_be_made_stores_nothing_and_answers(llama, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    (tmp_path / "file").write_text("not a folder")
    assert store(llama, prompt(100), tmp_path / "file" / "prompts") == []
    assert "is not stored" in caplog.text


@pytest.mark.parametrize(
    ("choice", "root"), [("auto", "cache/prompts"), ("off", None), ("{}/mine", "mine")]
)
def test_the_option_names_a_folder(choice, root, tmp_path):
    chosen = choose_folder(choice.format(tmp_path), tmp_path / "cache")
    assert (chosen and chosen.root) == (root and tmp_path / root)


def test_a_limit_of_zero_turns_it_off(tmp_path, monkeypatch):
    monkeypatch.setenv("BITNET_PROMPT_CACHE_SIZE", "0")
    assert choose_folder("auto", tmp_path) is None


# --- processes ------------------------------------------------------------------------------------

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
    done = subprocess.run(command, check=False, timeout=waiting.PATIENCE_S)
    assert done.returncode < 0
    (draft,) = [its for its in folder.rglob("*") if its.is_file()]
    assert draft.suffix == ".tmp"
    again, reused = reused_of(llama, ids, cache_at(folder))
    assert (again, reused) == (fresh, 0)

    monkeypatch.setattr(prompts, "ABANDONED_S", -1.0)
    assert len(store(llama, ids, folder)) == 1
    assert not draft.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_two_processes_share_the_files(llama, tmp_path):
    ids = prompt(200)
    fresh, _ = reused_of(llama, ids, None)
    stored = cache_at(tmp_path)
    child = os.fork()
    if not child:
        try:
            store(llama, ids, tmp_path)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    (path,) = files_in(tmp_path)
    again, reused = reused_of(llama, ids, stored)
    assert (again, reused) == (fresh, 199)
    stored.close()
    assert files_in(tmp_path) == [path]


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
