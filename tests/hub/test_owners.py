"""A file in the store with several names stays until the last of the names is removed."""

import itertools
import json
from dataclasses import replace

import pytest
from tiny_models import tiny_gguf

from bitnet.base import settings
from bitnet.hub import models
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.project import Project
from bitnet.hub.provide import fetch_source
from bitnet.hub.ref import parse
from bitnet.sources import Source
from bitnet.store import Store
from bitnet.store.claims import Claims

# "ADDRESS" stands for the file's address on the storage server.
NAMES = ("hf:org/one", "hf:org/two", "hf:org/one@v2", "ADDRESS")


@pytest.fixture
def world(tmp_path, hub, monkeypatch):
    """A project, and the address of a file; the hub has the file under each of the NAMES."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    content = tiny_gguf(tmp_path / "made.gguf").read_bytes()
    (tmp_path / "made.gguf").unlink()
    hub.add("org/one", "tiny.gguf", content)
    hub.repos["org/one"].revisions["v2"] = hub.repos["org/one"].revisions["main"]
    stored = hub.add("org/two", "tiny.gguf", content)
    cache = settings.cache_dir()
    project = Project(tmp_path, cache, FetchOptions(base_url=hub.url, retries=1), "none")
    hub.blobs["files/tiny.gguf"] = hub.blobs[stored.sha256]
    return project, f"{hub.cdn_url}/files/tiny.gguf"


def fetched(name, project, address, how):
    """Path of *name* once it is fetched: in the cache, or if *how* is "project" in the project.

    The file at an address is always in the cache.
    """
    ref = parse(address if name == "ADDRESS" else name)
    if how == "project" and ref.repo:
        source = Source(ref.repo, ref.repo, "tiny.gguf", ref.revision)
        # Each name has a folder of its own in the project: "one", "two" or "@v2".
        return fetch_source(source, project, target=project.folder / name[-3:] / "tiny.gguf").path
    return models.locate_model(ref, project, fetch=True, announce=lambda line: None)


def listed(project):
    """Names of the models that are here."""
    return {row.name for row in models.list_models(project.store) if row.path is not None}


@pytest.mark.parametrize("how", ["name", "project"])
@pytest.mark.parametrize(("first", "second"), [*itertools.permutations(NAMES, 2)])
def test_a_file_stays_under_its_second_name_when_the_first_is_removed_and_goes_with_the_last(
    world, hub, first, second, how
):
    project, address = world
    offline = replace(project, options=replace(project.options, offline=True))
    one, two = (fetched(name, project, address, how) for name in (first, second))
    assert one.samefile(two), "the disk holds the bytes once"
    # The storage server states no digest: bytes that are here may be sent again for its address.
    assert hub.sent("cdn") == next(project.store.blobs()).size or "ADDRESS" in (first, second)
    assert len(listed(project)) == 3, "the shipped model, and the two names"

    for name, left in ((first, 2), (second, 1)):  # number of names after the removal of *name*
        ref = parse(address if name == "ADDRESS" else name)
        models.remove_model(ref, project, dry_run=False)
        assert len(listed(project)) == left
        if left == 2:
            remaining = parse(address if second == "ADDRESS" else second)
            assert models.locate_model(remaining, offline, fetch=False).is_file()
    blobs = list(project.store.blobs())
    assert blobs == [], "without a name no byte stays"


def test_a_second_name_found_by_the_digest_in_the_hubs_list_is_checked_and_works_offline(
    world, hub, bitnet
):
    for name in ("org/one", "org/two"):
        assert bitnet("pull", name).code == 0
    names = {row["name"] for row in json.loads(bitnet("models", "--json").out)}
    assert {"hf:org/one:tiny.gguf", "hf:org/two:tiny.gguf"} <= names
    hub.close()
    for name in ("org/one", "org/two"):
        done = bitnet("infer", f"hf:{name}", "--prompt", "a", "--max-tokens", 1, "--offline")
        assert done.code == 0, done.err
        assert "unchecked" not in done.err
        named = ("download-model", name, "--file", "tiny.gguf", "--offline")
        done = bitnet(*named)
        assert (done.code, "unchecked" in done.err) == (0, False), done.err


def test_fetching_a_pinned_version_leaves_the_branch_name_to_the_newer_version(
    world, hub, tmp_path
):
    project, _ = world
    old = fetch_source(Source("m", "org/one", "tiny.gguf"), project)
    new = hub.add("org/one", "tiny.gguf", b"GGUF" + bytes(5000))
    other = replace(project, folder=tmp_path / "second")
    other.folder.mkdir()
    assert fetch_source(Source("m", "org/one", "tiny.gguf"), other).pin.sha256 == new.sha256
    assert fetch_source(Source("m", "org/one", "tiny.gguf"), project).pin.sha256 == old.pin.sha256
    store = Store(project.cache)
    assert store.index.find("org/one", "main", "tiny.gguf").sha256 == new.sha256
    assert store.index.find("org/one", old.pin.commit, "tiny.gguf").sha256 == old.pin.sha256


def test_after_an_update_the_old_bytes_are_gone_unless_a_project_has_them(world, hub, tmp_path):
    project, _ = world
    ref = parse("hf:org/one")
    models.locate_model(ref, project, fetch=True, announce=lambda line: None)
    (old,) = project.store.blobs()
    new = hub.add("org/one", "tiny.gguf", b"GGUF" + bytes(5000))
    source = Source("m", "org/one", "tiny.gguf")
    updating = replace(project, update=True)
    fetch_source(source, updating)
    assert [blob.sha256 for blob in project.store.blobs()] == [new.sha256]
    assert not project.store.list_superseded()
    assert not [path for path in project.cache.rglob("*.gguf") if path.stat().st_size == old.size]

    # A project keeps the version that its lock file pins.
    newest = hub.add("org/one", "tiny.gguf", b"GGUF" + bytes(6000))
    elsewhere = replace(updating, folder=tmp_path / "elsewhere")
    assert fetch_source(source, elsewhere).pin.sha256 == newest.sha256
    assert {blob.sha256 for blob in project.store.blobs()} == {new.sha256, newest.sha256}
    reason = "the lock file still has its version"
    assert fetch_source(source, project).pin.sha256 == new.sha256, reason


def test_an_old_version_that_a_running_command_needs_is_removed_by_the_next_fetch(world, hub):
    project, _ = world
    ref = parse("hf:org/one")
    models.locate_model(ref, project, fetch=True, announce=lambda line: None)
    (old,) = project.store.blobs()
    hub.add("org/one", "tiny.gguf", b"GGUF" + bytes(5000))
    source = Source("m", "org/one", "tiny.gguf")
    with Claims(project.store.folder) as claims:
        claims.add(old.sha256)  # as a running command does
        fetch_source(source, replace(project, update=True))
        assert len(list(project.store.blobs())) == 2
    fetch_source(source, project)
    assert len(list(project.store.blobs())) == 1
