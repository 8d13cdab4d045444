"""A read-only cache, as in containers or of another user, serves the files that it has."""

import builtins
import errno
import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hub_repositories import LARGE_BYTES
from tiny_models import tiny_gguf

from bitnet.base.errors import Offline, PermissionDenied
from bitnet.base.files import sha256_of
from bitnet.cache.entries import entries, verify
from bitnet.hub import models
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.orders import order_of
from bitnet.hub.project import Project
from bitnet.hub.provide import fetch_source, provide
from bitnet.hub.ref import parse
from bitnet.sources import Source
from bitnet.store import Pin, Store, tree
from bitnet.tokenizer.from_files import TOKENIZER_FILES, order_names
from bitnet.tokenizer.side_files import SIDE_FILES

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="asks Linux what a descriptor is"
)


@pytest.fixture
def project(tmp_path):
    """An offline project; its cache has one file under two names, the first of them with a link."""
    path = tiny_gguf(tmp_path / "made.gguf")
    digest = sha256_of(path)
    store = Store(tmp_path / "cache")
    blob = store.adopt(path, digest)
    path.unlink()
    for repo in ("org/one", "org/two"):
        record = Pin("model", repo, "main", "tiny.gguf", None, digest, blob.size)
        store.index.write(record, *record.index_name)
    (tmp_path / "work").mkdir()
    project = Project(tmp_path / "work", store.root, FetchOptions(offline=True), "none")
    models.locate_model(parse("hf:org/one:tiny.gguf"), project, fetch=False)
    return project


@pytest.fixture
def read_only(monkeypatch):
    """Function that makes every call fail that would change a folder, as a read-only mount does."""

    def protect(root):
        def refuse_inside(path, folder=None):
            base = Path(f"/proc/self/fd/{folder}").readlink() if folder is not None else ""
            whole = os.path.realpath(os.path.join(base, os.fspath(path)))  # noqa: PTH118
            if Path(root) in Path(whole).parents:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(path))

        def wrap(name, number=0):
            real = getattr(os, name)

            def call(*args, **options):
                folder = options.get("dst_dir_fd", options.get("dir_fd"))
                if name == "mkdir" and os.path.isdir(args[0]) and folder is None:  # noqa: PTH112
                    return real(*args, **options)  # fails with EEXIST before EROFS
                refuse_inside(args[number], folder)
                return real(*args, **options)

            monkeypatch.setattr(os, name, call)

        for name in ("mkdir", "unlink", "rmdir", "chmod", "utime"):
            wrap(name)
        for name in ("rename", "replace", "link", "symlink"):
            wrap(name, 1)  # the second argument is the path that is created
        real_open = os.open
        real_io = io.open

        def opening(path, flags, *args, dir_fd=None, **options):
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                refuse_inside(path, dir_fd)
            return real_open(path, flags, *args, dir_fd=dir_fd, **options)

        def opening_file(file, mode="r", *args, **options):
            if set(mode) & set("wax+") and not isinstance(file, int):
                refuse_inside(file)
            return real_io(file, mode, *args, **options)

        monkeypatch.setattr(os, "open", opening)
        monkeypatch.setattr(io, "open", opening_file)
        monkeypatch.setattr(builtins, "open", opening_file)

    return protect


def test_a_model_in_a_cache_that_is_only_read_is_used_by_name(project, read_only):
    read_only(project.cache)
    with pytest.raises(OSError, match="Read-only"):  # the fixture works
        (project.cache / "store/x").write_bytes(b"")
    for name in ("org/one", "org/two"):  # the second has no link, and gets none
        path = models.locate_model(parse(f"hf:{name}:tiny.gguf"), project, fetch=False)
        assert path.read_bytes()[:4] == b"GGUF"


def test_a_model_of_several_files_is_used_without_its_links(project, read_only):
    store = project.store
    names = [f"tiny-0000{number}-of-00002.gguf" for number in (1, 2)]
    for name in names:
        (project.folder / name).write_bytes(b"GGUF" + name.encode())
        digest = sha256_of(project.folder / name)
        blob = store.adopt(project.folder / name, digest)
        (project.folder / name).unlink()
        record = Pin("model", "org/parts", "main", name, None, digest, blob.size)
        store.index.write(record, *record.index_name)
    read_only(project.cache)
    path = models.locate_model(parse("hf:org/parts"), project, fetch=False)
    assert path.name == names[0]
    assert project.cache not in path.parents
    assert [(path.parent / name).read_bytes() for name in names] == [
        b"GGUF" + name.encode() for name in names
    ]


WEIGHTS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
INDEX = "model.safetensors.index.json"
FOLDER = {
    "config.json": b'{"model_type": "llama"}',
    INDEX: json.dumps({"weight_map": dict(zip("ab", WEIGHTS, strict=True))}).encode(),
    "tokenizer.json": b'{"model": {}}',
    **{name: name.encode() for name in WEIGHTS},
}


def record(project, repo, files, kind="model"):
    """Put *files* into the store under their names, as a command in another folder leaves them."""
    for name, content in files.items():
        path = project.folder / "made"
        path.write_bytes(content)
        digest = sha256_of(path)
        assert project.store.adopt(path, digest) is not None
        path.unlink()
        pin = Pin(kind, repo, "main", name, None, digest, len(content))
        project.store.index.write(pin, *pin.index_name)


def test_a_folder_of_safetensors_is_used_without_its_links(project, read_only):
    record(project, "org/folder", FOLDER)
    read_only(project.cache)
    folder = models.locate_model(parse("hf:org/folder"), project, fetch=False)
    assert project.cache not in folder.parents
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FOLDER


