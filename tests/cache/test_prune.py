"""A file of the cache is kept or removed with all its names: links, copies and records."""

import hashlib
import io
import itertools
import os
import sys
from dataclasses import replace

import pytest

from bitnet.base import locks
from bitnet.cache import Selection
from bitnet.cache.entries import entries
from bitnet.cache.prune import plan, prune
from bitnet.commands import load
from bitnet.commands.program import Program
from bitnet.store import Pin, Store, tree

NOW_S = 1_700_000_000.0  # time of all ages: in 2023
DAY_S = 86_400
FORMS = ("nothing", "hard link", "copy")  # of the second path that a file has in the cache


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "bitnet"
    root.mkdir()
    # The signature of every cache (https://bford.info/cachedir/), and a line of ours.
    tag = b"Signature: 8a477f597d28d172789f06886806bc55\n# bitnet\n"
    (root / "CACHEDIR.TAG").write_bytes(tag)
    return root


def add(root, name, *, age_days, form="hard link", repos=("acme",), kinds=("model",)):
    """Path of a file in the store, last used *age_days* before NOW_S, with a name for each repo.

    Of *form* is its second path, below ``models``. If that is a copy, the copy was used last, and
    the file in the store ten years before.
    """
    store = Store(root)
    raw = f"GGUF {name}".encode()
    digest = hashlib.sha256(raw).hexdigest()
    path = store.path_of(digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    used_s = NOW_S - age_days * DAY_S
    place = root / f"models/{repos[0]}--{name}/main/{name}.gguf"
    if form != "nothing":
        place.parent.mkdir(parents=True)
    if form == "hard link":
        os.link(path, place)
    os.utime(path, (used_s, used_s))
    if form == "copy":
        place.write_bytes(raw)
        os.utime(place, (used_s, used_s))
        store.verified.remember(place, digest, placed=True)
        os.utime(path, (used_s - 3650 * DAY_S,) * 2)
    for repo, kind in zip(repos, itertools.cycle(kinds), strict=False):
        relative = str(place.relative_to(root)) if form != "nothing" and repo == repos[0] else None
        pin = Pin(kind, f"{repo}/{name}", "main", f"{name}.gguf", sha256=digest, place=relative)
        store.index.write(pin, *pin.index_name)
    return path


def listing(root):
    """Paths of the files in the cache, without lock files and records, and keys of its names."""
    files = sorted(entry.path for entry in entries(root) if entry.kind != "leftover")
    return files, sorted(name.key for name in Store(root).index)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("repos", [("acme",), ("acme", "other")])
@pytest.mark.parametrize("key", ["", "acme/a", "acme--a/main/a.gguf", "digest"])
@pytest.mark.parametrize("limits", [{"older_than": "30d"}, {"keep": 1}])
def test_a_file_that_a_limit_keeps_keeps_every_name(root, form, repos, key, limits):
    path = add(root, "a", age_days=1, form=form, repos=repos)
    before = listing(root)
    key = path.name if key == "digest" else key
    planned = plan(root, Selection(key=key, models=True, **limits), now_s=NOW_S)
    assert planned.is_empty
    prune(planned)
    assert listing(root) == before


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keep", range(4))
def test_keep_counts_files_and_not_their_names(root, form, keep):
    for age, name in enumerate("abc"):
        add(root, name, age_days=age, form=form, repos=("acme", "other"))
    prune(plan(root, Selection(models=True, keep=keep), now_s=NOW_S))
    files, names = listing(root)
    paths_each = 1 if form == "nothing" else 2  # of each file in the cache
    assert len(files) == keep * paths_each
    assert names == sorted(
        f"{o}--{n}/main/{n}.gguf" for o in ("acme", "other") for n in "abc"[:keep]
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_file_beyond_the_limit_of_age_is_removed_with_every_name(root, form):
    add(root, "a", age_days=40, form=form)
    prune(plan(root, Selection(key="acme/a", models=True, older_than="30d"), now_s=NOW_S))
    assert listing(root) == ([], [])


@pytest.mark.parametrize("of_project", ["hard link", "copy"])
@pytest.mark.parametrize("further", range(3))
def test_a_plan_names_the_project_file_of_a_removed_file_and_counts_further_links(
    root, tmp_path, of_project, further
):
    path = add(root, "a", age_days=99)
    project = tmp_path / "project"
    project.mkdir()
    used = project / "a.gguf"
    if of_project == "copy":
        used.write_bytes(path.read_bytes())
        os.utime(used, (NOW_S, NOW_S))
    else:
        os.link(path, used)
    Store(root).verified.remember(used, path.name, placed=True)
    for number in range(further):
        os.link(path, project / f"further{number}")
    planned = plan(root, Selection(models=True), now_s=NOW_S)
    (entry,) = (each for each in planned.remove if each.is_stored)
    links = {0: [], 1: ["1 link"]}.get(further, [f"{further} links"])
    assert planned.holders_of(entry) == [str(used), *links]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_planned_before", [True, False])
def test_neither_a_path_nor_a_name_of_a_file_in_use_is_removed(root, form, is_planned_before):
    path = add(root, "a", age_days=40, form=form)
    before = listing(root)
    claim = tree.claim_path(Store(root).folder, path.name)
    claim.parent.mkdir(parents=True, exist_ok=True)
    selection = Selection(models=True)
    planned = plan(root, selection, now_s=NOW_S) if is_planned_before else None
    with locks.hold(claim, timeout_s=5):
        done = prune(planned or plan(root, selection, now_s=NOW_S))
        assert {entry.path for entry in done.busy} >= set(before[0])
        assert done.remove == ()
    assert listing(root) == before


@pytest.mark.parametrize("kinds", [("tokenizer", "model"), ("model", "tokenizer")])
@pytest.mark.parametrize("selection", [Selection(), Selection(tokenizers_only=True)])
def test_a_tokenizer_that_is_part_of_a_model_stays_with_the_model(root, kinds, selection):
    path = add(root, "a", age_days=1, repos=("acme", "other"), kinds=kinds)
    before = listing(root)
    prune(plan(root, selection, now_s=NOW_S))
    assert path.exists()
    assert listing(root) == before


@pytest.mark.parametrize(("words", "is_dropped"), [((), False), (("--yes",), True)])
def test_a_name_whose_bytes_stay_is_listed_and_dropped_only_on_request(
    root, words, is_dropped, capsys, monkeypatch
):
    add(root, "a", age_days=1, form="nothing", repos=("acme", "other"))
    before = listing(root)
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # not a terminal: --yes is needed to remove
    line = ["bitnet", "cache", "clean", "--key", "acme/a", "--models", f"--cache-dir={root}"]
    with pytest.raises(SystemExit) as stop:
        Program(load(), "bitnet").run([*line, *words])
    # Exit code 2: the command only lists what it would remove.
    assert (stop.value.code, "0 files, 0 B, 1 name" in capsys.readouterr().out) == (
        0 if is_dropped else 2,
        True,
    )
    names = ["other--a/main/a.gguf"] if is_dropped else before[1]
    assert listing(root) == (before[0], names)


def test_a_store_that_is_a_link_to_another_disk_is_cleaned(tmp_path):
    store = Store(tmp_path / "cache")
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    blob = store.adopt(file, hashlib.sha256(b"GGUF").hexdigest())
    store.folder.rename(tmp_path / "disk")
    store.folder.symlink_to(tmp_path / "disk", target_is_directory=True)
    done = prune(plan(store.root, Selection(models=True)))
    assert [entry.path for entry in done.remove] == [blob.path]
    assert not blob.path.exists()


def test_the_mark_of_a_replaced_file_stays_as_long_as_its_bytes(tmp_path):
    store = Store(tmp_path / "cache")
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    blob = store.adopt(file, hashlib.sha256(b"GGUF").hexdigest())
    mark = tree.mark_path(store.folder, blob.sha256)
    mark.parent.mkdir(exist_ok=True)
    mark.touch()
    os.utime(mark, (NOW_S, NOW_S))
    prune(plan(store.root, Selection()))
    assert mark.exists()
    blob.path.unlink()
    prune(plan(store.root, Selection()))
    assert not mark.exists()


@pytest.mark.parametrize("is_whole", [False, True])
def test_files_that_share_a_lock_are_removed_together(root, is_whole):
    stored = add(root, "a", age_days=3, form="nothing")
    folder = Store(root).folder / "partial" / stored.name
    folder.mkdir(parents=True)
    parts = [folder / f"{number}.part" for number in range(2)]
    for path in parts:
        path.write_bytes(b"GG")
    folder.with_name(f"{stored.name}.lock").touch()
    planned = plan(root, Selection(models=True), now_s=NOW_S)
    planned = replace(planned, is_whole=is_whole)
    assert {stored, *parts} <= {entry.path for entry in planned.remove}
    assert prune(planned).busy == ()
    assert not any(path.exists() for path in (stored, *parts))


def test_a_file_in_use_is_listed_without_a_question(root, capsys):
    stored = add(root, "a", age_days=3, form="nothing")
    lock = tree.transfer_lock(Store(root).folder, stored.name)
    lock.parent.mkdir(parents=True, exist_ok=True)
    words = ["bitnet", "cache", "clean", "--models", "--yes", f"--cache-dir={root}"]
    with locks.hold(lock, timeout_s=0), pytest.raises(SystemExit) as stop:
        Program(load(), "bitnet").run(words)
    assert stop.value.code == 0
    assert f"kept: {stored} (in use by" in capsys.readouterr().out
