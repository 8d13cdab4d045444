"""The cache folder: its entries, their check for damage, and their removal."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitnet.base.errors import InvalidFormat, NotFound, PermissionDenied, UsageError
from bitnet.base.options import parse_duration
from bitnet.cache import Selection
from bitnet.cache.entries import entries, verify
from bitnet.cache.prune import plan, prune, refuse_unless_cache

needs_links = pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
NOW_S = 2_000_000_000.0  # time of all ages: in 2033
DAY_S = 86_400
DIGEST = "ab" * 32
TOKENIZER = b'{"model": {"type": "BPE"}}'
# Holds the lock file in its argument until its standard input ends.
HOLD = (
    "import sys, pathlib\n"
    "from bitnet.base.locks import hold\n"
    "with hold(pathlib.Path(sys.argv[1]), timeout_s=5):\n"
    "    print('held', flush=True); sys.stdin.readline()\n"
)


def put(path, content=TOKENIZER, *, age_days=0.0):
    """Write *content* to *path*, last used *age_days* before NOW_S, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (NOW_S - age_days * DAY_S,) * 2)
    return path


@pytest.fixture
def root(tmp_path):
    """A cache with an entry of every kind; the ages of the complete ones differ."""
    root = tmp_path / "bitnet"
    # The signature of every cache (https://bford.info/cachedir/), and a line of ours.
    put(root / "CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55\n# bitnet\n")
    put(root / "tokenizers/llama3-128k/tokenizer.json", age_days=1)
    put(root / "tokenizers/gpt2-50k/tokenizer.json", age_days=40)
    put(root / "tokenizers/gpt2-50k/tokenizer.json.partial", b"12345", age_days=2)
    put(root / "tokenizers/gpt2-50k/tokenizer.json.partial.json", b"{}")
    put(root / "tokenizers/gpt2-50k/old.json.incomplete", b"1", age_days=90)
    put(root / "tokenizers/compiled" / f"{'ab' * 32}.tok", b"compiled", age_days=50)
    put(root / "exact-heads" / f"{'cd' * 16}.copy", b"copy", age_days=20)
    put(root / "prompts" / ("ab" * 16) / f"{'ef' * 16}.kv", b"keys and values", age_days=30)
    put(root / "models/acme--tiny/main/tiny.gguf", b"GGUF....", age_days=60)
    return root


@pytest.fixture
def stored(root):
    """Paths of a file in the store, and of the lock of its transfer."""
    return put(root / f"store/sha256/ab/{DIGEST}"), put(root / f"store/partial/{DIGEST}.lock")


