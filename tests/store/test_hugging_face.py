"""Hugging Face's cache, as huggingface_hub itself writes it and finds it."""

import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from tiny_models import tiny_gguf

from bitnet.base import files, settings
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.project import Project
from bitnet.hub.ref import Ref
from bitnet.hub.resolve import resolve
from bitnet.store import Store, hugging_face

VARIABLES = (
    "HOME",
    "XDG_CACHE_HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_TOKEN_PATH",
    "FOLDER",
)
# None, twice as likely, leaves a variable unset. An empty text is not among them: to the package it
# means the working folder, and to bitnet that the variable is not set.
TEXTS = (
    None,
    None,
    "/caches/of a user",
    "relative/to/here",
    "~/below home",
    "~",
    "~nobody-of-this-name/x",
    "$HOME/x",
    "${HOME}/hub",
    "$FOLDER/x",
    "$NOT_SET/x",
    "/a//b/../c/",
    "$",
)
SWITCHES = (None, "", "0", "1", "true", "ON", "Yes", "false")

# Reads a list of environments, and writes the values of four constants of huggingface_hub in each.
ASK = """
import json, os, runpy, sys
import huggingface_hub.constants as constants
names = ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN_PATH", "HF_HUB_OFFLINE")
answers = []
for environment in json.load(sys.stdin):
    os.environ.clear()
    os.environ.update(environment)
    values = runpy.run_path(constants.__file__)
    answers.append([values[name] for name in names])
json.dump(answers, sys.stdout)
"""


def environments(count):
    """Random environments, the same in every run."""
    chance = random.Random(45)
    for _ in range(count):
        chosen = {name: chance.choice(TEXTS) for name in VARIABLES}
        chosen["HOME"] = chance.choice(("/home/user", "/"))
        yield {name: text for name, text in chosen.items() if text is not None}


def answers_of_the_package(every):
    """Home, cache, path of the token and offline switch of the package in *every* environment."""
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps(every),
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return json.loads(done.stdout)


def enter(environment, monkeypatch):
    """Set the variables of *environment*, and no others that decide these values."""
    for name in (*VARIABLES, "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "BITNET_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)


def test_home_cache_and_token_path_are_those_of_huggingface_hub_in_every_environment(monkeypatch):
    every = list(environments(400))
    for environment, answer in zip(every, answers_of_the_package(every), strict=True):
        enter(environment, monkeypatch)
        home, cache, token, _ = answer
        assert settings.hugging_face_home() == Path(home), environment
        assert settings.hugging_face_cache() == Path(cache), environment
        assert settings.hugging_face_token_path() == Path(token), environment


def test_a_command_is_offline_wherever_huggingface_hub_is(monkeypatch):
    every = []
    for hub in SWITCHES:
        for transformers in SWITCHES:
            pair = {"HF_HUB_OFFLINE": hub, "TRANSFORMERS_OFFLINE": transformers}
            every.append({name: text for name, text in pair.items() if text is not None})
    for environment, answer in zip(every, answers_of_the_package(every), strict=True):
        enter(environment, monkeypatch)
        # The package reads TRANSFORMERS_OFFLINE only without HF_HUB_OFFLINE; here either counts.
        switches = {text.upper() for text in environment.values()}
        assert settings.offline() == bool({"1", "TRUE", "ON", "YES"} & switches), environment
        assert settings.offline() or not answer[-1], environment


@pytest.mark.parametrize("place", ["XDG_CACHE_HOME", "HF_HOME", "HF_TOKEN_PATH"])
def test_the_token_of_a_login_is_read_where_huggingface_hub_stores_it(place, tmp_path, monkeypatch):
    below = {"XDG_CACHE_HOME": "huggingface/token", "HF_HOME": "token", "HF_TOKEN_PATH": ""}
    monkeypatch.setenv("FOLDER", str(tmp_path / "a"))
    path = tmp_path / "a/b" / below[place]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("hf_of_a_login\n")
    monkeypatch.setenv(place, "$FOLDER/b")  # the package expands variables in each of them
    assert settings.access_token() == "hf_of_a_login"


# --- its layout, written by the package from a hub on loopback -----------------------------------

REPO = "org/one"
SMALL = b'{"model_type": "llama"}'


@pytest.fixture
def content(tmp_path, hub):
    """Bytes of the tiny model; the hub has it in REPO, beside a small file and a larger model."""
    model_bytes = tiny_gguf(tmp_path / "made.gguf").read_bytes()
    hub.add(REPO, "tiny.gguf", model_bytes)
    hub.add(REPO, "config.json", SMALL)
    hub.add(REPO, "sub/tiny-Q8_0.gguf", model_bytes + b" ")
    return model_bytes


@pytest.fixture
def download(hub, content, tmp_path, monkeypatch):
    """Function that fetches files with huggingface_hub, and returns their repository's folder."""
    cache = tmp_path / "hf"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))

    def run(*files, repo=REPO):
        for file in files:
            huggingface_hub.hf_hub_download(repo, file, cache_dir=cache, endpoint=hub.url)
        return cache / f"models--{repo.replace('/', '--')}"

    return run


def share(cache, blob, number=0):
    """Move *blob* into the package's shared store, as after a download with Xet.

    Returns its name there, made of *number*.
    """
    try:
        from huggingface_hub.utils import _shared_blobs as shared
    except ImportError:
        pytest.skip("huggingface_hub before 2.4 has no shared store")
    size = blob.stat().st_size
    name = f"{number:064x}"
    assert shared.publish_blob_to_shared_store(
        blob_path=str(blob), xet_hash=name, cache_dir=cache, expected_size=size
    )
    assert blob.is_symlink()
    return name