@pytest.mark.parametrize("missing", ["config.json", *WEIGHTS])
def test_a_folder_without_all_of_its_weights_is_not_used(project, read_only, missing):
    present = {name: content for name, content in FOLDER.items() if name != missing}
    record(project, "org/folder", present)
    read_only(project.cache)
    with pytest.raises(Offline):
        models.locate_model(parse("hf:org/folder"), project, fetch=False)


def test_a_folder_without_an_index_is_not_used_if_a_part_of_its_weights_is_missing(
    project, read_only
):
    present = {name: FOLDER[name] for name in ("config.json", WEIGHTS[1])}
    record(project, "org/folder", present)  # the second of two parts, by its name
    read_only(project.cache)
    with pytest.raises(Offline):
        models.locate_model(parse("hf:org/folder"), project, fetch=False)


def locate_words(project, repo="org/words"):
    """Path of the tokenizer of *repo*, as `--tokenizer` finds it.

    It is in the cache or, of a cache that is only read, in a temporary folder of links.
    """
    return models.locate_tokenizer(
        parse(f"hf://{repo}"),
        project,
        names=TOKENIZER_FILES,
        beside=("merges.txt", *SIDE_FILES),
        check=lambda path: path.read_bytes(),
        order_names=order_names,
    )


def test_a_tokenizer_of_a_repository_is_used_without_its_links(project, read_only):
    files = {"tokenizer.json": b'{"model": {}}', "tokenizer_config.json": b"{}"}
    record(project, "org/words", files, "tokenizer")
    read_only(project.cache)
    path = locate_words(project)
    assert project.cache not in path.parents
    assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == files


def test_a_repository_without_a_recorded_tokenizer_needs_a_connection(project, read_only):
    record(project, "org/words", {"tokenizer_config.json": b"{}"}, "tokenizer")
    read_only(project.cache)
    with pytest.raises(Offline):
        locate_words(project)


def test_offline_the_models_type_decides_between_two_tokenizers_as_in_a_folder(project):
    tekken = {"tekken.json": b"{}", "tokenizer.json": b'{"model": {}}'}
    config = {"config.json": b'{"model_type": "ministral3"}'}
    record(project, "mistral/words", tekken | config, "tokenizer")
    record(project, "org/both", tekken, "tokenizer")
    # Models of Mistral have their original tokenizer in tekken.json.
    assert locate_words(project, "mistral/words").name == "tekken.json"
    assert locate_words(project, "org/both").name == "tokenizer.json"


def test_a_tokenizer_is_used_without_its_link(project, read_only):
    store = project.store
    content = json.dumps({"model": {"type": "BPE"}}).encode()
    (project.folder / "t.json").write_bytes(content)
    digest = sha256_of(project.folder / "t.json")
    assert store.adopt(project.folder / "t.json", digest) is not None
    record = Pin("tokenizer", "org/words", "main", "tokenizer.json", None, digest, len(content))
    store.index.write(record, *record.index_name)
    read_only(project.cache)
    source = Source("t", "org/words", vocab_size=5, cache_key="words")
    order = order_of(source, project, check=lambda path, size: None)
    (result,) = provide([order], replace(project, records=False), root=project.cache)
    assert (result.path.name, result.path.read_bytes()) == ("tokenizer.json", content)


@pytest.mark.parametrize("is_marked", [False, True])
def test_a_project_gets_its_file_from_a_cache_that_is_only_read(project, read_only, is_marked):
    source = Source("m", "org/two", "tiny.gguf")
    if is_marked:  # as one that another name replaced, which is forgotten at the next occasion
        for blob in project.store.blobs():
            tree.mark_path(project.store.folder, blob.sha256).touch()
    read_only(project.cache)
    result = fetch_source(source, project)
    assert result.path == project.folder / "models/org-two/tiny.gguf"
    assert result.path.read_bytes()[:4] == b"GGUF"
    assert project.lock_path.is_file()


def test_a_project_in_a_read_only_folder_downloads_to_another_folder_without_a_pin(
    project, read_only, tmp_path
):
    read_only(project.folder)
    source = Source("m", "org/two", "tiny.gguf")
    # The second folder is beside the project, too: `..` is resolved first.
    for folder in (tmp_path / "out", project.folder / "../dotted"):
        order = order_of(source, project, target=folder / "tiny.gguf")
        (result,) = provide([order], project, root=folder)
        assert result.path.is_file()
    assert not project.lock_path.exists()


def test_nothing_is_removed_from_a_cache_that_is_only_read(project, read_only):
    before = sorted(project.cache.rglob("*"))
    read_only(project.cache)
    with pytest.raises(PermissionDenied):
        models.remove_model(parse("hf:org/one"), project, dry_run=False)
    assert sorted(project.cache.rglob("*")) == before


def test_a_lock_file_left_by_a_killed_trial_of_locks_is_a_leftover_and_not_damage(project):
    (project.cache / "store/partial").mkdir(exist_ok=True)
    (project.cache / "store/partial/.lock-k3j4h5").touch()
    trials = [entry for entry in entries(project.cache) if entry.path.name.startswith(".lock-")]
    assert [entry.kind for entry in trials] == ["leftover"]
    checked = [entry for entry in entries(project.cache) if entry.kind != "leftover"]
    assert checked
    assert not [verify(entry).problem for entry in checked if verify(entry).problem]


def test_a_download_into_a_read_only_cache_is_a_permission_error(project, read_only, hub):
    hub.add("org/new", "tiny.gguf", b"GGUF" + bytes(LARGE_BYTES))
    read_only(project.cache)
    online = replace(project, options=FetchOptions(base_url=hub.url, retries=1))
    with pytest.raises(PermissionDenied):
        fetch_source(Source("m", "org/new", "tiny.gguf"), online)
    assert hub.sent("cdn") == 0