@pytest.fixture
def holding():
    """Function that makes another process hold a lock file until the test ends.

    It returns the id of the process.
    """
    children = []

    def hold(lock_path):
        child = subprocess.Popen(
            [sys.executable, "-c", HOLD, lock_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        assert child.stdout.readline() == "held\n"
        return child.pid

    yield hold
    for child in children:
        child.communicate("\n")


def names(planned):
    """File names of the entries in *planned*."""
    return sorted(entry.path.name for entry in planned)


def test_every_kind_of_file_is_recognised(root):
    kinds_and_keys = {entry.path.name: (entry.kind, entry.key) for entry in entries(root)}
    assert kinds_and_keys == {
        "tokenizer.json": ("tokenizer", "llama3-128k"),
        "tokenizer.json.partial": ("partial", "gpt2-50k"),
        "old.json.incomplete": ("leftover", "gpt2-50k"),
        f"{'ab' * 32}.tok": ("compiled", "ab" * 32),
        f"{'cd' * 16}.copy": ("exact-head", "cd" * 16),
        f"{'ef' * 16}.kv": ("prompt", "ef" * 16),
        "tiny.gguf": ("model", "acme--tiny/main/tiny.gguf"),
    }
    # Two of them share this name, of which the dictionary holds the last.
    assert sum(entry.path.name == "tokenizer.json" for entry in entries(root)) == 2


def test_the_size_of_a_partial_file_includes_its_sidecar(root):
    partial = next(entry for entry in entries(root) if entry.kind == "partial")
    assert partial.size_bytes == len(b"12345") + len(b"{}")
    assert [path.name for path in partial.companions] == ["tokenizer.json.partial.json"]


def test_age_counts_from_the_last_read_or_write(root):
    path = root / "tokenizers/gpt2-50k/tokenizer.json"
    os.utime(path, (NOW_S, NOW_S - 40 * DAY_S))
    assert next(e for e in entries(root) if e.path == path).last_used_s == NOW_S


def test_a_missing_cache_is_an_empty_one(tmp_path):
    assert entries(tmp_path / "none") == []
    assert plan(tmp_path / "none", Selection()).remove == ()


def test_only_files_in_the_folders_of_a_cache_are_its_entries(root):
    put(root / "notes.txt")
    put(root / "other/tokenizer.json")
    listed = {entry.path.relative_to(root).parts[0] for entry in entries(root)}
    assert listed == {"tokenizers", "models", "exact-heads", "prompts"}


def test_an_entry_that_another_process_holds_names_its_owner(root, stored, holding):
    file, lock = stored
    pid = holding(lock)
    busy = {entry.path: entry.owner for entry in entries(root) if entry.owner}
    assert set(busy) == {file, lock}
    assert busy[file].startswith(f"process {pid} on ")


def test_a_file_of_the_store_is_busy_while_a_process_claims_it(root, stored, holding):
    claim = root / "store/partial" / f"{stored[0].name}.in-use.lock"
    holding(put(claim, b""))
    assert {entry.path for entry in entries(root) if entry.owner} == {stored[0], claim}


def test_a_partial_file_is_busy_while_its_file_is_locked(root, stored, holding):
    partial = put(root / f"store/partial/{DIGEST}/tokenizer.json.partial.4711-ab", b"x")
    holding(stored[1])
    assert partial in {entry.path for entry in entries(root) if entry.owner}


def test_listing_a_cache_creates_no_lock_files(root):
    before = sorted(root.rglob("*"))
    entries(root)
    assert sorted(root.rglob("*")) == before


def test_a_lock_without_owner_is_a_leftover(root):
    put(root / "tokenizers/gone/tokenizer.json.lock", b"not even JSON")
    assert [e.kind for e in entries(root) if e.key == "gone"] == ["leftover"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("tokenizer.json", b'{"model": {}}', ""),
        ("tokenizer.json", b"", "the file is empty"),
        ("tokenizer.json", b'{"model": 1,', "at line 1 column 13"),
        ("tokenizer.json", b"[1, 2]", 'no "model" in it'),
        ("tokenizer.json", b"\xff\xfe{", "codec can't decode"),
        ("tokenizer.json", b"9" * 5000, "5000 digits"),
        ("tokenizer_config.json", b"{}", ""),
        ("tokenizer.model", b"\n\x0e", ""),
    ],
)
def test_damage_is_found_and_named(tmp_path, name, content, problem):
    put(tmp_path / "tokenizers/k" / name, content)
    (entry,) = entries(tmp_path)
    verdict = verify(entry)
    assert problem in verdict.problem
    assert bool(verdict.problem) == bool(problem)


def test_a_verdict_begins_with_a_mark_and_the_kind_of_check(root):
    put(root / "tokenizers/gpt2-50k/tokenizer.json", b"{")
    texts = [str(verify(e)) for e in entries(root) if e.kind == "tokenizer"]
    assert texts[0].startswith("✗ Invalid JSON: ")
    assert texts[1].startswith("✓ Valid JSON: ")


def test_a_model_is_checked_by_the_reader_that_the_caller_passes(root):
    def read(path):
        raise InvalidFormat(f"{path.name}: tensor x needs bytes 1..9, the file ends at 8")

    model = next(entry for entry in entries(root) if entry.kind == "model")
    assert not verify(model).problem
    assert "ends at 8" in verify(model, read_gguf=read).problem
    model.path.write_bytes(b"<html>")
    assert verify(model, read_gguf=read).problem == "starts with b'<htm' instead of b'GGUF'"


def test_a_known_digest_is_compared(root):
    entry = next(entry for entry in entries(root) if entry.kind == "tokenizer")
    right = "8bb2d91febcec5f803e4f418f3e7d21aa7fcb42a49ca016070b21a0b7f6c13ee"  # sha256sum
    assert not verify(entry, expected={str(entry.path): right}).problem
    verdict = verify(entry, expected={str(entry.path): "0" * 64})
    assert verdict.check == "SHA-256"
    assert right in verdict.problem


def test_a_file_without_a_check_of_its_own_is_checked_by_its_digest(root, tmp_path):
    entry = next(entry for entry in entries(root) if entry.kind == "tokenizer")
    blob = tmp_path / "blob"
    blob.write_bytes(b"any")
    entry = replace(entry, path=blob)
    assert verify(entry).check == "file"
    verdict = verify(entry, expected={str(blob): hashlib.sha256(b"any").hexdigest()})
    assert (verdict.check, verdict.problem) == ("SHA-256", "")


def test_a_file_that_vanishes_while_checking_is_reported_not_raised(root):
    entry = next(entry for entry in entries(root) if entry.kind == "tokenizer")
    entry.path.unlink()
    assert "No such file" in verify(entry).problem


def test_everything_but_models_is_removed_by_default(root):
    planned = plan(root, Selection(), now_s=NOW_S)
    assert {entry.kind for entry in planned.remove} == {
        *("tokenizer", "compiled", "exact-head", "prompt", "partial", "leftover")
    }
    prune(planned)
    remaining = sorted(path.name for path in root.rglob("*") if path.is_file())
    assert remaining == ["CACHEDIR.TAG", "tiny.gguf"]
    assert sorted(path.name for path in root.iterdir() if path.is_dir()) == [
        "exact-heads",
        "models",
        "prompts",
        "tokenizers",
    ]


@pytest.mark.parametrize(
    ("selection", "expected"),  # names of the files that are removed
    [
        (
            Selection(older_than="30d"),
            [f"{'ab' * 32}.tok", "old.json.incomplete", "tokenizer.json"],
        ),
        (Selection(older_than="30d", keep=10), ["old.json.incomplete"]),  # leftovers do not count
        (
            Selection(keep=1),  # the newest: a tokenizer
            [
                *(f"{'ab' * 32}.tok", f"{'cd' * 16}.copy", "old.json.incomplete"),
                *("tokenizer.json", "tokenizer.json.partial", f"{'ef' * 16}.kv"),
            ],
        ),
        (Selection(key="llama3-128k"), ["tokenizer.json"]),
        (Selection(key="ab" * 32), [f"{'ab' * 32}.tok"]),
        (Selection(key=f"{'ab' * 6}…"), [f"{'ab' * 32}.tok"]),  # as a terminal shows it
        (Selection(key="acme/tiny", models=True), ["tiny.gguf"]),
        (Selection(key="acme--tiny/main/tiny.gguf", models=True), ["tiny.gguf"]),
        (Selection(models=True, older_than="55d"), ["old.json.incomplete", "tiny.gguf"]),
        (
            Selection(tokenizers_only=True, older_than="2.5d"),
            [f"{'ab' * 32}.tok", "old.json.incomplete", "tokenizer.json"],
        ),
    ],
)
def test_a_selection_removes_the_files_of_its_age_key_and_kind_and_keeps_the_newest(
    root, selection, expected
):
    assert names(plan(root, selection, now_s=NOW_S).remove) == sorted(expected)


def test_an_unknown_key_is_an_error_that_lists_the_known_ones(root):
    with pytest.raises(NotFound) as caught:
        plan(root, Selection(key="llama9"), now_s=NOW_S)
    with pytest.raises(NotFound):  # too few digits of a digest
        plan(root, Selection(key="ab" * 5), now_s=NOW_S)
    assert "llama3-128k" in caught.value.hint
    assert caught.value.exit_code == 19


def test_a_busy_entry_is_left_alone(root, stored, holding):
    holding(stored[1])
    done = prune(plan(root, Selection(models=True), now_s=NOW_S))
    assert {entry.path for entry in done.busy} == set(stored)
    assert stored[0].read_bytes() == TOKENIZER


def test_an_entry_that_became_busy_after_the_plan_is_left_alone(root, stored, holding):
    planned = plan(root, Selection(models=True), now_s=NOW_S)
    assert planned.busy == ()
    holding(stored[1])
    done = prune(planned)
    assert {entry.path for entry in done.busy} == set(stored)
    assert stored[0].exists()


def test_a_file_that_is_already_gone_is_not_an_error(root):
    planned = plan(root, Selection(key="gpt2-50k"), now_s=NOW_S)
    (root / "tokenizers/gpt2-50k/tokenizer.json").unlink()
    prune(planned)
    assert not (root / "tokenizers/gpt2-50k").exists()


@needs_links
def test_links_are_removed_and_never_followed(root, tmp_path):
    outside = put(tmp_path / "elsewhere/precious.gguf", b"GGUF")
    (root / "models/acme--tiny/main/link.gguf").symlink_to(outside)
    (root / "models/acme--tiny/main/gone.gguf").symlink_to(tmp_path / "nowhere")
    (root / "models/linked").symlink_to(outside.parent, target_is_directory=True)
    prune(plan(root, Selection(models=True), now_s=NOW_S))
    assert outside.read_bytes() == b"GGUF"
    assert (root / "models/linked").is_symlink()
    assert not (root / "models/acme--tiny").exists()


@needs_links
def test_a_folder_replaced_by_a_link_after_the_plan_is_not_followed(root, tmp_path):
    planned = plan(root, Selection(key="gpt2-50k"), now_s=NOW_S)
    folder = root / "tokenizers/gpt2-50k"
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved", target_is_directory=True)
    removed = prune(planned)
    assert removed.remove == ()
    assert len(removed.busy) == len(planned.remove)
    assert (tmp_path / "moved/tokenizer.json").exists()


@needs_links
def test_a_folder_of_a_cache_that_is_a_link_is_not_listed(tmp_path):
    put(tmp_path / "elsewhere/k/tokenizer.json")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/tokenizers").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert entries(tmp_path / "cache") == []


@pytest.mark.parametrize("folder", ["/", "~", "~/.."])
def test_the_home_folder_and_every_folder_above_it_are_refused_as_a_cache(folder):
    with pytest.raises(UsageError, match="not a cache folder"):
        refuse_unless_cache(Path(folder).expanduser())


def test_a_folder_without_our_tag_or_with_a_file_of_another_kind_is_refused_as_a_cache(root):
    tag = (root / "CACHEDIR.TAG").read_bytes()
    assert plan(root, Selection(), now_s=NOW_S).remove
    put(root / "CACHEDIR.TAG", tag.replace(b"bitnet", b"pip"))
    with pytest.raises(UsageError, match=r"no CACHEDIR.TAG of bitnet"):
        plan(root, Selection())
    put(root / "CACHEDIR.TAG", tag)
    put(root / "pyproject.toml", b"")
    with pytest.raises(UsageError, match=r"also holds 'pyproject.toml'"):
        plan(root, Selection())


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do anything")
def test_a_folder_that_cannot_be_read_is_a_permission_error(root):
    (root / "tokenizers").chmod(0)
    try:
        with pytest.raises(PermissionDenied):
            entries(root)
    finally:
        (root / "tokenizers").chmod(0o700)


@pytest.mark.parametrize("text", ["30", "d", "-3d", "3y", "", "1e3d", "3 d x"])
def test_an_age_needs_a_number_and_a_unit(text):
    with pytest.raises(UsageError, match="--older-than"):
        parse_duration(text, "--older-than")


@given(st.integers(0, 10_000), st.sampled_from(["s", "m", "h", "d", "w"]))
def test_ages_scale_with_their_unit(count, unit):
    assert parse_duration(f"{count}{unit}", "-") == count * parse_duration(f"1{unit}", "-")


@pytest.mark.parametrize(
    "selection", [Selection(keep=-1), Selection(tokenizers_only=True, models=True)]
)
def test_a_negative_number_to_keep_and_exclusive_options_are_refused(root, selection):
    with pytest.raises(UsageError):
        plan(root, selection)


def test_facts_of_a_plan_and_of_verdicts_can_be_written_as_json(root):
    json.dumps(plan(root, Selection(), now_s=NOW_S).facts())
    json.dumps([verify(entry).facts() for entry in entries(root)])