def share_all(root):
    """Have every large blob of the repository folder *root* in the shared store."""
    for number, blob in enumerate(sorted((root / "blobs").iterdir())):
        if len(blob.name) == 64:  # a SHA-256; small files have the SHA-1 of a git object
            share(root.parent, blob, number)


@pytest.mark.parametrize("is_shared", [False, True])
def test_files_of_a_revision_are_found_also_in_the_shared_store(download, content, hub, is_shared):
    root = download("tiny.gguf", "config.json", "sub/tiny-Q8_0.gguf")
    if is_shared:
        share_all(root)
    commit, files = hugging_face.files_of(REPO, "main")
    assert commit == hub.repos[REPO].revisions["main"]
    contents = {name: path.read_bytes() for name, path in files.items()}
    assert contents == {
        "tiny.gguf": content,
        "config.json": SMALL,
        "sub/tiny-Q8_0.gguf": content + b" ",
    }
    assert hugging_face.files_of(REPO, commit)[1].keys() == files.keys()
    assert hugging_face.files_of(REPO, "v2") == (None, {})


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("file", ["tiny.gguf", "config.json"])
def test_an_altered_file_in_the_cache_is_not_taken(download, hub, tmp_path, file, is_shared):
    root = download("tiny.gguf", "config.json")
    if is_shared:
        share_all(root)
    path = hugging_face.files_of(REPO, "main")[1][file].resolve()
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    project = Project(tmp_path, settings.cache_dir(), FetchOptions(offline=True), "none")
    (source,) = resolve(Ref("", repo=REPO, file=file), project)
    assert source.sha256 is None
    assert list(project.store.blobs()) == []


def test_a_large_file_is_read_once_and_only_if_it_is_needed(
    download, content, tmp_path, monkeypatch
):
    download("tiny.gguf", "config.json", "sub/tiny-Q8_0.gguf")
    read_names = []

    def count(path):
        if path.suffix == ".gguf":
            read_names.append(path.name)
        return open_file(path)

    open_file = files.open_file
    monkeypatch.setattr(files, "open_file", count)
    project = Project(tmp_path, settings.cache_dir(), FetchOptions(offline=True), "none")
    (source,) = resolve(Ref("", repo=REPO, file="tiny.gguf"), project)
    assert source.sha256 == hashlib.sha256(content).hexdigest()
    assert read_names == ["tiny.gguf"]
    assert resolve(Ref("", repo=REPO, file="tiny.gguf"), project) == [source]
    assert read_names == ["tiny.gguf"]


def test_only_links_to_blobs_of_the_repository_count_as_files_of_a_snapshot(
    download, content, tmp_path
):
    root = download("tiny.gguf")
    (snapshot,) = (root / "snapshots").iterdir()
    digest = (snapshot / "tiny.gguf").readlink().name
    elsewhere = tmp_path / digest
    elsewhere.write_bytes(content)
    (snapshot / "other.gguf").symlink_to(elsewhere)
    (snapshot / "plain.gguf").write_bytes(content)
    (snapshot / "broken.gguf").symlink_to("../../blobs/none")
    assert list(hugging_face.files_of(REPO, "main")[1]) == ["tiny.gguf"]


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_model_in_the_cache_or_the_shared_store_runs_offline_by_name(
    bitnet, download, hub, is_shared, monkeypatch
):
    root = download("tiny.gguf", "config.json")
    if is_shared:
        share_all(root)
    hub.close()
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    words = ("--prompt", "a", "--max-tokens", "1")
    done = bitnet("infer", f"hf:{REPO}", *words)
    assert done.code == 0, done.err
    done = bitnet("infer", f"hf:{REPO}:tiny.gguf", *words)
    assert done.code == 0, done.err


def test_a_second_repository_with_the_same_xet_file_is_taken_too(download, content, hub):
    """The package links it from the shared store, without a transfer of its own."""
    root = download("tiny.gguf")
    (blob,) = (path for path in (root / "blobs").iterdir())
    name = share(root.parent, blob, 7)
    hub.add("org/two", "same.gguf", content)
    second = root.parent / "models--org--two/blobs" / blob.name
    second.parent.mkdir(parents=True)
    from huggingface_hub.utils import _shared_blobs

    assert _shared_blobs.try_link_from_shared_store(
        blob_path=str(second), xet_hash=name, cache_dir=root.parent, expected_size=len(content)
    )
    download("same.gguf", repo="org/two")
    assert hugging_face.files_of("org/two", "main")[1]["same.gguf"].read_bytes() == content
    assert len(hugging_face.blobs_with(blob.name)) == 2
    store = Store(settings.cache_dir())
    assert store.find_anywhere(blob.name, len(content), None).path.read_bytes() == content


def test_every_snapshot_of_a_file_is_listed(download, hub):
    download("config.json")
    hub.add(REPO, "config.json", SMALL + b" ")
    download("config.json")
    contents = [path.read_bytes() for path in hugging_face.snapshots_of(REPO, "config.json")]
    assert sorted(contents) == [SMALL, SMALL + b" "]
    assert list(hugging_face.snapshots_of("org/none", "config.json")) == []


@pytest.mark.parametrize("name", ["a[1].json", "*.json", "a?.json", "[a]/x.json", "modèle.json"])
def test_a_file_is_found_in_a_snapshot_by_exactly_its_name(tmp_path, monkeypatch, name):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--org--one" / "snapshots" / "c1"
    (snapshot / "a").mkdir(parents=True)
    for other in ("a1.json", "ab.json", "b.json", "a/x.json"):
        (snapshot / other).write_bytes(b"other")
    assert list(hugging_face.snapshots_of("org/one", name)) == []
    path = snapshot / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"own")
    assert list(hugging_face.snapshots_of("org/one", name)) == [path]
